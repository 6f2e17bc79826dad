# SPDX-License-Identifier: Apache-2.0
"""Tensors of 16 MiB to an instance on Ray, beside a plain copy of the same bytes over TCP."""

from __future__ import annotations

import json
import os
import pathlib
import subprocess
import sys

from benchmarks import ray_loads
from benchmarks.measurement import Measurement
from benchmarks.ray_large_calls import ECHO, MEBIBYTES, PLAIN, TCP, UNIX, WORKER
from benchmarks.servers import HERE
from benchmarks.table import Comparison
from tests.cluster.ray_cluster import RayNodes

TABLE = Comparison("Large tensors to instances on Ray", TCP, peers=(PLAIN, UNIX, WORKER))
TURNS = 3  # of `seconds`, for six to eight kinds of calls


def measure(
    _peers: pathlib.Path | None, _port: int, seconds: float
) -> dict[str, list[Measurement]]:
    """All kinds of calls take turns in one process; the figures are medians."""
    if not ray_loads.has_ray("ray_large"):
        return {}
    cluster = RayNodes(ray_loads.NODE)
    try:
        cluster.start()
        command = [sys.executable, "-m", "benchmarks.ray_large_calls"]
        command += [cluster.address, str(TURNS * seconds)]
        environment = {**os.environ, **cluster.environment}
        done = subprocess.run(
            command, cwd=HERE.parent, env=environment, check=True, stdout=subprocess.PIPE, text=True
        )
    finally:
        cluster.stop()
    return figures_of(json.loads(done.stdout.splitlines()[-1]))


def figures_of(medians: list[tuple[str, str, float]]) -> dict[str, list[Measurement]]:
    """The rates of all calls by title, with both directions counted if there are two."""
    figures: dict[str, list[Measurement]] = {}
    for row, title, median_s in medians:
        ways = 2 if row == ECHO else 1
        rate = ways * MEBIBYTES / median_s
        figures.setdefault(title, []).append(
            Measurement(f"{MEBIBYTES} MiB, {row}, in-process", rate, "MiB/s")
        )
    return figures
