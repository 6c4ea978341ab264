"""The printed runbook, followed by hand on the real node and in the practice lab alike: its commands, taken from the
rendered text alone, recover the node. ``hands`` brings SSH and the kubeconfig from outside, as a person has them."""

from __future__ import annotations

from hands import Hands, blocks
from operator_hands import Gpufix
from recoveries import CONTAINER, GPU, PASSTHROUGH, WORKLOAD_CONFIG, Node


def printed(gpufix: Gpufix, *arguments: str) -> str:
    done = gpufix.run("runbook", *arguments)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_printed_commands_alone_recover_the_node(cluster: Node, gpufix: Gpufix, hands: Hands) -> None:
    cluster.incident(PASSTHROUGH)
    running = cluster.containers("nvidia-vfio-manager")
    assert running, "vfio-manager must be running when the kubelet is revived, or the test proves nothing"
    page = printed(gpufix, "omen2")
    assert "Fill in these first" not in page, "everything was read, so every name is filled in"
    hands.open_node(page)
    hands.follow(page, "Before", "Do", "After")

    assert cluster.is_ready(), str(hands)
    assert cluster.allocatable(GPU) == 1
    assert cluster.read("/etc/fstab") == cluster.fstab_fixed
    assert cluster.swap_at_boot() == []
    assert cluster.active_swaps() == []
    assert cluster.calls("unbind") == []
    assert not set(running) & set(cluster.containers("nvidia-vfio-manager"))
    assert cluster.labels()[WORKLOAD_CONFIG] == "container"
    after = gpufix.diagnose()
    assert after["verdicts"]["node"]["status"] == "well"
    assert after["verdicts"]["vms"]["status"] == "waiting", "as the page says"


def test_the_printed_way_back_puts_all_as_it_was(cluster: Node, gpufix: Gpufix, hands: Hands) -> None:
    cluster.incident(PASSTHROUGH)
    swaps = cluster.active_swaps()
    page = printed(gpufix, "omen2")
    hands.open_node(page)
    hands.follow(page, "Before", "Do", "After", steps=(1, 2, 3))
    assert cluster.active_swaps() == []
    assert cluster.read("/etc/fstab") == cluster.fstab_fixed
    hands.follow(page, "Undo", steps=(3, 2, 1))
    assert cluster.active_swaps() == swaps
    assert cluster.read("/etc/fstab") == cluster.fstab_incident
    assert cluster.labels()[WORKLOAD_CONFIG] == "vm-passthrough"
    assert not cluster.is_ready()
    assert cluster.unit_state().split("/")[0] in ("inactive", "failed"), "it stays held"


def test_the_general_procedure_with_its_variables_filled_in(cluster: Node, gpufix: Gpufix, hands: Hands) -> None:
    cluster.incident(PASSTHROUGH)
    page = gpufix.run("runbook", access=[]).stdout
    for one in blocks(page):
        if one.heading == "Fill in these first":
            filled = one.text.replace("\nNODE=\n", "\nNODE=omen2\n")  # what the person at hand knows
            if one.shell == "node":
                hands.open_node(page)
            hands.shells[one.shell].run(filled)
            if one.shell == "admin":
                hands.shells["node"].run(filled)  # its window is one of the admin machine too, before ssh
    hands.known = {"NODE": "omen2", "TARGET_WORKLOAD": "container"}
    hands.follow(page, "Before", "Do", "After")
    assert cluster.is_healthy(CONTAINER), str(hands)
    assert cluster.read("/etc/fstab") == cluster.fstab_fixed
    assert cluster.calls("unbind") == []
