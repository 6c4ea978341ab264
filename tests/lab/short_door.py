"""The door to ansible-runner, replaced by a short way to the same effects on a practice host.

The playbooks are the real ones and so are their modules, and Ansible's own templating decides what they are given. Only
two things are left out, and they are what takes the time: Ansible's processes (the modules run in this one, one after
another) and those of the practice host's tools (the lab is asked for what they would print, at the address that they
ask). ``test_kills.py`` holds both doors to the same end.
"""

from __future__ import annotations

import importlib
import io
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import redirect_stdout, suppress
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import ansible.module_utils
from ansible.module_utils.testing import patch_module_args
from ansible.parsing.dataloader import DataLoader
from ansible.template import Templar

from gpufix.resources import playbook_path
from gpufix.world.playbooks import Event, OnEvent, PlaybookRunner, PlayRun

PLAYBOOKS = playbook_path("read-node.yml").parent
# where Ansible finds them when it runs a playbook of that folder
ansible.module_utils.__path__.append(str(PLAYBOOKS / "module_utils"))
sys.path.append(str(PLAYBOOKS / "library"))

from ansible.module_utils import gpufix_host  # noqa: E402 - found only once the path is set

_KEYWORDS = {"name", "when", "register", "retries", "delay", "until", "check_mode", "diff", "changed_when"}
_OF_PLAYS = {"name", "hosts", "gather_facts", "become", "connection", "any_errors_fatal", "vars", "tasks"}
Sleep = Callable[[float], None]
Tool = Callable[[Sequence[str], Callable[[], gpufix_host.Done]], gpufix_host.Done]


class ShortDoor:
    """Stands for ``PlaybookRunner.run``. ``tool`` is called around each tool of the host, ``sleep`` waits between
    two looks of a task."""

    def __init__(self, sleep: Sleep, tool: Tool) -> None:
        self._sleep = sleep
        self._tool = tool
        for name in sorted(path.stem for path in (PLAYBOOKS / "library").glob("*.py")):
            importlib.import_module(name)
        # a scan of /proc in a process of its own is for hosts where it can hang
        sys.modules["gpufix_read_node"].in_child = lambda work, timeout: lambda: (work(), "")  # type: ignore[attr-defined]
        gpufix_host.Host.run = lambda host, command, timeout=None: self._ask(host, command)  # type: ignore[method-assign]

    def run(
        self, runner: PlaybookRunner, playbook: Path, variables: Mapping[str, Any], check: bool, on_event: OnEvent
    ) -> PlayRun:
        events: list[Event] = []

        def emit(kind: str, **data: Any) -> None:
            events.append({"event": kind, "event_data": data})
            on_event(events[-1])

        extra = {**runner.extra, **variables}
        failed = _Play(self, runner.access.inventory, extra, check, emit).run(playbook)
        return PlayRun(2 if failed else 0, tuple(events))

    def module(self, name: str, arguments: Mapping[str, Any], check: bool, diff: bool) -> dict[str, Any]:
        """What the module returns, with ``failed`` where it fails."""
        told = io.StringIO()
        values = {**arguments, "_ansible_check_mode": check, "_ansible_diff": diff}
        with patch_module_args(values), redirect_stdout(told), suppress(SystemExit):
            sys.modules[name].main()  # type: ignore[attr-defined]
        result: dict[str, Any] = json.loads(told.getvalue())
        return result

    def wait(self, seconds: float) -> None:
        self._sleep(seconds)

    def _ask(self, host: gpufix_host.Host, command: Sequence[str]) -> gpufix_host.Done:
        root, name = Path(host.root), command[0]
        if not (root / "usr/bin" / name).exists():
            return gpufix_host.Done(None, "", "", f"{name}: not installed")
        return self._tool(command, lambda: _of_the_lab(root, command))


def _of_the_lab(root: Path, command: Sequence[str]) -> gpufix_host.Done:
    """What the stand-in of a tool does, without its process."""
    folder = root.parent.parent
    address = json.loads((folder / "lab.json").read_text())["url"].removeprefix("http://")
    token = (folder / "token").read_text()
    door = HTTPConnection(address, timeout=30)
    try:
        door.request(
            "POST", "/lab/v1/tool", json.dumps({"node": root.name, "argv": list(command)}),
            {"Authorization": f"Bearer {token}", "Content-Type": "application/json"},
        )  # fmt: skip
        answer = door.getresponse()
        body = answer.read()
    finally:
        door.close()
    assert answer.status == 200, body
    told = json.loads(body)
    return gpufix_host.finished(command[0], told["code"], told["out"], told["err"])


class _Play:
    """The plays of one playbook, with as much of Ansible as they use. What they use besides is refused."""

    def __init__(
        self,
        door: ShortDoor,
        inventory: Sequence[str],
        extra: Mapping[str, Any],
        check: bool,
        emit: Callable[..., None],
    ) -> None:
        self._door, self._extra, self._check, self._emit = door, extra, check, emit
        self._loader = DataLoader()
        self._known: dict[str, dict[str, Any]] = {"localhost": {}}
        for path in inventory:
            self._known |= json.loads(Path(path).read_text())["lab"]["hosts"]
        self._facts: dict[str, dict[str, Any]] = {name: {} for name in self._known}

    def run(self, playbook: Path) -> bool:
        """Whether it failed."""
        processed: dict[str, int] = {}
        failures: dict[str, int] = {}
        for play in self._loader.load_from_file(str(playbook), trusted_as_template=True):
            assert set(play) <= _OF_PLAYS, f"{playbook}: the short door knows no {set(play) - _OF_PLAYS}"
            host = Templar(self._loader, variables=dict(self._extra)).template(play["hosts"])
            processed[host] = 1
            if not all(self._task(play, task, host) for task in play["tasks"]):
                failures[host] = 1
                break
        self._emit("playbook_on_stats", processed=processed, failures=failures, dark={})
        return bool(failures)

    def _task(self, play: Mapping[str, Any], task: Mapping[str, Any], host: str) -> bool:
        name = str(task["name"])
        self._emit("playbook_on_task_start", task=name)
        action = next(key for key in task if key not in _KEYWORDS)
        where = {"task": name, "host": host, "task_action": action}
        if not self._hold(_listed(task.get("when")), play, host):
            self._emit("runner_on_skipped", **where, res={"changed": False})
            return True
        for attempt in range(1, self._tries(play, task, host) + 1):
            result = {**self._result(play, task, action, host), "attempts": attempt}
            if "register" in task:
                self._facts[host][task["register"]] = {**result, "failed": bool(result.get("failed"))}
            if self._hold(_listed(task.get("until")), play, host):
                break
            self._emit("runner_retry", **where, res=result)
            self._door.wait(float(task["delay"]))
        if task.get("changed_when") is False:
            result["changed"] = False
        self._emit("runner_on_failed" if result.get("failed") else "runner_on_ok", **where, res=result)
        return not result.get("failed")

    def _tries(self, play: Mapping[str, Any], task: Mapping[str, Any], host: str) -> int:
        return 1 + int(self._templar(play, host).template(task["retries"])) if "until" in task else 1

    def _hold(self, conditions: Sequence[Any], play: Mapping[str, Any], host: str) -> bool:
        return all(self._templar(play, host).evaluate_conditional(one) for one in conditions)

    def _result(self, play: Mapping[str, Any], task: Mapping[str, Any], action: str, host: str) -> dict[str, Any]:
        templar = self._templar(play, host)
        if action == "ansible.builtin.assert":
            if self._hold(_listed(task[action]["that"]), play, host):
                return {"changed": False}
            return {"failed": True, "msg": templar.template(task[action]["fail_msg"])}
        arguments = templar.template(task[action] or {})
        if action == "ansible.builtin.set_fact":
            self._facts[host] |= arguments
            return {"changed": False}
        check = bool(task.get("check_mode", self._check))
        return self._door.module(action, arguments, check, diff=bool(task.get("diff", self._check)))

    def _templar(self, play: Mapping[str, Any], host: str) -> Templar:
        of_ansible = {
            "inventory_hostname": host, "ansible_check_mode": self._check, "ansible_playbook_python": sys.executable,
            "hostvars": self._facts,
        }  # fmt: skip
        variables = {**of_ansible, **self._known[host], **play.get("vars", {}), **self._facts[host], **self._extra}
        return Templar(self._loader, variables=variables)


def _listed(value: Any) -> list[Any]:
    return [] if value is None else value if isinstance(value, list) else [value]
