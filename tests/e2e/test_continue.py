"""What holds of a run that is killed or undone: the tests of both worlds, on the real node.

The two operators are left to the lab, for time.
"""

from continuing import (  # noqa: F401
    test_killed_at_every_point_of_the_journal_and_resumed_each_time,
    test_quit_then_recover_offers_it_and_undo_restores_the_start,
)
