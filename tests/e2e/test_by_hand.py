"""The printed runbook by hand, on the real node: kubectl, ssh as a user who may sudo, and no gpufix after the page."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from hands import Hands
from handwork import (  # noqa: F401
    test_the_general_procedure_with_its_variables_filled_in,
    test_the_printed_commands_alone_recover_the_node,
    test_the_printed_way_back_puts_all_as_it_was,
)
from node import RealNode

ADDRESS = "10.99.0.10"


@pytest.fixture
def hands(cluster: RealNode, tmp_path: Path) -> Iterator[Hands]:
    """An admin machine whose ssh knows omen2, as the user ops, who is not root."""
    folder = tmp_path / "admin"
    folder.mkdir()
    (folder / "config").write_text(
        f"Host omen2\n  HostName {ADDRESS}\n  User ops\n  IdentityFile {cluster.ssh_key}\n  IdentitiesOnly yes\n"
        "  BatchMode yes\n  StrictHostKeyChecking no\n  UserKnownHostsFile /dev/null\n  LogLevel ERROR\n"
    )
    ssh = folder / "ssh"
    ssh.write_text(f'#!/bin/sh\nexec /usr/bin/ssh -F {folder}/config "$@"\n')
    ssh.chmod(0o755)
    path = [str(folder), str(cluster.work / "bin"), os.environ["PATH"]]
    environment = {**os.environ, "PATH": os.pathsep.join(path), "KUBECONFIG": str(cluster.kubeconfig)}
    person = Hands({**environment, "HOME": str(folder)}, folder)
    yield person
    person.close()
