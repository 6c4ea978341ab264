"""The diagnosis and the printed documents in another language: nothing left out, and no command changed."""

from __future__ import annotations

import argparse
import gettext
import json
import re
import shutil
import sys
from collections.abc import Iterable, Iterator
from functools import cache
from html.parser import HTMLParser
from pathlib import Path

import pytest
import wcwidth
from model_session import BOOK, ModelSession, Ui, calm, whole
from order_model import NODE, World
from snapshots_for_tests import CASES, case, signatures

from gpufix import cli, language, printing, recovery, report_command, resources, runbook_command
from gpufix import walk as walk_module
from gpufix.consents import Request
from gpufix.core.diagnose import diagnose
from gpufix.core.findings import TITLES
from gpufix.core.invariants import RULE_TEXTS
from gpufix.core.parse import parse_snapshot
from gpufix.core.render.chain_figure import WIDTH, chain_figure
from gpufix.core.render.document import Case, Document, Making, build_document
from gpufix.core.render.terminal import Style, compact, diagnosis_lines
from gpufix.core.runbook import SENTENCES, Runbook
from gpufix.core.verdict import judge
from gpufix.language import mark, speaking, t
from gpufix.model import ROOT_CAUSES, Diagnosis, Facts
from gpufix.runs import find_run, list_runs
from gpufix.session import NO_SUCH_HOST, read_runbooks
from gpufix.world import pdf
from gpufix.world.catalogs import catalog
from gpufix.world.journal import JOURNAL, state_folder
from gpufix.world.pdf import keep_words

ROOT = Path(__file__).resolve().parents[2]
INCIDENT = "trace-1-kubelet-dead"
SOME_CASES = (
    INCIDENT,
    "trace-6-container-mode-vms-waiting",
    *sorted(path.parent.name for path in CASES.glob("*/case.yml"))[::5],
)
MAKING = Making(
    "1.2.3", "2026-12-02 10:00 UTC", resources.fstab_module().comment_swap, resources.swaps_module().choose_verb
)
ENGLISH = re.compile(r"[A-Za-z']{2,} [A-Za-z']{2,}")
HANGUL = re.compile(r"[\uac00-\ud7a3]")


class Brackets(gettext.NullTranslations):
    """A language in which each sentence stands in brackets, so that what went round the catalog shows."""

    def gettext(self, message: str) -> str:
        return f"⟦{message}⟧"

    def ngettext(self, one: str, many: str, n: int) -> str:
        return f"⟦{one if n == 1 else many}⟧"

    def info(self) -> dict[str, str]:
        return {"language": "xx"}


def outside(text: str) -> str:
    """``text`` without what the catalog gave."""
    while text != (shorter := re.sub(r"⟦[^⟦⟧]*⟧", "", text)):
        text = shorter
    return text


def without(text: str, recorded: Iterable[str]) -> str:
    """``text`` without words that are not gpufix's."""
    for words in sorted(recorded, key=len, reverse=True):
        text = text.replace(words, "") if words else text
    return text


def judged(name: str) -> tuple[Facts, Diagnosis]:
    facts = parse_snapshot(case(name))
    return facts, diagnose(facts, signatures())


def sentences(facts: Facts, found: Diagnosis) -> Iterator[str]:
    """What a diagnosis and its verdicts say in words."""
    yield found.root_cause.summary
    for link in found.chain:
        yield from (link.title, link.detail)
    yield from (one.by for one in found.alternatives)
    yield from found.warnings
    yield from found.unread.values()
    for vm in found.affected:
        yield vm.reason
        yield from (other.reason for other in vm.other_nodes)
    verdicts = judge(facts, found)
    yield from (check.text for check in verdicts.node.checks)
    yield from (verdicts.node.reboot_text, verdicts.vms.text)


def data(facts: Facts) -> Iterator[str]:
    """Words of the cluster and of the machine that stand in sentences as they are."""
    node = facts.node.value
    yield from (node.ready_message,) if node is not None else ()
    yield from (vm.failure for vm in facts.vms.value or ())
    yield from (line.text for line in facts.fstab_swap.value or ())


@pytest.mark.parametrize("name", SOME_CASES)
def test_the_diagnosis_says_nothing_round_the_catalog(name: str) -> None:
    with speaking(Brackets()):
        facts, found = judged(name)
        said = [outside(one) for one in sentences(facts, found)]
    recorded = [*data(facts), *case(name).unread.values()]
    for text in said:
        left = without(text, recorded)
        assert not ENGLISH.search(left), left


@cache
def korean() -> gettext.NullTranslations:
    found = catalog("ko")
    assert found is not None
    return found


def test_it_is_the_same_diagnosis_in_every_language() -> None:
    for name in SOME_CASES:
        facts, english = judged(name)
        with speaking(korean()):
            _, other = judged(name)
        assert english.root_cause.id == other.root_cause.id
        assert english.root_cause.status == other.root_cause.status
        assert [(link.id, link.status, link.evidence) for link in english.chain] == [
            (link.id, link.status, link.evidence) for link in other.chain
        ]
        assert [one.id for one in english.alternatives] == [one.id for one in other.alternatives]
        assert judge(facts, english).node.health == judge(facts, other).node.health
        assert HANGUL.search(other.root_cause.summary), name


def test_why_a_host_was_not_read_means_the_same_in_every_language() -> None:
    """The reason is a sentence of gpufix and of ssh, and signatures.yml says what its words mean."""
    reasons = [
        mark("{host} is unreachable: {why}"),
        mark("sudo on {host} failed: {why}"),
        mark("{host} is unreachable"),
        NO_SUCH_HOST,
    ]
    for reason in reasons:
        for why in ("Connection timed out", "Connection refused", "Permission denied (publickey)", "x"):
            english = reason.format(host="omen2", why=why)
            with speaking(korean()):
                said = t(reason, host="omen2", why=why)
            assert signatures().what_unread_means(said) == signatures().what_unread_means(english), said


# --- the documents ---------------------------------------------------------------------------------------------------


def document(name: str = "", target: str = "container") -> Document:
    """Of a case, or the general procedure."""
    book = read_runbooks()[0]
    if not name:
        return build_document(book, MAKING)
    facts, found = judged(name)
    return build_document(
        book, MAKING, Case(facts, found, case(name).files, "omen2", {"target_workload": target}, True)
    )


def page(made: Document, form: str = "md") -> str:
    return runbook_command.make_page(made, form, resources.template_texts(), {})


def code(markdown: str) -> list[str]:
    """The blocks of code, without the comments of English: another language has them before the block."""
    blocks = re.findall(r"^```\w*\n(.*?)^```$", markdown, re.DOTALL | re.MULTILINE)
    return ["".join(line for line in block.splitlines(True) if not line.startswith("# ")) for block in blocks]


def prose(markdown: str) -> str:
    """Without code, and without what is escaped."""
    text = re.sub(r"^```.*?^```$", "", markdown, flags=re.DOTALL | re.MULTILINE)
    return re.sub(r"(`+).*?\1", "", text).replace("\\", "")


@pytest.mark.parametrize("name", ["", INCIDENT, "trace-6-container-mode-vms-waiting"])
def test_a_runbook_says_nothing_round_the_catalog(name: str) -> None:
    with speaking(Brackets()):
        made = document(name)
        text = outside(prose(page(made)))
    left = without(text, data(parse_snapshot(case(name))) if name else ())
    assert not ENGLISH.search(left), ENGLISH.search(left)


@pytest.mark.parametrize("name", ["", *SOME_CASES[:5]])
@pytest.mark.parametrize("target", ["container", "vm-passthrough"])
def test_the_commands_are_the_same_in_korean(name: str, target: str) -> None:
    english = page(document(name, target))
    with speaking(korean()):
        other = page(document(name, target))
    assert code(other) == code(english)
    assert code(english)
    for block in re.findall(r"^```bash\n(.*?)^```$", other, re.DOTALL | re.MULTILINE):
        assert not HANGUL.search(block), "pasted into a shell of the C locale, a letter can be a command of readline"


def test_a_korean_page_says_its_language_and_keeps_words_whole() -> None:
    with speaking(korean()):
        html = page(document(INCIDENT), "html")
    assert '<html lang="ko">' in html
    assert "word-break: keep-all" in html
    assert "Noto Sans CJK KR" in html
    english = page(document(INCIDENT), "html")
    assert '<html lang="en">' in english
    assert "keep-all" not in english


def test_the_same_data_in_every_language(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    said = []
    for locale in ("C.UTF-8", "ko_KR.UTF-8"):
        monkeypatch.setenv("LC_ALL", locale)
        assert cli.main(["runbook", NODE, "--snapshot", str(CASES / INCIDENT), "--format", "json"]) == 0
        made = json.loads(capsys.readouterr().out)
        made.pop("made_at")
        assert cli.main(["diagnose", NODE, "--snapshot", str(CASES / INCIDENT), "-o", "json"]) == 0
        assert cli.main(["answers", "--node", NODE]) == 0
        assert cli.main(["answers", "--schema"]) == 0
        said.append((made, capsys.readouterr().out))
    assert said[0] == said[1]


@pytest.mark.parametrize(
    ("line", "speaks"),
    [
        ("diagnose omen2", "ko"),
        ("diagnose omen2 -o json", "en"),
        ("runbook --format html -o json", "ko"),
        ("runbook --format json -o page.html", "en"),
        ("report omen2 -o json", "ko"),
        ("capture omen2 -o incident", "en"),
        ("answers", "en"),
    ],
)
def test_who_reads_it_decides_on_the_language(line: str, speaks: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A capture is mailed, and why its host was not read is judged by words."""
    spoken: list[str] = []
    monkeypatch.setenv("LC_ALL", "ko_KR.UTF-8")
    monkeypatch.setattr(cli, "_run", lambda arguments: spoken.append(language.spoken()) or 0)
    assert cli.main(line.split()) == 0
    assert spoken == [speaks]


# --- the runbooks ----------------------------------------------------------------------------------------------------


def test_a_runbook_of_ones_own_stays_as_it_is_written(tmp_path: Path) -> None:
    (own,) = resources.runbook_paths()
    shutil.copy(own, tmp_path / own.name)
    written = read_runbooks()
    with speaking(korean()):
        (spoken,) = read_runbooks()
        assert read_runbooks(tmp_path) == written
        assert read_runbooks(as_written=True) == written
    assert spoken.digest == written[0].digest
    assert HANGUL.search(spoken.title)
    assert without_sentences(spoken) == without_sentences(written[0])


def without_sentences(book: Runbook) -> str:
    fields = "|".join(SENTENCES)
    return re.sub(rf"\b({fields})=('(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\"|\('.*?'\))", "", repr(book))


def test_every_sentence_of_a_runbook_has_korean_words() -> None:
    asked: set[str] = set()

    class Listening(gettext.NullTranslations):
        def gettext(self, message: str) -> str:
            asked.add(message)
            return message

    with speaking(Listening()):
        read_runbooks()
    assert len(asked) > 80
    with speaking(korean()):
        assert not [sentence for sentence in asked if not HANGUL.search(t(sentence))]


@pytest.mark.dev
def test_what_is_collected_of_a_runbook_is_what_is_spoken() -> None:
    sys.path.insert(0, str(ROOT / "src"))
    import catalogs

    assert catalogs.SENTENCES["runbooks"] == SENTENCES


def test_values_in_a_translated_runbook_are_filled_in() -> None:
    with speaking(korean()):
        made = document(INCIDENT)
    fails = next(step.if_it_fails for step in made.steps if step.id == "restart-kubelet")
    assert "kubelet.service" in fails
    assert "{{" not in fails


# --- the report ------------------------------------------------------------------------------------------------------


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """The folder of a whole run that was walked in English, with real captures beside its journal."""
    monkeypatch.setattr(walk_module, "POLL_SECONDS", 5.0)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    session = ModelSession(World(), Ui(lambda m, options: "apply" if "apply" in options else "container"), calm, whole)
    folder = Path(recovery.recover(session, Request([BOOK], who="tester@bench")).run)  # type: ignore[arg-type]
    for name, captured in (("before", INCIDENT), ("after", "trace-6-container-mode-vms-waiting")):
        shutil.rmtree(folder / name)
        shutil.copytree(CASES / captured, folder / name)
    return folder


def test_a_report_tells_what_was_recorded_as_it_was_and_judges_anew(run: Path) -> None:
    with speaking(korean()):
        text = report_of(run)
    assert text.startswith("# 사후 보고서 초안: omen2")
    assert "at its gate" in text, "the journal's own words"
    assert "스왑이 켜져 있고(/swapfile)" in text, "the snapshot's, judged now"
    assert code(text) == code(report_of(run))


def test_a_report_says_nothing_round_the_catalog(run: Path) -> None:
    """What stands outside is the journal's, in the language of the person who ran, or the cluster's."""
    with speaking(Brackets()):
        text = outside(prose(report_of(run)))
    recorded = [
        words for line in (run / JOURNAL).read_text("utf-8").splitlines() for words in strings(json.loads(line))
    ]
    left = without(text, recorded)
    for name in SOME_CASES[:2]:
        left = without(left, data(parse_snapshot(case(name))))
    assert not ENGLISH.search(left), ENGLISH.search(left)


def report_of(run: Path) -> str:
    one = find_run(state_folder(), run.name)
    made = report_command.make_report(one, list_runs(state_folder()))
    return report_command.make_page(made, "md", resources.template_texts(), {})


def strings(value: object) -> Iterator[str]:
    if isinstance(value, str) and " " in value:
        yield value
    parts = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    for part in parts:
        yield from strings(part)


# --- how it looks ----------------------------------------------------------------------------------------------------


def test_the_figures_lines_stay_in_their_boxes() -> None:
    with speaking(korean()):
        links = [(t(title), "confirmed") for title in TITLES.values()]
    for box in chain_figure(links).boxes:
        for line in box.lines:
            wide = sum(14 if wcwidth.wcwidth(char) == 2 else 8.6 for char in line.words)
            assert 24 + wide <= WIDTH - 24, line.words
            assert "…" not in line.words


class Words(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.text = ""
        self.kept: list[str] = []
        self.keeps = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.keeps = ("style", "white-space: nowrap") in attrs

    def handle_endtag(self, tag: str) -> None:
        self.keeps = False

    def handle_data(self, data: str) -> None:
        self.text += data
        self.kept += [data] if self.keeps else []


def words_of(html: str) -> Words:
    parser = Words()
    parser.feed(html)
    parser.close()
    return parser


def test_a_pdf_keeps_korean_words_whole_and_all_else_as_it_is() -> None:
    with speaking(korean()):
        html = page(document(INCIDENT), "html")
    kept = keep_words(html)
    assert words_of(kept).text == words_of(html).text
    assert "있습니다" in words_of(kept).kept
    assert re.findall(r"<pre>.*?</pre>", kept, re.DOTALL) == re.findall(r"<pre>.*?</pre>", html, re.DOTALL)
    assert re.sub(r'<span style="white-space: nowrap">(.*?)</span>', r"\1", kept) == html
    english = page(document(INCIDENT), "html")
    assert keep_words(english) is english


def test_a_word_too_long_for_a_line_may_be_broken() -> None:
    assert "nowrap" not in keep_words(f"<p>{'가' * 31}</p>")
    assert "nowrap" in keep_words(f"<p>{'가' * 30}</p>")
    assert keep_words("<p title='가 나'>a &lt;나&gt; &#39;x</p>").count("nowrap") == 0
    assert keep_words("<p>노드 &amp; <code>가나</code></p>").count("nowrap") == 1


def test_each_root_cause_and_rule_has_korean_words() -> None:
    with speaking(korean()):
        for cause in ROOT_CAUSES:
            assert HANGUL.search(t(TITLES[cause])), cause
        for rule in RULE_TEXTS:
            assert t(rule.forbids).endswith("일"), "the template goes on with a particle"
    assert language.spoken() == "en"


@pytest.mark.dev
def test_letters_that_no_font_has_are_told(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    made = pdf.make_pdf("<p>a \U0010fffd b</p>", "A4", "x")
    assert made.boxes == ("\U0010fffd",)
    assert pdf.make_pdf("<p>a b</p>", "A4", "x").boxes == ()
    options = argparse.Namespace(format="pdf", paper="a4", output=str(tmp_path / "x.pdf"))
    printing.write_page(options, "<p>\U0010fffd</p>", "x")
    assert "no font of this machine has these letters" in capsys.readouterr().err
    assert (tmp_path / "x.pdf").read_bytes().startswith(b"%PDF")


@pytest.mark.parametrize("width", [80, 120])
@pytest.mark.parametrize("name", SOME_CASES[:4])
def test_the_diagnosis_in_a_terminal(name: str, width: int) -> None:
    with speaking(Brackets()):
        facts, found = judged(name)
        lines = diagnosis_lines(found, judge(facts, found), "revive-kubelet-swap", Style(width=400))
    recorded = [*data(facts), *(compact(line.excerpt) for link in found.chain for line in link.evidence)]
    left = without(outside("\n".join(lines)), recorded)
    left = re.sub(r"(?m)^ *\S+[^|\n]* \| .*(\n {18}.*)*$", "", left)  # source | evidence
    assert not ENGLISH.search(left), ENGLISH.search(left)
    with speaking(korean()):
        facts, found = judged(name)
        for line in diagnosis_lines(found, judge(facts, found), "revive-kubelet-swap", Style(width=width)):
            assert wcwidth.width(line) <= width, line
