# SPDX-License-Identifier: Apache-2.0
"""What a server costs the machine: processor time and memory of its whole process tree."""

from __future__ import annotations

import time
from dataclasses import dataclass

import psutil


@dataclass(frozen=True)
class Memory:
    """PSS shares common pages out among their users; RSS counts them once for each."""

    pss_mib: float
    rss_mib: float
    processes: int


def process_tree(pid: int) -> list[psutil.Process]:
    root = psutil.Process(pid)
    return [root, *root.children(recursive=True)]


def memory(pid: int) -> Memory:
    tree = process_tree(pid)
    figures = [process.memory_full_info() for process in tree]
    return Memory(
        pss_mib=sum(getattr(figure, "pss", figure.uss) for figure in figures) / 2**20,
        rss_mib=sum(figure.rss for figure in figures) / 2**20,
        processes=len(tree),
    )


def idle_cpu_percent(pid: int, seconds: float) -> float:
    """Percent of one core that the tree uses while nobody asks it anything."""
    before = cpu_seconds(pid)
    begin = time.perf_counter()
    time.sleep(seconds)
    return 100 * (cpu_seconds(pid) - before) / (time.perf_counter() - begin)


def cpu_seconds(pid: int) -> float:
    """Processor time that the tree has used so far."""
    times = [process.cpu_times() for process in process_tree(pid)]
    return float(sum(item.user + item.system for item in times))
