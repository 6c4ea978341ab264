"""Notices to a webhook: never in the run's way, and the address, which is a secret, nowhere to be seen."""

from __future__ import annotations

import base64
import json
import queue
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpufix.core.render.notice import MOST_CHANGES, Moment, Notice, escape_slack, notice_as_data
from gpufix.errors import ExitStatus, GpufixError
from gpufix.world.notify import Notifier

SECRET = "T0SECRET"
STARTED = {"event": "started", "text": "hello"}
LONG = 30.0
"""Seconds that pass only where a test fails."""


@dataclass
class Hook:
    """A webhook on this machine: answers with ``answers`` in order (then 200), once ``let`` is set."""

    port: int = 0
    answers: list[int] = field(default_factory=list)
    let: threading.Event = field(default_factory=threading.Event)
    seen: queue.Queue[tuple[str, dict[str, str], dict[str, Any]]] = field(default_factory=queue.Queue)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/services/{SECRET}?key={SECRET}"


@pytest.fixture(autouse=True)
def no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)


@pytest.fixture
def hook() -> Iterator[Hook]:
    hook = Hook()
    hook.let.set()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", "0")))
            hook.seen.put((self.path, dict(self.headers), json.loads(body or "{}")))
            hook.let.wait(LONG)
            status = hook.answers.pop(0) if hook.answers else 200
            self.send_response(status)
            if 300 <= status < 400:
                self.send_header("Location", f"http://127.0.0.1:{hook.port}/elsewhere")
            self.send_header("Content-Length", "0")
            self.end_headers()

        def do_GET(self) -> None:  # what a followed redirect would come as
            self.do_POST()

        def log_message(self, format: str, *arguments: object) -> None: ...

    class Server(ThreadingHTTPServer):
        daemon_threads = True

        def handle_error(self, request: object, client_address: object) -> None: ...

    server = Server(("127.0.0.1", 0), Handler)
    hook.port = server.server_address[1]
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    yield hook
    hook.let.set()
    server.shutdown()
    thread.join(LONG)
    server.server_close()


@contextmanager
def listener(backlog: int | None) -> Iterator[int]:
    """A port that takes connections and says nothing; with None, one that refuses them."""
    with socket.socket() as door:
        door.bind(("127.0.0.1", 0))
        if backlog is not None:
            door.listen(backlog)
        yield door.getsockname()[1]


def post_to(url: str, payload: dict[str, Any] = STARTED, **options: Any) -> tuple[str, ...]:
    notifier = Notifier(url, **{"pause": 0.0, "timeout": LONG, **options})
    notifier.post(payload)
    notifier.close(LONG)
    for said in (*notifier.troubles, repr(notifier)):
        assert SECRET not in said
        assert "\n" not in said
    return notifier.troubles


# --- posting ---------------------------------------------------------------------------------------------------------


def test_a_notice_arrives_as_json(hook: Hook) -> None:
    payload = notice_as_data(Notice(Moment.WAITING, "omen2", "revive-kubelet-swap", "run-1", "gate", "at relabel"))
    assert post_to(hook.url, payload) == ()
    path, headers, body = hook.seen.get(timeout=LONG)
    assert path == f"/services/{SECRET}?key={SECRET}"
    assert headers["Content-Type"] == "application/json"
    assert "Authorization" not in headers
    assert body == payload


def test_notices_arrive_in_order_and_closing_waits_for_them(hook: Hook) -> None:
    notifier = Notifier(hook.url)
    for number in range(5):
        notifier.post({"event": "started", "number": number})
    notifier.close(LONG)
    notifier.close(LONG)
    notifier.post({"event": "finished"})
    assert [hook.seen.get(timeout=LONG)[2]["number"] for _ in range(5)] == list(range(5))
    assert hook.seen.empty()
    assert notifier.troubles == ()


def test_secrets_and_what_is_no_json_do_not_get_out(hook: Hook) -> None:
    assert post_to(hook.url, {"event": "started", "text": "password=hunter2 \udc80", "n": float("nan")}) == ()
    assert hook.seen.get(timeout=LONG)[2] == {"event": "started", "text": "password=(redacted) \udc80", "n": None}


@pytest.mark.parametrize("status", [429, 500, 503])
def test_a_server_in_trouble_is_asked_once_more(hook: Hook, status: int) -> None:
    hook.answers = [status]
    assert post_to(hook.url) == ()
    assert hook.seen.qsize() == 2


def test_and_not_twice_more(hook: Hook) -> None:
    hook.answers = [500, 500]
    assert post_to(hook.url) == ("notify http://127.0.0.1: started did not arrive: the answer was HTTP 500",)
    assert hook.seen.qsize() == 2


@pytest.mark.parametrize("status", [400, 401, 404])
def test_a_refusal_is_final(hook: Hook, status: int) -> None:
    hook.answers = [status]
    (trouble,) = post_to(hook.url)
    assert trouble.endswith(f"HTTP {status}")
    assert hook.seen.qsize() == 1


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_no_redirect_is_followed(hook: Hook, status: int) -> None:
    hook.answers = [status]
    (trouble,) = post_to(hook.url)
    assert trouble.endswith(f"HTTP {status}, and redirects are not followed")
    assert hook.seen.qsize() == 1


def test_nobody_there() -> None:
    with listener(None) as port:
        (trouble,) = post_to(f"http://127.0.0.1:{port}/{SECRET}")
    assert trouble == "notify http://127.0.0.1: started did not arrive: Connection refused"


def test_no_answer_is_not_asked_for_twice() -> None:
    with listener(5) as port:
        (trouble,) = post_to(f"http://127.0.0.1:{port}/{SECRET}", timeout=0.05)
    assert trouble == "notify http://127.0.0.1: started did not arrive: no answer within 0.05 s"


def test_a_server_that_hangs_up() -> None:
    with socket.socket() as door:
        door.bind(("127.0.0.1", 0))
        door.listen(1)

        def hang_up() -> None:
            taken, _ = door.accept()
            with taken:
                taken.recv(65_536)

        thread = threading.Thread(target=hang_up, daemon=True)
        thread.start()
        (trouble,) = post_to(f"http://127.0.0.1:{door.getsockname()[1]}/{SECRET}")
        thread.join(LONG)
    assert "did not arrive: " in trouble


def test_a_server_that_does_not_speak_tls(hook: Hook) -> None:
    (trouble,) = post_to(hook.url.replace("http://", "https://"))
    assert trouble.startswith("notify https://127.0.0.1: started did not arrive: ")
    assert hook.seen.empty()


def test_a_name_that_no_resolver_takes_does_not_end_the_thread() -> None:
    notifier = Notifier(f"http://{'a' * 70}.example/{SECRET}", pause=0.0)
    notifier.post(STARTED)
    notifier.post(STARTED)
    notifier.close(LONG)
    assert len(notifier.troubles) == 2


# --- never in the way ------------------------------------------------------------------------------------------------


def test_a_slow_server_holds_nobody_up(hook: Hook) -> None:
    hook.let.clear()
    notifier = Notifier(hook.url, timeout=LONG, room=2)
    for _ in range(3):
        notifier.post(STARTED)
    assert notifier.troubles == ("notify http://127.0.0.1: started was dropped: 2 others wait to be posted",)
    hook.seen.get(timeout=LONG)
    notifier.close(0)
    assert notifier.troubles[1:] == ("notify http://127.0.0.1: 2 not known to have arrived when gpufix ended",)
    hook.let.set()
    assert notifier._thread is not None
    notifier._thread.join(LONG)
    assert hook.seen.empty(), "what was given up is not posted later"
    assert len(notifier.troubles) == 2


def test_giving_up_ends_the_wait_before_the_retry(hook: Hook) -> None:
    hook.answers = [500]
    hook.let.clear()
    notifier = Notifier(hook.url, timeout=LONG, pause=3600)
    notifier.post(STARTED)
    hook.seen.get(timeout=LONG)
    notifier.close(0)
    hook.let.set()
    assert notifier._thread is not None
    notifier._thread.join(LONG)
    assert not notifier._thread.is_alive()


def test_a_thread_that_cannot_be_started_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_more(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", no_more)
    assert post_to(f"http://127.0.0.1/{SECRET}") == (
        "notify http://127.0.0.1: started was not posted: can't start new thread",
    )


def test_nothing_posted_is_no_thread() -> None:
    notifier = Notifier(f"http://127.0.0.1/{SECRET}")
    notifier.close()
    assert notifier._thread is None


TERMINATE = "os.kill(os.getpid(), signal.SIGTERM)"
FORK = """
child = os.fork()
if child == 0:
    notifier.post({"event": "finished"})
    notifier.close(3600)
    raise SystemExit(7)
raise SystemExit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


@pytest.mark.parametrize(
    ("ending", "status"),
    [("", 0), ("notifier.close(0)", 0), ("raise SystemExit(3)", 3), (TERMINATE, -15), (FORK, 7)],
    ids=["plain", "closed", "exit", "killed", "forked"],
)
def test_a_post_under_way_does_not_hold_up_the_interpreters_exit(ending: str, status: int) -> None:
    with socket.socket() as door:
        door.bind(("127.0.0.1", 0))
        door.listen(1)
        door.settimeout(LONG)
        url = f"http://127.0.0.1:{door.getsockname()[1]}/{SECRET}"
        code = (
            "import os, signal\nfrom gpufix.world.notify import Notifier\n"
            f"notifier = Notifier({url!r}, timeout=3600)\nnotifier.post({{'event': 'started'}})\ninput()\n{ending}\n"
        )
        command = [sys.executable, "-W", "ignore::DeprecationWarning", "-c", code]
        pipe = subprocess.PIPE
        with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True) as script:
            taken, _ = door.accept()
            with taken:
                assert taken.recv(4) == b"POST"
                _, err = script.communicate("\n", timeout=LONG)
    assert (script.returncode, err) == (status, "")


# --- the address -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "url",
    [
        "",
        SECRET,
        f"/{SECRET}",
        f"file:///etc/{SECRET}",
        f"ftp://host/{SECRET}",
        f"data:,{SECRET}",
        f"https:///{SECRET}",
        f"https://:443/{SECRET}",
        f"https://user:{SECRET}@/x",
        f"https://host:port/{SECRET}",
        f"https://host:99999/{SECRET}",
        f"https://[::1/{SECRET}",
        f"https://host/{SECRET} x",
        f"https://host/{SECRET}\n",
        f"ht\ntp://host/{SECRET}",
        f"https://h\u00f6st/{SECRET}",
        f"https://host/{SECRET}\x00",
    ],
)
def test_addresses_that_are_refused_are_not_repeated(url: str) -> None:
    with pytest.raises(GpufixError) as caught:
        Notifier(url)
    assert caught.value.exit_status is ExitStatus.USAGE
    assert SECRET not in caught.value.message + caught.value.hint
    assert caught.value.__cause__ is None
    assert caught.value.__suppress_context__ or caught.value.__context__ is None


@given(st.text(st.characters()))
def test_any_other_text_is_an_address_or_refused(text: str) -> None:
    for url in (text, f"https://{text}", f"https://host/{text}"):
        try:
            shown = Notifier(url).shown
        except GpufixError:
            continue
        assert shown.isprintable()
        assert shown.startswith(("http://", "https://"))


def test_only_scheme_and_host_are_shown() -> None:
    notifier = Notifier(f"HTTPS://me:{SECRET}@Hooks.Example.com:8443/{SECRET}?{SECRET}#{SECRET}")
    assert repr(notifier) == "Notifier('https://hooks.example.com')"
    assert Notifier(f"http://[::1]:80/{SECRET}").shown == "http://[::1]"


def test_a_user_in_the_address_is_sent_as_basic_auth(hook: Hook) -> None:
    assert post_to(hook.url.replace("127.0.0.1", f"me:p%40ss{SECRET}@127.0.0.1")) == ()
    path, headers, _ = hook.seen.get(timeout=LONG)
    assert base64.b64decode(headers["Authorization"].removeprefix("Basic ")).decode() == f"me:p@ss{SECRET}"
    assert headers["Host"] == f"127.0.0.1:{hook.port}"
    assert path.startswith("/services/")


def test_a_proxy_of_the_environment_is_used(hook: Hook, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", f"http://127.0.0.1:{hook.port}")
    assert post_to(f"http://hooks.invalid/{SECRET}") == ()
    path, headers, _ = hook.seen.get(timeout=LONG)
    assert path == f"http://hooks.invalid/{SECRET}"
    assert headers["Host"] == "hooks.invalid"


def test_a_proxy_that_refuses_is_named_as_one(hook: Hook, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("https_proxy", f"http://127.0.0.1:{hook.port}")
    (trouble,) = post_to(f"https://hooks.invalid/{SECRET}")
    assert "Tunnel connection failed: 501" in trouble  # the server of these tests knows no CONNECT


# --- what is said ----------------------------------------------------------------------------------------------------


def test_a_notice_has_words_for_people_and_fields_for_machines() -> None:
    notice = Notice(
        Moment.FINISHED,
        "omen2",
        "revive-kubelet-swap",
        "20261202T120000Z-omen2-7",
        "recovered",
        "Recovered: omen2 is Ready and stays so.",
        {"node": "well", "vms": "waiting"},
        ("- /swap.img none swap", "+ # /swap.img none swap"),
    )
    assert notice_as_data(notice) == {
        "text": (
            "omen2: recovery with revive-kubelet-swap has ended\nRecovered: omen2 is Ready and stays so.\n"
            "node: well\nvms: waiting\n  - /swap.img none swap\n  + # /swap.img none swap"
        ),
        "v": 1,
        "event": "finished",
        "node": "omen2",
        "runbook": "revive-kubelet-swap",
        "run": "20261202T120000Z-omen2-7",
        "status": "recovered",
        "verdicts": {"node": "well", "vms": "waiting"},
        "changes": ["- /swap.img none swap", "+ # /swap.img none swap"],
    }


def test_many_changes_are_counted_and_not_listed() -> None:
    data = notice_as_data(Notice(Moment.WAITING, "n", "", "r", changes=[f"+ {n}" for n in range(MOST_CHANGES + 3)]))
    assert len(data["changes"]) == MOST_CHANGES + 1
    assert data["changes"][-1] == "... and 3 more"
    assert "no runbook" in data["text"]


@given(st.text(st.characters(), max_size=40), st.sampled_from(Moment))
def test_hostile_text_says_nothing_to_slack_or_a_terminal(text: str, moment: Moment) -> None:
    said = f"<!channel>{text}\x1b[31m&lt;"
    data = notice_as_data(Notice(moment, said, said, said, said, said, {said: said}, [said]))
    assert not set(data["text"]) & set("<>\x1b")
    assert "&lt;!channel&gt;" in data["text"]
    assert "\x1b" not in str(data)
    assert "\n" not in "".join([data["node"], data["status"], *data["changes"]])
    json.dumps(data, ensure_ascii=False).encode()


@given(st.text())
def test_slacks_escapes_can_be_undone(text: str) -> None:
    back = escape_slack(text).replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&")
    assert back == text


def test_a_secret_in_a_change_is_left_out() -> None:
    data = notice_as_data(Notice(Moment.WAITING, "n", "b", "r", changes=["+ token=abc123"]))
    assert "abc123" not in json.dumps(data)
