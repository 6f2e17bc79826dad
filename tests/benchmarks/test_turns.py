# SPDX-License-Identifier: Apache-2.0
"""Servers that get their loads in turns, and the ONNX models that are measured in this way."""

from __future__ import annotations

import contextlib

import numpy as np
import pytest

from benchmarks import grpc_loads, mlp, onnx_loads, processes, servers, turns
from benchmarks.measurement import Measurement
from benchmarks.servers import RunningServer, System
from benchmarks.turns import Contestant, Load
from tests.free_ports import first_of_free_ports

METRICS = """
# TYPE nv_inference_request_success counter
nv_inference_request_success{model="Mlp",version="1"} 12
nv_inference_request_success{model="MlpPython",version="1"} 7
"""


class FakeServers:
    """Servers whose loads take the given processor times and have the given rates."""

    def __init__(self, rates: dict[str, list[float]], used_s: dict[str, list[float]]) -> None:
        self.rates = {title: iter(values) for title, values in rates.items()}
        self.used_s = {title: iter(values) for title, values in used_s.items()}
        self.clock = dict.fromkeys(rates, 0.0)
        self.answered = dict.fromkeys(rates, 0)
        self.events: list[str] = []

    @contextlib.contextmanager
    def running(self, system: System, port: int):
        self.events.append(f"start {system.title} on {port}")
        yield RunningServer(system, list(self.rates).index(system.title), port, 0.5)

    def cpu_seconds(self, pid: int) -> float:
        return self.clock[list(self.rates)[pid]]

    def answered_requests(self, server: RunningServer, _model: str) -> int:
        return self.answered[server.system.title]

    def send(self, server: RunningServer, model: str, seconds: float) -> float:
        title = server.system.title
        self.events.append(f"{title}: {model} for {seconds} s")
        self.clock[title] += next(self.used_s[title])
        self.answered[title] += 1000
        return next(self.rates[title])


@pytest.fixture
def fakes(monkeypatch) -> FakeServers:
    fakes = FakeServers(
        {"a": [10, 30, 20], "b": [5, 4, 3]}, {"a": [0.25, 0.5, 0.375], "b": [1, 1, 1]}
    )
    monkeypatch.setattr(servers, "running", fakes.running)
    monkeypatch.setattr(processes, "cpu_seconds", fakes.cpu_seconds)
    monkeypatch.setattr(turns, "answered_requests", fakes.answered_requests)
    return fakes


def contestants() -> list[Contestant]:
    def start(title: str):
        return lambda _port: System(title, title, ["serve"])

    return [Contestant("a", start("a"), "A"), Contestant("b", start("b"), "B")]


def test_best_turn_of_each_server_counts(fakes):
    loads = [Load("row", fakes.send)]

    figures = turns.measure(contestants(), lambda *_: None, loads, 9000, 2)

    assert figures["a"] == [
        Measurement("row", 30, "req/s"),
        Measurement("row, processor time", 250, "us", higher_is_better=False),
    ]
    assert [figure.value for figure in figures["b"]] == [5, 1000]
    assert fakes.events == [
        "start a on 9000",
        "start b on 9010",
        *["a: A for 2 s", "b: B for 2 s"] * 3,
    ]


def test_server_with_wrong_answers_is_not_measured(fakes):
    def check(_server: RunningServer, model: str) -> None:
        raise RuntimeError(f"{model} is wrong")

    with pytest.raises(RuntimeError, match="A is wrong"):
        turns.measure(contestants(), check, [Load("row", fakes.send)], 9000, 2)

    assert fakes.events == ["start a on 9000", "start b on 9010"]


def test_answered_requests_are_those_of_the_model():
    assert turns.request_count(METRICS, "Mlp") == 12
    with pytest.raises(RuntimeError, match="count the requests of Other"):
        turns.request_count(METRICS, "Other")


def test_real_triton_is_a_contestant_only_where_it_is_installed(tmp_path):
    titles = [contestant.title for contestant in onnx_loads.contestants(tmp_path)]

    assert titles == [onnx_loads.TABLE.subject, *onnx_loads.TABLE.peers]
    assert [one.title for one in onnx_loads.contestants(None)] == titles[:-1]


@pytest.mark.e2e
@pytest.mark.part("backends")  # onnx
def test_measured_onnx_models_compute_the_same():
    checked = []

    def check(server: RunningServer, model: str) -> None:
        onnx_loads.check(server, model)
        checked.append(server)
        if len(checked) == 1:
            x = np.zeros((1, mlp.WIDTH), np.float32)
            y = np.frombuffer(grpc_loads.infer(server, model, {"x": x})["y"], np.float32)
            assert not np.allclose(y, mlp.expected(x + 1))

    ports = first_of_free_ports(3 * turns.PORTS)
    figures = turns.measure(onnx_loads.contestants(None), check, [], ports, 1)

    assert list(figures) == [one.title for one in onnx_loads.contestants(None)]
    assert len(checked) == 3


def test_requests_of_onnx_models_are_written_for_wrk(tmp_path):
    rows = [load.row for load in onnx_loads.loads(tmp_path)]

    assert rows[:2] == ["HTTP ONNX MLP c=1", "gRPC ONNX MLP c=1"]
    assert len(rows) == 10
    assert (tmp_path / onnx_loads.SMALL).read_bytes().startswith(b'{"inputs"')
    assert (tmp_path / onnx_loads.LARGE).stat().st_size > 2**20
