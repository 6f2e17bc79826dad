# SPDX-License-Identifier: Apache-2.0
"""Which requests are sent, when, and with which ids; and what a report says."""

from __future__ import annotations

import json
import pathlib
import socket
import time

import numpy as np
import pytest

from pytriton.client.kserve.address import parse_address
from pytriton.protocol.recording import (
    MAGIC,
    Exchange,
    RecordedResponse,
    RecordedTensor,
    RecordingEnd,
    RecordingError,
    RecordingHead,
    encode_record,
)
from pytriton.tools.perf.data.recorded import read_recording, recorded_inputs
from pytriton.tools.perf.errors import DataError, GeneratorError
from pytriton.tools.perf.load.records import GeneratorState, Records
from pytriton.tools.plots.page import page_html
from pytriton.tools.replay import replaying, report
from pytriton.tools.replay.comparing import Difference, ReplayedAnswers, Tolerance
from pytriton.tools.replay.recorded_requests import grpc_message, http_body, parameters_of
from pytriton.tools.replay.replaying import (
    ReplayPlan,
    ReplayResult,
    is_sender_limit,
    most_at_once,
    offsets_ms,
    replay,
    sendable,
    with_new_ids,
)
from pytriton.tools.replay.shadow import (
    ShadowCounts,
    ShadowWorker,
    TargetRest,
    is_comparable,
    worker_of,
)


def exchange(at_ms=0.0, **changes):
    inputs = [RecordedTensor("x", "FP32", (1,), np.float32(at_ms).tobytes())]
    values = {"arrived_ns": int(at_ms * 1e6), "model": "m", "inputs": inputs, **changes}
    return Exchange(**values)


def write(path: pathlib.Path, *exchanges, end=True):
    records = [RecordingHead(), *exchanges, *([RecordingEnd(reason="time")] if end else [])]
    path.write_bytes(MAGIC + b"".join(encode_record(each) for each in records))
    return path


def result_of(found=(), **changes):
    values = np.array([0.1, 0.5])
    return ReplayResult(
        **{
            "exchanges": [exchange(), exchange(5.0)],
            "skipped": {},
            "due_s": np.array([0.0, 1.5]),
            "late_ms": values,
            "latency_ms": values * 10,
            "recorded_latency_ms": values * 20,
            "elapsed_s": 1.6,
            "failed": 0,
            "compared": 2,
            "found": found,
            "errors": {},
            "is_paced": True,
            **changes,
        }
    )


def test_file_is_read_in_the_order_of_arrivals(tmp_path):
    file = read_recording(write(tmp_path / "a.rec", exchange(3), exchange(1), exchange(2)))

    assert [each.arrived_ns for each in file.exchanges] == [1_000_000, 2_000_000, 3_000_000]
    assert file.problem == ""
    assert file.end == RecordingEnd(reason="time")


def test_cut_file_is_read_up_to_the_cut_and_says_so(tmp_path):
    path = write(tmp_path / "a.rec", exchange(1), exchange(2), end=False)
    path.write_bytes(path.read_bytes()[:-1])
    file = read_recording(path)

    assert len(file.exchanges) == 1
    assert "the file was cut after" in file.problem


def test_damaged_file_is_read_up_to_the_damage(tmp_path):
    path = write(tmp_path / "a.rec", exchange(1), exchange(2))
    data = bytearray(path.read_bytes())
    data[data.rindex(np.float32(2).tobytes())] ^= 1
    path.write_bytes(data)
    file = read_recording(path)

    assert len(file.exchanges) == 1
    assert "its checksum is wrong" in file.problem


def test_other_file_is_refused(tmp_path):
    (tmp_path / "a.json").write_text('{"data": []}')
    with pytest.raises(RecordingError, match="expected a recording"):
        read_recording(tmp_path / "a.json")


def test_times_are_scaled():
    exchanges = [exchange(at) for at in (10, 12, 20)]

    assert offsets_ms(exchanges, 1.0) == (0.0, 2.0, 10.0)
    assert offsets_ms(exchanges, 2.0) == (0.0, 1.0, 5.0)


@pytest.mark.parametrize(
    "times, most",
    [
        ([], 0),
        ([(0, 5)], 1),
        ([(0, 5), (5, 5), (10, 5)], 2),  # one that ends just then still has its connection
        ([(0, 100), (1, 1), (3, 1), (3, 2)], 3),
        ([(7, 0), (7, 0)], 2),
    ],
)
def test_most_requests_at_once_are_counted(times, most):
    exchanges = [exchange(at, ended_ns=int(lasting * 1e6)) for at, lasting in times]

    assert most_at_once(exchanges) == most


class FakeLoad:
    """Ends after some waits, and says what it was asked."""

    def __init__(self, _plan, recipe):
        self.recipe, self.waits, self.takes = recipe, 3, 0
        FakeLoad.last = self

    def start(self, level, requests):
        self.level = level

    def wait(self, seconds):
        self.waits -= 1
        return self.waits == 0

    def take(self):
        self.takes += 1
        return Records()

    def stop(self):
        return Records()


@pytest.mark.parametrize("concurrency", [None, 2])
def test_sender_is_not_disturbed_while_it_keeps_times(monkeypatch, concurrency):
    monkeypatch.setattr(replaying, "ProcessLoad", FakeLoad)
    exchanges = [exchange(at, ended_ns=3_000_000) for at in (0, 1, 2)]
    plan = ReplayPlan(parse_address("localhost:1"), concurrency=concurrency, compares=False)
    progress = []
    replay(exchanges, plan, lambda done, every: progress.append((done, every)))
    load = FakeLoad.last

    assert load.takes == (0 if concurrency is None else 2)
    assert len(progress) == 2
    assert load.recipe.is_exact == (concurrency is None)
    assert load.recipe.connections == (7 if concurrency is None else 1)


def test_new_sequence_ids_keep_sequences_together():
    ids = [0, 5, 6, 5, "a", "", "a"]
    old = [exchange(index, correlation_id=each) for index, each in enumerate(ids)]
    new = [each.correlation_id for each in with_new_ids(old)]

    assert new[0] == 0
    assert new[1] == new[3]
    assert len({new[1], new[2], 5, 6}) == 4
    assert new[4] == new[6] != "a"
    assert isinstance(new[4], str)
    assert new[5] == ""


def test_decoupled_requests_need_grpc():
    exchanges = [exchange(), exchange(is_decoupled=True)]
    kept, skipped = sendable(exchanges, "http")

    assert kept == exchanges[:1]
    assert list(skipped.values()) == [1]
    assert sendable(exchanges, "grpc") == (exchanges, {})


@pytest.mark.parametrize("limits, is_said", [([False, True], False), ([True, True, False], True)])
def test_sender_counts_as_busy_if_it_was_so_most_of_the_time(limits, is_said):
    parts = [Records(generator=GeneratorState(is_limit=each)) for each in limits]
    result = result_of(is_generator_limit=is_sender_limit(parts))

    assert ("The sender itself was busy" in report.text(result)) == is_said


def test_error_of_several_lines_is_one_line_of_the_report():
    text = report.text(result_of(errors={"ValueError: negative\n\nAt:\n  model.py(11)\n": 2}))

    assert "\n2 x ValueError: negative At: model.py(11)\n" in text


def test_requests_that_were_not_sent_are_told_with_the_reason():
    _, skipped = sendable([exchange(is_decoupled=True)], "http")
    text = report.text(result_of(skipped=skipped))

    assert "note: 1 request was not sent: decoupled models need a gRPC address" in text


@pytest.mark.parametrize("count, words", [(1, "1 request has"), (2, "2 requests have")])
def test_redacted_requests_are_counted_in_words(count, words):
    tensor = RecordedTensor("x", "FP32", (1,), bytes(4), is_redacted=True)
    redacted = [exchange(inputs=[tensor])] * count
    text = report.text(result_of(exchanges=[exchange(), *redacted]))

    assert f"note: {words} redacted inputs, so that answers must differ" in text


def test_sequences_are_refused_at_a_concurrency():
    plan = ReplayPlan(parse_address("localhost:1"), concurrency=2)
    with pytest.raises(GeneratorError, match="sequences keep their order"):
        replay([exchange(correlation_id=3)], plan)


def test_server_that_is_not_there_is_named():
    with socket.socket() as silent:  # nobody else gets its port, and it does not listen
        silent.bind(("127.0.0.1", 0))
        port = silent.getsockname()[1]
        with pytest.raises(GeneratorError, match=f"cannot reach 127.0.0.1:{port}"):
            replay([exchange()], ReplayPlan(parse_address(f"127.0.0.1:{port}")))


def test_request_has_again_what_the_server_had_read_from_it():
    given = exchange(
        id="seven",
        parameters={"p": 1},
        priority=2,
        timeout_us=30,
        correlation_id="s",
        flags=1,
        outputs=["y"],
    )
    document = json.loads(http_body(given)[0])
    message = grpc_message(given, is_stream=False)

    assert parameters_of(given) == {
        "p": 1,
        "priority": 2,
        "timeout": 30,
        "sequence_id": "s",
        "sequence_start": True,
        "sequence_end": False,
    }
    assert document["id"] == message.id == "seven"
    assert document["outputs"] == [{"name": "y", "parameters": {"binary_data": True}}]
    assert [each.name for each in message.outputs] == ["y"]
    assert http_body(given)[1] == message.raw_input_contents[0] == bytes(4)
    assert "binary_data_output" not in document["parameters"]


def test_report_names_differences_and_how_late_requests_were():
    found = [Difference(4, "m", "y", 0, (3,), "1.0", "2.0", 2)]
    text = report.text(result_of(found), ["a note"])

    assert "note: a note" in text
    assert "The answers to 1 request differ" in text
    assert "request 4 of m, output y[3]: expected 1.0, got 2.0 (2 elements differ)" in text
    assert "sent late by   p50  0.300 ms" in text
    assert "100.00% of the requests were sent within 1 ms of their times" in text
    assert report.document(result_of(found))["differences"][0]["index"] == [3]
    assert report.document(result_of())["late_ms"]["max"] == 0.5


def test_report_says_how_many_requests_were_in_time():
    late = result_of(late_ms=np.array([0.2, 1.0, 1.1, 30.0]))

    assert "50.00% of the requests were sent within 1 ms" in report.text(late)
    assert report.document(late)["share_within_1_ms"] == 0.5


def test_report_of_a_concurrency_says_nothing_of_being_late():
    result = result_of(is_paced=False)

    assert "sent late" not in report.text(result)
    assert "within 1 ms" not in report.text(result)
    assert len(report.panels(result)) == 3


def test_page_has_numbers_and_differences():
    found = [Difference(4, "m", "y<b>", 0, (3,), "1.0", "2.0", 2)]
    page = page_html(report.page(result_of(found), "a.rec", ["<svg></svg>"], ["cut"]))

    assert "y&lt;b&gt;" in page
    assert "p99 of being late" in page
    assert "cut" in page


def test_recorded_inputs_become_the_data_of_a_load_test(tmp_path):
    path = write(tmp_path / "a.rec", exchange(10), exchange(12), exchange(13, model="other"))
    data = recorded_inputs(path, "m")

    assert [float(each.tensors["x"][0]) for each in data.streams[0]] == [10.0, 12.0]
    assert data.timestamps_ms == (0.0, 2.0)
    with pytest.raises(DataError, match="no request to n, only to m, other"):
        recorded_inputs(path, "n")


def test_recorded_sequences_become_streams_of_their_own(tmp_path):
    path = write(tmp_path / "a.rec", *(exchange(at, correlation_id=at % 2 + 1) for at in range(4)))
    data = recorded_inputs(path, "m")

    assert [len(stream) for stream in data.streams] == [2, 2]
    assert data.timestamps_ms == ()


def test_shadow_keeps_the_order_of_a_sequence_and_spreads_the_rest():
    assert len({worker_of(exchange(at, correlation_id=9), [5, at, 0]) for at in range(5)}) == 1
    assert worker_of(exchange(), [2, 1, 3]) == 1


def test_shadow_reports_all_counts_and_each_text_once():
    counts = ShadowCounts()
    counts.add("m", "equal")
    counts.add("m", "different", difference="here")
    counts.add("n", "equal")
    first, second = (json.loads(counts.take(0.0, number)) for number in (5, 9))

    assert first["counts"] == second["counts"]
    assert first["counts"] == {"m": {"equal": 1, "different": 1}, "n": {"equal": 1}}
    assert (first["differences"], second["differences"]) == (["here"], [])
    assert (first["processor_ns"], second["processor_ns"]) == (5, 9)
    assert first["window"] > 1


def test_shadow_that_does_not_answer_is_asked_ever_more_seldom():
    rest, now_s, asked = TargetRest(), 0.0, []
    while now_s < 200:
        rest.fail(now_s)
        asked.append(now_s)
        assert rest.window(now_s) == 0
        now_s += rest.left_s(now_s)
        assert rest.window(now_s) == 1

    assert asked[:5] == [0.0, 0.5, 1.5, 3.5, 7.5]
    assert 10 < len(asked) < 14


def test_requests_that_fail_together_make_one_rest():
    rest = TargetRest()
    for _ in range(4):
        rest.fail(10.0)

    assert rest.left_s(10.0) == 0.5


def test_answer_ends_the_rests():
    rest = TargetRest()
    rest.fail(1.0)
    rest.answer()

    assert rest.left_s(1.0) == 0
    assert rest.window(1.0) > 1
    rest.fail(2.0)
    assert rest.left_s(2.0) == 0.5


def test_worker_drops_requests_while_the_shadow_is_left_alone():
    counts = ShadowCounts()
    counts.rest.fail(time.monotonic() + 1000)
    ShadowWorker(parse_address("localhost:1"), counts, Tolerance()).serve(exchange())

    assert json.loads(counts.take(0.0, 0))["counts"] == {"m": {"dropped": 1}}


@pytest.mark.parametrize(
    "tolerance, result",
    [(Tolerance(), "different"), (Tolerance(rtol=1e-3), "equal"), (Tolerance(atol=1), "equal")],
)
def test_shadow_compares_with_the_tolerances_of_the_server(monkeypatch, tolerance, result):
    output = RecordedTensor("y", "FP32", (1,), np.float32(7).tobytes())
    recorded = exchange(responses=[RecordedResponse(1, [output])])
    near = {"y": np.array([7 * 1.0005], np.float32)}
    monkeypatch.setattr(ShadowWorker, "_ask", lambda *_: ReplayedAnswers([near]))
    counts = ShadowCounts()
    ShadowWorker(parse_address("localhost:1"), counts, tolerance).serve(recorded)

    assert json.loads(counts.take(0.0, 0))["counts"] == {"m": {result: 1}}


def test_requests_that_were_not_finished_are_not_compared():
    errors = {code: RecordedResponse(0, error="no", code=code) for code in (3, 4, 7)}
    asked = {code: is_comparable(exchange(responses=[errors[code]]), "grpc") for code in errors}

    assert asked == {3: True, 4: False, 7: False}
    assert not is_comparable(exchange(is_decoupled=True), "http")
    assert is_comparable(exchange(is_decoupled=True), "grpc")
