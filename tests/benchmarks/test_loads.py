# SPDX-License-Identifier: Apache-2.0
"""Which rows are measured, on which servers, and that the measured models answer as expected."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import pathlib

import numpy as np
import pytest

from benchmarks import (
    composed_loads,
    grpc_loads,
    http_loads,
    loads,
    many_models,
    processes,
    servers,
    stream_loads,
)
from benchmarks.__main__ import ROWS, chosen_rows
from benchmarks.http2 import connect
from benchmarks.measurement import Measurement
from benchmarks.sequence_client import SequenceStream
from benchmarks.servers import RunningServer, System
from tests.free_ports import first_of_free_ports

OURS = System("ours", "ours", ["serve"])
PEER = System("triton", "Triton", ["tritonserver"], repository=pathlib.Path("models"))


@pytest.fixture
def events(monkeypatch):
    """What would have been done, in its order, without doing it."""
    events: list[str] = []

    @contextlib.contextmanager
    def running(system: System, port: int):
        events.append(f"start {system.key}")
        yield RunningServer(system, 1, port, 0.5)

    def load(row: str):
        def measure(_server: RunningServer, _seconds: float) -> list[Measurement]:
            events.append(row)
            return [Measurement(row, 1, "req/s")]

        return measure

    def composed(
        _system: System, _port: int, rows: list[str], _seconds: float
    ) -> list[Measurement]:
        events.extend(row for row in composed_loads.ROWS if row in rows)
        return []

    def memory(_pid: int) -> processes.Memory:
        events.append("memory")
        return processes.Memory(pss_mib=1, rss_mib=2, processes=1)

    monkeypatch.setattr(servers, "running", running)
    monkeypatch.setattr(processes, "memory", memory)
    monkeypatch.setattr(http_loads, "cache_miss", load("cache"))
    monkeypatch.setattr(many_models, "measure", load("models"))
    monkeypatch.setattr(composed_loads, "measure", composed)
    monkeypatch.setattr(loads, "LOADS", {row: load(row) for row in loads.LOADS})
    monkeypatch.setattr(loads.time, "sleep", lambda s: events.append(f"wait {s} s"))
    return events


def names(figures: list[Measurement]) -> list[str]:
    return [figure.row for figure in figures]


def test_memory_is_read_before_the_loads_and_when_it_has_settled_after_them(events):
    figures = loads.measure(OURS, 1, ["stream", "memory"], 1)

    assert events == ["start ours", "memory", "stream", "wait 10 s", "memory"]
    assert names(figures) == [
        "memory ready, PSS",
        "memory ready, RSS",
        "stream",
        "memory 10 s after load, PSS",
        "memory 10 s after load, RSS",
    ]


def test_memory_without_a_load_is_read_once(events):
    loads.measure(OURS, 1, ["start", "memory"], 1)

    assert events == ["start ours", "memory"]


def test_cache_has_a_server_of_its_own_after_the_others(events):
    loads.measure(OURS, 1, ["cache", "http"], 1)

    assert events == ["start ours", "http", "start cached", "cache"]


def test_cache_alone_starts_no_other_server(events):
    loads.measure(OURS, 1, ["cache"], 1)

    assert events == ["start cached", "cache"]


def test_cache_of_a_peer_is_not_measured(events):
    assert loads.measure(PEER, 1, ["cache"], 1) == []
    assert events == []


def test_many_models_are_measured_after_the_server_of_the_other_rows(events):
    figures = loads.measure(PEER, 1, ["models", "http"], 1)

    assert events == ["start triton", "http", "models"]
    assert names(figures) == ["http", "models"]


def test_many_models_alone_start_no_other_server(events):
    loads.measure(PEER, 1, ["models", "cache"], 1)

    assert events == ["models"]


def test_many_models_need_a_model_repository(events):
    assert loads.measure(OURS, 1, ["models"], 1) == []
    assert events == []


def test_composed_models_have_servers_of_their_own(events):
    loads.measure(PEER, 1, ["sequence", "ensemble"], 1)
    loads.measure(OURS, 1, ["sequence", "ensemble", "held"], 1)

    assert events == ["ensemble", "sequence"]


def test_every_row_can_be_chosen():
    assert chosen_rows(",".join(ROWS)) == list(ROWS)


def test_unknown_row_is_refused_with_those_that_exist():
    with pytest.raises(argparse.ArgumentTypeError, match=r"some of users, .*, got htp"):
        chosen_rows("http,htp")


@pytest.mark.e2e
@pytest.mark.parametrize("key", ["ours", "repository"])
def test_measured_models_give_the_right_answers(key):
    port = first_of_free_ports(3)
    (system,) = (system for system in servers.known_systems(None, port) if system.key == key)
    x = np.arange(8, dtype=np.float32).reshape(1, 8)

    with servers.running(system, port) as server:
        http_loads.check_add_sub(server)
        grpc_loads.checked_request(server, "Ident", {"x": x}, {"y": x})
        result = stream_loads.run_once(server.grpc_port, requests=3, responses=4)

        with pytest.raises(RuntimeError, match="other values than expected"):
            grpc_loads.checked_request(server, "Ident", {"x": x}, {"y": x + 1})
    assert result.responses == 12


@pytest.mark.e2e
def test_models_of_the_cache_are_served():
    port = first_of_free_ports(3)

    with servers.running(servers.cached_system(port), port) as server:
        http_loads.check_add_sub(server)  # raises for a wrong response


@pytest.mark.e2e
def test_many_models_become_ready(monkeypatch):
    port = first_of_free_ports(3)
    (system,) = (one for one in servers.known_systems(None, port) if one.repository)
    monkeypatch.setattr(many_models, "MODELS", 3)

    ready, memory = many_models.measure(system, port)

    assert ready.row == "3 models of one instance, ready"
    assert ready.value > 0
    assert memory.value > 0


@pytest.fixture(scope="module")
def sequence_server():
    port = first_of_free_ports(3)
    (system,) = (one for one in servers.known_systems(None, port) if one.repository)
    models = composed_loads.SEQUENCE_MODELS
    with servers.running(dataclasses.replace(system, models=models), port) as server:
        yield server


@pytest.mark.e2e
@pytest.mark.parametrize("model", ["Accumulate", "AccumulateDirect"])
def test_sequences_are_added_up(sequence_server, model):
    composed_loads.check_accumulator(sequence_server, model)
    with connect(sequence_server.grpc_port) as connection:
        stream = SequenceStream(connection, model, slots=8, first_id=1000)
        stream.open()
        requests, elapsed_s = stream.run(seconds=60, sequences=20)
        stream.close()

    assert requests == 200
    assert elapsed_s > 0


@pytest.mark.e2e
def test_sequences_can_be_held(sequence_server):
    with connect(sequence_server.grpc_port) as connection:
        stream = SequenceStream(connection, "AccumulateIdle", slots=20, first_id=2000)
        stream.open()
        stream.hold()  # raises if the server ends the stream, or refuses a sequence
        stream.close()


@pytest.mark.e2e
def test_error_in_a_sequence_ends_the_measurement(sequence_server):
    with connect(sequence_server.grpc_port) as connection:
        stream = SequenceStream(connection, "NoSuchModel", slots=1, first_id=1)
        stream.open()
        with pytest.raises(RuntimeError, match=r"got the error .*NoSuchModel"):
            stream.run(seconds=60)
