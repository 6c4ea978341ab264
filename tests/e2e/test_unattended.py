"""What holds without a person in the lab holds on the real node: the same test, the other world.

The stale plan's own test is left to the lab, for time; the one here ends with a stale plan too.
"""

from unattended import test_the_incident_is_recovered_unattended_from_an_edited_sample  # noqa: F401
