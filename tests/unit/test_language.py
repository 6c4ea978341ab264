"""In which language gpufix speaks, and that no catalog is behind the sources."""

from __future__ import annotations

import ast
import gettext
import string
import sys
from io import BytesIO
from pathlib import Path

import pytest

from gpufix.errors import GpufixError
from gpufix.language import LANGUAGES, mark, speaking, t, tn
from gpufix.world import catalogs
from gpufix.world.catalogs import catalog, wanted

ROOT = Path(__file__).resolve().parents[2]


class Catalog(gettext.NullTranslations):
    """``said``: what it says for a sentence."""

    def __init__(self, **said: str) -> None:
        super().__init__()
        self.said = said

    def gettext(self, message: str) -> str:
        return self.said.get(message.split()[0], message)


@pytest.mark.parametrize(
    ("environment", "language"),
    [
        ({}, "en"),
        ({"LANG": "C.UTF-8"}, "en"),
        ({"LANG": "ko_KR.UTF-8"}, "ko"),
        ({"LANG": "ko"}, "ko"),
        ({"LANG": "de_DE.UTF-8"}, "en"),
        ({"LANG": "ko_KR.UTF-8", "LC_MESSAGES": "en_US.UTF-8"}, "en"),
        ({"LANG": "en_US.UTF-8", "LC_ALL": "ko_KR.eucKR"}, "ko"),
        ({"LANG": "de_DE.UTF-8", "LANGUAGE": "de:ko:en"}, "ko"),
        ({"LANG": "ko_KR.UTF-8", "LANGUAGE": "en"}, "en"),
        ({"LC_ALL": "C", "LANG": "ko_KR.UTF-8", "LANGUAGE": "ko"}, "en"),
        ({"LC_ALL": "", "LANG": "ko_KR@x"}, "ko"),
    ],
)
def test_the_environment_says_the_language_as_gettext_reads_it(environment: dict[str, str], language: str) -> None:
    assert wanted(environment) == language


def test_a_value_is_put_in_as_it_is() -> None:
    assert t("{node} is not Ready", node="{0.__class__}") == "{0.__class__} is not Ready"
    assert t("braces {mean} nothing") == mark("braces {mean} nothing")
    assert (tn("{n} VM", "{n} VMs", 1), tn("{n} VM", "{n} VMs", 3)) == ("1 VM", "3 VMs")
    assert t("") == "", "the header of a catalog is no translation"


def test_only_within_and_a_wrong_translation_stops_nothing() -> None:
    with speaking(Catalog(swap="스왑: {where}", label="{nothing} {0} {")):
        assert t("swap is on in {where}", where="fstab") == "스왑: fstab"
        assert t("label {name} is old", name="a") == "label a is old"
        with speaking(None):
            assert t("swap is on in {where}", where="fstab") == "swap is on in fstab"
    assert t("swap is on in {where}", where="fstab") == "swap is on in fstab"


def test_a_missing_catalog_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(catalogs, "FOLDER", tmp_path)
    assert catalog("en") is None
    with pytest.raises(GpufixError, match="the ko catalog of this installation cannot be read"):
        catalog("ko")


@pytest.fixture
def tool() -> object:
    sys.path.insert(0, str(ROOT / "src"))
    import catalogs as tool

    return tool


def fields(text: str) -> set[str]:
    """Names of the places of values in ``text``: those of str.format and of a template's trans."""
    try:
        braces = {name for _, name, _, _ in string.Formatter().parse(text) if name}
    except ValueError:
        braces = set()
    return braces | {f"%({part.split(')')[0]})s" for part in text.split("%(")[1:]}


@pytest.mark.dev
@pytest.mark.parametrize("language", LANGUAGES[1:])
def test_no_sentence_is_missing_in_the_catalog(tool: object, language: str) -> None:
    from babel.messages.pofile import read_po

    path = ROOT / "src" / "gpufix" / "locale" / language / "LC_MESSAGES" / "gpufix.po"
    with path.open("rb") as source:
        there = read_po(source, locale=language)
    collected = tool.collect()  # type: ignore[attr-defined]
    assert len(collected) > 300
    assert {message.id for message in collected if message.id} == {message.id for message in there if message.id}, (
        "python src/catalogs.py update"
    )
    for message in there:
        if not message.id:
            continue
        ids = message.id if isinstance(message.id, tuple) else (message.id,)
        said = message.string if isinstance(message.string, tuple) else (message.string,)
        assert all(said) and not message.fuzzy, f"not translated: {ids[0]}"
        for one in said:
            assert fields(one) == fields(ids[-1]), f"other values than in: {ids[0]}"
            assert (one[0].isspace(), one[-1].isspace()) == (ids[0][0].isspace(), ids[0][-1].isspace()), ids[0]


@pytest.mark.dev
@pytest.mark.parametrize("language", LANGUAGES[1:])
def test_what_is_read_is_what_was_written(tool: object, language: str) -> None:
    from babel.messages.mofile import write_mo
    from babel.messages.pofile import read_po

    path = ROOT / "src" / "gpufix" / "locale" / language / "LC_MESSAGES" / "gpufix.po"
    compiled = BytesIO()
    with path.open("rb") as source:
        write_mo(compiled, read_po(source, locale=language, domain="gpufix"))
    assert path.with_suffix(".mo").read_bytes() == compiled.getvalue(), "python src/catalogs.py compile"


def test_what_is_collected_is_written_so_that_it_can_be() -> None:
    """Babel sees no call within an f-string, and an f-string is another sentence each time."""
    for path in sorted((ROOT / "src" / "gpufix").rglob("*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        hidden = [part for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in ast.walk(node)]
        calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)]
        for call in calls:
            if call.func.id in ("t", "tn", "mark") and call.args:  # type: ignore[attr-defined]
                told = f"{path}:{call.lineno}"
                constant = isinstance(call.args[0], ast.Constant)
                assert not isinstance(call.args[0], (ast.JoinedStr, ast.BinOp)), told
                assert not (constant and any(part is call for part in hidden)), told
