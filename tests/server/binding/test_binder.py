# SPDX-License-Identifier: Apache-2.0
"""Binding and unbinding over a control connection, with real hosts and no server process."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import threading
import weakref

import numpy as np
import pytest

from pytriton import model_config
from pytriton.base.dtypes import FP32
from pytriton.base.errors import ErrorCode, NotFoundError, ServerError
from pytriton.base.messages import InferRequest, InferTensor
from pytriton.decorators import TritonContext
from pytriton.model_config import ModelConfig, Tensor
from pytriton.runtime.functions.bound_model import BoundModel
from pytriton.runtime.transport.control import (
    Bind,
    CallDone,
    ControlLink,
    ServerStop,
    Started,
    Unbind,
)
from pytriton.runtime.transport.link import socket_pair, stream_pair
from pytriton.serving.engine.engine import Engine
from pytriton.serving.engine.model import VersionState
from pytriton.serving.engine.rate_limiter import InstanceTurns, ResourceLimiter
from pytriton.serving.repository.loading.instance_factory import InstanceFactory
from pytriton.serving.server.binding import binder
from pytriton.serving.server.binding.binder import BinderSession
from tests.e2e.loop_waiting import comes_true
from tests.e2e.waiting import DEADLINE_S
from tests.fakes import RecordingSink


class Binder:
    """Both ends of a control connection: the server's session, and a process that binds."""

    def __init__(self, *, has_rate_limiter: bool = False) -> None:
        self.loop = asyncio.new_event_loop()
        self.engine = Engine()
        self.ends: list[bool] = []
        self.answers: dict[int, CallDone] = {}
        self.limiter = ResourceLimiter()
        ours, theirs = stream_pair()
        turns = InstanceTurns(self.limiter, self.loop) if has_rate_limiter else None
        self.factory = InstanceFactory(self.loop, turns=turns, exit_timeout_s=5.0)
        self.session = BinderSession(
            ControlLink(theirs), self.engine, self.factory, self.ends.append
        )
        self.session.start(Started(1, 2, 3))
        self.link = ControlLink(ours)
        assert self.link.receive() == Started(1, 2, 3)
        ours.setblocking(False)
        self._calls = 0

    def until(self, condition) -> bool:
        """Run the loop until a condition comes true; whether it did before the deadline."""
        return self.loop.run_until_complete(comes_true(condition))

    def call(self, make, *fields, descriptors=()) -> int:
        self._calls += 1
        self.link.send(make(self._calls, *fields), descriptors)
        return self._calls

    def answer(self, call: int) -> CallDone:
        def has_come():
            while call not in self.answers and (message := self.link.receive()) is not None:
                self.answers[message.call] = message
            return call in self.answers

        assert self.until(has_come)
        return self.answers.pop(call)

    def bind(self, infer_func, name="m", **config) -> BoundModel:
        model = bound_model(infer_func, name, **config)
        answer = self.answer(self.send_bind(model))
        assert answer.error == ""
        return model

    def send_bind(self, model, config=None) -> int:
        sockets, concurrency = model.open_instances(lambda: None)
        call = self.call(
            Bind, config or model.message(), model.version, concurrency,
            descriptors=[sock.fileno() for sock in sockets],
        )  # fmt: skip
        for sock in sockets:
            sock.close()
        return call

    def infer(self, name="m") -> RecordingSink:
        sink = RecordingSink()
        data = np.ones((1, 1), np.float32).tobytes()
        request = InferRequest(name, {"x": InferTensor("x", FP32, (1, 1), data)})
        self.engine.infer(request, sink)
        return sink

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self.link.close()
        self.loop.run_until_complete(self.session.close())
        self.loop.close()


def bound_model(infer_func, name, **config) -> BoundModel:
    tensor = {"dtype": np.float32, "shape": (1,)}
    model = BoundModel(
        name,
        infer_func,
        [Tensor(name="x", **tensor)],
        [Tensor(name="y", **tensor)],
        config=ModelConfig(**config),
    )
    model.prepare(TritonContext())
    return model


@pytest.fixture
def server():
    made = Binder()
    yield made
    made.close()


def answering(value):
    return lambda requests: [{"y": np.full((1, 1), value, np.float32)} for _ in requests]


class Gate:
    """A callable that answers with a value, but not before it is opened."""

    def __init__(self, value=1) -> None:
        self.opened = threading.Event()
        self.count = 0
        self._infer = answering(value)

    def __call__(self, requests):
        self.count += len(requests)
        assert self.opened.wait(DEADLINE_S)
        return self._infer(requests)


@pytest.fixture
def gate():
    made = Gate()
    yield made
    made.opened.set()


def value(sink):
    ((response,), errors) = sink.responses, sink.errors
    assert errors == []
    return np.frombuffer(response.outputs[0].data, np.float32)[0]


def value_or_none(sink):
    return value(sink) if sink.final_count else None


def test_bound_model_is_served(server):
    model = server.bind(answering(7))
    sink = server.infer()
    assert server.until(lambda: sink.final_count)

    assert value(sink) == 7
    assert model.is_alive()
    assert server.engine.lookup("m").statistics.load_ns > 0


def test_refused_model_holds_no_place_in_the_rate_limiter():
    server = Binder(has_rate_limiter=True)
    needs = model_config.RateLimiter([model_config.RateLimiterResource("R", 2)])
    model = server.bind(answering(1), rate_limiter=needs)
    config = model.message() | {
        "sequence_batching": {},
        "parameters": {"sequence_max_queue_size": {"string_value": "many"}},
    }
    config.pop("dynamic_batching", None)
    config["instance_group"][0]["rate_limiter"]["resources"][0]["count"] = 9
    answer = server.answer(server.send_bind(model, config))
    pools = server.limiter.pools
    server.close()

    assert "sequence_max_queue_size" in answer.error
    assert [count for _, count in pools.values()] == [2]


def test_replaced_model_finishes_its_queue_and_new_requests_go_to_the_new_one(server, gate):
    old = server.bind(gate, max_batch_size=1)
    queued = [server.infer() for _ in range(20)]
    assert server.until(lambda: gate.count)
    new = server.bind(answering(2), max_batch_size=1)
    late = [server.infer() for _ in range(20)]
    assert server.until(lambda: all(sink.final_count for sink in late))
    assert [sink.final_count for sink in queued] == [0] * 20
    assert old.is_alive()

    gate.opened.set()
    assert server.until(lambda: all(sink.final_count for sink in queued))

    assert [value(sink) for sink in queued] == [1] * 20
    assert [value(sink) for sink in late] == [2] * 20
    assert server.until(lambda: not old.is_alive())
    assert new.is_alive()
    assert server.engine.draining == set()


def test_model_replaced_again_and_again_under_load_loses_no_request(server):
    sinks, is_over = [], []

    def load():
        sinks.append(server.infer())
        if len(sinks) < 500 or not is_over:  # however long the changes take
            server.loop.call_later(0.0005, load)

    models = [server.bind(answering(0), max_batch_size=1)]
    load()
    for number in range(1, 11):
        models.append(server.bind(answering(number), max_batch_size=1))
        later = len(sinks)
        assert server.until(
            lambda number=number, later=later: number in map(value_or_none, sinks[later:])
        )
    is_over.append(True)
    assert server.until(lambda: len(sinks) >= 500 and all(sink.final_count for sink in sinks))

    answers = [value(sink) for sink in sinks]
    assert answers == sorted(answers)
    assert set(answers) == set(range(11))
    assert server.until(lambda: [model.is_alive() for model in models] == [False] * 10 + [True])


def test_unbound_model_finishes_what_it_has(server, gate):
    model = server.bind(gate, max_batch_size=1)
    sinks = [server.infer() for _ in range(5)]
    assert server.until(lambda: gate.count)
    call = server.call(Unbind, "m", 1)
    assert server.until(lambda: server.engine.draining)
    (refusal,) = server.infer().refusals
    assert isinstance(refusal, NotFoundError)

    gate.opened.set()

    assert server.answer(call).error == ""
    assert [value(sink) for sink in sinks] == [1] * 5
    assert server.until(lambda: not model.is_alive())


@pytest.mark.parametrize("change", ["bind", "unbind"])
def test_change_is_answered_once_all_front_ends_know_it(server, change):
    server.bind(answering(1))
    known, asked = asyncio.Event(), []

    async def settled():
        asked.append([model.spec.name for model in server.engine.models()])
        await known.wait()

    server.engine.settled = settled
    if change == "bind":
        model = bound_model(answering(2), "another")
        call, names = server.send_bind(model), ["another", "m"]
    else:
        call, names = server.call(Unbind, "m", 1), []
    assert server.until(lambda: asked)
    assert asked == [names]
    assert server.link.receive() is None  # not answered yet

    known.set()

    assert server.answer(call).error == ""


def test_unbinding_does_not_wait_for_ever(server, gate, monkeypatch):
    monkeypatch.setattr(binder, "UNBIND_TIMEOUT_S", 0.01)
    server.bind(gate, max_batch_size=1)
    sinks = [server.infer() for _ in range(3)]
    assert server.until(lambda: gate.count)

    assert server.answer(server.call(Unbind, "m", 1)).error == ""
    assert all(isinstance(sink.errors[0], ServerError) for sink in sinks)


def test_unbinding_of_an_unknown_model_is_an_error(server):
    answer = server.answer(server.call(Unbind, "nobody", 3))

    assert answer.error == "model 'nobody' version 3 is not bound here"
    assert answer.error_code == ErrorCode.NOT_FOUND


INVALID = {
    "unknown member": {"no_such_thing": 1},
    "unknown type": {"input": [{"name": "x", "data_type": "TYPE_WRONG", "dims": [1]}]},
    "rule": {"max_batch_size": -1},
}


@pytest.mark.parametrize("what", INVALID)
def test_invalid_config_is_refused_and_the_instances_end(server, what):
    tensor = Tensor(name="x", dtype=np.float32, shape=(1,))
    model = BoundModel("m", [answering(1)] * 3, [tensor], [tensor])
    answer = server.answer(server.send_bind(model, {**model.message(), **INVALID[what]}))

    assert answer.error_code == ErrorCode.INVALID_ARG
    assert answer.error
    assert server.until(lambda: not any(host.is_alive() for host in model._hosts))
    assert list(server.engine.models()) == []


def test_bug_in_the_server_is_answered_and_the_instances_end(server, monkeypatch, caplog):
    def fail(_):
        raise RuntimeError("a bug")

    monkeypatch.setattr(binder, "validate_config", fail)
    tensor = Tensor(name="x", dtype=np.float32, shape=(1,))
    model = BoundModel("m", answering(1), [tensor], [tensor])
    answer = server.answer(server.send_bind(model))

    assert (answer.error, answer.error_code) == ("RuntimeError: a bug", ErrorCode.INTERNAL)
    assert "call of a binding process failed" in caplog.text
    assert server.until(lambda: not model.is_alive())


def test_bind_after_a_refused_one_works(server):
    tensor = Tensor(name="x", dtype=np.float32, shape=(1,))
    refused = BoundModel("m", answering(1), [tensor], [tensor])
    server.answer(server.send_bind(refused, {**refused.message(), "no_such_thing": 1}))
    server.bind(answering(2))
    sink = server.infer()

    assert server.until(lambda: sink.final_count)
    assert value(sink) == 2


@pytest.mark.parametrize("count", [65, 300])
def test_model_may_have_many_instances(server, count):
    tensor = Tensor(name="x", dtype=np.float32, shape=(1,))
    message = BoundModel("m", answering(1), [tensor], [tensor]).message()
    pairs = [socket_pair() for _ in range(count)]
    call = server.call(
        Bind, message, 1, [1] * count, descriptors=[theirs.fileno() for _, theirs in pairs]
    )
    for _, theirs in pairs:
        theirs.close()
    assert server.answer(call).error == ""
    model = server.engine.lookup("m")
    assert len(model.instances) == count

    for ours, _ in pairs:
        ours.close()

    assert server.until(lambda: model.instances == [])
    assert model.state is VersionState.UNAVAILABLE


def test_sockets_that_did_not_arrive_are_missed(server):
    tensor = Tensor(name="x", dtype=np.float32, shape=(1,))
    message = BoundModel("m", answering(1), [tensor], [tensor]).message()
    ours, theirs = socket_pair()
    call = server.call(Bind, message, 1, [1, 1], descriptors=[theirs.fileno()])
    theirs.close()

    assert "expected 2 sockets, one for each instance, got 1" in server.answer(call).error
    assert ours.recv(1) == b""  # the one that came was closed
    ours.close()


def test_stop_asks_for_an_orderly_end_once(server):
    server.link.send(ServerStop())
    assert server.until(lambda: server.ends)
    server.link.close()
    server.until(lambda: True)

    assert server.ends == [True]


def test_end_of_the_binding_process_is_heard_once(server):
    server.link.close()
    assert server.until(lambda: server.ends)
    server.until(lambda: True)

    assert server.ends == [False]


def test_process_that_sends_an_invalid_message_is_disconnected(server, caplog):
    server.bind(answering(1))
    server.link.socket.sendall(b"\x05\x00\x00\x00hello")
    assert server.until(lambda: server.ends)

    assert server.ends == [False]
    assert "disconnected a binding process" in caplog.text


def test_descriptors_that_nobody_took_are_closed_with_the_session(server):
    ours, theirs = socket_pair()
    server.call(Unbind, "nobody", 1, descriptors=[theirs.fileno()])
    theirs.close()
    assert server.answer(1).error

    server.loop.run_until_complete(server.session.close())

    assert ours.recv(1) == b""
    ours.close()


def test_close_answers_all_and_takes_all_models_away(server, gate):
    models = [server.bind(gate, name, max_batch_size=1) for name in ("a", "b")]
    server.bind(answering(2), "b", max_batch_size=1)
    sinks = [server.infer(name) for name in ("a", "a", "b")]
    assert server.until(lambda: gate.count)

    server.loop.run_until_complete(server.session.close())

    assert [sink.final_count for sink in sinks] == [1, 1, 1]
    assert list(server.engine.models()) == []
    gate.opened.set()
    assert server.until(lambda: not any(model.is_alive() for model in models))


def test_answer_that_waits_to_be_sent_leaves_nothing_on_the_loop(server, monkeypatch):
    model = server.bind(answering(1), "a", max_batch_size=1)
    session, descriptor = server.session, server.session._link.fileno()
    server.call(Unbind, "a", 1)

    async def close():
        session._on_readable()  # it is answered when its model has ended
        monkeypatch.setattr(session._link, "flush", lambda: False)
        await session.close()

    server.loop.run_until_complete(close())

    assert not server.loop.remove_writer(descriptor)  # another file may have this number now
    assert server.until(lambda: not model.is_alive())


def test_answer_that_waits_for_front_ends_is_not_lost(server):
    futures = []

    async def wait_until_known():
        future = server.loop.create_future()
        futures.append(weakref.ref(future))
        await future  # which nobody else has

    server.engine.wait_until_known = wait_until_known
    model = bound_model(answering(1), "m")
    call = server.send_bind(model)
    assert server.until(lambda: futures)
    unbound = server.call(Unbind, "m", 1)
    assert server.until(lambda: len(futures) == 2)
    gc.collect()
    for reference in futures:
        reference().set_result(None)

    assert server.answer(call).error == server.answer(unbound).error == ""
