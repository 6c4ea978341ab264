"""Hostile text never reaches a terminal as it is, and secrets never reach a file."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpufix.text import ago, did_you_mean, duration, redact, redact_all, safe, size


@given(st.text())
def test_nothing_a_terminal_obeys_is_left(text: str) -> None:
    shown = safe(text)
    assert all(char.isprintable() or char in "\xad" or not char.isascii() for char in shown)
    assert not any(ord(char) < 32 or 0x7F <= ord(char) < 0xA0 for char in shown)
    assert not set(shown) & set("\u202e\u202d\u2066\u2067\u2069\u2028\u2029\u200b\ufeff")


@pytest.mark.parametrize("text", ["\x1b[31mred", "a\rb", "\x9b31m", "\u202egnp.exe", "x\x00y", "\ud800"])
def test_escapes_become_visible(text: str) -> None:
    assert "\\x" in safe(text) or "\\u" in safe(text)


@given(st.text(min_size=1), st.integers(min_value=1, max_value=20))
def test_a_limit_holds(text: str, limit: int) -> None:
    assert len(safe(text, limit=limit)) <= limit


@pytest.mark.parametrize(
    ("text", "secret"),
    [
        ("//nas/x /mnt cifs username=joe,password=hunter2,uid=0 0 0", "hunter2"),
        ("--token=abcdef.0123456789abcdef", "abcdef.0123456789abcdef"),
        ("Authorization: Bearer abcdefghijklmnop", "abcdefghijklmnop"),
        ("token: eyJhbGciOiJSUzI1NiJ9.eyJpc3MiOiJrdWJlcm5ldGVzIn0.c2lnbmF0dXJl", "c2lnbmF0dXJl"),
        ("eyJhbGciOiJSUzI1NiJ9.eyJpc3MiOiJrdWJlcm5ldGVzIn0.c2lnbmF0dXJl", "eyJpc3MiOiJrdWJlcm5ldGVzIn0"),
        ("-----BEGIN RSA PRIVATE KEY-----\nMIIEow\n-----END RSA PRIVATE KEY-----", "MIIEow"),
        ('{"password": "p w"}', "p w"),
        ("client-secret='s3cr3t'", "s3cr3t"),
    ],
)
def test_secrets_are_redacted(text: str, secret: str) -> None:
    assert secret in text
    assert secret not in redact(text)


def test_redaction_leaves_evidence_alone() -> None:
    line = 'E1202 run.go:72] "command failed" err="failed to run Kubelet: running with swap on is not supported"'
    assert redact(line) == line


def test_durations_and_sizes() -> None:
    assert duration(timedelta(days=112, hours=3, minutes=9)) == "112 d 3 h"
    assert duration(timedelta(0)) == "0 s"
    assert duration(timedelta(seconds=-5)) == "0 s"
    assert size(28) == "28 KiB"
    assert size(262140) == "256.0 MiB"
    assert size(32 * 1024 * 1024) == "32.0 GiB"
    start = datetime(2026, 8, 12, 4, 0, tzinfo=UTC)
    assert ago(start, start + timedelta(days=112)) == "since 2026-08-12 04:00:00 UTC (112 d)"
    assert ago(None, start) == ""


def test_did_you_mean() -> None:
    assert did_you_mean("omen3", ["omen1", "omen2", "nas"]).startswith("did you mean omen")
    assert did_you_mean("zzz", ["omen1"]) == "there is: omen1"
    assert did_you_mean("x", []) == ""


@pytest.mark.parametrize(
    "text",
    [
        "HF_TOKEN=s3cr3t", "DB_PASSWORD=s3cr3t", "AWS_SECRET_ACCESS_KEY=s3cr3t", "export WANDB_API_KEY='s3cr3t'",
        "--token=s3cr3t", "--password s3cr3t", "https://user:s3cr3t@registry/x", "Authorization: Basic s3cr3ts3cr3t",
        "https://hooks.slack.com/services/T0/B0/s3cr3t", '{"token":"a\\"s3cr3t"}', "cifs pass=s3cr3t,password2=s3cr3t",
        '"{\\"token\\": \\"s3cr3t\\"}"',
        'password="s3cr3t', "{'my-secret': 's3cr3t'}",
    ],
)  # fmt: skip
def test_secrets_in_their_usual_spellings_are_taken_out(text: str) -> None:
    assert "s3cr3t" not in redact(text)
    assert "(redacted)" in redact(text)


@pytest.mark.parametrize(
    "text", ["the token expired at 5", '"automountServiceAccountToken": true', "secretName: x", "passage=1", "a-key: b"]
)
def test_what_is_no_secret_stays(text: str) -> None:
    assert redact(text) == text


WORDS = st.sampled_from(["token", "api-key", "password=", "secret", "a", "my_token", "it's", "x: y", "{", "token='"])
TEXTS = st.one_of(WORDS, st.text())
DATA = st.recursive(
    st.one_of(TEXTS, st.booleans(), st.none(), st.integers()),
    lambda part: st.one_of(st.lists(part, max_size=4), st.dictionaries(TEXTS, part, max_size=4)),
    max_leaves=20,
)


@given(DATA)
def test_data_is_the_same_data_when_the_secrets_are_gone(data: object) -> None:
    text = json.dumps(redact_all(data))
    assert type(json.loads(text)) is type(data)
    assert json.dumps(redact_all(json.loads(text))) == text, "nothing more to take out"


def test_a_secret_is_known_by_its_key() -> None:
    data = {"DB_PASSWORD": "s3cr3t", "nested": [{"api-key": "s3cr3t", "token": 5, "tokens": "x"}]}
    assert redact_all(data) == {
        "DB_PASSWORD": "(redacted)", "nested": [{"api-key": "(redacted)", "token": 5, "tokens": "x"}],
    }  # fmt: skip


def test_a_long_name_costs_no_more_than_its_length() -> None:
    assert redact("a_" * 200_000) == "a_" * 200_000


@pytest.mark.parametrize("char", ["\u00ad", "\u2060", "\U000e0041", "\u061c", "\ufff9", "\u200d"])
def test_what_cannot_be_seen_is_shown(char: str) -> None:
    assert char not in safe(f"omen{char}2")
