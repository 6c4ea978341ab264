"""What ``gpufix lab`` does besides the walk itself: up, down, status, list, shell. Raises GpufixError for bad input."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from http.client import HTTPException
from pathlib import Path

from gpufix import resources, runs
from gpufix.core.lease import NAMESPACE, holder_of, lease_name
from gpufix.core.render.terminal import Style
from gpufix.errors import ExitStatus, GpufixError
from gpufix.lab.scenario import JOB, Scenario, job_state, load_scenario
from gpufix.lab.server import LOG, STATE, Lab, environment, only_one, read_mark, tools_folder
from gpufix.lab.tools import TOOLS
from gpufix.language import t
from gpufix.lock import alive_here
from gpufix.text import columns, did_you_mean, padded, safe

PACE = 10.0
"""How many times as fast delays pass, where nobody says."""
_OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))
"""Past any proxy of the environment, which would be given the token."""
_PATIENCE = 30.0
"""Seconds in which a lab must be up, or down."""


def default_folder() -> Path:
    state = os.environ.get("XDG_STATE_HOME")
    return (Path(state) if state else Path.home() / ".local" / "state") / "gpufix" / "lab"


def state_of(folder: Path) -> Path:
    """Where the runs in the lab of ``folder`` keep their journals."""
    return folder / STATE / "gpufix"


VERBS = ("recover", "resume", "undo", "runs", "report")
"""The commands that a lab has too, for its own runs."""
_COMMANDS = re.compile(rf"\bgpufix ({'|'.join(VERBS)})\b")


def in_lab(text: str, folder: Path) -> str:
    """``text`` with the commands that it names as they are for the lab in ``folder``."""
    return _COMMANDS.sub(lambda match: f"gpufix lab {match[1]}{_extra(folder)}", text)


def _extra(folder: Path) -> str:
    return "" if folder == default_folder() else f" --dir {shlex.quote(str(folder))}"


def close_runs(folder: Path) -> None:
    """A run of a lab that is gone cannot be gone on with: its node is gone with it."""
    for run in runs.list_runs(state_of(folder)):
        if run.is_open:
            with suppress(GpufixError):  # its journal cannot be written: then it stays as it is, and can be pruned away
                runs.close(run, "the practice lab, which has ended")


def scenarios() -> list[Scenario]:
    return [_load(path) for path in resources.scenario_paths()]


def find_scenario(name: str) -> Scenario:
    """By its id, or from a file of one's own (a path that ends in .yml or .yaml)."""
    if name.endswith((".yml", ".yaml")):
        return _load(Path(name))
    known = {path.stem: path for path in resources.scenario_paths()}
    if name not in known:
        raise GpufixError(f"no scenario {name!r}", did_you_mean(name, list(known)) + " gpufix lab list shows them all.")
    return _load(known[name])


def _load(path: Path) -> Scenario:
    return load_scenario(resources.read_file(path), str(path), resources.scenario_schema())


def list_lines() -> list[str]:
    width = max(len(one.id) for one in scenarios())
    return [f"{one.id:<{width}}  {t(one.title)}" for one in scenarios()]


# --- in this process -------------------------------------------------------------------------------------------------


@contextmanager
def running(folder: Path, scenario: Scenario, pace: float) -> Iterator[Lab]:
    """A lab that lives as long as this block, and this process's environment pointed at it."""
    with only_one(folder), _runs_end(folder), Lab(folder, scenario, pace) as lab:
        before = dict(os.environ)
        os.environ.update(environment(lab.folder, lab.node))
        try:
            yield lab
        finally:
            os.environ.clear()
            os.environ.update(before)


@contextmanager
def _runs_end(folder: Path) -> Iterator[None]:
    """Runs end with their lab: with this one, and those of one that was killed before it starts."""
    close_runs(folder)
    try:
        yield
    finally:
        close_runs(folder)


def serve(folder: Path, scenario: Scenario, pace: float) -> None:
    """Be the lab until SIGTERM or SIGINT."""
    signals = {signal.SIGTERM, signal.SIGINT, signal.SIGHUP}
    signal.pthread_sigmask(signal.SIG_BLOCK, signals)
    with only_one(folder), _runs_end(folder), Lab(folder, scenario, pace, stays=True):
        signal.sigwait(signals)


def epilogue(lab: Lab, recovered: bool, style: Style) -> list[str]:
    """What became of the job, and what a real recovery needs next."""
    with lab.held():
        machine = lab.world.machines[lab.node]
        job, calls, driver = (
            job_state(machine),
            list(machine.calls),
            ", ".join(card.driver or t("none") for card in machine.gpus),
        )
    lines: list[str] = [""]
    if job == "alive":
        alive = t("The CUDA job on the card ({job}) is alive; the card is on {driver}.", job=JOB, driver=driver)
        lines += style.wrap(alive)
    elif job == "dead":
        dead = t(
            "The CUDA job on the card ({job}) is dead: vfio-manager took the card ({calls}).",
            job=JOB,
            calls=", ".join(calls),
        )
        lines += style.wrap(dead)
    needs = [
        t("a kubeconfig that may get and list nodes, pods, events, VMs and the ClusterPolicy, and patch nodes"),
        t("an Ansible inventory with the node, and sudo there: cp inventory.example inventory, then put your node in"),
        t("a look first, which changes nothing: {command}", command=f"gpufix diagnose {lab.node} -i inventory"),
        t("and the walk: {command}", command=f"gpufix recover {lab.node} -i inventory"),
    ]
    shown, drafted = (
        f"gpufix lab {words}"
        for words in (f"runs{_extra(lab.folder)} show {lab.node}", f"report{_extra(lab.folder)} {lab.node}")
    )
    lines += [
        *style.wrap(t("What was done, from the journal: {command}", command=shown)),
        *style.wrap(t("As a draft of a postmortem: {command}", command=drafted)),
        *style.wrap(t("This was the practice lab: nothing outside its folder was touched. On a real node you need")),
        *(line for need in needs for line in style.wrap(f"- {need}", 2, 2)),
        *style.wrap(t("Other scenarios: gpufix lab list. By hand: gpufix lab up, gpufix lab shell.")),
    ]
    if not recovered:
        ends = t("This lab ends now, and its node with it, so that this run cannot be gone on with.")
        other = t(
            "To stop half-way and go on, start one that stays: gpufix lab up, then gpufix lab recover, resume, undo."
        )
        lines += [*style.wrap(ends), *style.wrap(other)]
    return lines


# --- as a process of its own -----------------------------------------------------------------------------------------


def up(folder: Path, scenario: Scenario, pace: float) -> list[str]:
    """Start a lab that stays, and wait until it answers."""
    with only_one(folder):
        pass
    log = folder / LOG
    file = scenario.file if scenario.file.endswith((".yml", ".yaml")) else scenario.id
    command = [
        sys.executable,
        "-m",
        "gpufix",
        "lab",
        "serve",
        "--dir",
        str(folder),
        "--scenario",
        file,
        "--pace",
        f"{pace:g}",
    ]
    with log.open("wb") as stream:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=stream, stderr=subprocess.STDOUT, start_new_session=True
        )
    deadline = time.monotonic() + _PATIENCE
    while not is_up(folder) or read_mark(folder).get("pid") != process.pid:
        if process.poll() is not None or time.monotonic() > deadline:
            process.kill()
            told = log.read_text(encoding="utf-8", errors="replace").strip().removeprefix("gpufix: ")
            if process.returncode == ExitStatus.USAGE and told:
                message, _, hint = told.partition("\n  ")
                raise GpufixError(message, hint)  # the mistake is in the scenario, and was told well
            raise GpufixError(
                f"the practice lab did not start: {' '.join(told.split())[:300] or 'it said nothing'}",
                f"see {log}",
                ExitStatus.INTERNAL,
            )
        time.sleep(0.05)
    return [f"The practice lab is up: scenario {scenario.id}, node {scenario.node}.", *_ways_in(folder, scenario.node)]


def _ways_in(folder: Path, node: str) -> list[str]:
    extra = _extra(folder)
    return [
        f"  gpufix lab shell{extra}    a shell on {node}, with kubectl and gpufix pointed at the lab",
        f"  gpufix lab recover{extra}  the walk; then resume, undo, runs and report in place of recover",
        f"  gpufix lab down{extra}     ends it",
    ]


def down(folder: Path) -> list[str]:
    """End a lab that stays. One that is not up is no error; one that a running walk is made in is not ended (status 8
    where the walk is another process's)."""
    marked = read_mark(folder)
    pid = marked.get("pid")
    if not is_up(folder) or not isinstance(pid, int):
        return [t("No practice lab is up in {folder}.", folder=folder)]
    if not marked.get("stays"):
        raise GpufixError(
            f"the practice lab in {folder} belongs to a gpufix lab recover that runs (process {pid})",
            "it ends with that: quit at its gate, or Ctrl-C there",
        )
    _require_unused(folder, str(marked["node"]))
    os.kill(pid, signal.SIGTERM)
    deadline = time.monotonic() + _PATIENCE
    while read_mark(folder).get("pid") == pid and _alive(pid):
        if time.monotonic() > deadline:
            raise GpufixError(f"the practice lab (process {pid}) does not end", f"kill {pid}", ExitStatus.INTERNAL)
        time.sleep(0.05)
    return ["The practice lab is down."]


def _require_unused(folder: Path, node: str) -> None:
    try:
        found = json.loads(
            _get(folder, f"/apis/coordination.k8s.io/v1/namespaces/{NAMESPACE}/leases/{lease_name(node)}")
        )
    except (OSError, ValueError, HTTPException):
        return  # nobody ever held it (404); or a lab that can answer nobody
    holder = holder_of(found)
    if holder is not None and alive_here(holder):
        raise GpufixError(
            f"the practice lab in {folder} is in use by {holder.words}",
            "quit at its gate, or Ctrl-C there (fg first where it is suspended); then gpufix lab down",
            ExitStatus.LOCKED,
        )


def is_up(folder: Path) -> bool:
    """A lab of its own process answers. Its mark alone may be a dead one's, so it is asked."""
    marked = read_mark(folder)
    try:
        token = (folder / "token").read_text(encoding="utf-8")
        request = urllib.request.Request(f"{marked['url']}/readyz", headers={"Authorization": f"Bearer {token}"})
        with _OPENER.open(request, timeout=5) as answer:
            return bool(answer.status == 200)
    except (OSError, ValueError, KeyError, HTTPException):  # the last: something else has its port by now
        return False


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def require_up(folder: Path) -> str:
    """The node that the lab in ``folder`` is about. Raises GpufixError (status 2) where none is up."""
    if not is_up(folder):
        raise GpufixError(t("no practice lab is up in {folder}", folder=folder), t("gpufix lab up starts one"))
    return str(read_mark(folder)["node"])


def status_lines(folder: Path) -> list[str]:
    """What the lab is and how its node does, asked of the lab as anybody would."""
    if not is_up(folder):
        return [t("No practice lab is up in {folder}.", folder=folder)]
    marked = read_mark(folder)
    node, name = str(marked["node"]), str(marked["scenario"])
    labels = json.loads(_get(folder, f"/api/v1/nodes/{node}"))
    ready = next((one["status"] for one in labels["status"]["conditions"] if one["type"] == "Ready"), "?")
    unit = _run(folder, node, ["systemctl", "is-active", "kubelet"]).strip()
    job = _run(folder, node, ["systemctl", "is-active", JOB]).strip()
    swap = _run(folder, node, ["swapon", "--show", "--noheadings"]).split()
    vms = json.loads(_get(folder, "/apis/kubevirt.io/v1/virtualmachines"))["items"]
    unknown = folder / "unknown.log"
    states = {"node": node, "ready": ready, "kubelet": unit}
    if swap:
        state = t("{node}: Ready={ready}, kubelet {kubelet}, swap on", **states)
    else:
        state = t("{node}: Ready={ready}, kubelet {kubelet}, swap off", **states)
    up = t("{scenario}, up as process {pid} at {url}", scenario=name, pid=marked["pid"], url=marked["url"])
    rows = [
        (t("scenario"), up),
        (t("node"), state),
        (t("label"), labels["metadata"]["labels"].get("nvidia.com/gpu.workload.config", t("(none)"))),
        (t("CUDA job"), job if job != "inactive" else t("none")),
        *((t("VM"), f"{vm['metadata']['name']}: {vm['status']['printableStatus']}") for vm in vms),
        *([("", t("not modelled, and asked for: see {file}", file=unknown))] if unknown.exists() else []),
        (t("folder"), str(folder)),
    ]
    width = max(9, *(columns(name) for name, _ in rows)) + 2
    return [padded(name, width) + said if name else said for name, said in rows]


def _get(folder: Path, path: str, body: bytes | None = None) -> str:
    token = (folder / "token").read_text(encoding="utf-8")
    headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
    request = urllib.request.Request(f"{read_mark(folder)['url']}{path}", data=body, headers=headers)
    with _OPENER.open(request, timeout=10) as answer:
        return str(answer.read().decode("utf-8"))


def _run(folder: Path, node: str, argv: list[str]) -> str:
    body = json.dumps({"node": node, "argv": argv}).encode()
    return str(json.loads(_get(folder, "/lab/v1/tool", body))["out"])


# --- a shell ---------------------------------------------------------------------------------------------------------


def shell_environment(folder: Path, node: str) -> dict[str, str]:
    """This process's environment, with the stand-ins first on PATH, then gpufix's and Ansible's programs."""
    path = [str(tools_folder(folder, node)), str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)]
    playbooks = str(resources.playbook_path("read-node.yml").parent)
    return {**os.environ, **environment(folder, node), "PATH": os.pathsep.join(path), "PLAYBOOKS": playbooks}


def banner(node: str, scenario: Scenario | None) -> list[str]:
    tries = [f"  {safe(line)}" for line in scenario.tries] if scenario and scenario.tries else []
    return [
        f"A shell on {node} of the practice lab. Some of its tools are stand-ins that act on the lab:",
        f"  {' '.join(sorted(TOOLS))}",
        "Every other command is this machine's own.",
        "The node's files lie here, below this folder: etc/fstab is the node's, /etc/fstab is this machine's.",
        "kubectl (if you have it), gpufix and ansible-playbook reach the lab: gpufix diagnose " + node,
        f"  ansible-playbook $PLAYBOOKS/relabel-node.yml -e gpufix_node={node} -e gpufix_workload_config=container",
        *(["Try:", *tries] if tries else []),
        "exit leaves the shell; the lab stays up until gpufix lab down.",
    ]


def shell(folder: Path, command: Sequence[str]) -> int:
    """Run a shell, or one command, on the lab's node. Returns its exit status."""
    node = require_up(folder)
    command = command[1:] if command[:1] == ["--"] else command
    variables, root = shell_environment(folder, node), folder / "nodes" / node
    if command:
        done = subprocess.run(
            ["/bin/sh", "-c", shlex.join(command) if len(command) > 1 else command[0]],
            cwd=root,
            env=variables,
            check=False,
        )
        return _status(done.returncode)
    try:
        known = find_scenario(str(read_mark(folder)["scenario"]))
    except GpufixError:
        known = None  # one of the operator's own files
    print("\n".join(banner(node, known)))
    # no start-up files: they may put this machine's own folders first on PATH again
    variables.update(PS1=f"[lab {node} \\w]# ", PROMPT_DIRTRIM="2")
    program = ["/bin/bash", "--norc", "--noprofile", "-i"] if Path("/bin/bash").exists() else ["/bin/sh", "-i"]
    variables.pop("ENV", None)
    return _status(subprocess.run(program, cwd=root, env=variables, check=False).returncode)


def _status(code: int) -> int:
    """As a shell says it: 128 and the signal's number."""
    return 128 - code if code < 0 else code
