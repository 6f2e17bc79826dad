# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import asyncio
import json

import numpy as np
import pytest
from c_python_backend_utils import InferenceTrace
from triton_python_backend_utils import (
    TRITONSERVER_MEMORY_CPU,
    TRITONSERVER_MEMORY_GPU,
    TRITONSERVER_REQUEST_RELEASE_ALL,
    TRITONSERVER_REQUEST_RELEASE_RESCHEDULE,
    InferenceRequest,
    InferenceResponse,
    PreferredMemory,
    Tensor,
    TritonModelException,
)

from pytriton.base.messages import TraceContext
from pytriton.runtime.pb_utils.request import ReceivedFields
from tests.pb_utils.fakes import FakeBatch, FakeCall, FakeContext

TENSOR = Tensor("IN", np.zeros(1))


def make(**changes):
    arguments = {"inputs": [TENSOR], "requested_output_names": ["OUT"], "model_name": "m"}
    return InferenceRequest(**{**arguments, **changes})


def receive(context=None, **changes):
    arguments = {
        "id": "7",
        "correlation_id": 3,
        "flags": 1,
        "timeout": 50,
        "parameters": {"a": 1.5},
    }
    fields = ReceivedFields(**{**arguments, **changes})
    batch = FakeBatch([FakeContext() if context is None else context])
    (request,) = InferenceRequest.received(batch, [[TENSOR]], ["OUT"], {}, {0: fields})
    return request


def test_request_has_defaults():
    request = make()

    assert request.inputs() == [TENSOR]
    assert request.requested_output_names() == {"OUT"}
    assert request.request_id() == ""
    assert request.correlation_id() == 0
    assert request.flags() == 0
    assert request.timeout() == 0
    assert request.parameters() == "{}"
    assert request.model_name == "m"
    assert request.model_version == -1
    assert request.release_flags == TRITONSERVER_REQUEST_RELEASE_ALL


def test_request_takes_its_arguments_in_order():
    memory = PreferredMemory(TRITONSERVER_MEMORY_GPU, 1)
    trace = InferenceTrace(TraceContext("00-1-2-01"))
    request = InferenceRequest(
        "id", 5, (TENSOR,), ("A", b"B", "A"), b"m", 2, 3, 99, memory, trace, {"k": True}
    )

    assert request.request_id() == "id"
    assert request.correlation_id() == 5
    assert request.inputs() == [TENSOR]
    assert request.requested_output_names() == {"A", "B"}
    assert request.output_names == ["A", "B"]
    assert (request.model_name, request.model_version) == ("m", 2)
    assert (request.flags(), request.timeout()) == (3, 99)
    assert request.trace_context == TraceContext("00-1-2-01")
    assert json.loads(request.parameters()) == {"k": True}


@pytest.mark.parametrize(
    "changes",
    [
        {"inputs": None},
        {"inputs": [3]},
        {"requested_output_names": None},
        {"requested_output_names": [None]},
        {"requested_output_names": "OUT"},
        {"model_name": None},
        {"model_name": 5},
        {"request_id": None},
        {"correlation_id": None},
        {"model_version": None},
        {"model_version": 1.0},
        {"flags": None},
        {"flags": -1},
        {"timeout": None},
        {"timeout": -1},
        {"preferred_memory": 1},
        {"trace": "00-1-2-01"},
    ],
    ids=str,
)
def test_argument_of_another_type_is_a_type_error(changes):
    with pytest.raises(TypeError, match=next(iter(changes))):
        make(**changes)


REFUSED = [
    (
        {"inputs": [None], "request_id": "7"},
        r"^Input tensor for request with id '7' and model name 'm' should not be empty\.$",
    ),
    ({"requested_output_names": ["OUT", ""]}, r"Requested output name .* not be empty\.$"),
    *(
        ({"correlation_id": value}, "^Correlation ID must be integer or string")
        for value in (1.5, -1, 1 << 64, [])
    ),
    ({"parameters": [1]}, "got <class 'list'>$"),
    (
        {"parameters": {1: "a"}},
        "^Expect parameters keys to have type str, found ",
    ),
    ({"parameters": {"a": 1.5}}, "values to have type bool/int/str, found type <class 'float'>$"),
]


@pytest.mark.parametrize("changes, text", REFUSED, ids=str)
def test_argument_that_has_no_meaning_is_refused(changes, text):
    with pytest.raises(TritonModelException, match=text):
        make(**changes)


@pytest.mark.parametrize("value", [0, (1 << 64) - 1, "sequence", b"sequence", np.uint64(5)])
def test_correlation_id_is_a_number_or_a_text(value):
    expected = value.decode() if isinstance(value, bytes) else value

    assert make(correlation_id=value).correlation_id() == expected


def test_received_request_has_what_the_client_sent():
    request = receive()

    assert request.inputs() == [TENSOR]
    assert request.requested_output_names() == {"OUT"}
    assert request.request_id() == "7"
    assert request.correlation_id() == 3
    assert request.flags() == 1
    assert request.timeout() == 50
    assert json.loads(request.parameters()) == {"a": 1.5}


def test_received_requests_have_what_is_at_their_position():
    contexts = [FakeContext(), FakeContext(), FakeContext()]
    first, second, third = InferenceRequest.received(
        FakeBatch(contexts),
        [(TENSOR,), (), (TENSOR, TENSOR)],
        ["A", "B"],
        {1: ["B"]},
        {2: ReceivedFields("2", parameters={"a": 1})},
    )
    second.get_response_sender().send(InferenceResponse(), 1)

    assert [len(each.inputs()) for each in (first, second, third)] == [1, 0, 2]
    assert first.requested_output_names() == third.requested_output_names() == {"A", "B"}
    assert second.requested_output_names() == {"B"}
    assert [each.request_id() for each in (first, second, third)] == ["", "", "2"]
    assert third.parameters() == '{"a":1}'
    assert [len(context.sent) for context in contexts] == [0, 1, 0]


def test_flags_of_one_received_request_can_be_set():
    contexts = [FakeContext(), FakeContext()]
    first, second = InferenceRequest.received(FakeBatch(contexts), [(), ()], ["A"], {}, {})
    first.set_flags(3)

    assert (first.flags(), second.flags()) == (3, 0)


def test_changes_to_the_list_of_inputs_do_not_count():
    request = receive()
    request.inputs().clear()

    assert request.inputs() == [TENSOR]
    assert make(inputs=[]).inputs() == []


def test_trace_of_a_request_can_be_passed_on():
    context = TraceContext("00-1-2-01", "vendor=1")
    request = receive(trace=context)

    assert json.loads(request.trace().get_context()) == {
        "traceparent": "00-1-2-01",
        "tracestate": "vendor=1",
    }
    assert make(trace=request.trace()).trace_context == context


@pytest.mark.parametrize(
    "trace, text", [(TraceContext("00-1-2-01"), '{"traceparent":"00-1-2-01"}'), (None, None)]
)
def test_trace_without_a_state_does_not_mention_it(trace, text):
    assert receive(trace=trace).trace().get_context() == text


def test_request_has_one_sender():
    context = FakeContext()
    request = receive(context=context)

    assert request.sender is None
    sender = request.get_response_sender()
    assert request.get_response_sender() is sender
    sender.send(InferenceResponse(), 1)
    assert len(context.sent) == 1


def test_cancellation_is_the_servers_word():
    context = FakeContext()
    request = receive(context=context)

    assert not request.is_cancelled()
    context.gone = True
    assert request.is_cancelled()
    assert not make().is_cancelled()


def test_request_can_be_rescheduled():
    request = receive()
    request.set_release_flags(TRITONSERVER_REQUEST_RELEASE_RESCHEDULE)

    assert request.release_flags == TRITONSERVER_REQUEST_RELEASE_RESCHEDULE


@pytest.mark.parametrize("flags, error", [(None, TypeError), (5, TritonModelException)])
def test_other_release_flags_are_refused(flags, error):
    with pytest.raises(error, match="got"):
        receive().set_release_flags(flags)


def test_exec_gives_the_response(runtime):
    response = InferenceResponse([TENSOR])
    runtime.next_call = FakeCall([response])
    request = make()

    assert request.exec() is response
    assert runtime.requests == [(request, False)]


@pytest.mark.parametrize("decoupled", [True, 1])
def test_exec_of_a_decoupled_model_gives_an_iterator(runtime, decoupled):
    responses = [InferenceResponse(), InferenceResponse()]
    runtime.next_call = FakeCall(responses)

    assert list(make().exec(decoupled=decoupled)) == responses
    assert runtime.requests[0][1] is True


CALLS = {
    "without a response": ("exec", {}, TritonModelException, "Model m ended without a response"),
    "of a text": ("exec", {"decoupled": "yes"}, TypeError, "must be a bool, got <class 'str'>"),
    "without a loop": ("async_exec", {}, RuntimeError, "no running event loop"),
    "for a sender": (
        "get_response_sender",
        {},
        TritonModelException,
        "that `execute` got",
    ),
}


@pytest.mark.parametrize("method, arguments, kind, words", CALLS.values(), ids=CALLS)
def test_call_that_cannot_be_made_is_refused(runtime, method, arguments, kind, words):
    with pytest.raises(kind, match=words):
        getattr(make(), method)(**arguments)


def test_exec_without_a_server_names_the_harness():
    with pytest.raises(TritonModelException, match=r"no server.*pytriton\.testing\.ModelHarness"):
        make().exec()


@pytest.mark.parametrize("decoupled", [False, True])
def test_async_exec_can_be_awaited(runtime, decoupled):
    response = InferenceResponse([TENSOR])
    runtime.next_call = FakeCall([response])

    async def infer():
        return await make().async_exec(decoupled=decoupled)

    result = asyncio.run(infer())

    assert (list(result) if decoupled else [result]) == [response]


def test_async_exec_begins_at_once(runtime):
    async def infer():
        awaited = make().async_exec()
        assert len(runtime.requests) == 1
        with pytest.raises(TritonModelException, match="ended without a response"):
            await awaited

    asyncio.run(infer())


def test_async_exec_raises_where_it_is_awaited():
    async def infer():
        awaited = make().async_exec()
        with pytest.raises(TritonModelException, match="There is no server to call other models"):
            await awaited

    asyncio.run(infer())


def test_cancelled_async_exec_gives_the_call_up(runtime):
    call = runtime.next_call = FakeCall([])
    call.notify = lambda wake: None

    async def infer():
        awaited = make().async_exec()
        awaited.cancel()
        await asyncio.wait([awaited])

    asyncio.run(infer())

    assert call.is_cancelled
    assert call.is_abandoned


def test_answer_for_a_loop_that_is_closed_is_dropped(runtime):
    call = runtime.next_call = FakeCall([])
    wakes = []
    call.notify = wakes.append

    async def infer():
        make().async_exec()

    asyncio.run(infer())
    wakes[0]()

    assert call.is_abandoned


def test_answer_that_comes_after_it_was_given_up_is_ignored(runtime):
    call = runtime.next_call = FakeCall([InferenceResponse([TENSOR])])
    wakes = []
    call.notify = wakes.append

    async def infer():
        awaited = make().async_exec()
        awaited.cancel()
        wakes[0]()
        await asyncio.wait([awaited])

    asyncio.run(infer())

    assert len(call._responses) == 1


def test_request_shows_where_it_goes():
    assert repr(make(request_id="1")) == (
        f"InferenceRequest(request_id='1', inputs=[{TENSOR!r}], model_name='m')"
    )


@pytest.mark.parametrize(
    "arguments", [(1,), (None,), (TRITONSERVER_MEMORY_CPU, None), (TRITONSERVER_MEMORY_CPU, "0")]
)
def test_preferred_memory_of_other_types_is_a_type_error(arguments):
    with pytest.raises(TypeError, match="preferred_"):
        PreferredMemory(*arguments)


def test_preferred_memory_shows_kind_and_device():
    memory = PreferredMemory(preferred_memory_type=TRITONSERVER_MEMORY_GPU, preferred_device_id=2)

    assert repr(memory) == "PreferredMemory(TRITONSERVER_MEMORY_GPU, 2)"
