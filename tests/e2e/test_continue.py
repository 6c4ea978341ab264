"""What holds of a killed run in the lab holds on the real node: the same tests, the other world."""

from continuing import *  # noqa: F403
