"""The runbook loader: the shipped ones load, and every mistake is named by file, line and the nearest right word."""

from __future__ import annotations

import copy
import re
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from gpufix import resources
from gpufix.core.observations import OBSERVATIONS
from gpufix.core.runbook import Group, Leaf, Runbook, load_runbook
from gpufix.errors import ExitStatus, GpufixError
from gpufix.model import ROOT_CAUSES
from gpufix.session import read_runbooks

TEXT = resources.runbook_paths()[0].read_text(encoding="utf-8")
STEPS = ["relabel", "stop-vfio-manager", "disable-swap", "restart-kubelet", "verify"]


def load(text: str) -> Runbook:
    return load_runbook(
        text,
        file="book.yml",
        schema=resources.runbook_schema(),
        observations=list(OBSERVATIONS),
        findings=ROOT_CAUSES,
        playbooks=resources.playbook_names(),
    )


def test_the_shipped_runbooks_load_and_keep_the_order_of_the_steps() -> None:
    (book,) = read_runbooks()
    assert [step.id for step in book.steps] == STEPS
    assert len(book.digest) == 64
    assert [question.id for question in book.questions] == ["target_workload"]
    assert book.questions[0].default == "container"


def replaced(old: str, new: str) -> str:
    assert old in TEXT
    return TEXT.replace(old, new, 1)


@pytest.mark.parametrize(
    ("old", "new", "message", "hint"),
    [
        ("    timeout: 90\n", "    timout: 90\n", "unknown key 'timout' in steps.0", "timeout"),
        ("title: Revive", "titel: x\ntitle: Revive", "unknown key 'titel'", "title"),
        (
            "observation: swap.active\n          is: false\n          because: the kubelet refuses",
            "observation: swap.activ\n          is: false\n          because: x",
            "unknown observation 'swap.activ'",
            "swap.active",
        ),
        ("{{ node }} -L", "{{ nod }} -L", "no value 'nod'", "node"),
        ("for_each: swap_device", "for_each: swap_devices", "no values 'swap_devices'", "swap_device"),
        (
            "          for_each: swap_device\n",
            "",
            "there may be many of 'swap_device'",
            "for_each: swap_device",
        ),
        ("kubectl wait --for", "kubectl wait '--for", "a quote or a $( is not closed", "close it"),
        ("node/{{ node }} --timeout", "'node/{{ node }}' --timeout", "inside quotes", "out of the quotes"),
        ("sudo journalctl -u {{ unit }}", "sudo journalctl -u {{ units }}", "no value 'units'", "unit"),
        ("      diff: fstab\n", "      diff: fstap\n", "'fstap' is not one of ['fstab']", "runbook.schema.json"),
        (
            "      if_it_fails: >-\n        Forbidden",
            "      if_fails: >-\n        Forbidden",
            "if_fails",
            "if_it_fails",
        ),
        ("finding: swap-on", "finding: swap-off", "unknown finding 'swap-off'", "swap-on"),
        (
            "{answer: target_workload}",
            "{answer: target_workloat}",
            "unknown answer 'target_workloat'",
            "target_workload",
        ),
        ("default: container", "default: containers", "default 'containers' is no choice", "container"),
        (
            "playbook: relabel-node.yml",
            "playbook: relabel-nodes.yml",
            "no playbook 'relabel-nodes.yml'",
            "relabel-node.yml",
        ),
        (
            "    timeout: 90\n    skippable: true",
            "    timeout: 90\n    skippable: yes",
            "'yes' is not of type 'boolean'",
            "schema",
        ),
        ("title: Revive", "<<: {a: 1}\ntitle: Revive", "the merge key << is not allowed", "write the keys out"),
        ("title: Revive", "1: x\ntitle: Revive", "key 1 is not text", "quotes"),
        ("  - id: verify", "  - id: relabel", "step 'relabel' stands twice", "id of its own"),
        ("    timeout: 90\n", "    timeout: soon\n", "'soon' is not of type 'integer'", "schema"),
        ("version: 1", "version: 2", "1 was expected", "schema"),
        ("version: 1", "version: 1\nversion: 1", "key 'version' stands twice", "keep one"),
        (
            "              is: vm-passthrough\n",
            "              is: vm-passthru\n",
            "'vm-passthru' is no choice",
            "vm-passthrough",
        ),
    ],
)
def test_a_mistake_is_one_line_with_its_place_and_the_nearest_name(old: str, new: str, message: str, hint: str) -> None:
    text = replaced(old, new)
    with pytest.raises(GpufixError) as caught:
        load(text)
    assert message in caught.value.message
    assert hint in caught.value.hint
    assert caught.value.exit_status is ExitStatus.USAGE
    place, line, column, _ = caught.value.message.split(":", 3)
    assert int(column) > 0
    assert place == "book.yml"
    wrong = [
        number
        for number, (was, now) in enumerate(zip(TEXT.split("\n"), text.split("\n"), strict=False), 1)
        if was != now
    ]
    assert abs(int(line) - wrong[0]) <= 1 or message.startswith("step"), caught.value.message
    assert "\n" not in caught.value.message


@pytest.mark.parametrize(
    "text", ["", "{", "a: [", "\t", "- 1", "id: &a [*a]", "just words", "\x00", "a: !!python/object:os.system x"]
)
def test_broken_yaml_is_one_line(text: str) -> None:
    with pytest.raises(GpufixError) as caught:
        load(text)
    assert caught.value.message.startswith("book.yml:")
    assert "\n" not in caught.value.message


def test_a_mistake_points_at_the_key_or_at_the_value() -> None:
    for old, new, wrong in (("timeout: 90", "timout: 90", "timout"), ("timeout: 90", "timeout: soon", "soon")):
        text = replaced(old, new)
        before = text[: text.index(wrong, text.index(new))]
        with pytest.raises(GpufixError) as caught:
            load(text)
        line, column = before.count("\n") + 1, len(before) - before.rfind("\n")
        assert caught.value.message.startswith(f"book.yml:{line}:{column}: "), caught.value.message


def test_a_question_stands_once() -> None:
    block = TEXT[TEXT.index("  - id: target_workload") : TEXT.index("steps:")].rstrip() + "\n"
    with pytest.raises(GpufixError) as caught:
        load(TEXT.replace(block, block + block, 1))
    assert "question 'target_workload' stands twice" in caught.value.message


@given(
    st.integers(0, len(TEXT)), st.text(max_size=9) | st.sampled_from(["\ud800", "&a ", "!x ", "\t", "---\n", "<<: "])
)
@settings(deadline=None)  # two cores may be busy
def test_any_text_in_a_runbook_is_read_or_refused_with_its_place(at: int, junk: str) -> None:
    try:
        load(TEXT[:at] + junk + TEXT[at:])
    except GpufixError as error:
        assert re.match(r"book\.yml:[1-9]\d*:[1-9]\d*: ", error.message), error.message
        assert len(error.message.splitlines()) == 1


def paths(value: Any, path: tuple[str | int, ...] = ()) -> list[tuple[str | int, ...]]:
    found = [path] if path else []
    if isinstance(value, dict):
        for key, part in value.items():
            found += paths(part, (*path, key))
    elif isinstance(value, list):
        for index, part in enumerate(value):
            found += paths(part, (*path, index))
    return found


DATA = yaml.safe_load(TEXT)


@given(st.sampled_from(paths(DATA)), st.sampled_from([None, 7, "x", [], {}, {"x": 1}, "{{ lookup('pipe', 'id') }}"]))
@settings(deadline=None)  # two cores may be busy
def test_any_damaged_runbook_loads_or_is_refused_with_a_place(path: tuple[str | int, ...], junk: Any) -> None:
    damaged = copy.deepcopy(DATA)
    where = damaged
    for part in path[:-1]:
        where = where[part]
    where[path[-1]] = junk
    try:
        book = load(yaml.safe_dump(damaged, sort_keys=False))
    except GpufixError as error:
        assert error.message.startswith("book.yml:"), error.message
    else:
        assert book.steps


def test_conditions_are_data_and_nothing_else() -> None:
    book = load(TEXT)

    def leaves(condition: Leaf | Group) -> list[Leaf]:
        return (
            [condition] if isinstance(condition, Leaf) else [leaf for part in condition.parts for leaf in leaves(part)]
        )

    for step in book.steps:
        for leaf in leaves(step.done_when):
            assert leaf.kind in ("observation", "finding", "answer")
            assert leaf.because or leaf.kind == "answer", f"{step.id}: {leaf.name} does not say why it is awaited"


def test_a_step_by_hand_has_a_way_back_or_says_why_there_is_none() -> None:
    gone = "    irreversible: A kubelet that has started cannot be unstarted; what it started or killed stays so.\n"
    with pytest.raises(GpufixError, match=r"^book\.yml:\d+:\d+: there is no way back by hand") as caught:
        load(replaced(gone, ""))
    assert "irreversible" in caught.value.hint
