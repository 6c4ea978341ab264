"""kill -9 at random points (kills.py): every run is gone on with to the end of one that nobody disturbed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from kills import REAL, SHORT, Chains, Study, counted, difference

Record = Callable[[str, Any], None]
EACH = 24
"""Points that a chain is armed with; it comes by nearly all of them."""


@pytest.fixture(scope="module")
def chains(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Chains]:
    with Chains(tmp_path_factory.mktemp("short"), SHORT) as through:
        yield through


@pytest.fixture(scope="module")
def study(chains: Chains) -> Study:
    found = Study(chains)
    for chain in found.undisturbed.values():
        assert (chain.status, chain.kills, chain.broken, chain.trouble) == (0, [], [], ""), chain
        assert set(chain.steps.values()) == {"done"} and chain.end["unknown"] == [] and chain.end["job"] == "alive"
    return found


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Chains]:
    with Chains(tmp_path_factory.mktemp("real"), REAL) as through:
        yield through


def kill_and_resume(chains: Chains, study: Study, seed: int, undo: bool, record: Record, each: int = EACH) -> int:
    chain = chains.run(seed, study.draw(seed, undo, each, chains.door.real), undo=undo)
    assert not (told := difference(chain, study.undisturbed[undo])), told
    record("kills", dict(counted([chain])))
    record("through", "ansible-runner" if chains.door.real else "the short door")
    return len(chain.kills)


@pytest.mark.parametrize("seed", range(1, 12))
def test_killed_again_and_again(chains: Chains, study: Study, record_property: Record, seed: int) -> None:
    undo = seed % 4 == 0
    assert kill_and_resume(chains, study, seed, undo, record_property) >= (10 if undo else 16)


@pytest.mark.parametrize("seed", [101, 102])
def test_killed_again_and_again_through_ansible_runner(
    real: Chains, study: Study, record_property: Record, seed: int
) -> None:
    assert kill_and_resume(real, study, seed, False, record_property, each=14) >= 10


def test_both_doors_come_to_the_same_end_by_the_same_steps(real: Chains, study: Study, tmp_path: Path) -> None:
    through = real.run(0)
    assert not (told := difference(through, study.undisturbed[False])), told
    assert through.lines == study.undisturbed[False].lines
