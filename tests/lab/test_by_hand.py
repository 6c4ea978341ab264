"""The printed runbook by hand, in the practice lab: the real kubectl, and an ssh that enters the practice host.

There /etc and /proc are the practice host's own, in a mount namespace: the page's paths are absolute, and this
machine's files must not be meant.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from hands import Hands
from handwork import (  # noqa: F401
    printed,
    test_the_general_procedure_with_its_variables_filled_in,
    test_the_printed_commands_alone_recover_the_node,
    test_the_printed_way_back_puts_all_as_it_was,
)
from labnode import NODE, LabNode
from operator_hands import Gpufix

from gpufix.lab.commands import find_scenario, shell_environment

_SUDO = """\
#!/bin/sh
# One is root on the practice host: the files are its own, and so are those tools that it has.
[ "$1" = -- ] && shift
exec "$@"
"""
_SSH = """\
#!/bin/sh
test "$1" = {node} || exit 255
export PATH={tools}:{path}
exec unshare {flags} /bin/sh -c '
  mount --rbind {root}/proc /proc && mount --rbind {root}/etc /etc && exec /bin/bash --norc'
"""


def _namespace_flags() -> str:
    """How a mount namespace is made here. Skips the test where that is not allowed."""
    flags = "-m" if os.geteuid() == 0 else "-rm"
    if shutil.which("kubectl") is None:
        if os.environ.get("GPUFIX_REQUIRE_KUBECTL") == "1":
            pytest.fail("no kubectl on PATH")
        pytest.skip("no kubectl on PATH")
    probe = subprocess.run(["unshare", flags, "mount", "--rbind", "/etc", "/etc"], capture_output=True, check=False)
    if probe.returncode:
        pytest.skip("no mount namespace can be made here")
    return flags


@pytest.fixture
def hands(cluster: LabNode, tmp_path: Path) -> Iterator[Hands]:
    flags = _namespace_flags()
    folder, tools = tmp_path / "admin", tmp_path / "node-bin"
    folder.mkdir()
    tools.mkdir()
    variables = shell_environment(cluster.folder, NODE)
    root = cluster.folder / "nodes" / NODE
    stand_ins = f"{tools}:{root / 'usr/bin'}"
    (tools / "awk").symlink_to(os.path.realpath(shutil.which("awk") or "/usr/bin/awk"))  # a link through /etc elsewhere
    (tools / "sudo").write_text(_SUDO)
    path = "/usr/sbin:/usr/bin:/sbin:/bin"
    ssh = _SSH.format(node=NODE, tools=stand_ins, path=path, flags=flags, root=shlex.quote(str(root)))
    (folder / "ssh").write_text(ssh)
    for program in (tools / "sudo", folder / "ssh"):
        program.chmod(0o755)
    environment = {**variables, "PATH": f"{folder}:{os.environ['PATH']}", "HOME": str(folder)}
    person = Hands(environment, folder)
    yield person
    person.close()


@pytest.mark.parametrize("name", ["old-kubelet", "swap-from-a-unit", "label-already-set"])
def test_other_scenarios_by_hand(name: str, cluster: LabNode, gpufix: Gpufix, hands: Hands) -> None:
    cluster.start(find_scenario(name))
    page = printed(gpufix, NODE)
    hands.open_node(page)
    hands.follow(page, "Before", "Do", "After")
    after = gpufix.diagnose()
    assert after["verdicts"]["node"]["status"] == "well", str(hands)
    assert after["verdicts"]["node"]["reboot_proof"] is True
    assert cluster.calls("unbind") == []
