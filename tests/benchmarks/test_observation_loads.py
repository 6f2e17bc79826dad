# SPDX-License-Identifier: Apache-2.0
"""Which servers the costs of metrics, logs and traces are measured on, and that they record."""

from __future__ import annotations

import contextlib
import json
import pathlib
import urllib.request

import pytest

from benchmarks import http_loads, loads, observation_loads, processes, servers
from benchmarks.http_loads import WrkReport
from benchmarks.servers import RunningServer, System
from tests.e2e.waiting import DEADLINE_S, eventually
from tests.free_ports import first_of_free_ports

OURS = System("ours", "ours", ["serve"])
PEER = System("triton", "Triton", ["tritonserver"], repository=pathlib.Path("models"))


@pytest.fixture
def cpu_seconds(monkeypatch):
    """Servers that are not started: by their ports, the processor time that they have used."""
    used: dict[int, float] = {}

    @contextlib.contextmanager
    def running(system: System, port: int):
        used[port] = 0.0
        yield RunningServer(system, port, port, 0.5)

    def wrk(server: RunningServer, *_: object) -> WrkReport:
        used[server.port] += 1 + (server.port - 9000) / 100  # each needs a tenth more
        return WrkReport(requests=1000, duration_us=1, p50_us=1, p99_us=1, failed=0)

    monkeypatch.setattr(servers, "running", running)
    monkeypatch.setattr(http_loads, "wrk", wrk)
    monkeypatch.setattr(http_loads, "check_add_sub", lambda server: None)
    monkeypatch.setattr(processes, "cpu_seconds", lambda pid: used[pid])
    return used


@pytest.mark.parametrize(
    "row, ratios",
    [
        ("observed", {"histograms : none": 1.1, "all metrics : none": 1.2}),
        (
            "logged",
            {"log : no log": 1.1, "verbose log : no log": 1.2, "verbose log in JSON : no log": 1.3},
        ),
        (
            "traced",
            {
                "1 in 1,000 traced : no traces": 1.1,
                "all traced : no traces": 1.2,
                "1 in 1,000 traced with OpenTelemetry : no traces": 1.3,
            },
        ),
    ],
)
def test_servers_that_record_are_compared_with_one_that_does_not(cpu_seconds, row, ratios):
    if row == "traced":
        pytest.importorskip("opentelemetry")
    figures = loads.measure(OURS, 9000, [row], 1)

    assert {figure.row: pytest.approx(figure.value) for figure in figures} == {
        f"HTTP AddSub c={connections}, {name}": ratio
        for connections in (1, 64)
        for name, ratio in ratios.items()
    }
    assert all(figure.value > 1 and not figure.higher_is_better for figure in figures)


def test_what_peers_record_is_not_measured(cpu_seconds):
    assert loads.measure(PEER, 9000, list(observation_loads.ROWS), 1) == []
    assert not cpu_seconds


@pytest.mark.e2e
def test_verbose_logs_have_lines_of_requests():
    with contextlib.ExitStack() as stack:
        comparison = observation_loads.log(stack)
        for name in ("verbose log", "verbose log in JSON"):
            system = comparison.recording[name](port := first_of_free_ports(3))
            (option,) = [each for each in system.command if each.startswith("--log-file=")]
            file = pathlib.Path(option.partition("=")[2])
            with servers.running(system, port) as server:
                http_loads.check_add_sub(server)
                has_line = eventually(lambda file=file: "AddSub/infer" in file.read_text())
            lines = file.read_text().splitlines()

            assert has_line
            assert "JSON" not in name or all(json.loads(line) for line in lines)


@pytest.mark.e2e
def test_traces_are_recorded():
    with contextlib.ExitStack() as stack:
        comparison = observation_loads.traces(stack)
        system = comparison.recording["all traced"](port := first_of_free_ports(3))
        (setting, *_) = json.loads(system.command[-1])["trace_config"]
        file = pathlib.Path(setting.partition("=")[2])
        with servers.running(system, port) as server:
            http_loads.check_add_sub(server)
        traces = json.loads(file.read_text())

    assert [trace["model_name"] for trace in traces if "model_name" in trace] == ["AddSub"]


def test_collector_takes_spans():
    with observation_loads.collector() as url:
        request = urllib.request.Request(url, b"spans")
        with urllib.request.urlopen(request, timeout=DEADLINE_S) as answer:
            status = answer.status

    assert status == 200
