"""Times ``gpufix diagnose NODE`` against one bare ``ansible -m ping`` of the same host, alternating, in one minute.

    python bench/diagnose_vs_ping.py -i INVENTORY --kubeconfig KUBECONFIG omen2 [--rounds 5]

Prints both medians and their ratio. The ratio is the figure to compare: the machine's own speed falls out of it.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import time
from pathlib import Path


def seconds(command: list[str]) -> float:
    began = time.perf_counter()
    subprocess.run(command, check=True, capture_output=True)
    return time.perf_counter() - began


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("node")
    parser.add_argument("-i", "--inventory", required=True)
    parser.add_argument("--kubeconfig", required=True)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    ansible = str(Path(sys.executable).parent / "ansible")
    ping = [ansible, "-i", options.inventory, options.node, "-m", "ansible.builtin.ping"]
    diagnose = [
        sys.executable,
        "-m",
        "gpufix",
        "diagnose",
        options.node,
        "-i",
        options.inventory,
        "--kubeconfig",
        options.kubeconfig,
    ]
    seconds(ping)  # the first connection opens SSH's shared one, for both
    rounds = [(seconds(ping), seconds(diagnose)) for _ in range(options.rounds)]
    base, ours = (statistics.median(column) for column in zip(*rounds, strict=True))
    print(f"ansible -m ping   {base:.2f} s (median of {options.rounds})")
    print(f"gpufix diagnose   {ours:.2f} s")
    print(f"ratio             {ours / base:.2f}")


if __name__ == "__main__":
    main()
