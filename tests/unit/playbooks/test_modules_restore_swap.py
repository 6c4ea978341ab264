"""gpufix_restore_swap on a fake host: everything as it was before gpufix_swap, or nothing and the reason why."""

from __future__ import annotations

import base64
import hashlib
import json
import stat
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import gpufix_restore_swap
import gpufix_swap
import pytest
from ansible.module_utils import gpufix_fstab, gpufix_host, gpufix_swapworld
from fakehost import FSTAB, FakeHost
from hypothesis import given, settings
from hypothesis import strategies as st
from standin import Standin
from types_of_fixtures import RunModule
from undo_material import material_of, packed

COMMENTED = FSTAB.replace("/swapfile", "#/swapfile")
BACKUP = "/etc/fstab.gpufix-" + hashlib.sha256(FSTAB.encode()).hexdigest()[:12]
MAKER = {"LoadState": "loaded", "ActiveState": "active", "UnitFileState": "enabled"}
"""A service that makes swap."""
NATIVE = {"LoadState": "loaded", "ActiveState": "inactive"}
KINDS = {
    "dev-gpt.swap": {
        **NATIVE,
        "What": "/dev/gpt",
        "FragmentPath": "/run/systemd/generator.late/dev-gpt.swap",
        "UnitFileState": "generated",
    },
    "var-lib.swap": {**NATIVE, "FragmentPath": "/usr/lib/systemd/system/var-lib.swap", "UnitFileState": "static"},
    "var-on.swap": {**NATIVE, "FragmentPath": "/usr/lib/systemd/system/var-on.swap", "UnitFileState": "enabled"},
    "var-etc.swap": {**NATIVE, "FragmentPath": "/etc/systemd/system/var-etc.swap", "UnitFileState": "enabled"},
    "var-run.swap": {**NATIVE, "FragmentPath": "/etc/systemd/system/var-run.swap", "UnitFileState": "enabled-runtime"},
    "var-own.swap": {**NATIVE, "FragmentPath": "/etc/systemd/system/var-own.swap", "UnitFileState": "static"},
}
"""A unit of each kind that gpufix_swap masks, disables or sets aside."""


def furnish(host: FakeHost, *names: str) -> None:
    for name in names:
        host.state["units"][name] = dict(KINDS[name])
        if KINDS[name]["FragmentPath"].startswith("/etc/"):
            host.write(KINDS[name]["FragmentPath"], f"[Swap]\nWhat=/{name}\n")


def disable(run_module: RunModule) -> dict[str, Any]:
    """gpufix_swap's doing, as the material for its undo."""
    result = run_module("gpufix_swap")
    assert result["changed"] is True, result
    return material_of(result)


# --- there and back --------------------------------------------------------------------------------------------------


def test_dry_run_shows_all_and_changes_nothing(host: FakeHost, run_module: RunModule) -> None:
    material = packed(disable(run_module))
    before = host.changes()
    result = run_module("gpufix_restore_swap", check=True, restore=material)
    assert result["changed"] is True
    assert result["done"] == []
    assert result["plan"] == [
        f"put /etc/fstab back from {BACKUP}",
        "systemctl daemon-reload",
        "swapon /swapfile",
    ]
    fstab, devices = result["diff"]
    assert fstab["before_header"] == fstab["after_header"] == "/etc/fstab"
    assert (fstab["before"], fstab["after"]) == (COMMENTED, FSTAB)
    assert devices["before_header"] == devices["after_header"] == "swap devices"
    assert (devices["before"], devices["after"]) == (
        "",
        "/swapfile (file, 2,048 MiB, priority as the kernel gives it)\n",
    )
    assert result["fstab_sha256"] == hashlib.sha256(COMMENTED.encode()).hexdigest()
    assert result["fstab_sha256_after"] == hashlib.sha256(FSTAB.encode()).hexdigest()
    nothing_on = hashlib.sha256(b"").hexdigest()
    assert result["state_sha256"] == hashlib.sha256(f"{result['fstab_sha256']}\n{nothing_on}".encode()).hexdigest()
    assert host.changes() == before
    assert host.read("etc/fstab") == COMMENTED
    assert not (host.root / "run/gpufix.reload").exists()


def test_apply_then_nothing_to_do(host: FakeHost, run_module: RunModule) -> None:
    (host.root / "etc/fstab").chmod(0o600)
    swaps = host.read("proc/swaps").split()
    material = packed(disable(run_module))
    before = len(host.changes())
    preview = run_module("gpufix_restore_swap", check=True, restore=material)
    result = run_module("gpufix_restore_swap", restore=material, expect_state_sha256=preview["state_sha256"])
    assert result["changed"] is True
    assert result["diff"] == preview["diff"]
    kept = "/etc/fstab.gpufix-" + hashlib.sha256(COMMENTED.encode()).hexdigest()[:12]
    assert result["done"] == [
        f"put /etc/fstab back from {BACKUP}; as it was until now it is in {kept}",
        "systemd read its units again",
        "switched /swapfile on",
    ]
    assert host.changes()[before:] == ["systemctl daemon-reload", "swapon /swapfile"]
    assert host.read("etc/fstab") == FSTAB
    assert stat.S_IMODE((host.root / "etc/fstab").stat().st_mode) == 0o600
    assert host.read(kept) == COMMENTED
    swaps[swaps.index("1024")] = "0"  # nothing is in it
    assert host.read("proc/swaps").split() == swaps
    again = run_module("gpufix_restore_swap", restore=material)
    assert (again["changed"], again["plan"]) == (False, [])
    assert again["msg"] == "swap is as it was, now and at boot"
    assert run_module("gpufix_swap")["changed"] is True, "and it can be turned off again"


def test_every_kind_of_unit_and_service(host: FakeHost, run_module: RunModule) -> None:
    furnish(host, *KINDS)
    host.swap("/swapfile file 2097148 1024 -2", "/dev/zram0 partition 100 0 100")
    host.state["units"]["zramswap.service"] = {**MAKER, "makes": "/dev/zram0"}
    host.state["units"]["swapspace.service"] = {**MAKER, "UnitFileState": "disabled"}
    material = packed(disable(run_module))
    before = len(host.changes())
    preview = run_module("gpufix_restore_swap", check=True, restore=material)
    shown = preview["diff"][2]
    assert shown["before_header"] == shown["after_header"] == "units that make swap at boot"
    for name, was, now in (
        ("zramswap.service", "enabled, active", "disabled, inactive"),
        ("swapspace.service", "disabled, active", "disabled, inactive"),
        ("dev-gpt.swap", "generated (gpt-auto)", "masked"),
        ("var-on.swap", "enabled (native)", "masked"),
        ("var-etc.swap", "enabled (native)", "disabled"),
        ("var-own.swap", "static (native)", "masked"),
    ):
        assert f"{name}: {now}\n" in shown["before"]
        assert f"{name}: {was}\n" in shown["after"]
    assert "/etc/systemd/system/var-own.swap.gpufix-aside\n" in shown["before"]
    assert "/etc/systemd/system/var-own.swap\n" in shown["after"]
    result = run_module("gpufix_restore_swap", restore=material)
    assert result["changed"] is True, result
    assert host.changes()[before:] == [
        "systemctl unmask dev-gpt.swap",
        "systemctl unmask var-lib.swap",
        "systemctl unmask var-on.swap",
        "systemctl unmask var-own.swap",
        "systemctl enable var-on.swap",
        "systemctl enable var-etc.swap",
        "systemctl enable --runtime var-run.swap",
        "systemctl daemon-reload",
        "systemctl enable zramswap.service",
        "systemctl start zramswap.service",
        "systemctl start swapspace.service",
        "swapon /swapfile",
    ]
    assert result["plan"][0] == (
        "put /etc/systemd/system/var-own.swap back from /etc/systemd/system/var-own.swap.gpufix-aside"
    )
    assert result["done"][-2:] == ["switched /swapfile on", "/dev/zram0 is on already"]
    for name, was in KINDS.items():
        assert host.state["units"][name]["UnitFileState"] == was["UnitFileState"]
        assert host.state["units"][name]["FragmentPath"] == was["FragmentPath"]
    assert host.read("etc/systemd/system/var-own.swap") == "[Swap]\nWhat=/var-own.swap\n"
    assert not (host.root / "etc/systemd/system/var-own.swap.gpufix-aside").exists()
    assert run_module("gpufix_restore_swap", restore=material)["changed"] is False


def test_priorities(host: FakeHost, run_module: RunModule) -> None:
    host.swap("/swapfile file 100 0 -2", "/a\\040b file 100 0 5", "/zero file 100 0 0", "/dev/dm-1 partition 9 0 -3")
    before = [line.split()[::4] for line in host.read("proc/swaps").splitlines()]
    material = packed(disable(run_module))
    result = run_module("gpufix_restore_swap", restore=material)
    assert result["plan"][-4:] == ["swapon /swapfile", "swapon -p 5 /a b", "swapon -p 0 /zero", "swapon /dev/dm-1"]
    assert [line.split()[::4] for line in host.read("proc/swaps").splitlines()] == before


def test_a_service_that_was_masked_stays_so(host: FakeHost, run_module: RunModule) -> None:
    host.state["units"]["zramswap.service"] = {**MAKER, "LoadState": "masked", "UnitFileState": "masked"}
    material = packed(disable(run_module))
    before = len(host.changes())
    assert run_module("gpufix_restore_swap", restore=material)["changed"] is True
    assert not any("zramswap" in call for call in host.changes()[before:])


def test_without_fstab_in_the_material_it_is_not_looked_at(host: FakeHost, run_module: RunModule) -> None:
    (host.root / "etc/fstab").unlink()
    host.state["units"].pop("swapfile.swap")
    material = disable(run_module)
    assert material["fstab"] is None
    result = run_module("gpufix_restore_swap", restore=packed(material))
    assert (result["plan"], result["fstab_sha256"]) == (["swapon /swapfile"], "")
    assert not (host.root / "etc/fstab").exists()


def test_fstab_that_somebody_put_back_already_needs_no_backup(host: FakeHost, run_module: RunModule) -> None:
    material = disable(run_module)
    host.write("etc/fstab", FSTAB)
    (host.root / BACKUP.lstrip("/")).unlink()
    result = run_module("gpufix_restore_swap", restore=packed(material))
    assert result["plan"] == ["swapon /swapfile"]
    assert run_module("gpufix_restore_swap", restore=packed(material))["changed"] is False


def test_a_link_to_fstab_stays_one(host: FakeHost, run_module: RunModule) -> None:
    (host.root / "etc/fstab").unlink()
    host.write("conf/fstab", FSTAB)
    host.link("etc/fstab", "/conf/fstab")
    material = disable(run_module)
    assert material["fstab"]["backup"].startswith("/conf/fstab.gpufix-")
    assert run_module("gpufix_restore_swap", restore=packed(material))["changed"] is True
    assert (host.root / "etc/fstab").is_symlink()
    assert host.read("conf/fstab") == FSTAB


# --- refusals --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("check", [True, False])
def test_fstab_edited_since_is_left_alone_and_shown_against_both(
    host: FakeHost, run_module: RunModule, check: bool
) -> None:
    material = packed(disable(run_module))
    now = COMMENTED + "//nas/x /x cifs user=u,password=hunter2 0 0\n"
    host.write("etc/fstab", now)
    before = host.changes()
    result = run_module("gpufix_restore_swap", check=check, restore=material)
    assert result["failed"] is True
    assert result["changed"] is False
    assert result["msg"].startswith("/etc/fstab was edited since gpufix left it, so it is not put back: ")
    assert BACKUP in result["msg"] and result["msg"].endswith("; nothing was done")
    left, was = result["diff"]
    assert (left["before_header"], left["after_header"]) == ("/etc/fstab as gpufix left it", "/etc/fstab now")
    assert (was["before_header"], was["after_header"]) == ("/etc/fstab as it was before gpufix", "/etc/fstab now")
    assert (left["before"], was["before"]) == (COMMENTED, FSTAB)
    assert left["after"] == was["after"] == now.replace("hunter2", "<redacted>")
    assert "hunter2" not in json.dumps(result)
    assert host.changes() == before
    assert host.read("etc/fstab") == now


def test_fstab_that_is_gone(host: FakeHost, run_module: RunModule) -> None:
    material = packed(disable(run_module))
    (host.root / "etc/fstab").unlink()
    result = run_module("gpufix_restore_swap", restore=material)
    assert result["msg"].startswith("/etc/fstab is gone, so it is not put back")
    assert [one["after"] for one in result["diff"]] == ["", ""]


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (lambda path: path.unlink(), f"The backup {BACKUP} of /etc/fstab cannot be read: No such file or directory"),
        (lambda path: path.write_text("x"), f"The backup {BACKUP} of /etc/fstab does not hold what it did"),
    ],
    ids=["gone", "changed"],
)
def test_the_backup_must_be_what_it_was(
    host: FakeHost, run_module: RunModule, spoil: Callable[[Path], Any], words: str
) -> None:
    material = packed(disable(run_module))
    spoil(host.root / BACKUP.lstrip("/"))
    before = host.changes()
    result = run_module("gpufix_restore_swap", restore=material)
    assert (result["failed"], result["msg"]) == (True, words + "; nothing was done")
    assert host.changes() == before


def test_a_backup_elsewhere_is_none(host: FakeHost, run_module: RunModule) -> None:
    material = disable(run_module)
    elsewhere = "/tmp/" + Path(BACKUP).name
    host.write(elsewhere, FSTAB)
    material["fstab"]["backup"] = elsewhere
    result = run_module("gpufix_restore_swap", restore=packed(material))
    assert result["msg"] == (
        f"The backup of /etc/fstab would be {BACKUP}, and is said to be {elsewhere}; nothing was done"
    )


@pytest.mark.parametrize("check", [True, False])
@pytest.mark.parametrize("change", ["fstab", "swaps"])
def test_a_world_that_moved_since_the_preview_stops_it(
    host: FakeHost, run_module: RunModule, change: str, check: bool
) -> None:
    material = packed(disable(run_module))
    expected = run_module("gpufix_restore_swap", check=True, restore=material)["state_sha256"]
    if change == "fstab":
        host.write("etc/fstab", FSTAB)
    else:
        host.swap("/swapfile file 2097148 0 -2")
    before = host.changes()
    result = run_module("gpufix_restore_swap", check=check, restore=material, expect_state_sha256=expected)
    assert result["failed"] is True
    assert result["msg"] == "/etc/fstab or the set of swap devices changed since the preview; nothing was done"
    assert result["state_sha256"] != expected
    assert host.changes() == before


def test_a_unit_s_file_in_both_places_or_in_none(host: FakeHost, run_module: RunModule) -> None:
    furnish(host, "var-own.swap")
    material = packed(disable(run_module))
    fragment = host.root / "etc/systemd/system/var-own.swap"
    fragment.unlink()
    fragment.write_text("another\n")
    result = run_module("gpufix_restore_swap", restore=material)
    assert result["msg"].startswith("Both /etc/systemd/system/var-own.swap and ")
    fragment.unlink()
    fragment.with_name("var-own.swap.gpufix-aside").unlink()
    result = run_module("gpufix_restore_swap", restore=material)
    assert result["msg"] == (
        "/etc/systemd/system/var-own.swap.gpufix-aside is gone, so var-own.swap cannot be put back; nothing was done"
    )
    assert host.read("etc/fstab") == COMMENTED


@pytest.mark.parametrize(
    "pattern", ["systemctl show var-lib.swap", "systemctl show zramswap.service"], ids=["unit", "service"]
)
def test_what_cannot_be_read_is_not_taken_for_absent(host: FakeHost, run_module: RunModule, pattern: str) -> None:
    furnish(host, "var-lib.swap")
    host.state["units"]["zramswap.service"] = dict(MAKER)
    material = packed(disable(run_module))
    host.state["fail"] = {pattern: "Failed to connect to bus"}
    before = host.changes()
    result = run_module("gpufix_restore_swap", check=True, restore=material)
    assert result["failed"] is True
    assert "is not known: systemctl: Failed to connect to bus" in result["msg"]
    assert host.changes() == before


def test_a_service_that_is_gone(host: FakeHost, run_module: RunModule) -> None:
    host.state["units"]["zramswap.service"] = dict(MAKER)
    material = packed(disable(run_module))
    del host.state["units"]["zramswap.service"]
    result = run_module("gpufix_restore_swap", restore=material)
    assert result["msg"] == (
        "Zramswap.service is not installed any more, so swap cannot be made as it was; nothing was done"
    )


def test_a_folder_that_cannot_be_written_is_found_before_anything_is_done(
    host: FakeHost, run_module: RunModule, monkeypatch: pytest.MonkeyPatch
) -> None:
    furnish(host, "var-lib.swap")
    material = packed(disable(run_module))
    before = host.changes()
    monkeypatch.setattr(gpufix_restore_swap, "why_not_writable", lambda *_arguments: "/etc is read-only")
    result = run_module("gpufix_restore_swap", restore=material)
    assert (result["failed"], result["msg"]) == (True, "/etc is read-only")
    assert host.changes() == before


def test_the_second_device_fails_and_what_was_done_is_told(host: FakeHost, run_module: RunModule) -> None:
    host.swap("/swapfile file 100 0 -2", "/gone file 100 0 -3")
    material = packed(disable(run_module))
    host.state["fail"] = {"swapon /gone": "swapon: cannot open /gone: No such file or directory"}
    result = run_module("gpufix_restore_swap", restore=material)
    assert result["failed"] is True
    assert result["changed"] is True
    assert result["msg"].startswith("Swapon: cannot open /gone: No such file or directory; done before that: put /etc")
    assert result["done"][-1] == "switched /swapfile on"


def test_what_does_not_hold_is_a_failure(host: FakeHost, run_module: RunModule) -> None:
    host.state["units"]["zramswap.service"] = dict(MAKER)
    material = packed(disable(run_module))
    host.state["after_start"] = {"ActiveState": "failed", "SubState": "failed"}
    result = run_module("gpufix_restore_swap", restore=material)
    assert result["failed"] is True
    assert "It was all done, and yet this is still to do: start zramswap.service; done before that" in result["msg"]


def test_another_change_of_the_host_comes_first(
    host: FakeHost, run_module: RunModule, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ansible.module_utils.gpufix_busy._PATIENCE", 0.0)
    material = packed(disable(run_module))
    before = host.changes()
    with gpufix_restore_swap.holding(gpufix_host.Host(str(host.root)), "gpufix_swap"):
        assert run_module("gpufix_restore_swap", check=True, restore=material)["changed"] is True
        result = run_module("gpufix_restore_swap", restore=material)
    assert result["failed"] is True
    assert "another change of this host is under way: gpufix_swap" in result["msg"].lower()
    assert host.changes() == before
    assert run_module("gpufix_restore_swap", restore=material)["changed"] is True


def test_what_ended_between_the_look_and_the_lock_stops_it(
    host: FakeHost, run_module: RunModule, monkeypatch: pytest.MonkeyPatch
) -> None:
    material = packed(disable(run_module))
    real = gpufix_restore_swap.holding

    @contextmanager
    def late(*arguments: Any) -> Iterator[None]:
        host.swap("/swapfile file 2097148 0 -2")
        with real(*arguments):
            yield

    monkeypatch.setattr(gpufix_restore_swap, "holding", late)
    result = run_module("gpufix_restore_swap", restore=material)
    assert result["msg"] == "The host changed while this was being prepared; nothing was done"
    assert host.read("etc/fstab") == COMMENTED


# --- the kubelet -----------------------------------------------------------------------------------------------------


@pytest.fixture
def warned(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What the module warns of. Ansible itself keeps that where all modules of this process would share it."""
    found: list[str] = []
    monkeypatch.setattr(gpufix_restore_swap.AnsibleModule, "warn", lambda _module, text: found.append(text))
    return found


@pytest.mark.parametrize("check", [True, False])
@pytest.mark.parametrize("active", ["active", "reloading", "activating", "inactive", "failed"])
def test_a_kubelet_that_runs_is_warned_of_and_left_alone(
    host: FakeHost, run_module: RunModule, warned: list[str], active: str, check: bool
) -> None:
    material = packed(disable(run_module))
    host.state["units"]["kubelet.service"]["ActiveState"] = active
    assert run_module("gpufix_restore_swap", check=check, restore=material)["changed"] is True
    assert len(warned) == (active in ("active", "reloading"))
    assert all(text.startswith("kubelet.service runs. With swap on, a kubelet that is not set") for text in warned)
    assert "kubelet" not in " ".join(host.changes())


def test_nothing_to_do_is_nothing_to_warn_of(host: FakeHost, run_module: RunModule, warned: list[str]) -> None:
    material = packed(disable(run_module))
    host.write("etc/fstab", FSTAB)
    host.swap("/swapfile file 2097148 0 -2")
    host.state["units"]["kubelet.service"]["ActiveState"] = "active"
    assert run_module("gpufix_restore_swap", restore=material)["changed"] is False
    assert warned == []


def test_a_kubelet_that_is_not_known_is_warned_of(host: FakeHost, run_module: RunModule, warned: list[str]) -> None:
    material = packed(disable(run_module))
    host.state["fail"] = {"systemctl show kubelet.service": "Failed to connect to bus"}
    assert run_module("gpufix_restore_swap", check=True, restore=material)["changed"] is True
    (text,) = warned
    assert text.startswith("It is not known whether the kubelet runs (systemctl: Failed to connect to bus).")


# --- what it is given ------------------------------------------------------------------------------------------------

GOOD: dict[str, Any] = {
    "fstab": {"backup": "/etc/fstab.gpufix-" + "a" * 12, "sha256": "a" * 64, "sha256_after": "b" * 64},
    "devices": [{"path": "/swapfile", "priority": -2}],
    "units": [
        {
            "unit": "var-own.swap",
            "origin": "native",
            "unit_file_state": "static",
            "fragment": "/etc/systemd/system/var-own.swap",
            "action": "set-aside",
            "moved_to": "/etc/systemd/system/var-own.swap.gpufix-aside",
        }
    ],
    "services": [{"service": "zramswap.service", "enabled": "enabled", "active": "active"}],
}


def test_what_is_good_is_taken() -> None:
    restore = gpufix_restore_swap.parse_restore(packed(GOOD))
    assert restore.fstab is not None
    assert restore.fstab.backup == "/etc/fstab.gpufix-" + "a" * 12
    assert [unit.verb for unit in restore.units] == ["set-aside"]
    none = gpufix_restore_swap.parse_restore(packed({"fstab": None, "devices": [], "units": [], "services": []}))
    assert none == (None, [], [], [])


@pytest.mark.parametrize(
    ("place", "value", "words"),
    [
        (("fstab",), "x", "fstab is no object"),
        (("fstab", "backup"), "etc/fstab.gpufix-" + "a" * 12, "fstab.backup is not plausible"),
        (("fstab", "backup"), "/etc/fstab", "fstab.backup is not named fstab.gpufix-aaaaaaaaaaaa"),
        (("fstab", "backup"), "/etc/fstab.gpufix-" + "b" * 12, "fstab.backup is not named"),
        (("fstab", "backup"), "/etc/../x/fstab.gpufix-" + "a" * 12, "fstab.backup is not a plain absolute path"),
        (("fstab", "backup"), "/etc/fstab\n.gpufix-" + "a" * 12, "fstab.backup is not plausible"),
        (("fstab", "sha256"), "A" * 64, "fstab.sha256 is not plausible"),
        (("fstab", "sha256_after"), "b" * 63, "fstab.sha256_after is not plausible"),
        (("devices",), {}, "gpufix_restore.devices is not of type list"),
        (("devices", 0), "x", "devices[0] is no object"),
        (("devices", 0, "path"), "-a", "devices[0].path is not plausible"),
        (("devices", 0, "path"), "/a\x00b", "devices[0].path is not plausible"),
        (("devices", 0, "path"), "/a\ud800", "devices[0].path is not plausible"),
        (("devices", 0, "path"), "//a", "devices[0].path is not a plain absolute path"),
        (("devices", 0, "path"), 7, "devices[0].path is not plausible"),
        (("devices", 0, "priority"), "-2", "devices[0].priority is not of type number"),
        (("devices", 0, "priority"), True, "devices[0].priority is not of type number"),
        (("devices", 0, "priority"), 32768, "devices[0].priority is none of the kernel's"),
        (("devices", 0, "more"), 1, "devices[0] has the field 'more', which is not known"),
        (("units", 0, "unit"), "kubelet.service", "units[0].unit is not plausible"),
        (("units", 0, "unit"), "-now.swap", "units[0].unit is not plausible"),
        (("units", 0, "unit"), "a/b.swap", "units[0].unit is not plausible"),
        (("units", 0, "origin"), "x", "units[0].origin is not plausible"),
        (("units", 0, "action"), "enable", "units[0].action is not plausible"),
        (("units", 0, "fragment"), "/etc/passwd", "units[0].fragment does not lie in /etc/systemd/system/"),
        (("units", 0, "fragment"), "/etc/systemd/system/../x", "units[0].fragment is not a plain absolute path"),
        (("units", 0, "moved_to"), "/etc/passwd", "units[0].moved_to is not where gpufix_swap would put it"),
        (("units", 0, "moved_to"), "", "units[0].moved_to is not where gpufix_swap would put it"),
        (("services", 0, "service"), "kubelet.service", "services[0].service is not plausible"),
        (("services", 0, "enabled"), "enabled --now", "services[0].enabled is not plausible"),
        (("devices",), [{"path": "/a", "priority": 1}] * 2, "gpufix_restore names a path twice"),
        (("more",), 1, "gpufix_restore has the field 'more', which is not known"),
    ],
)
def test_what_is_not_plausible_is_refused_in_one_line(place: tuple[Any, ...], value: Any, words: str) -> None:
    material = json.loads(json.dumps(GOOD))
    inner = material
    for key in place[:-1]:
        inner = inner[key]
    inner[place[-1]] = value
    with pytest.raises(gpufix_swapworld.Refusal) as caught:
        gpufix_restore_swap.parse_restore(packed(material))
    assert str(caught.value).startswith(f"gpufix_restore cannot be used: {words}")
    assert str(caught.value).endswith("; nothing was done")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", GOOD)
def test_nothing_may_be_missing(name: str) -> None:
    with pytest.raises(gpufix_swapworld.Refusal, match=f"gpufix_restore lacks {name}"):
        gpufix_restore_swap.parse_restore(packed({key: value for key, value in GOOD.items() if key != name}))


@pytest.mark.parametrize(
    "text", ["", "{}", "e30", "e30=\n", "_w==", "é", base64.b64encode(b"\xff").decode(), packed([1]), "A" * (1 << 21)]
)
def test_what_is_no_object_is_refused(host: FakeHost, run_module: RunModule, text: str) -> None:
    result = run_module("gpufix_restore_swap", restore=text)
    assert result["failed"] is True
    assert result["msg"].endswith("; nothing was done")
    assert host.changes() == []


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(max_size=5),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from([*GOOD, "unit", "path"]), inner),
        max_leaves=8,
    )
)
def test_any_json_is_taken_or_refused(data: Any) -> None:
    with suppress(gpufix_swapworld.Refusal):
        gpufix_restore_swap.parse_restore(packed(data))


# --- properties ------------------------------------------------------------------------------------------------------


class Killed(BaseException):
    """SIGKILL: nothing of the module runs after it."""


class Life:
    """Ends after ``left`` more events: tools that begin or end, and notes of what is done."""

    def __init__(self, left: int | None = None) -> None:
        self.left = left

    def passes(self) -> None:
        if self.left is not None:
            self.left -= 1
            if self.left < 0:
                raise Killed


class Done(list[str]):
    def __init__(self, life: Life) -> None:
        super().__init__()
        self.life = life

    def append(self, entry: str) -> None:
        super().append(entry)
        self.life.passes()


class Node:
    """A fake host of its own for one example, with the two modules' doing but without Ansible around it."""

    def __init__(self, root: Path) -> None:
        (root / "usr/bin").mkdir(parents=True)
        self.fake = FakeHost(root, root / "usr/bin")
        self.host = gpufix_host.Host(str(root))
        self.life = Life()

    def tool(self, command: list[str], timeout: float | None = None) -> gpufix_host.Done:
        changes = command[1] != "show"
        if changes:
            self.life.passes()
        tool = Standin(str(self.fake.root))
        code = tool.answer(command[0], command[1:])
        if changes:
            self.life.passes()
        return gpufix_host.finished(command[0], code, "".join(tool.out), "".join(tool.err))

    def disable(self, life: Life) -> dict[str, Any]:
        world = gpufix_swap.read_world(self.host)
        plan = gpufix_swap.make_plan(world, *gpufix_swap.read_memory(self.host))
        result = {
            **gpufix_swap._describe_world(self.host, world),
            **gpufix_swap._describe_plan(self.host, world, plan),
        }
        self.life = life
        with suppress(Killed):
            gpufix_swap.apply_plan(self.host, world, plan, 60.0, Done(life))
            if life.left is None:
                gpufix_swap.judge_end(self.host, world)
        self.life = Life()
        return material_of(result)

    def restore(self, material: dict[str, Any], life: Life) -> bool:
        """Whether it came to its end."""
        restore = gpufix_restore_swap.parse_restore(packed(material))
        world = gpufix_restore_swap.read_world(self.host, restore)
        plan = gpufix_restore_swap.make_plan(self.host, restore, world)
        gpufix_restore_swap.make_diff(restore, world, plan)
        self.life = life
        try:
            gpufix_restore_swap.apply_plan(self.host, world, plan, Done(life))
            gpufix_restore_swap.judge_end(self.host, restore)
        except Killed:
            return False
        finally:
            self.life = Life()
        return True

    def nothing_left(self, material: dict[str, Any]) -> bool:
        restore = gpufix_restore_swap.parse_restore(packed(material))
        world = gpufix_restore_swap.read_world(self.host, restore)
        return gpufix_restore_swap.make_plan(self.host, restore, world).steps() == []

    def looks(self, own_choice: bool = True) -> dict[str, Any]:
        """All that must be as it was. ``own_choice``: with the priorities that the kernel gives."""
        devices = {line.split()[0]: int(line.split()[4]) for line in self.fake.read("proc/swaps").splitlines()[1:]}
        units = {
            name: {key: unit.get(key, "") for key in ("LoadState", "UnitFileState", "FragmentPath", "What")}
            | ({"ActiveState": unit.get("ActiveState")} if name.endswith(".service") else {})
            for name, unit in self.fake.now()["units"].items()
        }
        own = self.fake.root / "etc/systemd/system"
        fstab = self.fake.root / "etc/fstab"
        return {
            "fstab": fstab.read_bytes() if fstab.exists() else None,
            "mode": stat.S_IMODE(fstab.stat().st_mode) if fstab.exists() else None,
            "devices": {
                path: priority if own_choice or priority >= 0 else "the kernel's" for path, priority in devices.items()
            },
            "units": units,
            "files": {one.name: one.read_text() for one in own.iterdir() if not one.is_symlink()}
            if own.exists()
            else {},
            "unread": (self.fake.root / "run/gpufix.reload").exists(),
        }


_LINES = st.sampled_from(
    ["/swapfile none swap sw 0 0", "/data/b none swap pri=5 0 0\r", "UUID=1 / ext4 defaults 0 1", "# a comment", "",
     "\t/c\tnone\tswap", "#/old none swap sw 0 0", "//nas/x /x cifs password=p 0 0", "tmpfs /run/swap tmpfs noswap 0 0"]
)  # fmt: skip
_FSTABS = st.one_of(
    st.none(),
    st.binary(max_size=60),
    st.tuples(st.lists(_LINES, max_size=6), st.sampled_from(["", "\n"])).map(
        lambda drawn: ("\n".join(drawn[0]) + drawn[1]).encode()
    ),
)
_PATHS = st.sampled_from(["/swapfile", "/data/b", "/c", "/with blank", "/dev/dm-0", "/dev/zram0"])


@st.composite
def _devices(draw: st.DrawFn) -> list[tuple[str, int]]:
    """As the kernel lists them: of those that nobody gave a priority, each has one less than the one before."""
    chosen = draw(st.lists(st.tuples(_PATHS, st.none() | st.integers(0, 32767)), unique_by=lambda one: one[0]))
    found: list[tuple[str, int]] = []
    for path, priority in chosen:
        own = -2 - sum(other < 0 for _path, other in found)
        found.append((path, own if priority is None else priority))
    return found


@st.composite
def _scenes(draw: st.DrawFn) -> Callable[[Path], Node]:
    fstab, devices, mode = draw(_FSTABS), draw(_devices()), draw(st.sampled_from([0o644, 0o600, 0o664]))
    units = draw(st.sets(st.sampled_from(sorted(KINDS))))
    service = draw(st.none() | st.tuples(st.sampled_from(["enabled", "enabled-runtime", "disabled"]), st.booleans()))

    def build(root: Path) -> Node:
        node = Node(root)
        fake = node.fake
        fake.state["units"] = {"kubelet.service": fake.state["units"]["kubelet.service"]}
        (fake.root / "etc/fstab").unlink()
        if fstab is not None:
            (fake.root / "etc/fstab").write_bytes(fstab)
            (fake.root / "etc/fstab").chmod(mode)
        furnish(fake, *units)
        fake.swap(*(f"{path.replace(' ', chr(92) + '040')} file 100 0 {priority}" for path, priority in devices))
        if service is not None:
            fake.state["units"]["zramswap.service"] = {
                **MAKER,
                "UnitFileState": service[0],
                "ActiveState": "active" if service[1] else "inactive",
            }
        fake.save()
        Standin(str(root)).answer("systemctl", ["daemon-reload"])
        return node

    return build


@contextmanager
def _alive(build: Callable[[Path], Node]) -> Iterator[Node]:
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        node = build(Path(folder))
        (node.fake.root / "run").mkdir()
        patch.setattr(gpufix_host.Host, "run", node.tool)
        patch.setattr(
            gpufix_swap,
            "switch_off",
            lambda host, device, _patience: gpufix_swapworld.must(host.run(["swapoff", device.name]).why),
        )
        patch.setattr(gpufix_fstab, "_sync_folder", lambda _folder: None)  # the disk is not what is tested
        patch.setattr(gpufix_fstab.os, "fsync", lambda _descriptor: None)
        yield node


@settings(max_examples=80, deadline=None)
@given(_scenes())
def test_there_and_back_is_as_it_was(build: Callable[[Path], Node]) -> None:
    with _alive(build) as node:
        before = node.looks()
        material = node.disable(Life())
        assert node.restore(material, Life())
        assert node.looks() == before
        assert node.nothing_left(material)


@settings(max_examples=80, deadline=None)
@given(_scenes(), st.lists(st.integers(0, 25), min_size=1, max_size=3))
def test_killed_anywhere_and_run_again_it_ends_the_same(build: Callable[[Path], Node], lives: list[int]) -> None:
    with _alive(build) as node:
        before = node.looks()
        material = node.disable(Life())
        for left in lives:
            node.restore(material, Life(left))
        assert node.restore(material, Life())
        assert node.looks() == before
        assert node.nothing_left(material)


@settings(max_examples=80, deadline=None)
@given(_scenes(), st.integers(0, 25))
def test_a_disable_killed_anywhere_is_undone_too(build: Callable[[Path], Node], left: int) -> None:
    with _alive(build) as node:
        before = node.looks(own_choice=False)
        material = node.disable(Life(left))
        assert node.restore(material, Life())
        assert node.looks(own_choice=False) == before
