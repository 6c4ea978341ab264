"""The printed runbook: everything that a person needs is in it, and nothing in it can be anything but text."""

from __future__ import annotations

import itertools
import re
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from typing import Any

import html5lib
import pytest
from hands import blocks
from hypothesis import given, settings
from hypothesis import strategies as st
from markdown_it import MarkdownIt
from markdown_lint import complaints
from snapshots_for_tests import case, case_names, changed, diagnosis

from gpufix import resources
from gpufix.core.hand_values import values_of
from gpufix.core.invariants import RULE_TEXTS
from gpufix.core.parse import parse_snapshot
from gpufix.core.render.chain_figure import chain_figure
from gpufix.core.render.document import Block, Case, Document, Making, build_document, narrow
from gpufix.core.render.pages import render
from gpufix.core.runbook import Condition, Group, Leaf, Runbook
from gpufix.model import Observation, Snapshot, SwapDevice
from gpufix.session import read_runbooks

INCIDENT = "trace-1-kubelet-dead"
MAKING = Making(
    "1.2.3", "2026-12-02 10:00 UTC", resources.fstab_module().comment_swap, resources.swaps_module().choose_verb
)


@cache
def book() -> Runbook:
    return read_runbooks()[0]


def case_of(snapshot: Snapshot, target: str = "container") -> Case:
    facts, files = parse_snapshot(snapshot), snapshot.files
    return Case(facts, diagnosis(snapshot), files, snapshot.node, {"target_workload": target}, True)


def document(name: str = INCIDENT, target: str = "container") -> Document:
    return build_document(book(), MAKING, case_of(case(name), target))


def general() -> Document:
    return build_document(book(), MAKING)


def page(made: Document, form: str = "md") -> str:
    return render(f"runbook.{form}.j2", resources.template_texts(), {}, {"doc": made, "language": "en"})


def all_blocks(made: Document) -> Iterator[Block]:
    yield made.open_node
    for step in made.steps:
        for kind in ("check", "commands", "verify", "undo"):
            yield from getattr(step, kind)


def leaves(condition: Condition) -> Iterator[Leaf]:
    if isinstance(condition, Leaf):
        yield condition
    else:
        for part in condition.parts:
            yield from leaves(part)


def forge() -> MarkdownIt:
    """Markdown as a forge reads it: tables, and links made of addresses, but not of any word with a dot."""
    parser = MarkdownIt("gfm-like")
    assert parser.linkify is not None
    parser.linkify.set({"fuzzy_link": False, "fuzzy_email": False})
    return parser


def text_of_markdown(text: str) -> str:
    """What a reader of the rendered Markdown sees."""
    tokens = forge().parse(text)
    return "\n".join(
        "".join(child.content if child.type != "softbreak" else "\n" for child in token.children)
        if token.type == "inline" and token.children is not None
        else token.content
        for token in tokens
    )


def text_of_html(text: str) -> str:
    return "".join(html5lib.parse(text, namespaceHTMLElements=False).itertext())


# --- what is in it ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", case_names())
@pytest.mark.parametrize("target", ["container", "vm-passthrough"])
def test_every_case_prints_and_its_commands_are_bash(name: str, target: str) -> None:
    made = document(name, target)
    typed = blocks(page(made))
    assert [one.text for one in typed if one.heading != "Fill in these first"] == [
        one.shell for one in all_blocks(made)
    ]
    script = "\n".join(f"f{number}() {{\n{one.text}\n}}" for number, one in enumerate(typed))
    done = subprocess.run(["/bin/bash", "-n"], input=script, text=True, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "{{" not in "".join(one.text for one in typed)
    assert made.title in text_of_html(page(made, "html"))


@pytest.mark.parametrize("form", ["md", "html"])
@pytest.mark.parametrize("made", [document(), general()], ids=["incident", "general"])
def test_each_step_has_all_that_a_person_needs(made: Document, form: str) -> None:
    read = text_of_markdown if form == "md" else text_of_html
    text = " ".join(read(page(made, form)).split())
    for number, step in enumerate(book().steps, 1):
        assert f"Step {number}: {step.title}" in text
        assert step.why in text
        assert step.risk in text
        assert step.irreversible in text
        assert f"Before step {number}" in text
        assert f"After step {number}" in text
        assert f"If step {number} fails" in text
        assert (f"Undo step {number}" in text) == bool(step.playbook)
        assert (f"Do step {number}" in text) == bool(step.playbook)
        hand = made.steps[number - 1]
        assert hand.check and hand.verify and hand.if_it_fails
        assert not step.playbook or hand.undo or hand.irreversible
        for block in (*hand.check, *hand.commands, *hand.verify, *hand.undo):
            assert " ".join(block.shell.split()) in text
        for leaf in leaves(narrow(step.done_when, (made.incident and {"target_workload": "container"}) or {})):
            assert leaf.kind != "observation" or leaf.name in text
            assert leaf.because in text
    assert text.count("Initials") == len(book().steps)
    for words in ("Final verification", "Sign-off", "Prerequisites and access", book().digest, "1.2.3", MAKING.at):
        assert words in text
    for words in (*book().access, book().console, *(rule.forbids for rule in RULE_TEXTS)):
        assert words in text


def test_the_diagnosis_is_in_it_with_its_evidence_and_the_vms() -> None:
    made = document()
    found = diagnosis(case(INCIDENT))
    for text in (text_of_markdown(page(made)), text_of_html(page(made, "html"))):
        assert found.root_cause.summary in text
        for link in found.chain:
            assert link.title in text
            assert link.evidence[0].source in text
        for vm in found.affected:
            assert f"{vm.namespace}/{vm.name}" in text
            assert all(resource in text for resource in vm.resources)
        assert "running with swap on is not supported" in text
        assert "will still be ErrorUnschedulable" in text
        assert "Who uses the card on the host" in text


def test_order_rules_stand_at_the_steps_that_they_are_about() -> None:
    rules = {step.id: [rule.id for rule in step.rules] for step in document().steps}
    assert rules == {
        "relabel": ["O1"],
        "stop-vfio-manager": ["O1"],
        "disable-swap": ["O1", "O3"],
        "restart-kubelet": ["O1", "O2"],
        "verify": [],
    }


def test_names_paths_and_units_of_the_node_are_in_the_commands() -> None:
    shell = "\n".join(one.shell for one in all_blocks(document()))
    for word in ("omen2", "swapoff -- /swapfile", "stop kubelet.service", "4668b40bfe68", "config=vm-passthrough"):
        assert word in shell
    assert "+#/swapfile none swap sw 0 0" in page(document())
    assert "Fill in these first" in page(document()), "this capture has no swap units"


def test_the_choice_decides_which_commands_there_are() -> None:
    container = {one.shell for one in all_blocks(document())}
    passthrough = {one.shell for one in all_blocks(document(target="vm-passthrough"))}
    assert any("deploy.vfio-manager-" in shell for shell in container)
    assert not any("deploy.vfio-manager-" in shell for shell in passthrough)
    assert "left out" in page(document(target="vm-passthrough"))
    assert sum(one.only_if is not None for one in all_blocks(general())) > 3


def test_a_runbook_that_does_not_fit_says_so() -> None:
    wrong = replace(case_of(case(INCIDENT)), fits=False)
    for form in ("md", "html"):
        assert "is not for this incident" in page(build_document(book(), MAKING, wrong), form)
        assert "is not for this incident" not in page(document(), form)


def test_a_step_without_words_for_hands_names_its_playbook() -> None:
    bare = replace(book(), steps=tuple(replace(step, by_hand=None) for step in book().steps))
    for form in ("md", "html"):
        text = page(build_document(bare, MAKING, case_of(case(INCIDENT))), form)
        assert "disable-swap.yml" in text
        assert "swapoff --" not in text


def test_narrow_keeps_what_the_answers_leave_open() -> None:
    open_leaf = Leaf("observation", "swap.active", "is", False)
    chosen, other = Leaf("answer", "q", "is", "a"), Leaf("answer", "q", "is", "b")
    condition = Group("any", (Group("all", (chosen, open_leaf)), Group("all", (other, chosen))))
    assert narrow(condition, {"q": "a"}) == open_leaf
    assert narrow(condition, {}) == condition
    assert narrow(Group("not", (other,)), {"q": "a"}) == Group("all", ())


def test_the_rules_in_the_docs_are_the_rules() -> None:
    path = resources.playbook_path("read-node.yml").parents[1] / "docs" / "order-rules.md"
    rows = re.findall(r"^\| (O\d) \| (.*?) \| (.*?) \|$", path.read_text(encoding="utf-8").replace("`", ""), re.M)
    assert rows == [(rule.id, rule.forbids, rule.why) for rule in RULE_TEXTS]


# --- by hand is what the playbooks do --------------------------------------------------------------------------------


def command(marker: str) -> str:
    hand = next(step.by_hand for step in book().steps if step.id == "disable-swap")
    assert hand is not None
    return next(one.run for one in (*hand.check, *hand.commands) if marker in one.run)


fields = st.text(st.sampled_from("#swap,a/=\\\xe9"), min_size=0, max_size=6)
gaps = st.text(st.sampled_from(" \t"), min_size=0, max_size=2)
fstab_lines = st.lists(st.one_of(fields, gaps, st.just("swap"), st.sampled_from(["\r", "\x0b", "\xa0"])), max_size=10)


@settings(max_examples=120, deadline=None)
@given(st.lists(fstab_lines.map("".join), max_size=6), st.booleans())
def test_the_edit_of_fstab_is_the_playbooks_own(lines: list[str], last_ending: bool) -> None:
    text = "\n".join(lines) + ("\n" if last_ending and lines else "")
    program = re.search(r"sed -i -E ('.*?') ", command("sed -i"))
    assert program is not None
    done = subprocess.run(
        ["/bin/bash", "-c", f"LC_ALL=C sed -E {program[1]}"], input=text.encode(), capture_output=True, check=True
    )
    assert done.stdout == resources.fstab_module().comment_swap(text).encode()


@settings(max_examples=60, deadline=None)
@given(
    st.integers(0, 10**9), st.lists(st.integers(0, 10**8), max_size=3), st.sampled_from([0, 1, 2]),
    st.tuples(st.integers(0, 10**9), st.integers(0, 10**9), st.integers(0, 10**9)), st.booleans(),
)  # fmt: skip
def test_the_memory_check_is_the_playbooks_own(
    tmp_path_factory: pytest.TempPathFactory,
    available: int,
    used: list[int],
    mode: int,
    limits: tuple[int, int, int],
    whole: bool,
) -> None:
    modules = resources.swaps_module()
    folder = tmp_path_factory.mktemp("proc")
    names = ("CommitLimit", "SwapTotal", "Committed_AS")
    memory = {"MemAvailable": available, **dict(zip(names, limits, strict=True))} if whole else {"SwapTotal": 1}
    (folder / "meminfo").write_text("".join(f"{name}: {value} kB\n" for name, value in memory.items()))
    swaps = "Filename Type Size Used Priority\n" + "".join(f"/s{n} file 9 {kib} -2\n" for n, kib in enumerate(used))
    (folder / "swaps").write_text(swaps)
    (folder / "overcommit").write_text(f"{mode}\n")
    script = command("MemAvailable").replace("/proc/sys/vm/overcommit_memory", str(folder / "overcommit"))
    script = script.replace("/proc/meminfo", str(folder / "meminfo")).replace("/proc/swaps", str(folder / "swaps"))
    said = subprocess.run(["/bin/bash", "-c", script], capture_output=True, text=True, check=True).stdout
    fits, _ = modules.judge_memory(modules.parse_swaps(swaps), memory, mode)
    assert said.startswith("enough: " if fits else "TOO LITTLE: ")


def test_units_are_switched_off_as_the_playbook_does() -> None:
    show = "\n\n".join(
        f"Id={name}.swap\nWhat=/{name}\nFragmentPath={fragment}\nSourcePath=\nActiveState=inactive\nUnitFileState={state}"
        for name, fragment, state in [
            ("a", "/etc/systemd/system/a.swap", "enabled"),
            ("b", "/etc/systemd/system/b.swap", "static"),
            ("c", "/usr/lib/systemd/system/c.swap", "enabled"),
            ("d", "/run/systemd/generator.late/d.swap", "generated"),
            ("e", "/etc/systemd/system/e.swap", "disabled"),
        ]
    )
    snapshot = changed(case(INCIDENT), {"host/swap_units": show + "\n"})
    known = values_of(parse_snapshot(snapshot), "omen2", {}, snapshot.files, MAKING.choose_verb)
    assert known["swap_unit_to_disable"] == ("a.swap",)
    assert known["swap_unit_file_to_set_aside"] == ("/etc/systemd/system/b.swap",)
    assert known["swap_unit_to_mask"] == ("b.swap", "c.swap", "d.swap")


@pytest.mark.parametrize(
    ("files", "socket"),
    [
        ({}, "/run/containerd/containerd.sock"),
        ({"host/unit": "k3s-agent.service\n"}, "/run/k3s/containerd/containerd.sock"),
        (
            {"host/kubelet_config": "a: b\ncontainerRuntimeEndpoint: unix:///run/crio/crio.sock\n"},
            "/run/crio/crio.sock",
        ),
        (
            {
                "host/kubelet_config": "containerRuntimeEndpoint: /a.sock\n",
                "host/kubelet_flags": "# from x\n--container-runtime-endpoint=unix:///b.sock\n",
            },
            "/b.sock",
        ),
    ],
)
def test_the_runtime_is_asked_where_the_kubelet_asks_it(files: dict[str, str], socket: str) -> None:
    snapshot = changed(case(INCIDENT), {"host/kubelet_flags": None, "host/kubelet_config": None, **files})
    known = values_of(parse_snapshot(snapshot), "omen2", {}, snapshot.files, MAKING.choose_verb)
    assert known["runtime_socket"] == socket


# --- hostile text ----------------------------------------------------------------------------------------------------

HOSTILE = (
    "<script>alert(1)</script><img src=x onerror=alert(2)>\"'&amp; **bold** [x](javascript:alert(3)) ![y](http://z/) "
    "`code` {{ 7*7 }} {% for %} https://evil.example www.evil.example a@b.example | ~~gone~~ $x$ <!-- \x1b[2J \u202e"
)


def hostile(node: str = HOSTILE) -> Document:
    """Every text that came from outside, hostile."""
    snapshot = changed(case(INCIDENT), {"host/fstab": f"{HOSTILE}\n````\n/swapfile none swap sw 0 0\n"})
    made = case_of(snapshot)
    found = made.diagnosis

    def evil(evidence: Any) -> Any:
        return tuple(replace(one, source=HOSTILE, excerpt=f"```\n# {HOSTILE}\n- x") for one in evidence)

    found = replace(
        found,
        node=node,
        root_cause=replace(found.root_cause, summary=HOSTILE),
        chain=tuple(
            replace(one, title=f"1. {HOSTILE}", detail=f"# {HOSTILE}", evidence=evil(one.evidence))
            for one in found.chain
        ),
        alternatives=tuple(replace(one, by=HOSTILE) for one in found.alternatives),
        affected=tuple(replace(one, name=HOSTILE, status=HOSTILE, reason=f"- {HOSTILE}") for one in found.affected),
        unread={HOSTILE: HOSTILE},
        warnings=(HOSTILE, "> " + HOSTILE),
    )  # fmt: skip
    device = SwapDevice(f"/{HOSTILE}", "file", 1, 1)
    facts = replace(made.facts, node_name=node, swaps=Observation.of((device,)))
    return build_document(book(), MAKING, replace(made, facts=facts, diagnosis=found, host=HOSTILE))


def test_hostile_text_is_only_text_in_html() -> None:
    text = page(hostile(), "html")
    tree = html5lib.parse(text, namespaceHTMLElements=False)
    assert [element.tag for element in tree.iter() if element.tag in ("script", "img", "iframe", "b")] == []
    assert not [name for element in tree.iter() for name in element.attrib if name.startswith("on")]
    assert {href for element in tree.iter() for href in [element.get("href", "#")] if href[0] != "#"} == set()
    seen = "".join(tree.itertext())
    assert seen.count("<script>alert(1)</script>") > 20
    assert "{{ 7*7 }}" in seen
    assert "\x1b" not in text
    assert "\u202e" not in text


def test_hostile_text_is_only_text_in_markdown() -> None:
    text = page(hostile())
    tokens = forge().parse(text)
    inline = [child for token in tokens for child in token.children or ()]
    assert {token.type for token in (*tokens, *inline)} & {
        "html_block",
        "html_inline",
        "image",
        "link_open",
        "s_open",
    } == set()
    headings = [token for token in tokens if token.type == "heading_open"]
    assert len(headings) == len([t for t in forge().parse(page(document())) if t.type == "heading_open"])
    assert "{{ 7*7 }}" in text_of_markdown(text)
    assert text_of_markdown(text).count("<script>alert(1)</script>") > 20
    assert "**bold**" in text_of_markdown(text)
    assert "\x1b" not in text
    assert "\u202e" not in text


def test_a_hostile_name_in_a_command_stays_one_word() -> None:
    (swapoff,) = [one.shell for one in all_blocks(hostile()) if "swapoff --" in one.shell]
    program = f"sudo() {{ printf '%s\\0' \"$@\"; }}\n{swapoff}"
    done = subprocess.run(["/bin/bash", "--norc", "-c", program], capture_output=True, check=True)
    assert done.stdout.decode().split("\0")[:-1] == ["swapoff", "--", f"/{HOSTILE}"]
    assert swapoff in [one.text for one in blocks(page(hostile()))], "and the page has it to the letter"


def test_secrets_do_not_reach_the_paper() -> None:
    line = "//nas/swap /mnt cifs user=a,password=hunter2 0 0\n/swapfile none swap pri=1,password=hunter3 0 0\n"
    made = build_document(book(), MAKING, case_of(changed(case(INCIDENT), {"host/fstab": line})))
    for form in ("md", "html"):
        assert "hunter" not in page(made, form)


# --- the forms -------------------------------------------------------------------------------------------------------


@pytest.mark.dev  # two seconds a page
@pytest.mark.parametrize("name", sorted({INCIDENT, *case_names()[::4]}))
def test_the_markdown_passes_a_linter(name: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    files = {"incident": document(name)}
    if name == INCIDENT:
        files |= {"general": general(), "hostile": hostile("omen2")}
    folder = tmp_path_factory.mktemp("pages")
    assert complaints({kind: page(made) for kind, made in files.items()}, folder) == []


@pytest.mark.parametrize("made", [document(), general(), hostile()], ids=["incident", "general", "hostile"])
def test_the_html_is_whole_accessible_and_alone(made: Document) -> None:
    text = page(made, "html")
    html5lib.HTMLParser(strict=True).parse(text)  # raises at the first mistake
    tree = html5lib.parse(text, namespaceHTMLElements=False)
    ids = [element.get("id") for element in tree.iter() if element.get("id")]
    assert len(ids) == len(set(ids))
    assert tree.get("lang") == "en"
    for element in tree.iter():
        for name in ("aria-labelledby", "href"):
            for target in element.get(name, "").split():
                assert target.lstrip("#") in ids
        assert not {"src", "srcset", "style"} & set(element.attrib)
    levels = [
        int(element.tag[1])
        for element in tree.iter()
        if isinstance(element.tag, str) and re.fullmatch("h[1-6]", element.tag)
    ]
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(after <= before + 1 for before, after in itertools.pairwise(levels))
    assert {"main", "nav", "header", "footer"} <= {element.tag for element in tree.iter()}
    assert "http" not in text.split("<style>")[1].split("</style>")[0]
    assert not re.search(r"url\(|@import|<link|<script", text)
    assert all(header.get("scope") for header in tree.iter("th"))


def test_the_figure_tells_states_by_shape_and_word() -> None:
    made = document()
    assert made.incident is not None
    states = ["confirmed", "refuted", "unknown", "suspected", "confirmed"]
    figure = chain_figure([(f"link {state} " * 6, state) for state in states])
    text = page(replace(made, incident=replace(made.incident, figure=figure)), "html")
    tree = html5lib.parse(text, namespaceHTMLElements=False)
    svg = next(element for element in tree.iter() if str(element.tag).endswith("svg"))
    shapes = [element for element in svg.iter() if str(element.tag).endswith(("rect", "polygon"))]
    looks = [(one.tag, one.get("rx"), one.get("stroke-dasharray"), one.get("stroke-width")) for one in shapes]
    assert len(set(looks[:4])) == 4
    assert looks[0] == looks[4]
    words = ["".join(element.itertext()) for element in svg.iter() if element.get("font-weight") == "bold"]
    assert words == states
    assert {element.tag.rpartition("}")[2] for element in svg} >= {"title", "desc"}
    tops = [float(one.get("y")) for one in shapes if one.get("y")]
    assert tops == sorted(tops)


def luminance(colour: str) -> float:
    parts = [int(colour[index : index + 2], 16) / 255 for index in (1, 3, 5)]
    linear = [part / 12.92 if part <= 0.03928 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def test_the_colours_can_be_told_apart() -> None:
    css = resources.template_texts()["runbook.css.j2"][0]
    rules = re.findall(r"([^{}]+)\{([^{}]*)\}", css)
    pairs = 0
    for selector, body in rules:
        colour = re.search(r"(?:^|[;\s])color: (#\w{6})", body)
        ground = re.search(r"background: (#\w{6})", body)
        if colour is None:
            continue
        assert ground is not None or "@" in selector, f"{selector}: its background is not said"
        light, dark = sorted((luminance(colour[1]), luminance(ground[1] if ground else "#ffffff")), reverse=True)
        assert (light + 0.05) / (dark + 0.05) >= 4.5, selector
        pairs += 1
    assert pairs >= 8
    assert not re.search(r"color:\s*(?!#)\w", css.replace("background-color", "")), (
        "every colour is one that is checked"
    )
