"""Swap now, swap at boot, and whether the kubelet's configuration tolerates it."""

from __future__ import annotations

import pytest
from snapshots_for_tests import HEADER, REFUSAL, SWAP_ON, case, facts, failed, journal, refused_once, said, started

from gpufix.core.parse import parse_snapshot
from gpufix.model import SwapUnit

BLOCK = "Id={id}\nWhat={what}\nFragmentPath={fragment}\nActiveState=active\nUnitFileState={state}\n"


def test_header_only_is_off_and_any_other_line_is_on() -> None:
    assert facts(host_proc_swaps=HEADER).swaps.value == ()
    (device,) = facts(host_proc_swaps=HEADER + "/dev/zram0   partition\t8388604\t\t0\t\t100\n").swaps.value or ()
    assert (device.path, device.size_kib, device.used_kib, device.priority) == ("/dev/zram0", 8388604, 0, 100)


def test_octal_escapes_and_deleted_files() -> None:
    text = HEADER + "/my\\040swap\\040(deleted)   file\t100\t20\t-2\n/dev/dm-1 partition 200 0 -3\n"
    devices = facts(host_proc_swaps=text).swaps.value or ()
    assert [device.path for device in devices] == ["/my swap (deleted)", "/dev/dm-1"]


@pytest.mark.parametrize(
    "text", ["", "\n", "/swapfile file 1 2 -2\n", HEADER + "/swapfile file\n", HEADER + "/swapfile file x y -2\n"]
)
def test_a_broken_table_is_unknown_never_off(text: str) -> None:
    assert not facts(host_proc_swaps=text).swaps.known


def test_two_files_that_disagree_are_unknown() -> None:
    found = facts(host_proc_swaps=HEADER, host_proc_meminfo="SwapTotal:   2097148 kB\n").swaps
    assert not found.known
    assert "host/proc_meminfo counts 2097148 kB" in found.unknown
    assert facts(host_proc_swaps=HEADER, host_proc_meminfo="SwapTotal: 0 kB\n").swaps.value == ()


def test_only_field_three_makes_a_line_of_fstab_swap() -> None:
    text = (
        "#/swapfile none swap sw 0 0\n/data/swap-backup /b ext4 defaults 0 0\nLABEL=swapdata /d ext4 defaults 0 0\n"
        "tmpfs /t tmpfs noswap 0 0\n//nas/swap /n cifs guest 0 0\n"
        "/swap.img\tnone\tswap\tsw\t0\t0\n  UUID=1 none swap sw\n"
    )
    found = facts(host_fstab=text).fstab_swap
    assert [line.number for line in found.value or ()] == [6, 7]
    assert found.evidence[0].source == "host/fstab:6"


def test_an_fstab_without_swap_is_known() -> None:
    assert facts(host_fstab="UUID=1 / ext4 defaults 0 1\n").fstab_swap.value == ()


def units(text: str, fstab: str | None = None) -> tuple[SwapUnit, ...]:
    more = {} if fstab is None else {"host_fstab": fstab}
    found = facts(host_swap_units=text, **more).swap_units
    assert found.value is not None, found.unknown
    return found.value


@pytest.mark.parametrize(
    ("what", "fragment", "state", "fstab", "origin", "returns"),
    [
        (
            "/swapfile",
            "/run/systemd/generator/swapfile.swap",
            "generated",
            "/swapfile none swap sw 0 0",
            "fstab",
            False,
        ),
        (
            "/dev/disk/by-uuid/ab-1",
            "/run/systemd/generator/x.swap",
            "generated",
            "UUID=ab-1 none swap sw",
            "fstab",
            False,
        ),
        (
            "/dev/disk/by-label/s",
            "/run/systemd/generator/x.swap",
            "generated",
            'LABEL="s" none swap sw',
            "fstab",
            False,
        ),
        ("/dev/nvme0n1p3", "/run/systemd/generator.late/x.swap", "generated", "", "gpt-auto", True),
        ("/dev/nvme0n1p3", "/run/systemd/generator/x.swap", "generated", "#gone none swap sw", "gpt-auto", True),
        ("/dev/nvme0n1p3", "/run/systemd/generator/x.swap", "generated", None, "unknown", None),
        ("/dev/zram0", "/run/systemd/generator/dev-zram0.swap", "generated", "", "zram", True),
        ("/var/swap", "/etc/systemd/system/var-swap.swap", "enabled", "", "native", True),
        ("/var/swap", "/usr/lib/systemd/system/var-swap.swap", "static", "", "native", True),
        ("/var/swap", "/etc/systemd/system/var-swap.swap", "disabled", "", "native", False),
        ("/var/swap", "/dev/null", "masked", "", "masked", False),
        ("/dev/sda3", "", "", "", "proc", False),
    ],
)
def test_where_a_unit_comes_from(
    what: str, fragment: str, state: str, fstab: str | None, origin: str, returns: bool | None
) -> None:
    (unit,) = units(BLOCK.format(id="x.swap", what=what, fragment=fragment, state=state), fstab)
    assert (unit.origin, unit.returns_at_boot) == (origin, returns)


def test_source_path_tells_fstab_and_blocks_are_cut_at_blank_lines() -> None:
    first = (
        BLOCK.format(id="a.swap", what="/a", fragment="/run/systemd/generator/a.swap", state="generated")
        + "SourcePath=/etc/fstab\n"
    )
    second = BLOCK.format(id="b.swap", what="/b", fragment="/etc/systemd/system/b.swap", state="enabled")
    assert [unit.origin for unit in units(f"{first}\n\n{second}")] == ["fstab", "native"]


def test_list_units_text_does_not_tell_the_origin() -> None:
    text = (
        "  UNIT LOAD ACTIVE SUB DESCRIPTION\n"
        "● dev-disk-by\\x2duuid-33.swap loaded active active /dev/disk/by-uuid/33\n"
        "  old.swap masked inactive dead old.swap\n\n"
        "LOAD = Reflects whether the unit definition was loaded.\n2 loaded units listed.\n"
    )
    found = units(text)
    assert [(unit.what, unit.origin, unit.returns_at_boot) for unit in found] == [
        ("/dev/disk/by-uuid/33", "unknown", None),
        ("/old", "masked", False),
    ]


def test_swap_services_that_are_enabled() -> None:
    text = "zramswap.service enabled\ndphys-swapfile.service generated\nswapspace.service disabled\nx.service masked\n"
    assert facts(host_swap_services=text).swap_services.value == ("zramswap.service", "dphys-swapfile.service")
    assert facts(host_swap_services="").swap_services.value == ()
    assert not facts(host_swap_services="zramswap.service\n").swap_services.known


# --- swap_allowed ----------------------------------------------------------------------------------------------------

FLAGS_NONE = "# from /proc/4242/cmdline\n--config=/var/lib/kubelet/config.yaml\n"


@pytest.mark.parametrize(
    ("flags", "drop_ins", "config", "allowed"),
    [
        (FLAGS_NONE, "", "failSwapOn: false\n", True),
        (FLAGS_NONE, "", "kind: KubeletConfiguration\n", False),
        (FLAGS_NONE, "", "", False),
        (FLAGS_NONE, "# file: /d/10-a.conf\nfailSwapOn: false\n", "failSwapOn: true\n", True),
        (FLAGS_NONE, "# file: /d/20-b.conf\nfailSwapOn: true\n# file: /d/10-a.conf\nfailSwapOn: false\n", "", False),
        (FLAGS_NONE, "# file: /d/10-a.yaml\nfailSwapOn: false\n", "failSwapOn: true\n", False),
        (FLAGS_NONE, "# file: /d/10-a.conf\nmaxPods: 5\n", "failSwapOn: false\n", True),
        ("--fail-swap-on=false\n", "", "failSwapOn: true\n", True),
        ("--fail-swap-on=true\n--fail-swap-on=false\n", "", "", True),
        ("--fail-swap-on\n", "", "failSwapOn: false\n", False),
        (
            "# from /etc/default/kubelet\nKUBELET_EXTRA_ARGS=--v=2 --fail-swap-on=False --node-ip=1.2.3.4\n",
            "",
            "",
            True,
        ),
        ("# --fail-swap-on=false\n", "", "", False),
    ],
)
def test_flag_over_drop_ins_over_file(flags: str, drop_ins: str, config: str, allowed: bool) -> None:
    found = facts(host_kubelet_flags=flags, host_kubelet_config_d=drop_ins, host_kubelet_config=config).swap_allowed
    assert found.value is allowed


def test_the_evidence_is_the_line_that_decides() -> None:
    found = facts(host_kubelet_flags=FLAGS_NONE, host_kubelet_config="a: 1\nfailSwapOn: false\n").swap_allowed
    assert [(line.source, line.excerpt) for line in found.evidence] == [("host/kubelet_config:2", "failSwapOn: false")]


@pytest.mark.parametrize("config", ["failSwapOn: [", "failSwapOn: maybe\n", "- a list\n", "a: 1\n\tb: 2\n"])
def test_a_broken_configuration_is_unknown(config: str) -> None:
    assert not facts(host_kubelet_flags=FLAGS_NONE, host_kubelet_config=config).swap_allowed.known


def test_one_source_alone_does_not_tell() -> None:
    assert not facts(host_kubelet_flags=FLAGS_NONE).swap_allowed.known
    assert not facts(host_kubelet_config="failSwapOn: false\n").swap_allowed.known
    assert facts(host_kubelet_flags="--fail-swap-on=false\n").swap_allowed.value is True


def test_drop_ins_and_flags_decide_without_the_file() -> None:
    found = facts(host_kubelet_flags=FLAGS_NONE, host_kubelet_config_d="# file: /d/00-k3s.conf\nfailSwapOn: false\n")
    assert found.swap_allowed.value is True


def test_flags_that_were_not_all_read() -> None:
    absent = "# /etc/default/kubelet: No such file or directory\n# $KUBELET_EXTRA_ARGS is not set\n"
    assert facts(host_kubelet_flags=absent + FLAGS_NONE, host_kubelet_config="").swap_allowed.value is False
    denied = "# /etc/default/kubelet: Permission denied\n"
    assert not facts(host_kubelet_flags=denied + FLAGS_NONE, host_kubelet_config="").swap_allowed.known


def test_a_refusal_in_the_journal_proves_not_allowed() -> None:
    found = facts(host_kubelet_journal=refused_once()).swap_allowed
    assert found.value is False
    assert REFUSAL in found.evidence[0].excerpt


def test_a_start_that_saw_swap_and_went_on_proves_allowed() -> None:
    seen = said("09:59:50", 'I0302 09:59:50.1 4242 swap_util.go:113] "Swap is on" /proc/swaps contents=<')
    on = said("09:59:51", 'I0302 09:59:51.1 4242 server.go:1262] "Started kubelet"')
    assert facts(host_kubelet_journal=journal(started("09:59:49"), seen, on)).swap_allowed.value is True
    assert not facts(host_kubelet_journal=journal(started("09:59:49"), seen)).swap_allowed.known
    assert not facts(host_kubelet_journal=journal(started("09:59:49"), seen, failed("09:59:52"))).swap_allowed.known


def test_a_flag_seen_in_the_journal_has_no_value() -> None:
    found = parse_snapshot(case("14-swap-on-tolerated-old-kubelet-cgroup2")).swap_allowed
    assert found.value is None
    assert "its value was not read" in found.unknown


def test_swap_that_is_on() -> None:
    found = facts(host_proc_swaps=SWAP_ON).swaps
    assert [device.path for device in found.value or ()] == ["/swapfile"]
    assert found.evidence[1].source == "host/proc_swaps:2"
