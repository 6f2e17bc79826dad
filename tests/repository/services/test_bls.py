# SPDX-License-Identifier: Apache-2.0
"""Calls of models by models; the texts of refusals were recorded from Triton."""

from __future__ import annotations

import pytest

from pytriton.base.dtypes import FP32, INT32
from pytriton.base.errors import (
    CancelledError,
    ErrorCode,
    InternalError,
    InvalidArgumentError,
    ServerError,
)
from pytriton.base.messages import InferResponse, InferTensor
from pytriton.base.model_spec import BatcherSpec, QueuePolicySpec
from pytriton.runtime.executor.inference import Outcome
from pytriton.runtime.transport.frames import InferCallFrame
from pytriton.runtime.transport.refs import TensorRef
from tests.fakes import RecordingSink, response
from tests.repository.calling import World, tensors

PREFIX = "Model add - Error when running inference: "


@pytest.fixture
def world():
    return World()


@pytest.fixture
def sink():
    return RecordingSink()


def refusal(world: World, name: str = "add", **fields: object) -> ServerError:
    sink = RecordingSink()
    world.call(None, name, sink, **fields)
    (error,) = sink.refusals
    assert sink.final_count == 1
    assert error.code is ErrorCode.INTERNAL
    return error


def test_call_is_answered_by_the_called_model(world, sink):
    (instance,) = world.add("add").instances
    world.call(None, "add", sink, id="a")

    answer = InferResponse("add", "1", "a", [], {"p": 1})
    instance.report(instance.running[0], [Outcome(0, answer)])

    assert sink.responses == [answer]
    assert sink.final_count == 1


def test_call_of_the_only_model_that_waits_starts_at_once_and_others_share_batches(world, sink):
    settings = {"max_batch_size": 8, "batches": True}
    (called,) = world.add("add", concurrency=2, **settings).instances
    callers = [world.add(name).instances[0] for name in ("a", "b", "c")]
    for caller in callers:
        world.call(None, caller.name.partition("_")[0], RecordingSink())
    started = []

    def call(instance):
        shaped = {"IN": InferTensor("IN", INT32, (1, 1), bytes(4))}
        frame = InferCallFrame(
            1, "add", -1, [TensorRef("IN", 0, (), 0, 0)], blocked_batch=instance.running[-1].id
        )
        world.caller.call(instance, frame, shaped, RecordingSink())
        started.append([len(batch.inferences) for batch in called.running])

    for caller in callers:
        call(caller)
    world.loop.run()

    assert started == [[1], [1], [1]]
    assert [len(batch.inferences) for batch in called.running] == [1, 2]


def test_call_hands_its_fields_on(world, sink):
    (instance,) = world.add("add", outputs={"A": None, "B": None}).instances
    world.call(
        None,
        "add",
        sink,
        model_version=1,
        outputs=["B"],
        id="x",
        correlation_id="sequence",
        flags=3,
        timeout_us=1000,
        parameters={"a": 1},
    )

    request = instance.running[0].inferences[0].request
    assert (request.model_name, request.model_version) == ("add", "1")
    assert (request.outputs, request.fields.id, request.inputs) == (("B",), "x", tensors())
    assert (request.fields.correlation_id, request.fields.flags, request.fields.timeout_us) == (
        "sequence",
        3,
        1000,
    )
    assert request.fields.parameters == {"a": 1}
    assert request.received_ns > 0


def test_call_without_a_version_or_outputs_asks_for_the_newest_and_all(world, sink):
    world.add("add", version=1)
    (newest,) = world.add("add", version=2).instances
    world.call(None, "add", sink)

    request = newest.running[0].inferences[0].request
    assert request.outputs is None


@pytest.mark.parametrize(
    "name,version,reason",
    [
        ("nope", -1, "Request for unknown model: 'nope' is not found"),
        ("add", 7, "Request for unknown model: 'add' version 7 is not found"),
        (
            "add",
            -2,
            "invalid model version specified '-2' , version should be an integral value > 0",
        ),
    ],
)
def test_unknown_model_is_not_ready(world, name, version, reason):
    world.add("add")

    assert refusal(world, name, model_version=version).message == (
        f"Model {name} - Error when running inference: {reason}. "
        f"Failed for execute the inference request. Model '{name}' is not ready."
    )


def test_refusal_keeps_its_code_and_text_if_that_is_wanted(world):
    world.add("add")

    sink = RecordingSink()
    world.call(None, "missing", sink, keeps_errors=True)
    world.call(None, "add", sink, inputs={}, keeps_errors=True)

    unknown, wrong = sink.refusals
    assert (unknown.code, unknown.message) == (
        ErrorCode.NOT_FOUND,
        "Request for unknown model: 'missing' is not found",
    )
    assert wrong.code is ErrorCode.INVALID_ARG
    assert not wrong.message.startswith("Model add")


def test_decoupled_model_is_refused_to_those_who_take_one_response(world):
    world.add("add", decoupled=True)

    assert refusal(world).message == (
        f"{PREFIX}Model add is using the decoupled. The current BLS request call doesn't support "
        "models using the decoupled transaction policy. Please use 'decoupled=True' argument to "
        "the 'exec' or 'async_exec' calls for decoupled models.'"
    )


@pytest.mark.parametrize(
    "fields,reason",
    [
        (
            {"inputs": {}},
            (
                "[request id: <id_unknown>] expected 1 inputs but got 0 inputs for model 'add'. "
                "Got input(s) [], but missing required input(s) ['IN']. Please provide all "
                "required input(s)."
            ),
        ),
        (
            {"inputs": {"IN": InferTensor("IN", FP32, (1,), bytes(4))}, "id": "i1"},
            (
                "[request id: i1] inference input 'IN' data-type is 'FP32', but model 'add' "
                "expects 'INT32'"
            ),
        ),
        (
            {"names": ["IN", "IN"]},
            "[request id: <id_unknown>] input 'IN' already exists in request",
        ),
        ({"outputs": ["Z"]}, "unexpected inference output 'Z' for model 'add'"),
    ],
    ids=["missing", "dtype", "twice", "output"],
)
def test_request_that_does_not_fit_is_refused_in_the_servers_words(world, fields, reason):
    world.add("add")

    assert refusal(world, **fields).message == PREFIX + reason


def test_full_queue_refuses_a_call(world, sink):
    policy = QueuePolicySpec(max_queue_size=1)
    batcher = BatcherSpec(default_queue_policy=policy)
    model = world.add("add", batches=True, batcher=batcher)
    world.ask(model)
    world.call(None, "add", sink)

    assert refusal(world).message == (
        PREFIX + "[request id: <id_unknown>] Exceeds maximum queue size"
    )


def test_error_of_the_called_model_keeps_its_code_and_words(world, sink):
    (instance,) = world.add("add").instances
    world.call(None, "add", sink)

    error = InvalidArgumentError("my own words")
    instance.report(instance.running[0], [Outcome(0, None, error)])

    assert sink.errors == [error]


def test_decoupled_call_gets_every_response_and_the_bare_end(world, sink):
    (instance,) = world.add("add", decoupled=True).instances
    world.call(None, "add", sink, is_decoupled=True)
    batch = instance.running[0]
    for _ in range(3):
        instance.report(batch, [Outcome(0, response(), is_final=False)])
    instance.report(batch, [Outcome(0)])

    assert [each is None for each in sink.responses] == [False, False, False, True]
    assert sink.final_count == 1


def test_decoupled_call_takes_the_one_response_of_a_coupled_model(world, sink):
    (instance,) = world.add("add").instances
    world.call(None, "add", sink, is_decoupled=True)
    instance.finish()

    assert (len(sink.responses), sink.final_count) == (1, 1)


def test_paused_call_holds_its_model_back_until_it_is_resumed(world, sink):
    (instance,) = world.add("add", decoupled=True).instances
    call = world.call(None, "add", sink, is_decoupled=True)
    call.pause()
    instance.report(instance.running[0], [Outcome(0, response(), is_final=False)])
    assert instance.granted == []

    call.resume()

    assert [count for _, count in instance.granted] == [1]


def test_cancelled_call_that_runs_is_told_to_its_model_and_ends_as_that_says(world, sink):
    (instance,) = world.add("add").instances
    call = world.call(None, "add", sink)
    call.cancel()
    assert instance.cancelled == instance.running[0].inferences
    assert sink.final_count == 0

    instance.finish()
    call.cancel()

    assert (sink.final_count, len(instance.cancelled)) == (1, 1)


def test_cancelled_call_that_waits_ends_at_once(world, sink):
    model = world.add("add")
    world.ask(model)
    call = world.call(None, "add", sink)
    call.cancel()

    assert [type(error) for error in sink.errors] == [CancelledError]
    assert model.statistics.pending_count == 0


def test_call_ends_with_an_error_when_the_instance_dies(world, sink):
    (instance,) = world.add("add").instances
    world.call(None, "add", sink)
    instance.die("killed")

    assert [type(error) for error in sink.errors] == [InternalError]


def test_call_can_be_answered_from_the_cache_at_once(world, sink):
    model = world.add("add", response_cache=True)
    (instance,) = model.instances
    world.call(None, "add", RecordingSink())
    outputs = [InferTensor("OUT", FP32, (1,), memoryview(bytes(4)))]
    instance.report(instance.running[0], [Outcome(0, InferResponse("add", "1", "", outputs))])
    world.loop.run()
    other = world.ask(world.add("other"))
    world.call(other, "add", sink)

    assert sink.final_count == 1
    assert len(instance.batches) == 1
    assert len(world.caller.waits) == 0


def test_server_that_exits_takes_no_call(world):
    world.add("add")
    world.engine.refuse()

    assert refusal(world).message == PREFIX + "Server exiting"
