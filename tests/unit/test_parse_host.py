"""The unit, memory, containers, the card, and the rest of what the host says."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from snapshots_for_tests import CRASH_LOOP, RUNNING, case, facts, snapshot

from gpufix.core.parse import parse_snapshot
from gpufix.core.parse.times import parse_systemd_time, parse_time

_GROUP = "override=- group=14 group_members=0000:01:00.0,0000:01:00.1"
PCI = (
    "# NVIDIA PCI functions: 2\n"
    f"0000:01:00.0 vendor=10de device=2b85 class=030000 driver=nvidia {_GROUP}\n"
    f"0000:01:00.1 vendor=10de device=22e8 class=040300 driver=snd_hda_intel {_GROUP}\n"
)


# --- unit ------------------------------------------------------------------------------------------------------------


def test_a_crash_loop_starts_by_itself_and_does_not_run() -> None:
    unit = facts(host_kubelet_show=CRASH_LOOP).unit.value
    assert unit is not None
    assert (unit.running, unit.will_start_by_itself, unit.restarts) == (False, True, 7)


def test_the_units_name() -> None:
    assert parse_snapshot(case("trace-1-kubelet-dead")).unit.value is not None
    named = facts(host_kubelet_show=RUNNING, host_unit="k3s-agent.service\n").unit.value
    assert named is not None
    assert named.name == "k3s-agent.service"
    plain = facts(host_kubelet_show=RUNNING).unit.value
    assert plain is not None
    assert plain.name == "kubelet.service"


def test_the_evidence_of_a_unit_is_its_lines() -> None:
    sources = {line.excerpt: line.source for line in facts(host_kubelet_show=CRASH_LOOP).unit.evidence}
    assert sources["ActiveState=activating"] == "host/kubelet.show:1"


@pytest.mark.parametrize("text", ["", "Unit kubelet.service could not be found.\n", "ActiveState=\n"])
def test_no_state_is_unknown(text: str) -> None:
    assert not facts(host_kubelet_show=text).unit.known


# --- times -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        "2026-03-02T08:00:00Z",
        "2026-03-02T08:00:00+00:00",
        "2026-03-02T08:00:00+0000",
        "2026-03-02T16:00:00+0800",
        "2026-03-02T03:00:00.000-05:00",
    ],
)
def test_one_moment_in_many_spellings(text: str) -> None:
    assert parse_time(text) == datetime(2026, 3, 2, 8, tzinfo=UTC)


@pytest.mark.parametrize("text", ["", "2026-03-02T08:00:00", "2026-13-02T08:00:00Z", "yesterday", None, 5])
def test_what_is_no_moment(text: object) -> None:
    assert parse_time(text) is None


def test_systemd_times() -> None:
    assert parse_systemd_time("Wed 2026-12-02 08:43:24 UTC") == datetime(2026, 12, 2, 8, 43, 24, tzinfo=UTC)
    assert parse_systemd_time("@1772438400") == datetime(2026, 3, 2, 8, tzinfo=UTC)
    assert parse_systemd_time("Wed 2026-12-02 08:43:24 CEST") is None
    assert parse_systemd_time("") is None


def test_as_of_is_what_was_recorded_else_the_newest_moment() -> None:
    assert parse_snapshot(case("38-host-powered-off")).as_of == datetime(2026, 3, 2, 8, 20, tzinfo=UTC)
    found = parse_snapshot(case("30-client-cert-expired-running"))
    assert found.as_of == datetime(2026, 3, 1, 16, 16, 23, tzinfo=UTC)
    assert not found.as_of_recorded
    assert facts().as_of == datetime(2026, 3, 2, 10, tzinfo=UTC)
    assert parse_snapshot(snapshot(captured_at="rubbish")).as_of is None


# --- small files -----------------------------------------------------------------------------------------------------


def test_meminfo() -> None:
    memory = parse_snapshot(case("trace-1-kubelet-dead")).memory.value
    assert memory is not None
    assert (memory.swap_total_kib, memory.commit_limit_kib, memory.committed_kib) == (262140, 12604180, 2207244)
    assert not facts(host_proc_meminfo="nothing\n").memory.known
    partial = facts(host_proc_meminfo="MemTotal: 5 kB\n").memory.value
    assert partial is not None
    assert partial.available_kib is None


@pytest.mark.parametrize(("text", "value"), [("0\n", 0), ("2", 2), ("3\n", None), ("", None), ("one", None)])
def test_overcommit(text: str, value: int | None) -> None:
    assert facts(host_overcommit=text).overcommit.value == value


@pytest.mark.parametrize(
    ("text", "value"),
    [("none\n", False), ("kvm", False), ("systemd-nspawn\n", True), ("lxc", True), ("what?", None), ("", None)],
)
def test_inside_a_container(text: str, value: bool | None) -> None:
    assert facts(host_virt=text).in_container.value is value


def test_boot_id() -> None:
    assert (
        facts(host_boot_id="F7D88279-038e-4bf0-9b6e-14f245b2a0a5\n").boot_id.value
        == "f7d88279-038e-4bf0-9b6e-14f245b2a0a5"
    )
    assert not facts(host_boot_id="cat: no such file\n").boot_id.known


# --- containers ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ('{"module": "gpufix_swap", "pid": 123, "since": 1795000000}\n', "gpufix_swap (process 123)"),
        ("", ""),
        ("\n", ""),
        ("gpufix_swap 123\n", None),
        ('{"module": "gpufix_swap"}\n', None),
        ('{"module": "gpufix_swap", "pid": "123"}\n', None),
        ('{"module": "a b\\nc", "pid": 123}\n', None),
        ("[" * 99_999, None),
    ],
)
def test_who_changes_the_host(text: str, value: str | None) -> None:
    busy = facts(host_busy=text).busy
    assert busy.value == value
    assert busy.known is (value is not None)


def test_who_changes_the_host_was_not_asked_in_old_captures() -> None:
    assert parse_snapshot(case("trace-1-kubelet-dead")).busy.unknown == "host/busy is not in the snapshot"


def test_containers_of_the_captures() -> None:
    found = parse_snapshot(case("trace-1-kubelet-dead")).containers.value or ()
    managers = {container.container: container.running for container in found if container.is_vfio_manager}
    assert managers == {"k8s-driver-manager": False, "nvidia-vfio-manager": True}
    assert any(container.container == "" and container.pod.startswith("nvidia-vfio-manager") for container in found)


def test_containers_of_gpufix() -> None:
    text = (
        "nvidia-vfio-manager-x\t-\taaaaaaaaaaaa\tCONTAINER_RUNNING\n"
        "nvidia-vfio-manager-x\tnvidia-vfio-manager\tbbbbbbbbbbbb\tRUNNING\n"
        "p\tc\tcccccccccccc\tCONTAINER_EXITED\np\td\tdddddddddddd\tUNKNOWN\n"
    )
    found = facts(host_containers=text).containers.value or ()
    assert [container.running for container in found] == [True, True, False, None]
    assert [container.is_vfio_manager for container in found] == [False, True, False, False]


def test_without_the_runtimes_table_nobody_knows_what_runs() -> None:
    (only,) = facts(host_containers="nvidia-vfio-manager-x nvidia-vfio-manager bbbbbbbbbbbb\n").containers.value or ()
    assert only.running is None


def test_a_line_that_is_no_container_makes_the_list_unknown() -> None:
    assert not facts(host_containers="level=error msg=timed out while asking\n").containers.known
    assert not facts(host_containers="").containers.known
    assert facts(host_containers="# the runtime knows no container of Kubernetes\n").containers.value == ()


# --- the card --------------------------------------------------------------------------------------------------------


def test_cards_of_sysfs() -> None:
    found = facts(host_pci_drivers=PCI)
    (card,) = found.gpus.value or ()
    assert (card.address, card.device, card.driver, card.group) == ("0000:01:00.0", "2b85", "nvidia", "14")
    assert [function.driver for function in found.pci.value or ()] == ["nvidia", "snd_hda_intel"]


@pytest.mark.parametrize(
    "text", ["", PCI.replace(": 2", ": 3"), PCI.split("\n", 1)[1], "# NVIDIA PCI functions: 1\nrubbish\n"]
)
def test_a_listing_cut_short_is_unknown(text: str) -> None:
    assert not facts(host_pci_drivers=text).gpus.known


def test_no_card_is_known() -> None:
    assert facts(host_pci_drivers="# NVIDIA PCI functions: 0\n").gpus.value == ()


def test_cards_of_lspci() -> None:
    (card,) = parse_snapshot(case("42-host-driver-bind-skipped")).gpus.value or ()
    assert (card.address, card.device, card.driver) == ("0000:01:00.0", "2484", "nvidia")
    (loose,) = parse_snapshot(case("44-iommu-off-no-group")).gpus.value or ()
    assert loose.driver == ""
    assert not facts(host_lspci="lspci: command not found\n").gpus.known


HOLDERS = "# scanned 312 processes, unreadable {count}\n"


def test_who_holds_the_card() -> None:
    pod = "0::/kubepods.slice/kubepods-besteffort-pod0a1b2c3d_1111_2222_3333_444455556666.slice/cri.scope"
    text = HOLDERS.format(count=0) + (
        f"11\tpython3\t/dev/nvidia0,/dev/nvidiactl,/dev/nvidia-uvm\t{pod}\n"
        "12\tXorg\t/dev/dri/card0,/dev/nvidia0\t0::/user.slice\n13\tnvidia-persiste\t/dev/nvidia0\t0::/system.slice\n"
        "14\tqemu-kvm\t/dev/vfio/14\t0::/x\n15\tthing\t/dev/nvidiactl\t0::/x\n"
    )
    found = facts(host_gpu_holders=text).gpu_holders.value or ()
    assert [holder.kind for holder in found] == ["cuda", "display", "daemon", "vm", "unknown"]
    assert found[0].pod == "0a1b2c3d-1111-2222-3333-444455556666"


@pytest.mark.parametrize(
    "text",
    [
        "",
        HOLDERS.format(count=2),
        HOLDERS.format(count=1) + "unreadable\t77\n",
        "11\tpython3\t/dev/nvidia0\tx\n",
        HOLDERS.format(count=0) + "rubbish\n",
    ],
)
def test_a_process_that_was_not_looked_into_is_never_nobody(text: str) -> None:
    assert not facts(host_gpu_holders=text).gpu_holders.known


def test_nobody_holds_the_card() -> None:
    assert facts(host_gpu_holders=HOLDERS.format(count=0)).gpu_holders.value == ()


@pytest.mark.parametrize(
    ("text", "groups"),
    [
        ("0\n1\n14\n", ("0", "1", "14")),
        ("# IOMMU groups: 2\n0 0000:00:00.0\n14 0000:01:00.0\n14 0000:01:00.1\n", ("0", "14")),
        ("# IOMMU groups: 0\n", ()),
        ("# IOMMU groups: 2\n0 0000:00:00.0\n", None),
        ("", ()),
        ("/sys/kernel/iommu_groups/3/devices/0000:01:00.0\n", ("3",)),
        ("IOMMU Group 5 0000:01:00.0 VGA\n", ("5",)),
        ("cannot open\n", None),
    ],
)
def test_iommu_groups(text: str, groups: tuple[str, ...] | None) -> None:
    assert facts(host_iommu_groups=text).iommu_groups.value == groups


def test_lspci_takes_its_groups_from_the_listing() -> None:
    lspci = case("42-host-driver-bind-skipped").files["host/lspci"]
    found = facts(host_lspci=lspci, host_iommu_groups="# IOMMU groups: 1\n14 0000:01:00.0\n14 0000:01:00.1\n")
    groups = {function.address: function.group for function in found.pci.value or ()}
    assert (groups["0000:01:00.0"], groups["0000:01:00.1"], groups["0000:02:00.0"]) == ("14", "14", "")
