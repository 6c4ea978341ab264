"""The answers file: every mistake has its place, what is saved is read back, no consent goes further than it says."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from typing import Any

import jsonschema
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from gpufix import resources
from gpufix.core.answers import (
    Answer,
    Answers,
    Origin,
    StepConsent,
    consent_problem,
    file_problem,
    load_answers,
    missing_answers,
    missing_problem,
    override,
    plan_problem,
)
from gpufix.core.answers_format import answers_schema, sample, saved
from gpufix.core.checked_yaml import read_yaml
from gpufix.core.runbook import ALWAYS, NEVER, Choice, Group, Leaf, Question, Runbook, RunbookStep
from gpufix.errors import ExitStatus, GpufixError
from gpufix.session import read_runbooks
from gpufix.text import safe

(BOOK,) = read_runbooks()
DIGEST = "sha256:" + "ab" * 32


def step(id: str, **more: Any) -> RunbookStep:
    return RunbookStep(id, f"Do {id}", "why", ALWAYS, 10, **{"playbook": "relabel-node.yml", **more})


def choices(*values: str) -> tuple[Choice, ...]:
    return tuple(Choice(value, f"label of {value}", f"what {value} means") for value in values)


NORWAY = Runbook(
    "norway",
    "Words that YAML 1.1 reads as something else",
    "",
    ALWAYS,
    (Question("on", "Reboot?", "no", choices("yes", "no", "on", "1", "", "true", "null", "2026-01-01")),),
    (step("true", skippable=True), step("null"), step("watch", playbook="")),
)
BOOKS = [BOOK, NORWAY]

GOOD = f"""\
# by hand
version: 1
runbook: revive-kubelet-swap
node: omen2
answers:
  target_workload: vm-passthrough
consent:
  relabel: true
  stop-vfio-manager: omen2
  disable-swap: {{consent: skip, plan: {DIGEST}}}
  restart-kubelet: {{consent: omen2, kills: [4242, 7]}}
"""


def load(text: str) -> Answers:
    return load_answers(text, "answers.yml", BOOKS)[0]


def refused(text: str) -> GpufixError:
    with pytest.raises(GpufixError) as caught:
        load(text)
    check_refusal(caught.value)
    return caught.value


def check_refusal(error: GpufixError) -> None:
    assert re.match(r"answers\.yml:[1-9][0-9]*:[1-9][0-9]*: \S", error.message), error.message
    for text in (error.message, error.hint):
        assert len(text.splitlines()) <= 1 and safe(text) == text and len(text) < 400, ascii(text)
    assert error.exit_status is ExitStatus.USAGE


def test_a_good_file_is_read_with_the_place_of_each_word() -> None:
    answers, book = load_answers(GOOD, "answers.yml", BOOKS)
    assert book is BOOK
    assert (answers.file, answers.runbook_id, answers.node) == ("answers.yml", "revive-kubelet-swap", "omen2")
    assert answers.answers == {"target_workload": Answer("vm-passthrough", Origin("answers.yml", 6, 20))}
    assert str(answers.answers["target_workload"].origin) == "answers.yml:6:20"
    assert answers.consents == {
        "relabel": StepConsent("relabel", "yes", origin=Origin("answers.yml", 8, 12)),
        "stop-vfio-manager": StepConsent("stop-vfio-manager", "yes", "omen2", origin=Origin("answers.yml", 9, 22)),
        "disable-swap": StepConsent("disable-swap", "skip", "", DIGEST, origin=Origin("answers.yml", 10, 27)),
        "restart-kubelet": StepConsent(
            "restart-kubelet", "yes", "omen2", "", frozenset({7, 4242}), Origin("answers.yml", 11, 30)
        ),
    }


# --- broken files ----------------------------------------------------------------------------------------------------

CHANGED = [
    # (what is replaced in GOOD, by what, where the mistake is, words of the message, words of the hint)
    ("version: 1", "version: 2", "2:10", "version is 2; it must be 1", "version: 1"),
    ("version: 1", "version: 1.0", "2:10", "version is 1.0", "version: 1"),
    ("version: 1", 'version: "1"', "2:10", "version is '1'", ""),
    ("version: 1", "version: true", "2:10", "version is true", ""),
    ("version: 1", "version:", "2:9", "version is empty", ""),
    ("version: 1\n", "", "2:1", "version is missing", "version: 1"),
    ("version: 1", "versoin: 1", "2:1", "unknown key 'versoin'", "did you mean version?"),
    ("runbook: revive-kubelet-swap\n", "", "2:1", "runbook is missing", "revive-kubelet-swap"),
    ("runbook: revive", "runbok: revive", "3:1", "unknown key 'runbok'", "runbook"),
    ("kubelet-swap\n", "kubelet-swop\n", "3:10", "no runbook 'revive-kubelet-swop'", "mean revive-kubelet-swap"),
    ("revive-kubelet-swap\n", "7\n", "3:10", "runbook is 7, not the id of one", "norway"),
    ("revive-kubelet-swap\n", "[a]\n", "3:10", "runbook is a list", ""),
    ("revive-kubelet-swap\n", "norway\n", "6:3", "'target_workload' is not a question of norway", "there is: on"),
    ("node: omen2", "node: 5", "4:7", "node is 5, not a node's name", "quotes"),
    ("node: omen2", "node:", "4:6", "node is empty", ""),
    ("node: omen2", "node: Omen 2", "4:7", "'Omen 2', which is no node's name", ""),
    ("node: omen2", 'node: "omen2\\n"', "4:7", "no node's name", ""),
    ("node: omen2", "node: yes", "4:7", "'yes', which is no node's name", ""),
    ("node: omen2", "node: omen2\nnode: omen3", "5:1", "key 'node' stands twice", "keep one"),
    ("node: omen2", "nodes: omen2", "4:1", "unknown key 'nodes'", "did you mean node"),
    ("vm-passthrough", "containr", "6:20",
     "answers.target_workload is 'containr'; its choices are container, vm-passthrough",
     "did you mean container"),
    ("vm-passthrough", "no", "6:20", "answers.target_workload is 'no'; its choices are", "there is: container"),
    ("vm-passthrough", "true", "6:20", "is true, which is not text", "quotes"),
    ("vm-passthrough", "", "6:19", "answers.target_workload has no value", "one of them"),
    ("vm-passthrough", "[container]", "6:20", "is a list, not one choice", ""),
    ("vm-passthrough", "{container: 1}", "6:20", "is keys of its own, not one choice", ""),
    ("vm-passthrough", "2026-12-01", "6:20", "is '2026-12-01'; its choices", ""),
    ("vm-passthrough", "9" * 5000, "6:20", "is '99999", ""),
    ("vm-passthrough", "4_2", "6:20", "is '4_2'", ""),
    ("vm-passthrough", ".nan", "6:20", "is '.nan'", ""),
    ("vm-passthrough", "x" * 100_000, "6:20", "is 'xxxxx", ""),
    ("target_workload:", "target_worklod:", "6:3", "'target_worklod' is not a question of revive",
     "target_workload"),
    ("answers:\n  target_workload: vm-passthrough", "answers: container", "5:10", "is 'container', not keys", ""),
    ("answers:\n  target_workload: vm-passthrough", "answers:\n  - vm-passthrough", "6:3", "answers is a list", ""),
    ("answers:", "answer:", "5:1", "unknown key 'answer'", "answers"),
    ("  relabel: true", "  relabel: yes", "8:12", "consent.relabel is the text 'yes'", "without quotes"),
    ("  relabel: true", '  relabel: "true"', "8:12", "is the text 'true'", "without quotes"),
    ("  relabel: true", "  relabel: on", "8:12", "is the text 'on'", "true, false, skip or the node's name"),
    ("  relabel: true", "  relabel: No", "8:12", "is the text 'No'", ""),
    ("  relabel: true", "  relabel:", "8:11", "consent.relabel has no value", "true, false, skip"),
    ("  relabel: true", "  relabel: 1", "8:12", "consent.relabel is 1, not true, false, skip or", "quotes"),
    ("  relabel: true", "  relabel: [true]", "8:12", "is a list, not true", ""),
    ("  relabel: true", "  relabel: omen3", "8:12", "names 'omen3', but this file is for node 'omen2'", "omen2"),
    ("  relabel: true", "  relabel: rm -rf", "8:12", "'rm -rf', which is no node's name", ""),
    ("  relabel: true", "  relabl: true", "8:3", "consent.relabl: 'relabl' is not a step of", "did you mean relabel"),
    ("  relabel: true", "  verify: true", "8:3", "consent.verify: this step changes nothing", "take it out"),
    ("  relabel: true", '  "*": true', "8:3", "consent.*: there is no blanket consent", "each gate: relabel, stop-"),
    ("  relabel: true", "  all: true", "8:3", "consent.all: there is no blanket consent", ""),
    ("  relabel: true", "  relabel: {}", "8:12", "consent.relabel.consent is missing", ""),
    ("  relabel: true", "  relabel: {consnt: true}", "8:13", "unknown key 'consnt' in consent.relabel", "consent"),
    ("  relabel: true", "  relabel: {consent: {consent: true}}", "8:22", "consent.relabel.consent is keys", ""),
    ("  relabel: true", "  relabel:\n    plan: x", "9:5", "consent.relabel.consent is missing", ""),
    ("consent: skip", "consent: maybe", "10:27", "names 'maybe', but this file is for node 'omen2'", ""),
    (DIGEST, "sha256:abc", "10:39", "consent.disable-swap.plan is 'sha256:abc', not sha256: and 64 digits", "whole"),
    (DIGEST, DIGEST.upper(), "10:39", "not sha256: and 64 digits", ""),
    (DIGEST, f'"{DIGEST}\\n"', "10:39", "not sha256: and 64 digits", ""),
    (DIGEST, "", "10:39", "consent.disable-swap.plan is empty", ""),
    ("plan:", "plane:", "10:33", "unknown key 'plane'", "plan"),
    ("restart-kubelet: {consent: omen2, ", "restart-kubelet: {consent: skip, ", "11:30",
     "restart-kubelet.consent is skip, but the runbook does not let this step be skipped", "true, false or the node"),
    ("  restart-kubelet: {", "  restart-kubelet: skip #", "11:20", "consent.restart-kubelet is skip, but", "true"),
    ("[4242, 7]", "4242", "11:44", "consent.restart-kubelet.kills is 4242, not a list of pids", "[4242]"),
    ("[4242, 7]", "[4242, 0]", "11:51", "kills.1 is 0, not a pid", "from 1"),
    ("[4242, 7]", "[-4242]", "11:45", "kills.0 is -4242", ""),
    ("[4242, 7]", "[true]", "11:45", "kills.0 is true, not a pid", ""),
    ("[4242, 7]", "[4.2]", "11:45", "kills.0 is 4.2, not a pid", ""),
    ("[4242, 7]", "[010]", "11:45", "kills.0 is '010', not a pid", ""),
    ("[4242, 7]", "[0x10]", "11:45", "kills.0 is '0x10'", ""),
    ("[4242, 7]", f"[{'9' * 30}]", "11:45", "kills.0 is '999", ""),
    ("[4242, 7]", "[[1]]", "11:45", "kills.0 is a list", ""),
    ("vm-passthrough", "container", "11:37", "may die only where target_workload is vm-passthrough", "take it out"),
    ("consent: skip,", "consent: false, kills: [1],", "10:34", "disable-swap is false, so nothing may die", ""),
    ("consent: skip,", "consent: skip, kills: [1],", "10:33", "disable-swap is skip, so nothing may die", ""),
    # YAML itself
    ("  relabel: true", "\trelabel: true", "8:1", "a tab may not stand here", "spaces"),
    ("  relabel: true", "  relabel: tr\x00ue", "8:14", "the character U+0000 may not stand here", "take it out"),
    ("  relabel: true", "  relabel: \x1b[2J", "8:12", "U+001B", ""),
    ("  relabel: true", "  relabel: \udcff", "8:12", "U+DCFF", ""),
    ("  relabel: true", "  relabel: \ufeff", "8:12", "U+FEFF", ""),
    ("# by hand", "# by\u2028hand", "1:5", "U+2028", ""),
    ("# by hand", "# by\x85hand", "1:5", "U+0085", ""),
    ("  relabel: true", "  relabel: !!python/object:os.system x", "8:12", "tag !!python/object:os.system is not",
     "take it off"),
    ("  relabel: true", "  relabel: !!bool yes", "8:12", "the tag !!bool is not allowed", ""),
    ("  relabel: true", "  relabel: !omen2 true", "8:12", "the tag !omen2 is not allowed", ""),
    ("  relabel: true", "  ! relabel: true", "8:3", "the tag ! is not allowed", ""),
    ("  relabel: true", "  relabel: &a true", "8:12", "&a: anchors and aliases are not allowed", "write it out"),
    ("  relabel: true", "  relabel: *a", "8:12", "*a: anchors and aliases are not allowed", ""),
    ("  relabel: true", "  <<: {relabel: true}", "8:3", "the merge key << is not allowed", ""),
    ("  relabel: true", "  1: true", "8:3", "key 1 is not text", "quotes"),
    ("  relabel: true", "  true: true", "8:3", "key true is not text", ""),
    ("  relabel: true", "  null: true", "8:3", "key null is not text", ""),
    ("  relabel: true", "  ? \n  : true", "8:4", "key (empty) is not text", ""),
    ("  relabel: true", "  [relabel]: true", "8:3", "a key must be text", ""),
    ("  relabel: true", "  {relabel: 1}: true", "8:3", "a key must be text", ""),
    ("  relabel: true", "  ? relabel\n  ? relabel", "9:5", "key 'relabel' stands twice", ""),
    ("  relabel: true", '  relabel: true\n  "relabel": false', "9:3", "key 'relabel' stands twice", "keep one"),
    ("  relabel: true", "  relabel: " + "[" * 60, "8:51", "nested without end", "flat"),
    ("  relabel: true", "  relabel: " + "{a: " * 60, "8:168", "nested without end", ""),
    ("  relabel: true", "  relabel: 'true", "12:1", "not valid YAML: found unexpected end of stream", "mend"),
    ("  relabel: true", "  relabel: true: false", "8:16", "not valid YAML", ""),
    ("  relabel: true", "   relabel: true", "9:3", "not valid YAML", ""),
    ("consent:\n", "---\nconsent:\n", "7:1", "a second document begins here", "one file, one document"),
    ("# by hand", "---\n---", "2:1", "a second document begins here", ""),
    ("# by hand", "%YAML 9.9\n---", "1:1", "not valid YAML: found incompatible YAML document", ""),
    ("# by hand", "# by hand\n%", "2:2", "not valid YAML", ""),
]  # fmt: skip


@pytest.mark.parametrize(("old", "new", "place", "words", "hint"), CHANGED)
def test_a_mistake_has_its_place(old: str, new: str, place: str, words: str, hint: str) -> None:
    assert GOOD.count(old) >= 1
    error = refused(GOOD.replace(old, new, 1))
    assert error.message.startswith(f"answers.yml:{place}: "), ascii(error.message)
    assert words in error.message, error.message
    assert hint in error.hint, error.hint


HEAD = "version: 1\nrunbook: revive-kubelet-swap\n"
BOMB = "a: &a [x]\n" + "".join(
    f"{b}: &{b} [{', '.join(['*' + a] * 9)}]\n" for a, b in zip("abcdefg", "bcdefgh", strict=True)
)
WHOLE = [
    ("", "1:1", "the file is empty"),
    ("# nothing\n", "1:1", "is empty"),
    ("---\n", "1:1", "is empty"),
    ("null", "1:1", "is empty"),
    ("\ufeff", "1:1", "is empty"),
    ("just words", "1:1", "the file is 'just words', not keys"),
    ("yes", "1:1", "the file is 'yes'"),
    ("- version: 1", "1:1", "the file is a list"),
    ("{}", "1:1", "version is missing"),
    ("\x00", "1:1", "U+0000"),
    ("version: [1\n", "2:1", "not valid YAML"),
    ("a: !%ED%A0%80 x\n", "1:1", "not valid YAML"),
    (BOMB, "1:4", "anchors and aliases are not allowed"),
    ("a: &a [*a]", "1:4", "anchors and aliases"),
    ("\ufeff" + HEAD + "nod: x\n", "3:1", "unknown key 'nod'"),
    (HEAD.replace("\n", "\r\n") + "nod: x\r\n", "3:1", "unknown key 'nod'"),
    (HEAD.replace("\n", "\r") + "nod: x\r", "3:1", "unknown key 'nod'"),
    (HEAD + "consent: true\n", "3:10", "consent is true, for all at once: there is no blanket consent"),
    (HEAD + "consent: false\n", "3:10", "there is no blanket consent"),
    (HEAD + "consent: yes\n", "3:10", "consent is 'yes', for all at once"),
    (HEAD + "consent: omen2\n", "3:10", "there is no blanket consent"),
    (HEAD + "consent: [relabel]\n", "3:10", "consent is a list, not keys"),
    (HEAD + "consent: 1\n", "3:10", "consent is 1, not keys"),
    (HEAD + "'a\\nb': 1\n", "3:1", "unknown key 'a\\nb'"),
    (HEAD + '"a\\nb\\e[2J\\L\\_\\N": 1\n', "3:1", "unknown key 'a\\x0ab"),
    (HEAD + '"\\uD800": 1\n', "3:4", "not valid YAML"),
    (HEAD + "k" * 900 + ": 1\n", "3:1", "unknown key 'kkk"),
    (HEAD + "k" * 2000 + ": 1\n", "3:2001", "not valid YAML"),
    ("version: 1\nrunbook: norway\nanswers: {on: no}\nconsent: {'true': true, 'null': skip}\n", "4:33", "is skip, but"),
    ("version: 1\nrunbook: norway\nanswers: {on: 'maybe'}\n", "3:15", "its choices are yes, no, on, 1, \"\", true"),
    ("version: 1\nrunbook: norway\nanswers: {on: 1}\n", "3:15", "answers.on is 1, which is not text"),
    ("version: 1\nrunbook: norway\nconsent: {'true': {consent: n1, kills: [1]}}\n", "3:33", "may die only where"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "place", "words"), WHOLE)
def test_a_whole_file_that_is_wrong(text: str, place: str, words: str) -> None:
    error = refused(text)
    assert error.message.startswith(f"answers.yml:{place}: "), ascii(error.message)
    assert words in error.message, error.message


def test_there_are_enough_broken_files() -> None:
    assert len(CHANGED) + len(WHOLE) > 120


@pytest.mark.parametrize("opened", ["[", "{a: ", "- ", "? ", "{? ", "[{a: "])
def test_nesting_without_end_is_refused(opened: str) -> None:
    message = refused(HEAD + "answers:\n  " + opened * 50_000).message
    assert ("a key must be text" if "?" in opened else "nested without end") in message


@pytest.mark.parametrize("word", ["yes", "no", "on", "2026-01-01", '"1"', '""', '"true"', '"null"'])
def test_a_choice_that_looks_like_something_else_is_text(word: str) -> None:
    answers = load(f"version: 1\nrunbook: norway\nanswers: {{on: {word}}}\n")
    assert answers.answers["on"].value == word.strip('"')


@pytest.mark.parametrize("text", [GOOD, "\ufeff" + GOOD, GOOD.replace("\n", "\r\n"), "---\n" + GOOD + "...\n"])
def test_the_same_file_from_other_editors(text: str) -> None:
    assert load(text).consents.keys() == load(GOOD).consents.keys()


def test_sections_in_which_all_is_a_comment_are_empty() -> None:
    answers = load(HEAD + "answers:\n  # target_workload: container\nconsent:\n")
    assert answers.answers == {} and answers.consents == {}


# --- anything at all -------------------------------------------------------------------------------------------------

JUNK = st.one_of(
    st.text(max_size=20),
    st.binary(max_size=20).map(lambda raw: raw.decode(errors="surrogateescape")),
    st.sampled_from(
        ["\t", "---\n", "...", "&a ", "*a", "<<: ", "!!set ", "? ", ": ", "- ", "[", "}", "'", '"', "|\n", ">", "%",
         "@", "no", "~", "0x1F", "1e999", ".inf", "2026-13-45", "!!timestamp x", "!!int x", "!!binary x", "# ", "\x00",
         "skip", "true", "omen2", "{consent: true}", "sha256:", "9" * 5000, "\ud800", "\ufeff", "\r"]
    ),
)  # fmt: skip


@st.composite
def mutated(draw: st.DrawFn) -> str:
    text = GOOD
    for _ in range(draw(st.integers(1, 3))):
        lines = text.split("\n")
        at = draw(st.integers(0, len(lines) - 1))
        how = draw(st.sampled_from(["delete", "twice", "swap", "insert", "value", "line"]))
        if how == "delete":
            del lines[at]
        elif how == "twice":
            lines.insert(at, lines[at])
        elif how == "swap":
            other = draw(st.integers(0, len(lines) - 1))
            lines[at], lines[other] = lines[other], lines[at]
        elif how == "line":
            lines.insert(at, draw(JUNK))
        elif how == "value":
            lines[at] = lines[at].split(": ")[0] + ": " + draw(JUNK)
        else:
            column = draw(st.integers(0, len(lines[at])))
            lines[at] = lines[at][:column] + draw(JUNK) + lines[at][column:]
        text = "\n".join(lines) or "x"
    return text


VALIDATORS = {book.id: jsonschema.Draft202012Validator(answers_schema(book)) for book in BOOKS}
ANY = jsonschema.Draft202012Validator(answers_schema())


def check_any(text: str) -> None:
    try:
        answers, book = load_answers(text, "answers.yml", BOOKS)
    except GpufixError as error:
        check_refusal(error)
    else:
        data, _ = read_yaml(text, "answers.yml", "answers")
        VALIDATORS[book.id].validate(data)
        ANY.validate(data)
        assert answers.runbook_id == book.id
        named = {answers.node} - {""} or {consent.node for consent in answers.consents.values() if consent.node}
        if len(named) > 1:
            return  # for no node in particular, and its consents are for several: no one run says so
        (node,) = named or {"omen2"}
        back = saved(book, node, {k: a.value for k, a in answers.answers.items()}, answers.consents)
        assert bare(load(back)) == bare(replace(answers, node=node))


@given(mutated())
@settings(max_examples=600, deadline=None)
def test_any_mutation_is_read_or_refused_with_its_place(text: str) -> None:
    check_any(text)


@given(st.text(max_size=60) | st.binary(max_size=60).map(lambda raw: raw.decode(errors="surrogateescape")))
@settings(max_examples=300, deadline=None)
def test_any_text_is_refused_with_its_place(text: str) -> None:
    check_any(text)


WORDS = st.sampled_from(["true", "omen2", "skip", "yes", "", "container", "vm-passthrough", DIGEST, "sha256:x"])
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-2, 9) | WORDS,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from(["consent", "plan", "kills"]), inner),
    max_leaves=4,
)
FILES = st.fixed_dictionaries(
    {"version": st.just(1), "runbook": st.just(BOOK.id)},
    optional={
        "node": st.just("omen2") | VALUES,
        "answers": VALUES | st.dictionaries(st.just("target_workload"), st.just("vm-passthrough") | VALUES),
        "consent": VALUES | st.dictionaries(st.sampled_from(["relabel", "restart-kubelet", "verify"]), VALUES),
    },
)


@given(FILES)
@settings(max_examples=400, deadline=None)
def test_the_schema_and_the_reader_agree(data: dict[str, Any]) -> None:
    text = json.dumps(data)  # JSON is YAML
    check_any(text)
    if VALIDATORS[BOOK.id].is_valid(data):
        try:
            load(text)
        except GpufixError as error:  # what a schema cannot say: one part against another
            assert "may die" in error.message or "but this file is for node" in error.message, error.message


# --- the schema ------------------------------------------------------------------------------------------------------


def test_the_published_schema_is_the_one_for_any_runbook() -> None:
    assert json.loads(resources.read_text("answers.schema.json")) == answers_schema()


@pytest.mark.parametrize("schema", [answers_schema(), answers_schema(BOOK), answers_schema(NORWAY)])
def test_the_schemas_are_schemas_and_closed(schema: dict[str, Any]) -> None:
    jsonschema.Draft202012Validator.check_schema(schema)
    assert schema["$schema"] == "https://json-schema.org/draft/2020-12/schema"
    assert schema["additionalProperties"] is False


def test_the_schema_of_a_runbook_lists_what_there_is() -> None:
    properties = answers_schema(BOOK)["properties"]
    assert properties["runbook"]["const"] == BOOK.id
    question = properties["answers"]["properties"]["target_workload"]
    assert question["enum"] == ["container", "vm-passthrough"]
    assert BOOK.questions[0].ask in question["description"]
    assert "Every process that uses the card on the host dies" in question["description"]
    consents = properties["consent"]["properties"]
    assert list(consents) == ["relabel", "stop-vfio-manager", "disable-swap", "restart-kubelet"]
    assert "No way back" in consents["restart-kubelet"]["description"]
    assert properties["answers"]["additionalProperties"] is properties["consent"]["additionalProperties"] is False
    assert "kills" not in json.dumps(answers_schema(NORWAY))


# --- -a --------------------------------------------------------------------------------------------------------------


def test_an_override_wins_over_the_file_and_says_so() -> None:
    answers = override(load(GOOD), ["target_workload=container"], BOOK)
    assert answers == {"target_workload": Answer("container", Origin("-a target_workload=container"))}
    assert str(answers["target_workload"].origin) == "-a target_workload=container"
    assert override(load(GOOD), [], BOOK) == load(GOOD).answers
    assert override(None, [], BOOK) == {}


def test_an_override_may_hold_an_equals_sign_or_nothing() -> None:
    book = replace(NORWAY, questions=(Question("q", "?", "", choices("", "a=b")),))
    assert override(None, ["q=a=b"], book)["q"].value == "a=b"
    assert override(None, ["q="], book)["q"].value == ""


@pytest.mark.parametrize(
    ("words", "message", "hint"),
    [
        (["target_workload"], "-a target_workload: '=' is missing", "-a QUESTION=CHOICE"),
        ([""], "-a : '=' is missing", ""),
        (["target_worklod=container"], "-a target_worklod=container: revive-kubelet-swap has no question", "workload"),
        (["=container"], "has no question ''", "target_workload"),
        (["target_workload=containr"], "'containr' is no choice of target_workload; its choices are", "container"),
        (["target_workload=container"] * 2, "is given twice, first as -a target_workload=container", "keep one"),
        (["a\nb\x1b=c"], "has no question 'a\\x0ab\\x1b'", ""),
        (["x" * 9999], "'=' is missing", ""),
    ],
)  # fmt: skip
def test_a_wrong_override_is_one_line(words: list[str], message: str, hint: str) -> None:
    with pytest.raises(GpufixError) as caught:
        override(load(GOOD), words, BOOK)
    assert caught.value.message.startswith("-a ") and message in caught.value.message
    assert hint in caught.value.hint and caught.value.exit_status is ExitStatus.USAGE
    assert caught.value.message.isprintable() and len(caught.value.message) < 300


def test_no_default_is_taken() -> None:
    missing = missing_answers(BOOK, {})
    assert [question.id for question in missing] == ["target_workload"]
    line = "answers.target_workload is not answered in a.yml; its choices are container, vm-passthrough"
    assert missing_problem(missing, "a.yml") == line
    assert missing_answers(BOOK, override(None, ["target_workload=container"], BOOK)) == ()
    assert missing_problem((), "a.yml") is None
    two = (*missing, *NORWAY.questions)
    assert missing_problem(two, "") == "answers.target_workload, answers.on are not answered"


# --- what a consent is good for --------------------------------------------------------------------------------------

AT = Origin("a.yml", 9, 3)


@pytest.mark.parametrize(
    ("destructive", "consent", "digest", "words"),
    [
        (False, None, None, "consent.relabel is missing in a.yml"),
        (False, StepConsent("other", "yes", "omen2", origin=AT), None, "consent.relabel is missing in a.yml"),
        (False, StepConsent("relabel", "yes", origin=AT), None, None),
        (False, StepConsent("relabel", "yes", "omen2", origin=AT), None, None),
        (True, StepConsent("relabel", "yes", "omen2", origin=AT), None, None),
        (True, StepConsent("relabel", "yes", origin=AT), None,
         "a.yml:9:3: consent.relabel is true, but the step is destructive: it wants the node's name, omen2"),
        (False, StepConsent("relabel", "yes", "omen3", origin=AT), None,
         "a.yml:9:3: consent.relabel names the node omen3, but this is omen2"),
        (True, StepConsent("relabel", "yes", "omen", origin=AT), None, "names the node omen, but this is omen2"),
        (False, StepConsent("relabel", "no", origin=AT), None, "consent.relabel is false: the step is declined"),
        (False, StepConsent("relabel", "skip", origin=AT), None, "is skip: the step is left out, not passed"),
        (False, StepConsent("relabel", "yes", plan=DIGEST, origin=AT), DIGEST, None),
        (False, StepConsent("relabel", "yes", plan=DIGEST, origin=AT), "ab" * 32, None),
        (False, StepConsent("relabel", "yes", plan=DIGEST, origin=AT), "sha256:" + "cd" * 32,
         "bound to the plan sha256:abababababab, but this plan is sha256:cdcdcdcdcdcd"),
        (False, StepConsent("relabel", "yes", plan=DIGEST, origin=AT), None,
         "bound to the plan sha256:abababababab, but there is no plan to compare it with"),
        (False, StepConsent("relabel", "yes", plan=DIGEST, origin=AT), "", "there is no plan"),
        (False, StepConsent("relabel", "skip", plan=DIGEST, origin=AT), "cd" * 32, "bound to the plan"),
        (True, StepConsent("relabel", "yes", plan=DIGEST, origin=AT), DIGEST, "destructive"),
        (True, StepConsent("relabel", "yes", "omen2", origin=AT), DIGEST, None),
    ],
)  # fmt: skip
def test_why_a_gate_may_not_be_passed(
    destructive: bool, consent: StepConsent | None, digest: str | None, words: str | None
) -> None:
    problem = consent_problem(destructive, "relabel", "omen2", consent, digest, "a.yml")
    if words is None:
        assert problem is None
    else:
        assert problem is not None and words in problem and "\n" not in problem


@given(
    st.booleans(),
    st.builds(
        StepConsent,
        st.sampled_from(["relabel", "x"]),
        st.sampled_from(["yes", "no", "skip"]),
        st.sampled_from(["", "omen2", "omen3"]),
        st.sampled_from(["", DIGEST, "sha256:" + "0" * 64]),
    ),
    st.sampled_from([None, DIGEST]),
)
def test_a_gate_is_passed_only_on_the_exact_word(destructive: bool, consent: StepConsent, digest: str | None) -> None:
    passed = consent_problem(destructive, "relabel", "omen2", consent, digest, "a.yml") is None
    right_plan = consent.plan in ("", digest) and plan_problem(consent, digest) is None
    right_node = consent.node == "omen2" or (not destructive and consent.node == "")
    assert passed == (consent.step == "relabel" and consent.kind == "yes" and right_plan and right_node)


def test_answers_for_another_run_are_told_with_their_place() -> None:
    answers = load(GOOD)
    assert file_problem(answers, BOOK.id, "omen2") is None
    told = "answers.yml:3:10: these are answers for revive-kubelet-swap, and this is norway"
    assert file_problem(answers, "norway", "omen2") == told
    told = "answers.yml:4:7: these are answers for node omen2, and this is omen3"
    assert file_problem(answers, BOOK.id, "omen3") == told
    assert file_problem(load(GOOD.replace("node: omen2\n", "")), BOOK.id, "omen3") is None


# --- the sample ------------------------------------------------------------------------------------------------------


def filled(text: str) -> list[str]:
    """The files that come of taking the # off one answer each: as the sample's own comments say."""
    found = [at for at, line in enumerate(text.split("\n")) if re.match(r"  #\S", line)]
    files = []
    for at in found:
        lines = text.split("\n")
        lines[at] = lines[at].replace("#", "", 1)
        files.append("\n".join(lines))
    return files


@pytest.mark.parametrize("node", ["omen2", None, "123", "1e5", "n.example.org"])
@pytest.mark.parametrize("book", BOOKS, ids=lambda book: book.id)
def test_an_untouched_sample_answers_and_consents_to_nothing(book: Runbook, node: str | None) -> None:
    answers = load(sample(book, node))
    assert answers.answers == {} and answers.node == (node or "")
    assert missing_problem(missing_answers(book, answers.answers), "a.yml") is not None
    assert list(answers.consents) == [step.id for step in book.steps if step.playbook]
    assert {consent.kind for consent in answers.consents.values()} == {"no"}


@pytest.mark.parametrize("book", BOOKS, ids=lambda book: book.id)
def test_a_sample_filled_in_as_it_says_is_read(book: Runbook) -> None:
    text = sample(book, None).replace("#node: NODE", "node: omen2").replace(": false", ": omen2")
    files = filled(text)
    assert [load(file).answers[book.questions[0].id].value for file in files] == [
        choice.value for choice in book.questions[0].choices
    ]
    for file in files:
        assert {consent.node for consent in load(file).consents.values()} == {"omen2"}


def test_the_sample_says_what_there_is_to_know() -> None:
    text = sample(BOOK, "omen2")
    prose = re.sub(r"\s*\n\s*#\s*", " ", text)
    for question in BOOK.questions:
        assert question.ask in prose
        for choice in question.choices:
            assert f"{choice.label}: {choice.consequence}" in prose
    for step in BOOK.steps:
        assert (step.title in prose and step.risk in prose and step.irreversible in prose) == bool(step.playbook)
    assert "Destructive if target_workload is vm-passthrough: then it wants the node's name." in prose
    assert prose.count("Destructive: it wants the node's name.") == 2
    assert max(map(len, text.split("\n"))) <= 120


TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=40) | st.sampled_from(
    [
        "a\nb: c",
        "# x",
        "'",
        '"',
        "\\",
        "- x",
        "a: b",
        "x #y",
        "\u2028on: yes",
        "{",
        "*",
        "!!x",
        "\x00",
        "é\U0001f600",
        "\ufffe",
    ]
)
IDS = st.from_regex(r"[a-z][a-z0-9_]{0,8}", fullmatch=True) | st.sampled_from(["no", "on", "null", "true", "y"])
STEP_IDS = st.from_regex(r"[a-z][a-z0-9-]{0,8}", fullmatch=True) | st.sampled_from(["no", "on", "null", "true", "all"])
CONDITIONS = st.recursive(
    st.sampled_from([ALWAYS, NEVER]) | st.builds(Leaf, st.just("answer"), TEXTS, st.just("is"), TEXTS),
    lambda inner: st.builds(
        Group, st.sampled_from(["all", "any", "not"]), st.lists(inner, min_size=1, max_size=2).map(tuple)
    ),
    max_leaves=3,
)


@st.composite
def odd_books(draw: st.DrawFn) -> Runbook:
    questions = [
        Question(name, draw(TEXTS), "", tuple(Choice(value, draw(TEXTS), draw(TEXTS)) for value in values))
        for name, values in draw(
            st.dictionaries(IDS, st.lists(TEXTS, min_size=1, max_size=3, unique=True), max_size=2)
        ).items()
    ]
    steps = [
        RunbookStep(name, draw(TEXTS), "why", ALWAYS, 1, playbook="x.yml", destructive=draw(CONDITIONS),
                    irreversible=draw(TEXTS), risk=draw(TEXTS), skippable=draw(st.booleans()))
        for name in draw(st.lists(STEP_IDS, max_size=3, unique=True))
    ]  # fmt: skip
    return Runbook(draw(STEP_IDS), draw(TEXTS), draw(TEXTS), ALWAYS, tuple(questions), tuple(steps))


@given(odd_books())
@settings(max_examples=150, deadline=None)
def test_no_text_of_a_runbook_breaks_its_sample(book: Runbook) -> None:
    text = sample(book, "omen2")
    assert load_answers(text, "a.yml", [book])[0].answers == {}
    options = [(question.id, choice.value) for question in book.questions for choice in question.choices]
    assert len(filled(text)) == len(options)
    for file, (name, value) in zip(filled(text), options, strict=True):
        assert load_answers(file, "a.yml", [book])[0].answers[name].value == value
    jsonschema.Draft202012Validator.check_schema(answers_schema(book))


# --- saved -----------------------------------------------------------------------------------------------------------


def bare(answers: Answers) -> tuple[Any, ...]:
    """All but the places."""
    return (
        answers.runbook_id,
        answers.node,
        {name: answer.value for name, answer in answers.answers.items()},
        {name: replace(consent, origin=AT) for name, consent in answers.consents.items()},
    )


@st.composite
def runs(draw: st.DrawFn) -> tuple[Runbook, str, dict[str, str], dict[str, StepConsent]]:
    book = draw(st.sampled_from(BOOKS) | odd_books())
    node = draw(st.from_regex(r"[a-z0-9]([-a-z0-9.]{0,10}[a-z0-9])?", fullmatch=True))
    if node in ("true", "false", "yes", "no", "on", "off", "y", "n", "ok", "all", "any", "none", "null", "skip"):
        node = "omen2"
    answers = {q.id: draw(st.sampled_from(q.choices)).value for q in book.questions if draw(st.booleans())}
    consents = {}
    for step in book.steps:
        if step.playbook and draw(st.booleans()):
            kind = draw(st.sampled_from(["yes", "no", *(["skip"] if step.skippable else [])]))
            yes = kind == "yes"
            may_kill = yes and answers.get("target_workload") == "vm-passthrough"
            kills = draw(st.frozensets(st.integers(1, 4_194_304), max_size=3)) if may_kill else frozenset()
            name = draw(st.sampled_from(["", node])) if yes else ""
            consents[step.id] = StepConsent(step.id, kind, name, draw(st.sampled_from(["", DIGEST])), kills, AT)
    return book, node, answers, consents


@given(runs(), st.lists(TEXTS, max_size=2))
@settings(max_examples=300, deadline=None)
def test_what_is_saved_is_read_back(
    run: tuple[Runbook, str, dict[str, str], dict[str, StepConsent]], comments: list[str]
) -> None:
    book, node, answers, consents = run
    text = saved(book, node, answers, consents, comments)
    assert bare(load_answers(text, "a.yml", [book])[0]) == (book.id, node, answers, consents)
    whole = yaml.safe_load(text)  # another reader's YAML 1.1 sees no other words in it
    assert (whole["runbook"], whole["node"], whole.get("answers", {})) == (book.id, node, answers)


def test_a_saved_file_reads_like_one_by_hand() -> None:
    consents = {"relabel": True, "stop-vfio-manager": "omen2", "disable-swap": "skip", "restart-kubelet": False}
    assert saved(BOOK, "omen2", {"target_workload": "container"}, consents, ["saved by\ngpufix", ""]) == (
        "# saved by gpufix\n#\nversion: 1\nrunbook: revive-kubelet-swap\nnode: omen2\n"
        "answers:\n  target_workload: container\n"
        "consent:\n  relabel: true\n  stop-vfio-manager: omen2\n  disable-swap: skip\n  restart-kubelet: false\n"
    )
