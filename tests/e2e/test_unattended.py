"""What holds without a person in the lab holds on the real node: the same tests, the other world."""

from unattended import *  # noqa: F403
