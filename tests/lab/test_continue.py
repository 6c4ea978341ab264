"""What holds of a run that is undone, or met by a second operator: the tests of both worlds, in the lab.

The run that is killed at every point of its journal is left to the real node, for time; tests/unit/test_resume.py kills
it at every line over the model.
"""

from continuing import (  # noqa: F401
    test_quit_then_recover_offers_it_and_undo_restores_the_start,
    test_two_operators_at_once_and_exactly_one_goes_on,
)
