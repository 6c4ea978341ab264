"""What holds on the real node holds in the lab: the same tests, the other world."""

from recoveries import *  # noqa: F403
