"""gpufix_swap on a fake host: what it shows, what it does, in which order, and when it refuses."""

from __future__ import annotations

import hashlib

import gpufix_swap
import pytest
from ansible.module_utils import gpufix_swaps
from fakehost import FSTAB, FakeHost
from types_of_fixtures import RunModule

NATIVE = {"LoadState": "loaded", "ActiveState": "active", "What": "/var/swap"}
COMMENTED = FSTAB.replace("/swapfile", "#/swapfile")


def test_dry_run_shows_all_and_changes_nothing(host: FakeHost, run_module: RunModule) -> None:
    result = run_module("gpufix_swap", check=True)
    assert result["changed"] is True
    assert result["done"] == []
    assert result["plan"] == [
        "back up /etc/fstab",
        "swapoff /swapfile",
        "comment the swap lines of /etc/fstab",
        "systemctl daemon-reload",
    ]
    fstab, devices = result["diff"]
    assert (fstab["before_header"], fstab["before"], fstab["after"]) == ("/etc/fstab", FSTAB, COMMENTED)
    assert "/swapfile (file, 2,048 MiB, 1 MiB used, priority -2)" in devices["before"]
    assert "MemAvailable" in devices["before"]
    assert "/swapfile" not in devices["after"]
    assert result["devices"] == [
        {"path": "/swapfile", "type": "file", "size_kib": 2097148, "used_kib": 1024, "priority": -2}
    ]
    assert result["backup"] == "/etc/fstab.gpufix-" + hashlib.sha256(FSTAB.encode()).hexdigest()[:12]
    assert host.changes() == []
    assert host.read("etc/fstab") == FSTAB
    assert [path.name for path in (host.root / "etc").iterdir()] == ["fstab"]


def test_apply_then_nothing_to_do(host: FakeHost, run_module: RunModule) -> None:
    preview = run_module("gpufix_swap", check=True)
    result = run_module(
        "gpufix_swap", expect_fstab_sha256=preview["fstab_sha256"], expect_swaps_sha256=preview["swaps_sha256"]
    )
    assert result["changed"] is True
    assert result["diff"] == preview["diff"]
    assert host.changes() == ["swapoff /swapfile", "systemctl daemon-reload"]
    assert host.read("etc/fstab") == COMMENTED
    assert host.read(result["backup"]) == FSTAB
    assert result["fstab_sha256_after"] == hashlib.sha256(COMMENTED.encode()).hexdigest()
    again = run_module("gpufix_swap")
    assert (again["changed"], again["plan"]) == (False, [])
    assert again["msg"] == "no swap is on and none would come back at boot"


def test_digests(host: FakeHost, run_module: RunModule) -> None:
    host.swap("/b\\040c file 10 0 -3", "/a file 10 0 -2")
    result = run_module("gpufix_swap", check=True)
    assert result["swaps_sha256"] == hashlib.sha256(b"/a\n/b\\040c").hexdigest()
    assert result["devices"][0]["path"] == "/b c"
    assert result["fstab_sha256"] == hashlib.sha256(FSTAB.encode()).hexdigest()


@pytest.mark.parametrize("name", ["expect_fstab_sha256", "expect_swaps_sha256"])
@pytest.mark.parametrize("check", [True, False])
def test_a_world_that_moved_since_the_preview_stops_it(
    host: FakeHost, run_module: RunModule, name: str, check: bool
) -> None:
    result = run_module("gpufix_swap", check=check, **{name: "0" * 64})
    assert result["failed"] is True
    assert "changed since the preview; nothing was done" in result["msg"]
    assert host.changes() == []
    assert host.read("etc/fstab") == FSTAB


@pytest.mark.parametrize("check", [True, False])
def test_too_little_memory(host: FakeHost, run_module: RunModule, check: bool) -> None:
    host.write("proc/meminfo", "MemAvailable: 1000 kB\nSwapTotal: 2097148 kB\n")
    result = run_module("gpufix_swap", check=check)
    assert result["failed"] is True
    assert result["msg"] == (
        "Swap stays on: 1 MiB in swap, 0 MiB of memory usable (90 % of MemAvailable, 0 MiB): too little"
    )
    assert host.changes() == []


@pytest.mark.parametrize(
    ("memory", "overcommit", "enough"),
    [
        ({"MemAvailable": 10_000}, 0, True),
        ({"MemAvailable": 9_999}, 0, False),
        ({"MemAvailable": 10_000}, None, False),
        ({}, 0, False),
        ({"MemAvailable": 99_999, "CommitLimit": 50, "SwapTotal": 20, "Committed_AS": 30}, 2, True),
        ({"MemAvailable": 99_999, "CommitLimit": 50, "SwapTotal": 20, "Committed_AS": 31}, 2, False),
        ({"MemAvailable": 99_999, "CommitLimit": 50, "SwapTotal": 20, "Committed_AS": 31}, 1, True),
        ({"MemAvailable": 99_999, "CommitLimit": 50, "SwapTotal": 20}, 2, False),
    ],
)
def test_memory_arithmetic(memory: dict[str, int], overcommit: int | None, enough: bool) -> None:
    devices = [
        gpufix_swaps.Device("/a", "file", 99_999, 4_000, -2),
        gpufix_swaps.Device("/b", "file", 99_999, 5_000, -3),
    ]
    assert gpufix_swaps.judge_memory(devices, memory, overcommit)[0] is enough


@pytest.mark.parametrize(
    ("line", "reason"),
    [("/old\\040(deleted) file 10 5 -2", "only a reboot ends it"), ("/a file ten", "of /proc/swaps is not understood")],
)
def test_devices_that_it_cannot_handle(host: FakeHost, run_module: RunModule, line: str, reason: str) -> None:
    host.swap(line)
    result = run_module("gpufix_swap")
    assert result["failed"] is True
    assert reason in result["msg"]
    assert host.changes() == []


@pytest.mark.parametrize(
    "pattern", ["systemctl show *.swap", "systemctl show zramswap.service"], ids=["units", "services"]
)
def test_what_cannot_be_read_is_not_taken_for_absent(host: FakeHost, run_module: RunModule, pattern: str) -> None:
    host.state["fail"] = {pattern: "Failed to connect to bus"}
    result = run_module("gpufix_swap", check=True)
    assert result["failed"] is True
    assert "Failed to connect to bus" in result["msg"]


def test_the_second_device_fails_and_what_was_done_is_told(host: FakeHost, run_module: RunModule) -> None:
    host.swap("/swapfile file 100 0 -2", "/dev/dm-1 partition 100 0 -3")
    host.state["fail"] = {"swapoff /dev/dm-1": "swapoff: /dev/dm-1: swapoff failed: Cannot allocate memory"}
    result = run_module("gpufix_swap")
    assert result["failed"] is True
    assert result["changed"] is True
    assert result["done"] == [f"backed /etc/fstab up to {result['backup']}", "switched /swapfile off"]
    assert "Cannot allocate memory; done before that: " in result["msg"]
    assert [device["path"] for device in result["devices"]] == ["/swapfile", "/dev/dm-1"]
    assert host.read("etc/fstab") == FSTAB
    assert host.read(result["backup"]) == FSTAB


def test_a_swapoff_without_progress_is_given_up(host: FakeHost, run_module: RunModule) -> None:
    host.state["hang"] = ["swapoff"]
    result = run_module("gpufix_swap", swapoff_timeout=0)
    assert result["failed"] is True
    assert "given up: 1 MiB in it, and no progress in 0 s" in result["msg"]


def test_units_that_would_bring_swap_back(host: FakeHost, run_module: RunModule) -> None:
    host.write("etc/systemd/system/var-own.swap", "[Swap]\nWhat=/var/own\n")
    host.state["units"].update(
        {
            "dev-gpt.swap": {**NATIVE, "What": "/dev/gpt", "FragmentPath": "/run/systemd/generator.late/dev-gpt.swap"},
            "dev-zram0.swap": {
                **NATIVE,
                "What": "/dev/zram0",
                "FragmentPath": "/run/systemd/generator/dev-zram0.swap",
                "UnitFileState": "generated",
            },
            "var-lib.swap": {
                **NATIVE,
                "FragmentPath": "/usr/lib/systemd/system/var-lib.swap",
                "UnitFileState": "static",
            },
            "var-etc.swap": {
                **NATIVE,
                "FragmentPath": "/etc/systemd/system/var-etc.swap",
                "UnitFileState": "enabled",
            },
            "var-own.swap": {
                **NATIVE,
                "FragmentPath": "/etc/systemd/system/var-own.swap",
                "UnitFileState": "static",
            },
            "var-off.swap": {**NATIVE, "FragmentPath": "/usr/lib/x.swap", "UnitFileState": "disabled"},
            "dev-alias.swap": {**NATIVE, "What": "/dev/alias"},
        }
    )
    preview = run_module("gpufix_swap", check=True)
    assert {unit["unit"]: (unit["origin"], unit["action"]) for unit in preview["units"]} == {
        "dev-gpt.swap": ("gpt-auto", "mask"),
        "dev-zram0.swap": ("zram", "mask"),
        "var-lib.swap": ("native", "mask"),
        "var-etc.swap": ("native", "disable"),
        "var-own.swap": ("native", "set-aside"),
    }
    shown = preview["diff"][2]
    assert "dev-gpt.swap: loaded (gpt-auto)\n" in shown["before"]
    assert "dev-gpt.swap: masked\n" in shown["after"]
    assert "var-etc.swap: disabled\n" in shown["after"]
    assert "/etc/systemd/system/var-own.swap.gpufix-aside\n" in shown["after"]
    result = run_module("gpufix_swap")
    assert result["changed"] is True, result
    assert host.changes()[1:] == [
        "systemctl daemon-reload",
        "systemctl mask dev-gpt.swap",
        "systemctl mask dev-zram0.swap",
        "systemctl mask var-lib.swap",
        "systemctl disable var-etc.swap",
        "systemctl mask var-own.swap",
    ]
    assert host.read("etc/systemd/system/var-own.swap.gpufix-aside") == "[Swap]\nWhat=/var/own\n"
    assert run_module("gpufix_swap")["changed"] is False


def test_services_are_silenced_before_swap_goes_off(host: FakeHost, run_module: RunModule) -> None:
    host.swap("/swapfile file 100 0 -2", "/dev/zram0 partition 100 0 100")
    host.state["units"]["zramswap.service"] = {
        "LoadState": "loaded",
        "ActiveState": "active",
        "UnitFileState": "enabled",
        "makes": "/dev/zram0",
    }
    host.state["units"]["dphys-swapfile.service"] = {"LoadState": "loaded", "UnitFileState": "disabled"}
    result = run_module("gpufix_swap")
    assert result["services"] == [{"service": "zramswap.service", "enabled": "enabled", "active": "active"}]
    assert host.changes()[:2] == ["systemctl disable --now zramswap.service", "swapoff /swapfile"]
    assert "/dev/zram0 is off already" in result["done"]
    assert result["diff"][2]["after"] == "zramswap.service: disabled, inactive\n"


def test_old_systemd_without_source_path(host: FakeHost, run_module: RunModule) -> None:
    host.write("etc/fstab", "UUID=abc none swap sw 0 0\n")
    host.state["units"]["swapfile.swap"] = {
        **NATIVE,
        "What": "/dev/disk/by-uuid/abc",
        "FragmentPath": "/run/systemd/generator/x.swap",
    }
    assert run_module("gpufix_swap", check=True)["units"] == []


def test_passwords_of_other_mounts_are_not_shown(host: FakeHost, run_module: RunModule) -> None:
    host.write("etc/fstab", "//nas/x /x cifs user=u,password=hunter2 0 0\n/swapfile none swap sw 0 0\n")
    result = run_module("gpufix_swap")
    assert "hunter2" not in str(result)
    assert "password=<redacted>" in result["diff"][0]["before"]
    assert "password=hunter2" in host.read("etc/fstab")


def test_no_fstab_at_all(host: FakeHost, run_module: RunModule) -> None:
    (host.root / "etc/fstab").unlink()
    host.state["units"].pop("swapfile.swap")
    result = run_module("gpufix_swap")
    assert (result["fstab_sha256"], result["backup"]) == ("", "")
    assert host.changes() == ["swapoff /swapfile"]


def test_a_folder_that_cannot_be_written_is_found_before_swap_goes_off(
    host: FakeHost, run_module: RunModule, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpufix_swap, "why_not_writable", lambda *_arguments: "/etc is read-only")
    result = run_module("gpufix_swap")
    assert result["failed"] is True
    assert result["msg"] == "/etc is read-only"
    assert host.changes() == []


def test_swap_that_comes_on_again_is_a_failure(host: FakeHost, run_module: RunModule) -> None:
    host.state["units"]["late.swap"] = {
        **NATIVE,
        "FragmentPath": "/usr/lib/systemd/system/late.swap",
        "UnitFileState": "enabled",
    }
    host.state["fail"] = {"systemctl mask": "Access denied"}
    result = run_module("gpufix_swap")
    assert result["failed"] is True
    assert "Access denied; done before that" in result["msg"]
    assert "commented the swap lines of /etc/fstab" in result["done"]
