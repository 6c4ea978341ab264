"""How one step's playbook is run on one node: who is meant, with which variables. Sequencing only."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass

from gpufix import resources
from gpufix.core.actions import actions_of
from gpufix.core.conditions import resolve
from gpufix.core.fold import PlayResult
from gpufix.core.invariants import Action
from gpufix.core.runbook import RunbookStep
from gpufix.core.undo import ABSENT
from gpufix.core.workload import WORKLOAD_LABEL
from gpufix.language import t
from gpufix.model import Facts
from gpufix.session import Session, Variables


@dataclass(frozen=True, slots=True)
class StepRunner:
    """Runs the playbooks of a runbook's steps for ``session``, with the answers given."""

    session: Session
    answers: Mapping[str, str]

    def run(self, step: RunbookStep, *, check: bool = False, expected: Variables | None = None) -> PlayResult:
        playbook = step.playbook
        told = t("dry run of {playbook}", playbook=playbook) if check else t("applying {playbook}", playbook=playbook)
        self.session.ui.progress(told)
        variables = {**self.variables(step), **(expected or {})}
        return self.session.run(step.playbook, self.host(step), variables, check=check)

    def variables(self, step: RunbookStep) -> dict[str, str | int | bool]:
        variables: dict[str, str | int | bool] = {"gpufix_host": self.session.host, "gpufix_node": self.session.node}
        access = self.session.cluster_access
        if access.kubeconfig:
            variables["gpufix_kubeconfig"] = access.kubeconfig
        if access.context:
            variables["gpufix_context"] = access.context
        for name, value in step.variables.items():
            resolved = resolve(value, self.answers)
            if resolved is not None:
                variables[name] = resolved
        return variables

    def host(self, step: RunbookStep) -> str:
        """Who must have been processed: the label is set from this machine, everything else on the node."""
        return "localhost" if actions_of(step.playbook) == frozenset({Action.RELABEL}) else self.session.host

    def by_hand(self, step: RunbookStep) -> str:
        """The command that shows the same dry run without gpufix."""
        command = ["ansible-playbook"]
        for inventory in self.session.access.inventory:
            command += ["-i", inventory]
        command.append(str(resources.playbook_path(step.playbook)))
        for name, value in self.variables(step).items():
            command += ["-e", f"{name}={value}"]
        return shlex.join([*command, "--check", "--diff"])


def expected_of(preview: PlayResult, playbook: str, facts: Facts) -> dict[str, str | int | bool]:
    """What the dry run and the gate showed of the world: the playbook refuses when it is another one by then."""
    found: dict[str, str | int | bool] = {}
    for key in ("fstab_sha256", "swaps_sha256", "state_sha256"):
        value = preview.returned(key)
        if isinstance(value, str) and value.isalnum():
            found[f"gpufix_expect_{key}"] = value
    node = facts.node.value
    if Action.RELABEL in actions_of(playbook) and node is not None:
        absent = ABSENT if playbook == "restore-labels.yml" else ""
        shown = {
            "gpufix_expect_workload_config": node.labels.get(WORKLOAD_LABEL, absent),
            "gpufix_node_uid": node.uid,
        }
        found |= {
            name: value for name, value in shown.items() if value == ABSENT or re.fullmatch(r"[A-Za-z0-9._-]*", value)
        }
    return found
