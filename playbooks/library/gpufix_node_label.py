#!/usr/bin/python
# Copyright the gpufix authors. SPDX-License-Identifier: Apache-2.0
"""Sets or removes labels of a Kubernetes node."""

from __future__ import annotations

DOCUMENTATION = r"""
---
module: gpufix_node_label
short_description: Set or remove labels of a node, with a dry run on the server and a diff of one line each
description:
  - Reads the node and sends a patch of the labels that differ. In check mode the patch is a dry run on the server, so
    that rights and admission are tried too.
  - The patch holds only for the version of the node that was read, so no change made meanwhile is overwritten. One
    whose answer was lost is not repeated before the node was read again.
  - Without O(labels) it only reads.
version_added: "0.1.0"
options:
  node:
    description:
      - The node's name.
    type: str
    required: true
  labels:
    description:
      - Label to the value it shall have; null removes it.
    type: dict
    default: {}
  expect:
    description:
      - Label to the value that was previewed, null for not there. When one differs nothing is changed.
    type: dict
    default: {}
  require_uid:
    description:
      - The uid the node must have. A node that was deleted and made again has another.
    type: str
    default: ""
  kubeconfig:
    description:
      - The kubeconfig file. When it is not given, that of C(KUBECONFIG) or C(~/.kube/config).
    type: path
  context:
    description:
      - The context in the kubeconfig; its current one when not given.
    type: str
  timeout:
    description:
      - Seconds that each request may take.
    type: int
    default: 15
requirements:
  - kubernetes (Python package) where the module runs, which is the controller
author:
  - The gpufix authors
attributes:
  check_mode:
    description: The patch is sent as a dry run.
    support: full
  diff_mode:
    description: One line for each label that changes.
    support: full
"""

EXAMPLES = r"""
- name: Set the workload config
  gpufix_node_label:
    node: omen2
    labels:
      nvidia.com/gpu.workload.config: container
    expect:
      nvidia.com/gpu.workload.config: vm-passthrough
"""

RETURN = r"""
before:
  description: The labels under C(nvidia.com/gpu.) and those asked for, before.
  returned: always
  type: dict
  sample: {nvidia.com/gpu.workload.config: vm-passthrough}
after:
  description: The same after; in check mode as the server's dry run answered.
  returned: always
  type: dict
  sample: {nvidia.com/gpu.workload.config: container}
uid:
  description: The node's uid.
  returned: always
  type: str
"""

import json
import os
import re
from time import sleep
from typing import Any, Dict, List, Optional
from urllib.parse import quote

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.gpufix_redact import redact

PREFIX = "nvidia.com/gpu."
ATTEMPTS = 5
FAILURES = 3
"""So often in a row what may pass by itself is met before it is told."""
PAUSE = 1.0
LONGEST_PAUSE = 5.0
"""A server that wants to be left alone for longer is not asked again."""
PASSING = (429, 500, 502, 503, 504)
UNSURE = "whether the labels were changed is not known"

Labels = Dict[str, Optional[str]]


class Refusal(Exception):
    """Why the labels are not changed, in one line."""


class Passing(Refusal):
    """A failure that may pass by itself in ``pause`` seconds. ``unsure``: it may have been done all the same."""

    def __init__(self, text: str, unsure: bool, pause: float = PAUSE) -> None:
        super().__init__(text)
        self.unsure = unsure
        self.pause = max(PAUSE, pause)


def shown(labels: Dict[str, str], asked: List[str]) -> Dict[str, str]:
    """Pure. The labels that the module speaks of."""
    return {name: value for name, value in sorted(labels.items()) if name.startswith(PREFIX) or name in asked}


def changes(labels: Dict[str, str], wanted: Labels) -> Labels:
    """Pure. Those of ``wanted`` that differ from ``labels``."""
    return {name: value for name, value in sorted(wanted.items()) if labels.get(name) != value}


def compare(labels: Dict[str, str], expected: Labels, so_far: str = "nothing was done") -> None:
    """Pure. Raises Refusal when a label is not what was previewed."""
    for name, value in sorted(expected.items()):
        if labels.get(name) != value:
            raise Refusal(
                f"label {name} is {_word(labels.get(name))} now and was {_word(value)} in the preview; {so_far}"
            )


def make_diff(node: str, before: Dict[str, str], after: Dict[str, str], names: List[str]) -> Dict[str, str]:
    """Pure."""

    def lines(labels: Dict[str, str]) -> str:
        return "".join(f"{name}: {labels[name]}\n" for name in names if name in labels)

    header = f"node {node} labels"
    return {"before_header": header, "after_header": header, "before": lines(before), "after": lines(after)}


def _word(value: Optional[str]) -> str:
    return "not set" if value is None else repr(value) if value == "" else value


class Api:
    """The node through the Kubernetes API. Every failure becomes a Refusal of one line.

    The client gives the server, its TLS set-up and the credentials; the two requests go straight through its pool,
    for the client's typed API takes a second or more to import, at each look at the node.
    """

    def __init__(self, kubeconfig: Optional[str], context: Optional[str], timeout: int, scratch: str = "") -> None:
        """``scratch``: the folder for a key that stands in the kubeconfig as data, which the client reads as a file."""
        try:
            import kubernetes
            import urllib3
        except ImportError as error:
            raise Refusal(f"the interpreter that runs this lacks the Python package kubernetes: {error}") from None
        self._errors = urllib3.exceptions.HTTPError
        self._broken = urllib3.exceptions.ProtocolError
        self._silent = urllib3.exceptions.ReadTimeoutError
        configuration = kubernetes.client.Configuration()
        try:
            kubernetes.config.load_kube_config(
                config_file=kubeconfig or None,
                context=context or None,
                client_configuration=configuration,
                temp_file_path=scratch or None,
            )
            self._pool = kubernetes.client.ApiClient(configuration).rest_client.pool_manager
            self._headers = {"Accept": "application/json", "User-Agent": "gpufix"}
            for setting in configuration.auth_settings().values():
                if setting["in"] == "header" and setting["value"]:
                    self._headers[setting["key"]] = setting["value"]
        except Exception as error:  # the loader raises its own, yaml's and OSError
            where = kubeconfig or os.environ.get("KUBECONFIG") or "~/.kube/config"
            raise Refusal(f"kubeconfig {where}: {redact(_one_line(str(error) or repr(error)))}") from None
        self._address = configuration.host.rstrip("/")
        self.server = re.sub(r"//[^/@]*@", "//", self._address)  # for people: a password may stand in the address
        self._limits = {
            "timeout": urllib3.Timeout(connect=5, read=timeout),
            # urllib3 by itself would sleep for as long as a Retry-After says, and ten times over
            "retries": urllib3.Retry(
                connect=1, read=0, redirect=0, status=0, other=0, respect_retry_after_header=False
            ),
        }

    def read(self, node: str) -> Dict[str, Any]:
        for _ in range(FAILURES - 1):
            try:
                return self._call("GET", node, "", None)
            except Passing as failure:
                sleep(failure.pause)
        return self._call("GET", node, "", None)

    def patch(self, node: str, labels: Labels, version: str, dry_run: bool) -> Dict[str, Any]:
        """Patch ``labels`` if the node still has resource version ``version``. Raises Conflict when it has not.

        Sent once: after a Passing that is unsure the node must be read, for the version may be another one by then.
        """
        body = {"metadata": {"resourceVersion": version, "labels": labels}}
        return self._call("PATCH", node, "?fieldManager=gpufix" + ("&dryRun=All" if dry_run else ""), body)

    def _call(self, verb: str, node: str, query: str, body: Any) -> Dict[str, Any]:
        headers, data = dict(self._headers), None
        if body is not None:
            headers["Content-Type"] = "application/strategic-merge-patch+json"
            data = json.dumps(body).encode("utf-8")
        url = f"{self._address}/api/v1/nodes/{quote(node, safe='')}{query}"
        try:
            response = self._pool.request(verb, url, headers=headers, body=data, **self._limits)
        except (self._errors, OSError) as error:
            text = f"the API server {self.server} cannot be reached: {_reason(error)}"
            cause = getattr(error, "reason", None) or error
            if isinstance(cause, self._broken) or (verb == "PATCH" and isinstance(cause, self._silent)):
                raise Passing(text, verb == "PATCH") from None
            raise Refusal(text) from None
        try:
            answer = json.loads(response.data)
        except ValueError:
            answer = None
        if response.status >= 400:
            message = answer.get("message", "") if isinstance(answer, dict) else ""
            pause = str(response.headers.get("Retry-After", "")).strip()
            seconds = float(pause) if re.match("[0-9]{1,9}$", pause) else 0.0
            raise self._refusal(verb.lower(), node, response.status, _one_line(str(message)), seconds)
        if not isinstance(answer, dict) or answer.get("kind") != "Node":
            raise Refusal(f"{self.server} answered with something that is no node")
        return answer

    def _refusal(self, verb: str, node: str, status: int, message: str, pause: float) -> Refusal:
        if status == 409:
            return Conflict(message or "conflict")
        if status == 404:
            return Refusal(f"there is no node {node} in the cluster at {self.server}")
        if status == 401:
            return Refusal(
                f"the API server refuses the credentials of this kubeconfig ({message or status}): log in again"
            )
        if status == 403:
            return Refusal(f"not allowed to {verb} node {node}: {message or status}")
        text = f"{self.server} refused to {verb} node {node}: {status} {message}".rstrip()
        if status in PASSING and pause <= LONGEST_PAUSE:
            return Passing(text, verb == "patch" and status != 429, pause)  # what is turned away by 429 was not begun
        return Refusal(f"{text} (it asks to wait {pause:.0f} s)" if pause > LONGEST_PAUSE else text)


class Conflict(Refusal):
    """The node changed between the read and the patch."""


def _reason(error: Exception) -> str:
    """What urllib3 and its retries wrapped, without the addresses of Python objects."""
    return re.sub(r"<\S+ object at 0x[0-9a-f]+>: ", "", _one_line(str(getattr(error, "reason", None) or error)))


def _one_line(text: str, limit: int = 300) -> str:
    return " ".join(text.split())[:limit]


def set_labels(api: Api, params: Dict[str, Any], check: bool) -> Dict[str, Any]:
    """Read, compare, patch. Tried again when the node changes in between (its status does, every few seconds), and when
    the answer to a patch is lost: then the node itself tells whether it was done."""
    name, wanted = params["node"], _texts(params["labels"])
    expected = _texts(params["expect"])
    asked = list(wanted) + list(expected)
    failures = 0
    lost: Optional[Dict[str, str]] = None  # the labels before a patch that may have been done
    for attempt in range(1, ATTEMPTS + 1):
        try:
            node = api.read(name)
        except Refusal as refusal:
            raise Refusal(f"{refusal}; {UNSURE}" if lost is not None else str(refusal)) from None
        metadata = node.get("metadata") or {}
        labels = metadata.get("labels") or {}
        if params["require_uid"] and metadata.get("uid") != params["require_uid"]:
            so_far = UNSURE if lost is not None else "nothing was done"
            raise Refusal(f"node {name} was deleted and made again since the preview; {so_far}")
        if lost is not None and not changes(labels, wanted):
            return _done(name, metadata, lost, labels, wanted, asked)
        compare(labels, expected, UNSURE if lost is not None else "nothing was done")
        todo = changes(labels, wanted)
        if not todo:
            before = shown(labels, asked)
            return {"changed": False, "before": before, "after": before, "uid": metadata.get("uid", "")}
        try:
            answer = api.patch(name, todo, metadata.get("resourceVersion", ""), check)
        except Conflict as conflict:
            if attempt == ATTEMPTS:
                raise Refusal(f"node {name} changes all the time: {conflict}") from None
            continue
        except Passing as failure:
            failures += 1
            if failure.unsure and not check and lost is None:
                lost = labels
            if failures == FAILURES or attempt == ATTEMPTS:
                raise Refusal(f"{failure}; {UNSURE}" if lost is not None else str(failure)) from None
            sleep(failure.pause)
            continue
        labels_after = (answer.get("metadata") or {}).get("labels") or {}
        wrong = changes(labels_after, todo)
        if wrong:
            raise Refusal(f"the cluster kept label {list(wrong)[0]} as {_word(labels_after.get(list(wrong)[0]))}")
        return _done(name, metadata, labels, labels_after, todo, asked)
    raise Refusal(f"node {name} changes all the time")


def _done(
    name: str, metadata: Dict[str, Any], before: Dict[str, str], after: Dict[str, str], wanted: Labels, asked: List[str]
) -> Dict[str, Any]:
    """Pure. The result of a change that was made."""
    return {
        "changed": True,
        "before": shown(before, asked),
        "after": shown(after, asked),
        "uid": metadata.get("uid", ""),
        "diff": make_diff(name, before, after, list(changes(before, wanted))),
    }


def _texts(labels: Dict[str, Any]) -> Labels:
    return {str(name): None if value is None else str(value) for name, value in (labels or {}).items()}


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "node": {"type": "str", "required": True},
            "labels": {"type": "dict", "default": {}},
            "expect": {"type": "dict", "default": {}},
            "require_uid": {"type": "str", "default": ""},
            "kubeconfig": {"type": "path"},
            "context": {"type": "str"},
            "timeout": {"type": "int", "default": 15},
        },
        supports_check_mode=True,
    )
    try:
        # gpufix takes its folder away even where this is killed
        private = os.environ.get("GPUFIX_PRIVATE", "")
        scratch = private if os.path.isdir(private) else module.tmpdir
        api = Api(module.params["kubeconfig"], module.params["context"], module.params["timeout"], scratch)
        result = set_labels(api, module.params, module.check_mode)
    except Refusal as refusal:
        text = str(refusal)
        module.fail_json(msg=text[:1].upper() + text[1:])
    else:
        if not result["changed"] and module.params["labels"]:
            result["msg"] = "the labels are so already"
        module.exit_json(**result)


if __name__ == "__main__":
    main()
