# SPDX-License-Identifier: Apache-2.0
"""The loads with shared memory on a small tensor, and when they are measured."""

from __future__ import annotations

import pathlib
import sys

import pytest

from benchmarks import loads, servers, shared_memory_loads
from benchmarks.servers import System
from tests.free_ports import first_of_free_ports


@pytest.mark.e2e
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="uses /dev/shm")
def test_all_loads_are_measured_and_nothing_is_left():
    port = first_of_free_ports(3)
    (system,) = [each for each in servers.known_systems(None, port) if each.key == "repository"]

    figures = shared_memory_loads.measure(system, port, seconds=0.05, mebibytes=1)

    assert [figure.row for figure in figures] == [
        f"identity 1 MiB c={count}, {title}"
        for count in (1, 4)
        for title in ("HTTP, wire", "HTTP, shared memory", "gRPC, shared memory")
    ]
    assert all(figure.value > 0 for figure in figures)
    assert not pathlib.Path(f"/dev/shm/pytriton-benchmark-{port}").exists()


def test_only_servers_of_repositories_are_measured(monkeypatch):
    measured = []
    monkeypatch.setattr(
        shared_memory_loads, "measure", lambda system, *_: measured.append(system.key) or []
    )

    for system in (
        System("ours", "ours", ["serve"]),
        System("triton", "Triton", ["tritonserver"], repository=pathlib.Path("models")),
    ):
        loads.measure(system, 1, ["shared"], 1)

    assert measured == ["triton"]
