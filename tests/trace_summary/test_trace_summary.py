# SPDX-License-Identifier: Apache-2.0
"""What is read of trace files, and how it is summarised."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytriton.tools.trace_summary import (
    TraceFileError,
    percentile,
    read_traces,
    summarise,
    summary_text,
    timeline_text,
    times_of,
)
from tests.trace_summary.traces import GRPC_TIMES, HTTP_TIMES, request, text_of


def read(*requests):
    return read_traces(text_of(*requests), "trace.json").requests


def summaries(*requests, model=""):
    return summarise(read(*requests), model)


def test_times_of_a_request_are_those_between_its_stamps():
    (made,) = read(request(times=HTTP_TIMES))

    assert times_of(made) == {
        "request": 139_000,
        "receive": 9_000,
        "send": 4_000,
        "overhead": 2_000,
        "handler": 124_000,
        "handler overhead": 6_000,
        "queue": 10_000,
        "compute": 108_000,
        "compute input": 3_000,
        "compute infer": 100_000,
        "compute output": 5_000,
    }


def test_waiting_for_a_request_over_grpc_is_no_part_of_it():
    (made,) = read(request(times=GRPC_TIMES))
    times = times_of(made)

    assert (times["request"], times["wait/read"]) == (130_000, 1_000_000)


def test_sends_of_a_stream_are_added_up():
    made = request(times=HTTP_TIMES)
    for name, ns in (("HTTP_SEND_START", 200_000), ("HTTP_SEND_END", 203_000)):
        made.append({"id": 1, "timestamps": [{"name": name, "ns": 10_000_000 + ns}]})
    times = times_of(read(made)[0])

    assert (times["send"], times["request"]) == (7_000, 212_000)


def test_times_that_the_server_did_not_know_are_left_out():
    made = request(times=HTTP_TIMES)
    for each in made:
        for stamp in each.get("timestamps", ()):
            if "SEND" in stamp["name"]:
                stamp["ns"] = 0
    times = times_of(read(made)[0])

    assert not {"request", "send", "overhead"} & set(times)
    assert times["receive"] == 9_000


def test_models_and_protocols_are_told_apart():
    found = summaries(
        request(1, HTTP_TIMES, "b"),
        request(2, GRPC_TIMES, "a"),
        request(3, HTTP_TIMES, "a"),
        request(4, HTTP_TIMES, "a"),
    )

    assert [(each.model, each.protocol, each.count) for each in found] == [
        ("a", "GRPC", 1),
        ("a", "HTTP", 2),
        ("b", "HTTP", 1),
    ]


def test_calls_are_under_the_model_whose_requests_made_them():
    found = summaries(
        request(1, HTTP_TIMES, "pipe"),
        request(2, (), "leaf", parent_id=1),
        request(3, (), "leaf", parent_id=2),
        request(4, HTTP_TIMES, "leaf"),
    )

    assert [(each.model, each.count) for each in found] == [("leaf", 1), ("pipe", 1)]
    assert [(each.model, each.count) for each in found[1].composing] == [("leaf", 2)]
    assert found[0].composing == ()


def test_one_model_has_requests_of_clients_and_calls():
    found = summaries(
        request(1, HTTP_TIMES, "pipe"),
        request(2, (), "leaf", parent_id=1),
        request(3, HTTP_TIMES, "leaf"),
        model="leaf",
    )

    assert [(each.model, each.protocol, each.count) for each in found] == [
        ("leaf", "", 1),
        ("leaf", "HTTP", 1),
    ]


def test_call_whose_caller_is_in_another_file_stands_alone():
    (found,) = summaries(request(2, (), "leaf", parent_id=1))

    assert (found.model, found.protocol) == ("leaf", "")


def test_calls_in_a_circle_end():
    found = summaries(request(1, (), parent_id=2), request(2, (), parent_id=1))

    assert sum(each.count for each in found) <= 2


def test_tensors_alone_have_no_times():
    tensor = {"name": "X", "data": "1", "shape": "1", "dtype": "INT8"}
    text = json.dumps([{"id": 1, "activity": "TENSOR_QUEUE_INPUT", "tensor": tensor}])
    requests = read_traces(text, "trace.json").requests

    assert summary_text(summarise(requests)) == "unknown model: trace count = 1 (without times)"


def test_summary_is_shown_as_a_table():
    requests = [request(number, HTTP_TIMES) for number in (1, 2)]

    assert summary_text(summaries(*requests)).splitlines()[:4] == [
        "m (version 1): trace count = 2",
        "  microseconds                        avg        p50        p90        p99        max",
        "  HTTP infer request                139.0      139.0      139.0      139.0      139.0",
        "    receive                           9.0        9.0        9.0        9.0        9.0",
    ]


def test_timeline_has_calls_in_their_place():
    requests = read(
        request(1, HTTP_TIMES, "pipe", request_id="seven"),
        request(2, (), "leaf", parent_id=1, shift_us=1),
    )
    lines = timeline_text(requests).splitlines()

    assert lines[:5] == [
        "trace 1: pipe (version 1), request id seven",
        "           0.0  HTTP_RECV_START",
        "           9.0  HTTP_RECV_END",
        "          10.0  REQUEST_START",
        "          11.0  QUEUE_START",
    ]
    assert "          11.0    leaf 2: REQUEST_START" in lines


def test_timelines_of_one_model():
    requests = read(request(1, HTTP_TIMES, "a"), request(2, HTTP_TIMES, "b"))

    assert timeline_text(requests, "b").startswith("trace 2: b")
    assert "trace 1" not in timeline_text(requests, "b")


def test_file_that_was_cut_is_read_to_that_place():
    text = text_of(request(1, HTTP_TIMES), request(2, HTTP_TIMES))
    file = read_traces(text[:-100], "trace.json")

    assert file.is_cut
    assert [each.number for each in file.requests] == [1, 2]
    assert not read_traces(text, "trace.json").is_cut


@given(st.integers(min_value=1, max_value=2000))
def test_file_that_was_cut_anywhere_is_read_or_refused(size):
    text = text_of(request(1, HTTP_TIMES))[:size]
    try:
        file = read_traces(text, "trace.json")
    except TraceFileError:
        return

    assert [each.number for each in file.requests] == [1]


@pytest.mark.parametrize(
    "text, reason",
    [
        ("", "x.json is empty"),
        ("  \n", "x.json is empty"),
        ("hello", "x.json is not a file of traces: expected JSON, Expecting value"),
        ('{"a": 1}', "x.json is not a file of traces: expected an array, got dict"),
        ("[1]", "x.json is not a file of traces: expected objects with an id, got 1"),
        ('[{"a": 1}]', 'x.json is not a file of traces: expected objects with an id, got {"a": 1}'),
        ('[{"id": 1, "timestamps": [{"name": "A"}]}]', "cannot be read (KeyError('ns'))"),
        ('[{"id": 1, "timestamps": 7}]', "cannot be read (TypeError"),
    ],
)
def test_file_that_has_no_traces_is_refused(text, reason):
    with pytest.raises(TraceFileError) as refusal:
        read_traces(text, "x.json")

    assert reason in str(refusal.value)


@given(st.lists(st.floats(0, 1e6), min_size=1), st.floats(0, 100))
def test_percentile_lies_between_the_values(values, percent):
    values.sort()

    assert values[0] <= percentile(values, percent) <= values[-1]


def test_percentiles_are_between_neighbours():
    assert percentile([0.0, 10.0], 50) == 5.0
    assert percentile([1.0, 2.0, 3.0], 100) == 3.0
    assert percentile([7.0], 99) == 7.0
