# SPDX-License-Identifier: Apache-2.0
"""The generator on a real server: what it sends is right, and what it records as well."""

from __future__ import annotations

import http.client
import json

import numpy as np
import pytest

from pytriton.tools.perf.errors import GeneratorError
from pytriton.tools.perf.load.plan import (
    Compression,
    Concurrency,
    FixedSchedule,
    InputSet,
    Intervals,
    LoadPlan,
    LoadProtocol,
    PeriodicConcurrency,
    RequestRate,
    Sequences,
    TensorFormat,
    TensorMemory,
)
from pytriton.tools.perf.load.process_load import ProcessLoad
from tests.e2e.waiting import DEADLINE_S, eventually
from tests.perf.load.rig import run

JSON = {"input_format": TensorFormat.JSON, "output_format": TensorFormat.JSON}
BOTH = pytest.mark.parametrize("protocol", list(LoadProtocol))


def number(value):
    return np.full((1, 1), value, np.float32)


def sums(a, b):
    """Input with the right answer to it."""
    expected = {"add": number(a + b), "sub": number(a - b)}
    return InputSet({"a": number(a), "b": number(b)}, expected=expected)


def plan_of(server, protocol, model="AddSub", inputs=None, **changes):
    port = server.http_port if protocol is LoadProtocol.HTTP else server.grpc_port
    inputs = inputs or [[sums(1, 2), sums(5, 3)]]
    return LoadPlan(f"127.0.0.1:{port}", protocol, model, inputs, **changes)


def repeats(*values):
    count = len(values)
    return InputSet(
        {
            "IN": np.array(values, np.int32),
            "DELAY": np.zeros(count, np.uint32),
            "WAIT": np.zeros(1, np.uint32),
        }
    )


@pytest.mark.parametrize(
    "protocol, changes",
    [
        (LoadProtocol.HTTP, {}),
        (LoadProtocol.HTTP, JSON),
        (LoadProtocol.HTTP, {"outputs": ["sub", "add"]}),
        (LoadProtocol.HTTP, {"outputs": ["add", "sub"], **JSON}),
        (LoadProtocol.HTTP, {"compression": Compression.GZIP}),
        (LoadProtocol.HTTP, {"compression": Compression.DEFLATE, **JSON}),
        (
            LoadProtocol.HTTP,
            {"headers": [("X-Mine", "1")], "version": "1", "parameters": {"timeout": 10**7}},
        ),
        (LoadProtocol.HTTP, {"parameters": {"text": "x", "flag": True}}),
        (LoadProtocol.GRPC, {}),
        (LoadProtocol.GRPC, {"outputs": ["sub", "add"]}),
        (LoadProtocol.GRPC, {"compression": Compression.GZIP}),
        (LoadProtocol.GRPC, {"compression": Compression.DEFLATE}),
        (
            LoadProtocol.GRPC,
            {"headers": [("X-Mine", "1")], "version": "1", "parameters": {"timeout": 10**7}},
        ),
        (LoadProtocol.GRPC, {"parameters": {"text": "x", "flag": True, "ratio": 0.5}}),
        (LoadProtocol.GRPC, {"streaming": True}),
    ],
)
def test_answers_are_right_in_all_forms(server, protocol, changes):
    records = run(plan_of(server, protocol, **changes), Concurrency(3), 30)

    assert records.errors == {}
    assert len(records) == 30
    assert records.ok.all()
    assert sorted(records.input_index) == [0] * 15 + [1] * 15
    assert (records.begin_ns <= records.sent_ns).all()
    assert (records.first_ns <= records.last_ns).all()
    assert (records.begin_ns < records.first_ns).all()
    assert (np.diff(records.last_ns) >= 0).all()


@BOTH
def test_large_tensors_arrive_whole(server, protocol):
    x = np.arange(1 << 20, dtype=np.float32).reshape(1, -1)
    inputs = [[InputSet({"x": x}, expected={"y": x})]]
    records = run(plan_of(server, protocol, "Ident", inputs), Concurrency(2), 4)

    assert records.errors == {}
    assert records.ok.all()


@BOTH
def test_answer_that_differs_from_the_expected_data_fails(server, protocol):
    wrong = InputSet({"a": number(1), "b": number(1)}, expected={"add": number(3)})
    records = run(plan_of(server, protocol, inputs=[[wrong, sums(1, 1)]]), Concurrency(1), 4)

    assert list(records.ok) == [False, True, False, True]
    assert records.errors == {"output 'add' differs from the expected data": 2}


@BOTH
def test_refused_requests_are_counted_with_the_servers_text(server, protocol):
    missing = [[InputSet({"a": number(1)})]]
    records = run(plan_of(server, protocol, inputs=missing), Concurrency(2), 6)

    (text,) = records.errors
    assert records.errors[text] == 6
    assert text.startswith(("HTTP 400: ", "INVALID_ARGUMENT: "))
    assert "expected 2 inputs but got 1" in text


@pytest.mark.parametrize("level", [Concurrency(2), RequestRate(500.0), Intervals((500, 1500))])
@BOTH
def test_stream_records_each_response(server, protocol, level):
    inputs = [[repeats(1, 2, 3), repeats(4)]]
    plan = plan_of(
        server, protocol, "repeat_int32", inputs, streaming=True, decoupled=True, keep_outputs=True
    )
    records = run(plan, level, 6)

    assert records.errors == {}
    assert sorted(records.responses) == [1, 1, 1, 3, 3, 3]
    assert len(records.response_ns) == 12
    ends = np.cumsum(records.responses)
    assert list(records.response_ns[ends - 1]) <= list(records.last_ns)
    assert list(records.response_ns[ends - records.responses]) == list(records.first_ns)
    assert [len(each) for each in records.outputs] == list(records.responses)


def test_grpc_stream_without_a_response_ends(server):
    plan = plan_of(
        server, LoadProtocol.GRPC, "repeat_int32", [[repeats()]], streaming=True, decoupled=True
    )
    records = run(plan, Concurrency(1), 2)

    assert list(records.responses) == [0, 0]
    assert records.ok.all()


def test_outputs_of_a_request_without_a_response_stay_empty(server):
    inputs = [[repeats(), repeats(1, 2)]]
    plan = plan_of(
        server,
        LoadProtocol.GRPC,
        "repeat_int32",
        inputs,
        streaming=True,
        decoupled=True,
        keep_outputs=True,
    )
    records = run(plan, Concurrency(1), 4)

    assert [len(each) for each in records.outputs] == [0, 2, 0, 2]


def test_errors_in_a_grpc_stream_belong_to_their_requests(server):
    inputs = [[sums(1, 2), InputSet({"a": number(1)})]]
    records = run(
        plan_of(server, LoadProtocol.GRPC, inputs=inputs, streaming=True), Concurrency(4), 8
    )

    assert (records.ok == (records.input_index == 0)).all()
    assert sum(records.errors.values()) == 4


def test_periodic_concurrency_sends_each_request_once(server):
    plan = plan_of(
        server,
        LoadProtocol.GRPC,
        "repeat_int32",
        [[repeats(*range(5))]],
        streaming=True,
        decoupled=True,
    )
    records = run(plan, PeriodicConcurrency(2, 7, 2, 3))

    assert list(records.responses) == [5] * 7


@BOTH
def test_schedule_runs_once_and_takes_its_sets_in_order(server, protocol):
    records = run(plan_of(server, protocol), FixedSchedule((0, 30, 60)))
    order = np.argsort(records.begin_ns)

    assert list(records.input_index[order]) == [0, 1, 0]
    assert records.last_ns.max() - records.begin_ns.min() > 60_000_000


@pytest.mark.parametrize(
    "protocol, streaming",
    [(LoadProtocol.HTTP, False), (LoadProtocol.GRPC, False), (LoadProtocol.GRPC, True)],
)
def test_sequences_keep_their_state(server, protocol, streaming):
    """The model adds up: only whole sequences, in order, have these sums."""
    streams = [
        [InputSet({"x": number(1)}, expected={"sum": number(total)}) for total in (1, 2, 3)],
        [InputSet({"x": number(2)}, expected={"sum": number(total)}) for total in (2, 4, 6, 8)],
    ]
    sequences = Sequences(length=None, first_id=100)
    plan = plan_of(
        server, protocol, "Accumulate", streams, sequences=sequences, streaming=streaming
    )
    records = run(plan, Concurrency(2), 28)
    ids, counts = np.unique(records.sequence_id, return_counts=True)

    assert records.errors == {}
    assert len(records) == 28
    assert ids[0] == 100
    assert set(counts[:4]) == {3, 4}


@BOTH
def test_rate_with_sequences_has_no_more_under_way_than_asked_for(server, protocol):
    sequences = Sequences(at_once=2, length=3, length_variation=0, first_id=1000)
    inputs = [[InputSet({"x": number(1)})]]
    plan = plan_of(server, protocol, "Accumulate", inputs, sequences=sequences)
    records = run(plan, RequestRate(2000.0), 30)

    _, counts = np.unique(records.sequence_id, return_counts=True)
    later = np.sort(records.begin_ns)[2:]  # each begins after all but one of those before ended

    assert records.errors == {}
    assert counts.max() == 3
    assert (later >= np.sort(records.last_ns)[: len(later)]).all()


def regions_of(server):
    connection = http.client.HTTPConnection("127.0.0.1", server.http_port)
    connection.request("GET", "/v2/systemsharedmemory/status")
    regions = json.loads(connection.getresponse().read())
    connection.close()
    return regions


@BOTH
def test_shared_memory_carries_tensors_and_is_gone_afterwards(server, protocol):
    plan = plan_of(
        server,
        protocol,
        outputs=["add", "sub"],
        inputs=[[InputSet({"a": number(1), "b": number(2)})]],
        shared_memory=TensorMemory.SYSTEM,
    )
    load = ProcessLoad(plan)
    load.start(Concurrency(2), requests=10)
    try:
        assert load.wait(DEADLINE_S)
        assert len(regions_of(server)) == 4
    finally:
        records = load.stop()

    assert records.errors == {}
    assert len(records) == 10
    assert regions_of(server) == []


def test_load_changes_levels_counts_exactly_and_stops_after_what_is_under_way(server):
    load = ProcessLoad(plan_of(server, LoadProtocol.HTTP, processes=2))
    load.start(Concurrency(4), requests=21)
    try:
        assert load.wait(DEADLINE_S)
        warm_up = load.take()
        load.change(RequestRate(1000.0), requests=15)
        assert load.wait(DEADLINE_S)
        at_rate = load.take()
        load.change(Concurrency(1))
        # It has no end by itself.
        assert eventually(lambda: load.wait(0) or load.take().ok.any())
        assert not load.wait(0)
    finally:
        rest = load.stop()

    assert warm_up.is_done
    assert len(warm_up) == 21
    assert warm_up.generator.processes == 2
    assert 0 < warm_up.generator.cpu_share <= 1
    assert len(at_rate) == 15
    assert (np.diff(at_rate.last_ns) >= 0).all()
    assert rest.ok.all()
    assert len(load.stop()) == 0


def test_load_without_a_server_says_so():
    load = ProcessLoad(
        LoadPlan("127.0.0.1:1", LoadProtocol.HTTP, "M", [[InputSet({"a": number(1)})]])
    )

    with pytest.raises(GeneratorError, match=r"cannot reach 127\.0\.0\.1:1: .*refused"):
        load.start(Concurrency(1))


def test_load_whose_process_was_killed_says_so(server):
    load = ProcessLoad(plan_of(server, LoadProtocol.HTTP))
    load.start(Concurrency(1))
    load._workers[0]._process.kill()

    with pytest.raises(GeneratorError, match="the process that makes the load ended"):
        load.wait(DEADLINE_S)
    assert len(load.stop()) == 0
