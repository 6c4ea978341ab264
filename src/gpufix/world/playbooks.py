"""Runs playbooks. The only importer of ansible_runner.

Each run gets a private data folder of its own (a second run in the first one's folder inherits its ``--check`` and
applies nothing), which is gone when the run ends: what ansible-runner leaves there holds the whole environment.
"""

from __future__ import annotations

import configparser
import locale
import os
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gpufix.errors import ExitStatus, GpufixError
from gpufix.language import t
from gpufix.world.private import private_folder

Event = Mapping[str, Any]
OnEvent = Callable[[Event], None]


@dataclass(frozen=True, slots=True)
class PlayRun:
    """What one run gave: ansible-playbook's return code (None when it never ran) and its events, in order."""

    return_code: int | None
    events: tuple[Event, ...]
    killed: bool = False


@dataclass(frozen=True, slots=True)
class Access:
    """How the operator's own Ansible reaches the host. ``inventory`` empty: what ansible.cfg says.

    ``become_password`` lives in this process only: it is typed into ansible's prompt and never written anywhere.
    """

    inventory: tuple[str, ...] = ()
    become_password: str | None = field(default=None, repr=False)
    ask_become: bool = False
    ssh_timeout: int = 10


@dataclass(slots=True)
class PlaybookRunner:
    """Runs one playbook at a time. ``kill`` is asked while it runs; True kills it (SIGKILL, within about a second)."""

    access: Access
    kill: Callable[[], bool] = lambda: False
    extra: Mapping[str, str | int | bool] = field(default_factory=dict)

    def run(
        self,
        playbook: Path,
        variables: Mapping[str, str | int | bool],
        *,
        check: bool = False,
        on_event: OnEvent | None = None,
    ) -> PlayRun:
        """Run ``playbook``; ``check`` is ``--check --diff``. What the events mean is for ``core.fold`` to say.

        ``variables`` reach Ansible as extra vars and are templated there: they hold only values that gpufix has
        validated (names, digests, numbers), never text that the cluster or the node said.
        """
        for value in variables.values():
            if isinstance(value, str) and ("{{" in value or "{%" in value or "{#" in value):
                raise GpufixError(
                    t("a value for a playbook holds template marks; it is not passed on"), "", ExitStatus.INTERNAL
                )
        import ansible_runner

        events: list[Event] = []
        broken: list[BaseException] = []

        def handle(event: dict[str, Any]) -> bool:
            try:  # an event handler that raises would kill the play half-way
                events.append(event)
                if on_event is not None:
                    on_event(event)
            except Exception as error:
                broken.append(error)
            return False  # nothing of the event is kept on disk

        with private_folder() as folder:
            (folder / "env").mkdir(mode=0o700)
            # suppress_env_files drops settings=, so they are written here; 1 s between looks at the kill switch
            settings = "pexpect_timeout: 1\nsuppress_output_file: true\n"
            (folder / "env" / "settings").write_text(settings, encoding="utf-8")
            runner = ansible_runner.run(
                private_data_dir=str(folder),
                project_dir=str(Path.cwd()),
                playbook=str(playbook),
                cmdline=" ".join(self._arguments(check)),
                extravars={**self.extra, **variables},
                envvars={**ansible_environment(self.access.ssh_timeout), "GPUFIX_PRIVATE": str(folder)},
                passwords=self._passwords(),
                suppress_env_files=True,
                quiet=True,
                event_handler=handle,
                cancel_callback=self.kill,
            )
        if broken:
            raise broken[0]
        return PlayRun(runner.rc, tuple(events), killed=runner.status == "canceled")

    def _arguments(self, check: bool) -> list[str]:
        arguments: list[str] = []
        for inventory in self.access.inventory:
            arguments += ["-i", _quote(inventory)]
        if check:
            arguments += ["--check", "--diff"]
        if self.access.become_password is not None:
            arguments.append("--ask-become-pass")
        return arguments

    def _passwords(self) -> dict[str, str]:
        if self.access.become_password is None:
            return {}
        return {r"^BECOME password.*:\s*?$": self.access.become_password}


def _working_locale() -> dict[str, str]:
    """Empty where Ansible can live with the operator's own locale: one that is installed here, in UTF-8.

    It refuses any other before it does anything (ansible.cli, initialize_locale), which would look like a node that
    does not answer.
    """
    before = locale.setlocale(locale.LC_ALL)
    try:
        for name in ("", "C.UTF-8", "en_US.UTF-8"):
            with suppress(locale.Error, ValueError):
                locale.setlocale(locale.LC_ALL, name)
                if (locale.getlocale()[1] or "").lower() in ("utf-8", "utf8"):
                    return {"LC_ALL": name} if name else {}
    finally:
        locale.setlocale(locale.LC_ALL, before)
    return {}


def ansible_environment(ssh_timeout: int) -> dict[str, str]:
    """What gpufix sets for Ansible on top of the operator's own environment, which wins where it says something."""
    return {
        # under pipx and uv tool, ansible-playbook is beside the interpreter and not on PATH
        **_working_locale(),
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)]),
        "ANSIBLE_PIPELINING": os.environ.get("ANSIBLE_PIPELINING", "True"),
        "ANSIBLE_DEPRECATION_WARNINGS": "False",
        "ANSIBLE_NOCOLOR": "1",
        "ANSIBLE_HOST_KEY_CHECKING": _host_key_checking(),
        "ANSIBLE_TIMEOUT": os.environ.get("ANSIBLE_TIMEOUT", str(ssh_timeout)),
    }


def _quote(text: str) -> str:
    return "'" + text.replace("'", "'\\''") + "'"


def ansible_config() -> Path | None:
    """The ansible.cfg that the operator's own Ansible would read: ANSIBLE_CONFIG, the folder, home, /etc."""
    named = os.environ.get("ANSIBLE_CONFIG")
    candidates = [Path(named).expanduser()] if named else []
    candidates += [Path.cwd() / "ansible.cfg", Path.home() / ".ansible.cfg", Path("/etc/ansible/ansible.cfg")]
    return next((path for path in candidates if path.is_file()), None)


def _host_key_checking() -> str:
    """What the operator set, on unless it was switched off: ansible-runner alone would switch it off in silence."""
    if "ANSIBLE_HOST_KEY_CHECKING" in os.environ:
        return os.environ["ANSIBLE_HOST_KEY_CHECKING"]
    path = ansible_config()
    if path is not None:
        parser = configparser.ConfigParser(interpolation=None, strict=False)
        try:
            parser.read(path, encoding="utf-8")
            return parser.get("defaults", "host_key_checking", fallback="True")
        except (configparser.Error, UnicodeDecodeError):
            return "True"
    return "True"
