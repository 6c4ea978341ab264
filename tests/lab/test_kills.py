"""kill -9 at random points (kills.py): every run is gone on with to the end of one that nobody disturbed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from kills import REAL, SHORT, Chains, Study, counted, difference, killed

Record = Callable[[str, Any], None]


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


def kill_and_resume(chains: Chains, study: Study, seed: int, record: Record, each: int) -> int:
    chain = study.run(chains, seed, each)
    assert not (told := difference(chain, study.undisturbed[chain.undo])), told
    record("kills", dict(counted([chain])))
    record("through", "ansible-runner" if chains.door.real else "the short door")
    return killed(chain)


@pytest.mark.parametrize("seed", range(1, 11))
def test_killed_again_and_again(chains: Chains, study: Study, record_property: Record, seed: int) -> None:
    assert kill_and_resume(chains, study, seed, record_property, each=24) >= 15


def test_killed_again_and_again_through_ansible_runner(real: Chains, study: Study, record_property: Record) -> None:
    assert kill_and_resume(real, study, 101, record_property, each=24) >= 20


def test_both_doors_come_to_the_same_end_by_the_same_steps(real: Chains, study: Study) -> None:
    through = real.run(0)
    assert not (told := difference(through, study.undisturbed[False])), told
    assert through.lines == study.undisturbed[False].lines
