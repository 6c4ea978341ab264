"""The incident in Korean, in a terminal, from its diagnosis to its end."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from operator_hands import DOWN, ENTER, Wizard, journal

KEYS = r"\(화살표 키, Enter\)"


@pytest.mark.parametrize("width", [80])
def test_the_incident_walked_in_korean(width: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.chdir(tmp_path)
    run = Wizard("lab", "recover", "--lang", "ko", "--pace", "50", columns=width)
    run.expect("누가 씁니까[^\n]*" + KEYS)
    run.child.send(ENTER)
    run.expect("relabel:[^\n]*" + KEYS)
    run.child.send(DOWN + ENTER)
    run.expect("같은 드라이 런을 직접 하려면")
    run.expect("relabel:[^\n]*" + KEYS)
    run.child.send(ENTER)
    for step, named in (("stop-vfio-manager", True), ("disable-swap", False), ("restart-kubelet", True)):
        run.expect(f"{step}:[^\n]*" + KEYS)
        run.child.send(ENTER)
        if named:
            run.expect("노드 이름을 입력하십시오")
            run.child.send("omen2" + ENTER)
    assert run.end() == 0, run.text
    assert "근본 원인: swap-on (확인됨)" in run.text
    assert "복구했습니다: omen2 노드가 Ready이며 그대로 유지됩니다." in run.text
    assert re.search(r"CUDA 작업\(cuda-train\.service\)이 살아 있습니다", run.text)
    outcomes = [line["outcome"] for line in journal(tmp_path / "state" / "gpufix" / "lab" / "state")
                if line["event"] == "step-result"]  # fmt: skip
    assert outcomes == ["done"] * 5, "ids, whatever the language"
