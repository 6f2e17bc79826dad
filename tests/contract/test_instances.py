# SPDX-License-Identifier: Apache-2.0
"""What every kind of instance promises, over both kinds of channel, without a server process."""

from __future__ import annotations

import asyncio
import gc
import os
import re
import socket
import struct

import numpy as np
import pytest

from pytriton.base import failure_records
from pytriton.errors import InvalidArgumentError
from pytriton.exceptions import PyTritonUnrecoverableError
from pytriton.model_config import (
    ControlKind,
    SequenceBatcher,
    SequenceControl,
    SequenceState,
    Tensor,
)
from pytriton.runtime.backend import mailbox
from pytriton.runtime.executor import worker
from pytriton.runtime.functions import bound_model, host
from pytriton.runtime.pb_utils.failures import TritonModelException
from pytriton.runtime.transport import arena
from pytriton.runtime.transport import channel as idle_reader
from pytriton.runtime.transport.memory import PORTABLE_SETTING
from pytriton.runtime.transport.stream_channel import StreamChannel
from pytriton.serving.engine.hidden_exceptions import HiddenExceptions
from tests.contract import benches, function_bench
from tests.contract.benches import COUPLED, DECOUPLED, Bench, InstanceBench, floats
from tests.contract.function_bench import FUNCTIONS, FunctionBench
from tests.contract.worker_bench import WORKERS, WorkerBench

CALLABLES = {**COUPLED, **DECOUPLED}
# A whole message of each kind of channel, and no frame.
NONSENSE = struct.pack("<I", 40) + b"\xff" * 40


def duplicate(channel):
    """Returns a socket of the channel's connection."""
    return socket.socket(fileno=os.dup(channel.fileno()))


# What carries the frames: shared memory of both forms, or a stream, of workers over TCP. A kind
# does not know its channel, so that beside one with all kinds, the others have some that answer
# in different ways. Functions in a worker have the hosts of bound ones, on another machine.
WAYS = [
    *((kind, "native") for kind in [*CALLABLES, *WORKERS]),
    *((kind, "portable") for kind in ("plain", "decoupled model.py")),
    *((kind, "stream") for kind in ("model.py", "decoupled coroutine of a model.py", *FUNCTIONS)),
]


@pytest.fixture(params=WAYS, ids="-".join)
def way(request):
    return request.param


@pytest.fixture
def channel(way, monkeypatch):
    _, name = way
    monkeypatch.setenv(PORTABLE_SETTING, "0" if name == "native" else "1")
    if name == "stream":
        monkeypatch.setattr(WorkerBench, "is_remote", True)
        for module in (benches, bound_model, worker, function_bench):
            stream = lambda sock, _, **_words: StreamChannel(sock)  # noqa: E731
            monkeypatch.setattr(module, "MemoryChannel", stream)


@pytest.fixture
def kind(way):
    return way[0]


@pytest.fixture
def serve(channel, kind, served):
    """Serves a function of one request as an instance of each kind."""

    def serve(function, inputs=None, outputs=None, **config) -> InstanceBench:
        inputs = floats("x") if inputs is None else inputs
        outputs = floats("y") if outputs is None else outputs
        if kind in WORKERS:
            bench = WorkerBench(served.loop, kind, function, inputs, outputs, **config)
        elif kind in FUNCTIONS:
            make, is_decoupled = FUNCTIONS[kind]
            config.setdefault("decoupled", is_decoupled)
            bench = FunctionBench(served.loop, make(function), inputs, outputs, **config)
        else:
            config.setdefault("decoupled", kind in DECOUPLED)
            bench = Bench(served.loop, CALLABLES[kind](function), inputs, outputs, **config)
        return served.add(bench)

    return serve


def echo(request):
    return {"y": request["x"]}


def rows(count, size=3, start=0):
    return np.arange(start, start + count * size, dtype=np.float32).reshape(count, size)


def test_instance_answers(serve):
    (call,) = serve(lambda request: {"y": request["x"] * 2}).infer({"x": rows(2)})

    assert np.array_equal(call.outputs["y"], rows(2) * 2)


def test_each_request_of_a_batch_gets_its_rows(serve):
    sent = [rows(count, start=100 * count) for count in (1, 3, 2)]
    calls = serve(echo, max_batch_size=8).infer(*({"x": array} for array in sent))

    for call, array in zip(calls, sent, strict=True):
        assert np.array_equal(call.outputs["y"], array)


@pytest.mark.parametrize("size", [8_000, 9_000, 300_000, 5_000_000])
def test_tensor_of_any_size_is_carried(serve, size):
    bench = serve(echo)
    for start in range(3):
        (call,) = bench.infer({"x": rows(1, size, start)})

        assert np.array_equal(call.outputs["y"], rows(1, size, start))


def test_tensor_without_elements_is_carried(serve):
    calls = serve(echo).infer({"x": np.empty((2, 0), np.float32)}, {"x": np.empty((1, 0), "f4")})

    assert [call.outputs["y"].shape for call in calls] == [(2, 0), (1, 0)]


def test_bytes_of_each_request_are_carried(serve):
    text = (
        [Tensor(name="x", dtype=bytes, shape=(-1,))],
        [Tensor(name="y", dtype=bytes, shape=(-1,))],
    )
    sent = [
        np.array([[b"", b"\x00\xff"]], object),
        np.array([[b"x" * 70_000, b"y"], [b"", b""]], object),
        np.array([[b"one", b"two"]], object),
    ]
    calls = serve(echo, *text, max_batch_size=8).infer(*({"x": array} for array in sent))

    for call, array in zip(calls, sent, strict=True):
        assert call.outputs["y"].tolist() == array.tolist()


def test_batch_of_very_many_strings_is_carried(serve):
    text = (
        [Tensor(name="x", dtype=bytes, shape=(-1,))],
        [Tensor(name="y", dtype=bytes, shape=(-1,))],
    )
    sent = [np.array([[b"%d" % (n * m) for m in range(200)]], object) for n in range(300)]
    calls = serve(echo, *text, max_batch_size=300).infer(*({"x": array} for array in sent))

    for call, array in zip(calls, sent, strict=True):
        assert call.outputs["y"].tolist() == array.tolist()


def test_message_that_is_all_header_is_carried(serve):
    names = [f"{number:04}{'n' * 60}" for number in range(1500)]
    tensors = [Tensor(name=name, dtype=np.uint8, shape=(1,)) for name in names]
    outputs = [Tensor(name=name.upper(), dtype=np.uint8, shape=(1,)) for name in names]
    bench = serve(lambda request: {name.upper(): request[name] for name in names}, tensors, outputs)
    sent = {name: np.full((1, 1), number % 256, np.uint8) for number, name in enumerate(names)}
    (call,) = bench.infer(sent)

    assert {name: call.outputs[name.upper()] for name in names} == sent


def test_model_without_inputs_answers(serve):
    answer = np.ones((1, 2), np.float32)
    (call,) = serve(lambda request: {"y": answer}, inputs=[], batching=False).infer({})

    assert np.array_equal(call.outputs["y"], answer)


def test_parameters_and_requested_outputs_are_passed_on(serve, kind):
    if kind == "batch":
        pytest.skip("a decorated function sees arrays only")
    seen = []

    def function(request):
        seen.append((request.parameters, list(request.requested_output_names)))
        return {"y": request["x"], "z": request["x"]}

    bench = serve(function, outputs=floats("y", "z"))
    (call,) = bench.infer({"x": rows(1)}, parameters={"a": 1}, outputs=("z",))

    assert seen == [({"a": 1}, ["z"])]
    assert list(call.outputs) == ["z"]


def test_only_requested_outputs_are_answered(serve):
    bench = serve(lambda request: {"y": request["x"], "z": request["x"]}, outputs=floats("y", "z"))
    (call,) = bench.infer({"x": rows(1)}, outputs=("y",))

    assert list(call.outputs) == ["y"]


class UnspeakableError(Exception):
    def __str__(self):
        raise RuntimeError("no text")


RAISED = {
    "exception": (ValueError("the text"), "ValueError: the text"),
    "half a surrogate pair": (OSError("name \udcff"), r"OSError: name \udcff"),
    "no text": (UnspeakableError(), "UnspeakableError: <"),
    "exit": (SystemExit(3), "SystemExit: 3"),
    "cancelled": (asyncio.CancelledError(), "message: CancelledError"),
    "long": (ValueError("x" * 300_000), "x" * 300_000),
}


@pytest.mark.parametrize("what", RAISED)
def test_error_answers_every_request_and_the_instance_stays(serve, what, caplog):
    error, text = RAISED[what]

    def function(request):
        if request["x"][0, 0] < 0:
            raise error
        return echo(request)

    bench = serve(function, max_batch_size=8)
    failed = bench.infer({"x": -1 - rows(1)}, {"x": -1 - rows(2)})
    (call,) = bench.infer({"x": rows(1)})

    start = "Failed to process the request(s) for model 'm_0_0', message: "
    assert all(each.error.startswith(start) and text in each.error for each in failed)
    assert np.array_equal(call.outputs["y"], rows(1))
    assert bench.until(lambda: bench.raised_log in caplog.text)


ON_PURPOSE = {
    -2: (InvalidArgumentError("at most 8 rows"), "at most 8 rows"),
    -3: (TritonModelException("a long story"), "a long story"),
}
IN_THE_LOG = re.compile(r"model 'm' failed; the server's log says why \(failure ([0-9a-f]{8})\)")


def test_texts_of_exceptions_can_be_hidden_but_not_what_is_meant_for_clients(
    serve, caplog, monkeypatch
):
    # The test before may have raised there just now.
    monkeypatch.setattr(failure_records, "_TRACEBACK_EVERY_S", 0)

    def function(request):
        value = int(request["x"][0, 0])
        if value == -1:
            raise ValueError("/secret/path")
        if value in ON_PURPOSE:
            raise ON_PURPOSE[value][0]
        return echo(request)

    bench = serve(function)
    bench.hidden = HiddenExceptions()
    found = []
    for _ in range(2):
        (hidden,) = bench.infer({"x": rows(1, start=-1)})
        found.append(IN_THE_LOG.fullmatch(hidden.error))
    told = [bench.infer({"x": rows(1, start=value)})[0].error for value in ON_PURPOSE]

    assert told == [text for _, text in ON_PURPOSE.values()]
    (number,) = {each[1] for each in found}  # of that place
    (line,) = [each for each in caplog.records if f"failure {number}" in each.getMessage()]
    assert "ValueError: /secret/path" in line.getMessage()
    assert line.exc_text.startswith("Traceback (most recent call last):")
    assert "in function" in line.exc_text


def test_wrong_result_is_an_error(serve, kind, caplog):
    if kind in WORKERS:
        pytest.skip("a model.py makes its tensors itself")
    (call,) = serve(lambda request: {"y": 7}).infer({"x": rows(1)})

    assert "model callable are numpy arrays" in call.error


def test_unrecoverable_error_is_answered_and_asks_for_the_end(serve, kind, caplog):
    if kind in WORKERS:
        pytest.skip("it ends the process that bound the callable, and a model.py is in its own")

    def function(request):
        raise PyTritonUnrecoverableError("out of memory")

    bench = serve(function)
    (call,) = bench.infer({"x": rows(1)})

    assert "PyTritonUnrecoverableError: out of memory" in call.error
    assert bench.until(lambda: bench.stops == 1)


def test_kept_inputs_do_not_change(serve):
    kept = []

    def function(request):
        kept.append(request["x"])
        return {"y": request["x"][:, :1]}

    bench = serve(function)
    for number in range(20):
        bench.infer({"x": np.full((1, 20_000), number, np.float32)})

    assert [array.min() for array in kept] == list(range(20))
    assert [array.max() for array in kept] == list(range(20))


def test_cancelled_request_is_answered_once_and_the_instance_stays(serve):
    bench = serve(echo)
    (cancelled,) = bench.execute({"x": rows(1)})
    bench.instance.cancel(cancelled.inference)
    assert bench.until(lambda: cancelled.is_over)
    bench.instance.cancel(cancelled.inference)
    (call,) = bench.infer({"x": rows(1)})

    assert np.array_equal(call.outputs["y"], rows(1))
    assert bench.until(lambda: bench.instance.is_idle)  # a model may answer before it returns


def test_many_batches_one_after_the_other(serve):
    bench = serve(echo)
    for number in range(200):
        (call,) = bench.infer({"x": rows(1, start=number)})

        assert call.outputs["y"][0, 0] == number


def test_stop_fails_what_runs_and_ends_the_thread(serve):
    bench = serve(echo)
    bench.infer({"x": rows(1)})
    calls = bench.execute({"x": rows(1)}, {"x": rows(1)})
    bench.instance.stop()
    bench.instance.stop()

    assert all("the instance is gone, the model was unloaded" in call.error for call in calls)
    assert bench.deaths == ["the model was unloaded"]
    assert bench.instance.free_slots == 0
    assert bench.until(lambda: not bench.is_alive())


def test_end_of_the_other_process_fails_what_runs(serve):
    bench = serve(echo)
    bench.infer({"x": rows(1)})
    with duplicate(bench.far_channel) as sock:
        sock.shutdown(socket.SHUT_RDWR)
    (call,) = bench.infer({"x": rows(1)})

    assert bench.lost_error in call.error
    assert bench.deaths in [[reason] for reason in bench.lost_reasons]
    assert bench.until(lambda: not bench.is_alive())


def test_answer_that_makes_no_sense_ends_the_instance(serve, caplog):
    bench = serve(echo)
    bench.infer({"x": rows(1)})
    os.write(bench.far_channel.fileno(), NONSENSE)

    assert bench.until(lambda: bench.deaths == ["its answer could not be read"])
    assert "a message could not be read" in caplog.text


def test_message_that_makes_no_sense_ends_the_host(serve, caplog):
    bench = serve(echo)
    bench.infer({"x": rows(1)})
    os.write(bench.instance._channel.channel.fileno(), NONSENSE)

    assert bench.until(lambda: bench.deaths)
    assert bench.deaths in [[reason] for reason in bench.lost_reasons]
    assert bench.until(lambda: not bench.is_alive())


def test_idle_instance_gives_all_shared_memory_back(serve, monkeypatch):
    for module in (host, idle_reader, mailbox, arena, host):
        monkeypatch.setattr(module, "IDLE_SECONDS", 0.05)
    bench = serve(lambda request: {"y": request["x"] + 1})
    for number in range(3):
        bench.infer({"x": np.full((1, 100_000), number, np.float32)})
    gc.collect()
    holders = [bench.memory.arena, bench.far_channel]

    assert bench.until(lambda: [each.reserved_bytes for each in holders] == [0, 0])


SEQUENCE = SequenceBatcher(
    controls=[SequenceControl(ControlKind.START)],
    states=[SequenceState("past", "next", np.float32, (-1,))],
)


@pytest.mark.parametrize("outputs", [None, ("y",), ("next",)])
@pytest.mark.parametrize("size", [3, 1 << 16])
def test_states_of_sequences_come_back_whatever_the_clients_want(serve, outputs, size):
    def accumulate(request):
        total = np.where(request["START"], 0, request["past"]) + request["x"]
        return {"y": total + 1, "next": total}

    bench = serve(accumulate, sequence=SEQUENCE, max_batch_size=8)
    batch = [
        {
            "x": np.full((1, 1), number, np.float32),
            "START": np.array([[number == 0]]),
            "past": np.full((1, size), 10, np.float32),
        }
        for number in range(3)
    ]
    calls = bench.infer(*batch, outputs=outputs) + bench.infer(batch[2], outputs=outputs)

    expected = {"y", "next"} if outputs is None else {*outputs, "next"}
    for call, total in zip(calls, (0, 11, 12, 12), strict=True):
        assert set(call.outputs) == expected
        assert np.array_equal(call.outputs["next"], np.full((1, size), total, np.float32))
