"""Every incident in tests/cases: the right root cause, nothing confirmed that must not be, and evidence that stands in
the file it names. A new folder with a case.yml is a new test; no code is needed."""

from __future__ import annotations

import re

import pytest
import yaml
from snapshots_for_tests import CASES, case, case_names, changed, diagnosis, expectation

from gpufix.model import Evidence, Snapshot, Status

LINKS = ["kubelet-down", "node-not-ready", "gpu-stack-gone", "vms-unschedulable"]
UNKNOWN_OK = yaml.safe_load((CASES / "unknown-ok.yml").read_text(encoding="utf-8"))["unknown_ok"]


def accepted(name: str) -> set[str]:
    expected = expectation(name)
    return {expected["root_cause"], *expected.get("also_ok", []), *(["unknown"] if name in UNKNOWN_OK else [])}


def stands_in(evidence: Evidence, snapshot: Snapshot) -> bool:
    """The excerpt is in the named file, on the named line where the source has one."""
    path = re.split(r"[ :]", evidence.source, maxsplit=1)[0]
    line = re.fullmatch(r"[^ :]+:(\d+)", evidence.source)
    text = snapshot.files[path]
    if line:
        return text.split("\n")[int(line.group(1)) - 1].rstrip("\r") == evidence.excerpt
    return bool(evidence.excerpt) and evidence.excerpt in text


@pytest.mark.parametrize("name", case_names())
def test_root_cause(name: str) -> None:
    found = diagnosis(case(name)).root_cause
    assert found.id in accepted(name), found.summary
    assert (found.status is Status.UNKNOWN) == (found.id == "unknown")
    assert found.summary


@pytest.mark.parametrize("name", case_names())
def test_nothing_is_confirmed_that_must_not_be(name: str) -> None:
    found = diagnosis(case(name))
    claims = [(found.root_cause.id, found.root_cause.status)]
    claims += [(entry.id, entry.status) for entry in (*found.chain, *found.alternatives)]
    confirmed = {claimed for claimed, status in claims if status is Status.CONFIRMED}
    assert not confirmed & set(expectation(name).get("must_not_confirm", []))


@pytest.mark.parametrize("name", case_names())
def test_chain_and_evidence(name: str) -> None:
    snapshot = case(name)
    found = diagnosis(snapshot)
    assert [link.id for link in found.chain[1:]] == LINKS
    assert found.chain[0].id == ("swap-on" if found.root_cause.id == "healthy" else found.root_cause.id)
    for claim in (*found.chain, *found.alternatives, found.root_cause):
        if claim.status in (Status.CONFIRMED, Status.REFUTED):
            assert claim.evidence, claim
        for evidence in claim.evidence:
            assert stands_in(evidence, snapshot), evidence
    for vm in found.affected:
        assert all(stands_in(evidence, snapshot) for evidence in vm.evidence)
    assert found.root_cause.id not in {alternative.id for alternative in found.alternatives}


@pytest.mark.parametrize("name", case_names())
def test_without_any_one_file_nothing_wrong_is_confirmed(name: str) -> None:
    snapshot = case(name)
    for path in snapshot.files:
        found = diagnosis(changed(snapshot, {path: None})).root_cause
        if found.status is Status.CONFIRMED:
            assert found.id in accepted(name), f"without {path}: {found.summary}"


@pytest.mark.parametrize("name", case_names())
def test_a_file_cut_short_confirms_nothing_wrong(name: str) -> None:
    snapshot = case(name)
    forbidden = set(expectation(name).get("must_not_confirm", []))
    for path, text in snapshot.files.items():
        lines = text.split("\n")
        for share in (0.0, 0.35, 0.7, 0.95):
            keep = int(len(lines) * share)
            for part in (
                "\n".join(lines[:keep]),
                "\n".join(lines[len(lines) - keep :]),
                text[: int(len(text) * share)],
            ):
                found = diagnosis(changed(snapshot, {path: part})).root_cause
                if found.status is Status.CONFIRMED:
                    assert found.id in accepted(name), f"{path} cut to {share}: {found.summary}"
                    assert found.id not in forbidden
