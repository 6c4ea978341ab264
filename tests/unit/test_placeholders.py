"""Values in the commands of a printed runbook: always one word of the shell, whatever the cluster called it."""

from __future__ import annotations

import subprocess

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpufix.core.placeholders import NAMES, fill, names_in, quote, spread, why_unfillable
from gpufix.text import safe

HOSTILE = ["a b", "$(touch x)", "`id`", "'; reboot #", '"', "\\", "-rf", "{{ node }}", "{% x %}", "a\nb", "\x1b[2J",
           "\u202egnp", "", "*", "~", "!!", "å"]  # fmt: skip


def words(command: str) -> list[str]:
    """The words that bash makes of ``command``."""
    done = subprocess.run(
        ["/bin/bash", "--norc", "-c", f"printf '%s\\0' {command}"],
        capture_output=True, check=True, env={"LC_ALL": "C.UTF-8"}, stdin=subprocess.DEVNULL, cwd="/",
    )  # fmt: skip
    return done.stdout.decode("utf-8", "surrogateescape").split("\0")[:-1]


@settings(max_examples=150, deadline=None)
@given(st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=20))
def test_a_quoted_value_is_one_word_and_nothing_hides_in_it(value: str) -> None:
    assert words(quote(value)) == [value]
    assert safe(quote(value)) == quote(value)


@pytest.mark.parametrize("value", HOSTILE)
def test_a_hostile_value_is_filled_in_as_a_word_of_its_own(value: str) -> None:
    assert words(fill("a{{ node }}b x={{node}} {{ node }}", {"node": value})) == [f"a{value}b", f"x={value}", value]


def test_what_is_not_known_is_a_variable() -> None:
    assert fill("ssh {{ host }} {{ node }}", {"node": "omen2"}) == 'ssh "$HOST" omen2'
    loop = 'for SWAP_DEVICE in $SWAP_DEVICES; do\n  swapoff "$SWAP_DEVICE"\ndone'
    assert list(spread("swapoff {{ swap_device }}", "swap_device", {})) == [loop]


def test_there_may_be_many_one_or_none() -> None:
    command = "swapoff {{ swap_device }}"
    assert list(spread(command, "swap_device", {"swap_device": ("/a", "/b c")})) == ["swapoff /a", "swapoff '/b c'"]
    assert list(spread(command, "swap_device", {"swap_device": ()})) == []


@pytest.mark.parametrize(
    ("command", "word"),
    [
        ("echo '{{ node }}'", "inside quotes"),
        ('echo "{{ node }}"', "inside quotes"),
        ("echo \"$(echo '{{ node }}')\"", "inside quotes"),
        ("echo 'a", "not closed"),
        ("echo $(ls", "not closed"),
        ("echo `ls {{ node }}`", "backtick"),
        ("cat <<END\n{{ node }}\nEND", "here-document"),
        ("echo $(( {{ node }} + 1 ))", "arithmetic"),
        ("[[ {{ node }} -eq 1 ]]", "[[ ]]"),
        ("true; eval {{ node }}", "eval"),
    ],
)
def test_places_where_a_value_would_be_read_again(command: str, word: str) -> None:
    wrong = why_unfillable(command)
    assert wrong is not None
    assert word in wrong[0]


@pytest.mark.parametrize(
    "command",
    [
        "echo {{ node }} 'a'{{ node }}\"b\"",
        'echo "$(echo {{ node }})"',
        "echo it\\'s {{ node }}",
        "ls # it's {{ node }}\nls {{ node }}",
        "(cd / && echo {{ node }})",
        "echo 'a' \"b'c\" {{ node }}",
    ],
)
def test_places_where_it_is_a_word(command: str) -> None:
    assert why_unfillable(command) is None
    hostile = "'; touch /nowhere/x; '"
    done = subprocess.run(["/bin/bash", "-n", "-c", fill(command, {"node": hostile})], check=False)
    assert done.returncode == 0


@pytest.mark.parametrize("name", list(NAMES))
def test_every_value_can_be_assigned_by_a_person(name: str) -> None:
    about = NAMES[name]
    line = f"{about.plural or name.upper()}={about.assign}"
    assert subprocess.run(["/bin/bash", "-n", "-c", line], check=False).returncode == 0
    assert names_in(about.assign) == []
