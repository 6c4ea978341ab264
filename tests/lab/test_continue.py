"""What holds of a killed run on the real node holds in the lab: the same tests, the other world."""

from continuing import *  # noqa: F403
