"""gpufix_read_node: everything is there or has its reason, at the price of the slowest part; and no secret leaves."""

from __future__ import annotations

import ast
import time
from pathlib import Path

import gpufix_read_node
import pytest
from ansible.module_utils.gpufix_host import Host, in_child, show_blocks
from ansible.module_utils.gpufix_kubelet import start_lines, trim_journal
from ansible.module_utils.gpufix_redact import MARK, redact
from fakehost import FSTAB, FakeHost
from hypothesis import given
from hypothesis import strategies as st
from types_of_fixtures import RunModule

from gpufix.core.parse import parse_snapshot
from gpufix.model import Snapshot

NAMES = {
    "kubelet.journal", "kubelet.show", "kubelet_config", "kubelet_config_d", "kubelet_flags", "proc_swaps",
    "proc_meminfo", "overcommit", "fstab", "zram", "boot_id", "cmdline", "dmesg", "containers", "swap_units", "lspci",
    "iommu_groups", "pci_drivers", "gpu_holders", "nvidia_smi", "virt", "swap_services", "busy",
}  # fmt: skip
JOURNAL = (
    "2026-12-02T08:43:24+0000 omen2 systemd[1]: Started kubelet.service - kubelet: The Kubernetes Node Agent.\n"
    '2026-12-02T08:43:24+0000 omen2 kubelet[9]: E1202 08:43:24.0 9 run.go:72] "command failed" err="no" --token=abc\n'
)


def gpu(host: FakeHost, driver: str = "nvidia") -> None:
    for number, kind in (("0", "0x030000"), ("1", "0x040300")):
        folder = f"sys/bus/pci/devices/0000:01:00.{number}"
        host.write(f"{folder}/vendor", "0x10de\n")
        host.write(f"{folder}/device", "0x2b85\n" if number == "0" else "0x22e8\n")
        host.write(f"{folder}/class", kind + "\n")
        host.write(f"{folder}/driver_override", "(null)\n")
        host.link(f"{folder}/iommu_group", "../../../../kernel/iommu_groups/14")
        host.write(f"sys/kernel/iommu_groups/14/devices/0000:01:00.{number}", "")
    if driver:
        host.link("sys/bus/pci/devices/0000:01:00.0/driver", f"../../../bus/pci/drivers/{driver}")
    host.write("sys/bus/pci/devices/0000:01:00.0/drm/card1/dev", "")
    host.write("sys/bus/pci/devices/0000:00:02.0/vendor", "0x8086\n")


def process(
    host: FakeHost, pid: int, command: str, *devices: str, maps: str = "", cgroup: str = "0::/a.slice\n"
) -> None:
    host.write(f"proc/{pid}/comm", Path(command).name[:15] + "\n")
    host.write(f"proc/{pid}/cmdline", f"{command}\0--secret=x\0")
    host.write(f"proc/{pid}/maps", maps)
    host.write(f"proc/{pid}/cgroup", cgroup)
    (host.root / f"proc/{pid}/fd").mkdir()
    for number, device in enumerate(devices):
        host.link(f"proc/{pid}/fd/{number}", device)


def test_everything_is_there_or_has_its_reason(host: FakeHost, run_module: RunModule) -> None:
    host.write("journal", JOURNAL)
    gpu(host)
    host.container("pod-a", "-")
    result = run_module("gpufix_read_node", check=True)
    assert result["changed"] is False
    assert set(result["files"]) | set(result["unread"]) == NAMES
    assert set(result["files"]) & set(result["unread"]) == set()
    assert all(result["unread"].values())
    assert all(text for name, text in result["files"].items() if name not in ("swap_services", "busy"))
    assert (result["unit"], result["virt"], result["swap_services"]) == ("kubelet.service", "none", "")
    assert result["files"]["fstab"] == FSTAB
    assert result["files"]["containers"] == f"pod-a\t-\t{'0' * 64}\tRUNNING\n"
    assert "command failed" in result["files"]["kubelet.journal"]
    assert "--token=<redacted>" in result["files"]["kubelet.journal"]
    assert "FragmentPath=/run/systemd/generator/swapfile.swap" in result["files"]["swap_units"]
    assert result["unread"]["nvidia_smi"] == "nvidia-smi: not installed"
    assert result["unread"]["lspci"] == "lspci: not installed"
    assert result["unread"]["kubelet_config"] == "/var/lib/kubelet/config.yaml: No such file or directory"
    assert host.changes() == []


def test_the_core_understands_every_file(host: FakeHost, run_module: RunModule) -> None:
    """The other side of the contract: what this module writes, the parsers of the core read."""
    host.write("journal", JOURNAL)
    host.write("proc/sys/kernel/random/boot_id", "0e5b7bd6-6f5f-4b0e-9f4e-5f0ad2f0e1a4\n")
    host.write("proc/cmdline", "quiet\n")
    host.write("var/lib/kubelet/config.yaml", "failSwapOn: true\n")
    gpu(host)
    process(host, 10, "/opt/bin/python3", "/dev/nvidia0")
    host.container("nvidia-vfio-manager-a", "nvidia-vfio-manager")
    host.state["units"]["zramswap.service"] = {"LoadState": "loaded", "UnitFileState": "enabled"}
    result = run_module("gpufix_read_node")
    files = {f"host/{name}": text for name, text in result["files"].items()}
    facts = parse_snapshot(Snapshot("omen2", files, {f"host/{name}": why for name, why in result["unread"].items()}))
    for observation in (facts.unit, facts.journal, facts.swap_allowed, facts.swaps, facts.memory, facts.overcommit,
                        facts.fstab_swap, facts.swap_units, facts.swap_services, facts.containers, facts.gpus,
                        facts.gpu_holders, facts.boot_id, facts.in_container, facts.cmdline, facts.kernel_log,
                        facts.iommu_groups, facts.busy):  # fmt: skip
        assert observation.known, observation.unknown
    assert facts.unit.value is not None
    assert facts.unit.value.will_start_by_itself
    assert facts.swap_allowed.value is False
    assert [unit.origin for unit in facts.swap_units.value or ()] == ["fstab"]
    assert facts.swap_services.value == ("zramswap.service",)
    assert [one.is_vfio_manager for one in facts.containers.value or ()] == [True]
    assert [(card.address, card.driver, card.group) for card in facts.gpus.value or ()] == [
        ("0000:01:00.0", "nvidia", "14")
    ]
    assert [(holder.pid, holder.kind) for holder in facts.gpu_holders.value or ()] == [(10, "cuda")]
    assert facts.iommu_groups.value == ("14",)
    assert facts.in_container.value is False


def test_systemd_that_does_not_answer(host: FakeHost, run_module: RunModule) -> None:
    host.state["fail"] = {"systemctl": "Failed to connect to bus: Host is down\nmore"}
    result = run_module("gpufix_read_node")
    for name in ("kubelet.show", "kubelet.journal", "kubelet_flags", "swap_units", "swap_services"):
        assert result["unread"][name] == "systemctl: Failed to connect to bus: Host is down more"
    assert "flags are not known" in result["unread"]["kubelet_config_d"]
    assert result["unit"] == ""
    assert "proc_swaps" in result["files"]


def test_no_kubelet_here(host: FakeHost, run_module: RunModule) -> None:
    host.state["units"] = {}
    result = run_module("gpufix_read_node")
    assert result["unread"]["kubelet.show"].startswith("no kubelet unit found; looked for kubelet.service, k3s-agent")
    assert result["files"]["swap_units"] == "# systemd knows no swap unit\n"


def test_a_journal_without_entries_is_not_read(host: FakeHost, run_module: RunModule) -> None:
    host.write("journal", "-- No entries --\n")
    assert run_module("gpufix_read_node")["unread"]["kubelet.journal"] == "journalctl: -- No entries --"


def test_tools_that_hang_cost_one_time_limit_together(host: FakeHost, run_module: RunModule) -> None:
    host.write("journal", JOURNAL)
    host.state["hang"] = ["dmesg", "crictl", "journalctl", "systemd-detect-virt"]
    began = time.monotonic()
    result = run_module("gpufix_read_node", timeout=1)
    assert time.monotonic() - began < 8
    assert result["unread"]["dmesg"] == "dmesg: no answer in 1 s"
    assert result["unread"]["virt"] == "systemd-detect-virt: no answer in 1 s"
    assert "proc_swaps" in result["files"]


def test_services_and_zram(host: FakeHost, run_module: RunModule) -> None:
    host.state["units"]["zramswap.service"] = {"LoadState": "loaded", "UnitFileState": "enabled"}
    host.write("sys/block/zram0/disksize", "4096\n")
    host.write("sys/block/zram1/disksize", "0\n")
    host.write("etc/systemd/zram-generator.conf", "[zram0]\n")
    host.write("etc/systemd/zram-generator.conf.d/a.conf", "zram-size = ram\n")
    result = run_module("gpufix_read_node")
    assert result["swap_services"] == result["files"]["swap_services"] == "zramswap.service enabled\n"
    assert result["files"]["zram"] == (
        "/dev/zram0 disksize=4096\n# file: /etc/systemd/zram-generator.conf\n[zram0]\n"
        "# file: /etc/systemd/zram-generator.conf.d/a.conf\nzram-size = ram\n"
    )


def test_pci(host: FakeHost) -> None:
    gpu(host)
    found = gpufix_read_node.Reader(Host(str(host.root)), "").read_pci()
    members = "0000:01:00.0,0000:01:00.1"
    assert found["pci_drivers"].text == (
        "# NVIDIA PCI functions: 2\n"
        f"0000:01:00.0 vendor=10de device=2b85 class=030000 driver=nvidia override=- group=14 group_members={members}\n"
        f"0000:01:00.1 vendor=10de device=22e8 class=040300 driver=- override=- group=14 group_members={members}\n"
    )
    assert found["iommu_groups"].text == "# IOMMU groups: 1\n14 0000:01:00.0\n14 0000:01:00.1\n"


def test_holders(host: FakeHost) -> None:
    gpu(host)
    process(host, 7, "/usr/bin/bash", "/dev/pts/0", "socket:[1]")
    process(
        host,
        10,
        "/opt/bin/python3",
        "/dev/nvidia0",
        "/dev/nvidiactl",
        "/dev/nvidia0",
        cgroup="1:cpu:/x/y\n1:name=systemd:/k\n",
    )
    process(host, 11, "/usr/bin/nvidia-persistenced", maps="7f00-7f01 rw-s 0 00:05 1   /dev/nvidia-uvm\n")
    process(host, 12, "qemu", "/dev/vfio/14", "/dev/vfio/vfio", cgroup="0::/kubepods/podx\n")
    process(host, 13, "Xorg: worker", "/dev/dri/card1", "/dev/dri/card0")
    process(host, 14, "gone")
    (host.root / "proc/14/maps").unlink()
    host.write("proc/15/comm", "odd\n")
    host.write("proc/15/fd", "a file, so it cannot be listed")
    assert gpufix_read_node.scan_holders(Host(str(host.root))) == (
        "# scanned 6 processes, unreadable 1\n"
        "10\tpython3\t/dev/nvidia0,/dev/nvidiactl\t/k\n"
        "11\tnvidia-persistenced\t/dev/nvidia-uvm\t/a.slice\n"
        "12\tqemu\t/dev/vfio/14\t/kubepods/podx\n"
        "13\tXorg: worker\t/dev/dri/card1\t/a.slice\n"
        "unreadable\t15\n"
    )


def test_a_scan_that_hangs_or_breaks_has_a_reason(host: FakeHost) -> None:
    assert in_child(lambda: time.sleep(30), 0.2)() == (None, "not finished in 0.2 s")
    assert in_child(lambda: {"a": 1}, 5)() == ({"a": 1}, "")
    value, why = in_child(lambda: gpufix_read_node.scan_holders(Host(str(host.root))), 5)()
    assert value is None
    assert why == "which device files are the GPU's is not known: /sys/bus/pci/devices: No such file or directory"


def test_kernel_log_keeps_what_matters() -> None:
    text = "".join(f"[{number}] line\n" for number in range(1000)) + "[9] last\n"
    text = text.replace("[100] line", "[100] NVRM: Xid 79")
    kept = gpufix_read_node.trim_kernel_log(text, newest=10).split("\n")
    assert kept[:4] == ["[0] line", "[1] line", "[2] line", "[100] NVRM: Xid 79"]
    assert kept[-2] == "[9] last"
    assert len(kept) == 15


# --- the journal -------------------------------------------------------------------------------------


def entry(who: str, message: str) -> str:
    return f"2026-12-02T08:43:24+0000 omen2 {who}[1]: {message}\n"


def start(number: int, *words: str) -> str:
    lines = [entry("systemd", "Started kubelet.service - kubelet."), entry("kubelet", f"I1202 start {number}")]
    lines += [entry("kubelet", word) for word in words]
    lines += [entry("systemd", "kubelet.service: Main process exited, code=exited, status=1/FAILURE")]
    return "".join([*lines, entry("systemd", "kubelet.service: Scheduled restart job, restart counter is at 1.")])


FATAL = 'E1202 08:43:24.178109   75724 run.go:72] "command failed" err="failed to run Kubelet: running with swap on"'


def test_last_two_starts_and_every_fatal_line_before() -> None:
    old = "F1202 08:43:24.178109 1 server.go:269] failed to run Kubelet: running with swap on is not supported"
    text = start(1, old, "goroutine 1 [running]:") + start(2, "Error: unknown flag: --x") + start(3) + start(4, FATAL)
    assert trim_journal(text) == entry("kubelet", old) + entry("kubelet", "Error: unknown flag: --x") + start(
        3
    ) + start(4, FATAL)


def test_starting_and_started_are_one_start() -> None:
    lines = [
        entry("systemd", "Starting k3s..."),
        entry("k3s", "time=x level=info"),
        entry("systemd", "Started k3s."),
        entry("systemd", "Stopped k3s."),
        entry("systemd", "Starting k3s..."),
        entry("systemd", "k3s.service: Failed with result 'exit-code'."),
        entry("systemd", "Started k3s."),
    ]
    assert start_lines(lines) == [0, 4, 6]


def test_a_journal_with_one_start_is_kept_whole() -> None:
    text = entry("kubelet", "I1202 running") + start(1)
    assert trim_journal(text) == text


@given(
    st.lists(
        st.sampled_from([start(1), start(2, FATAL), entry("kubelet", "I1202 x"), "  more\n", "-- Reboot --\n"]),
        max_size=30,
    ),
    st.integers(4, 40),
)
def test_trimming_loses_no_fatal_line_and_keeps_the_order(parts: list[str], limit: int) -> None:
    text = "".join(parts)
    kept = trim_journal(text, limit=limit).split("\n")[:-1]
    lines = text.split("\n")[:-1]
    assert len(kept) <= limit
    rest = iter(lines)
    assert all(line in rest for line in kept)
    fatal = [line for line in lines if "command failed" in line]
    assert len([line for line in kept if "command failed" in line]) >= min(len(fatal), limit // 2)
    assert trim_journal("".join(line + "\n" for line in kept), limit=limit).split("\n")[:-1] == kept


# --- secrets -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        "--token=SECRET", "--token SECRET", "--bootstrap-token=SECRET", "Environment=K3S_TOKEN=SECRET A=b",
        'Environment="DB_PASSWORD=SECRET and SECRET" A=b', "//nas/x /x cifs user=u,password=SECRET,,SECRET,uid=0 0 0",
        "//nas/x /x cifs credentials=/root/SECRET 0 0", "HTTPS_PROXY=http://me:SECRET@proxy:3128",
        "staticPodURLHeader:\n  Authorization:\n  - SECRET\n", '{"staticPodURLHeader": {"A": ["SECRET{"]}, "b": 1}',
        "staticPodURLHeader: {A: [SECRET]}\nb: 1\n", "Authorization: Bearer SECRET-SECRET-SECRET",
        "-----BEGIN RSA PRIVATE KEY-----\nSECRET\n-----END RSA PRIVATE KEY-----\n", '"client-secret": "SECRET"',
    ],
)  # fmt: skip
def test_secrets_are_taken_out(text: str) -> None:
    clean = redact(text)
    assert "SECRET" not in clean
    assert MARK in clean
    assert redact(clean) == clean


@pytest.mark.parametrize(
    "text",
    [
        "--bootstrap-kubeconfig=/etc/kubernetes/bootstrap-kubelet.conf", "--tls-private-key-file=/var/lib/k.key",
        "--authentication-token-webhook=true", "--authentication-token-webhook-cache-ttl=2m0s", "PassEnvironment=A",
        '"Unable to authenticate the request" err="[invalid bearer token, token lookup failed]"', FSTAB,
        'err="part of the existing bootstrap client certificate is expired: 2026-01-01"', "serializeImagePulls: true\n",
    ],
)  # fmt: skip
def test_what_is_no_secret_stays(text: str) -> None:
    assert redact(text) == text


@given(st.text(max_size=200))
def test_redaction_keeps_lines_and_is_idempotent(text: str) -> None:
    clean = redact(text)
    assert redact(clean) == clean
    if "PRIVATE KEY" not in text and "staticPodURLHeader" not in text:
        assert clean.count("\n") == text.count("\n")


# --- the target's Python -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "path",
    sorted(gpufix_read_node and Path(gpufix_read_node.__file__).parents[1].glob("*/gpufix_*.py")),
    ids=lambda path: path.stem,
)
def test_modules_are_python_3_8(path: Path) -> None:
    tree = ast.parse(path.read_text(), feature_version=(3, 8))
    assert any(isinstance(node, ast.ImportFrom) and node.module == "__future__" for node in tree.body)
    allowed = {"ansible", "__future__", "typing", "concurrent", "kubernetes", "urllib", "urllib3"}
    standard = {
        "base64",
        "contextlib",
        "fcntl",
        "hashlib",
        "json",
        "os",
        "re",
        "select",
        "shlex",
        "signal",
        "stat",
        "subprocess",
        "threading",
        "time",
    }
    for node in ast.walk(tree):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
        assert all(name.split(".")[0] in allowed | standard for name in names), names


def test_show_blocks() -> None:
    assert show_blocks("Id=a\nX=1\nX=2\n\n\nId=b\nnoise\n") == [{"Id": "a", "X": "1\n2"}, {"Id": "b"}]


def test_a_practice_host_never_runs_this_machine_s_tools(host: FakeHost) -> None:
    """With the stand-in gone the tool is not there, though this machine has one of that name."""
    assert Host("/").run(["ls", "/"]).why == ""
    assert Host(str(host.root)).run(["ls", "/"]).why == "ls: not installed"
