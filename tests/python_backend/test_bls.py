# SPDX-License-Identifier: Apache-2.0
"""Calls of other models and of the server's services."""

from __future__ import annotations

import numpy as np
import pytest

from pytriton.base.messages import DevicePlace, TraceContext
from pytriton.runtime.transport.credit import RESPONSE_WINDOW
from pytriton.runtime.transport.frames import (
    CallCredit,
    CancelCall,
    DeviceNotes,
    InferCallFrame,
    ServiceCall,
)

X = np.array([[1.0]], np.float32)


def model(body, rest=""):
    lines = "\n".join(f"        {line}" for line in body.strip().splitlines())
    return f"""
def call(**fields):
    fields = {{"model_name": "other", "requested_output_names": ["y"], **fields}}
    fields.setdefault("inputs", [pb_utils.Tensor("x", np.ones((1, 2), np.float32))])
    return pb_utils.InferenceRequest(**fields)

def log(value):
    pb_utils.Logger.log_info(str(value))

class TritonPythonModel:
    def execute(self, requests):
{lines}
{rest}
"""


PASS_ON = "return [pb_utils.InferenceResponse(call().exec().output_tensors())]"


def test_call_is_answered_with_tensors(worker):
    rig = worker(model(PASS_ON))
    batch = rig.execute({"x": X})

    received = rig.hear(InferCallFrame)
    call = received.frame
    assert (call.model_name, call.model_version, call.outputs) == ("other", -1, ["y"])
    assert call.blocked_batch == batch
    assert not call.is_decoupled
    (ref,) = call.inputs
    assert (ref.name, received.array(ref).tolist()) == ("x", [[1, 1]])
    rig.reply(call.call, {"y": X * 5}, parameters={"a": 1})
    (outputs,) = rig.answers(batch, 1)
    assert outputs["y"].tolist() == [[5]]


def test_call_carries_all_that_the_request_says(worker):
    rig = worker(
        model(
            """
call(
    request_id="id", correlation_id="sequence", model_version=3, flags=1, timeout=500,
    parameters={"a": True, "b": "c"}, trace=requests[0].trace(),
).exec()
return [pb_utils.InferenceResponse([])]
"""
        )
    )
    batch = rig.execute({"x": X}, traces={0: TraceContext("00-parent", "a=b")})
    call = rig.hear(InferCallFrame).frame
    assert (call.id, call.correlation_id, call.model_version) == ("id", "sequence", 3)
    assert (call.flags, call.timeout_us) == (1, 500)
    assert call.parameters == {"a": True, "b": "c"}
    assert call.trace == TraceContext("00-parent", "a=b")
    rig.reply(call.call, {})
    rig.answers(batch, 1)


def test_failure_of_a_call_is_a_response(worker):
    rig = worker(
        model(
            """
answer = call().exec()
assert answer.has_error() and answer.output_tensors() == []
return [pb_utils.InferenceResponse(error=answer.error())]
"""
        )
    )
    batch = rig.execute({"x": X})
    rig.reply(rig.hear(InferCallFrame).frame.call, error="gone", error_code=4)
    assert rig.answers(batch, 1) == ["gone"]


def test_large_tensors_go_both_ways(worker):
    rig = worker(
        model(
            """
large = np.arange(1 << 20, dtype=np.float32).reshape(1, -1)
answer = call(inputs=[pb_utils.Tensor("x", large)]).exec()
return [pb_utils.InferenceResponse(answer.output_tensors())]
"""
        )
    )
    for factor in (1, 2, 3):
        batch = rig.execute({"x": X})
        received = rig.hear(InferCallFrame)
        array = received.array(received.frame.inputs[0])
        rig.reply(received.frame.call, {"y": array * factor})
        (outputs,) = rig.answers(batch, 1)
        assert (outputs["y"] == array * factor).all()


def test_calls_from_threads_get_their_own_answers(worker):
    rig = worker(
        model(
            """
from concurrent.futures import ThreadPoolExecutor

def ask(number):
    answer = call(request_id=str(number)).exec()
    return answer.output_tensors()[0].as_numpy().item() == number

with ThreadPoolExecutor(8) as pool:
    assert all(pool.map(ask, range(64)))
return [pb_utils.InferenceResponse([])]
"""
        )
    )
    batch = rig.execute({"x": X})
    for _ in range(64):
        call = rig.hear(InferCallFrame).frame
        assert call.blocked_batch == 0
        rig.reply(call.call, {"y": np.array([[float(call.id)]], np.float32)})
    assert rig.answers(batch, 1) == [{}]


def test_thread_calls_after_execute_returned(worker):
    rig = worker(
        model(
            """
sender = requests[0].get_response_sender()

def work():
    sender.send(pb_utils.InferenceResponse(call().exec().output_tensors()), 1)

threading.Thread(target=work).start()
"""
        )
    )
    batches = [rig.execute({"x": X}) for _ in range(3)]
    calls = []
    answered = set()
    while len(answered) < 3:
        frame = rig.hear().frame
        if isinstance(frame, InferCallFrame):
            calls.append(frame.call)
        else:
            answered |= {item.batch for item in frame.items}
        if len(calls) == 3:  # all of them wait, while batches came and went
            for number in calls:
                rig.reply(number, {"y": X})
            calls.clear()
    assert answered == set(batches)


# Decoupled calls


def test_responses_of_a_decoupled_call_come_one_by_one(worker):
    rig = worker(
        model(
            """
answers = call().exec(decoupled=True)
values = [[t.as_numpy().item() for t in each.output_tensors()] for each in answers]
assert values == [[0.0], [1.0], [2.0], []], values
assert len(list(answers)) == 4
return [pb_utils.InferenceResponse([])]
"""
        )
    )
    batch = rig.execute({"x": X})
    call = rig.hear(InferCallFrame).frame
    assert call.is_decoupled
    for number in range(3):
        rig.reply(call.call, {"y": X * number}, is_final=False)
    rig.reply(call.call)
    assert rig.answers(batch, 1) == [{}]


def test_decoupled_call_of_a_model_that_is_not_has_one_response(worker):
    rig = worker(
        model("assert len(list(call().exec(decoupled=True))) == 1\nreturn [None]").replace(
            "return [None]", "return [pb_utils.InferenceResponse([])]"
        )
    )
    batch = rig.execute({"x": X})
    rig.reply(rig.hear(InferCallFrame).frame.call, {"y": X})
    assert rig.answers(batch, 1) == [{}]


def test_server_hears_of_responses_that_were_taken(worker):
    count = 2 * RESPONSE_WINDOW
    rig = worker(
        model(
            f"""
assert len(list(call().exec(decoupled=True))) == {count} + 1
return [pb_utils.InferenceResponse([])]
"""
        )
    )
    batch = rig.execute({"x": X})
    call = rig.hear(InferCallFrame).frame.call
    credit = RESPONSE_WINDOW
    for _ in range(count):
        while not credit:
            credit += rig.hear(CallCredit).frame.count
        rig.reply(call, {"y": X}, is_final=False)
        credit -= 1
    rig.reply(call)
    while not isinstance(frame := rig.hear().frame, CallCredit):
        pass
    assert frame.call == call
    while isinstance(frame, CallCredit):
        frame = rig.hear().frame
    assert frame.batch == batch


def test_call_is_cancelled_and_its_end_awaited(worker):
    rig = worker(
        model(
            """
answers = call().exec(decoupled=True)
answers.cancel()
last = list(answers)[-1]
answers.cancel()
return [pb_utils.InferenceResponse(error=last.error())]
"""
        )
    )
    batch = rig.execute({"x": X})
    call = rig.hear(InferCallFrame).frame.call
    rig.reply(call, {"y": X}, is_final=False)
    assert rig.hear(CancelCall).frame.call == call
    rig.reply(call, error="cancelled", error_code=7)
    assert rig.answers(batch, 1) == ["cancelled"]


def test_rest_of_an_abandoned_call_is_let_through(worker):
    rig = worker(
        model(
            """
answers = call().exec(decoupled=True)
next(iter(answers))
del answers
return [pb_utils.InferenceResponse([])]
"""
        )
    )
    batch = rig.execute({"x": X})
    call = rig.hear(InferCallFrame).frame.call
    rig.reply(call, {"y": X}, is_final=False)
    assert rig.answers(batch, 1) == [{}]
    credit = 0
    for _ in range(2 * RESPONSE_WINDOW):
        rig.reply(call, {"y": X}, is_final=False)
    while credit < RESPONSE_WINDOW:
        credit += rig.hear(CallCredit).frame.count
    rig.reply(call)
    batch = rig.execute({"x": X})
    rig.reply(rig.hear(InferCallFrame, CallCredit).frame.call, {"y": X})


GPU_PLACE = DevicePlace("of instance 'a'", 1, bytes(64), 0, 64, 0, 4, b"g" * 16, lease=31)


def test_rest_of_an_abandoned_call_gives_gpu_memory_back(worker):
    rig = worker(
        model(
            """
answers = call().exec(decoupled=True)
next(iter(answers))
del answers
return [pb_utils.InferenceResponse([])]
"""
        ),
        has_gpus=True,
    )
    batch = rig.execute({"x": X})
    call = rig.hear(InferCallFrame).frame.call
    rig.reply(call, {"y": X}, is_final=False)
    assert rig.answers(batch, 1) == [{}]
    rig.reply(call, {"y": X}, device={"y": GPU_PLACE})

    assert rig.hear(DeviceNotes).frame.leases == [31]


@pytest.mark.parametrize("has_gpus", [True, False])
def test_outputs_in_gpu_memory_are_asked_for_where_there_are_gpus(worker, has_gpus):
    rig = worker(model(PASS_ON), has_gpus=has_gpus)
    batch = rig.execute({"x": X})
    frame = rig.hear(InferCallFrame).frame
    rig.reply(frame.call, {"y": X})

    assert (frame.device_wish is not None) is has_gpus
    rig.answers(batch, 1)


# When calls are possible


@pytest.mark.parametrize("method", ["initialize(self, args)", "finalize(self)"])
def test_calls_are_refused_outside_of_execute(start_worker, method):
    rig = start_worker(
        model(
            "return [pb_utils.InferenceResponse([])]",
            f"""
    def {method}:
        try:
            call().exec()
        except pb_utils.TritonModelException as error:
            log(error)
            raise
""",
        )
    )
    text = "BLS is only supported during the 'execute' function."
    report = rig.initialized()
    if method.startswith("initialize"):
        assert report.error.startswith(f"TritonModelException: {text}\n\nAt:\n  {rig.path}(")
    else:
        assert rig.finish() == 0
    assert text in rig.log()


def test_server_that_goes_away_ends_the_worker(worker, zygote):
    rig = worker(model(PASS_ON))
    rig.execute({"x": X})
    rig.hear(InferCallFrame)
    rig.channel.close()
    rig.is_over = True
    assert zygote.wait(rig.pid) != 0


# Services


def test_service_is_called_and_waited_for(worker):
    rig = worker(
        model(
            """
if pb_utils.is_model_ready("other", "2"):
    log("ready")
try:
    pb_utils.load_model("third")
except pb_utils.TritonModelException as error:
    log(error)
return [pb_utils.InferenceResponse([])]
"""
        )
    )
    batch = rig.execute({"x": X})
    call = rig.hear(ServiceCall).frame
    assert (call.action, call.arguments) == ("is_model_ready", {"name": "other", "version": "2"})
    rig.serve(call.call, True)
    call = rig.hear(ServiceCall).frame
    assert call.action == "load_model"
    rig.serve(call.call, error="no such model")
    rig.answers(batch, 1)
    assert rig.log().startswith("ready\n")
    assert "no such model" in rig.log()


def test_service_is_called_while_the_model_is_initialized(start_worker):
    rig = start_worker(
        model(
            "return [pb_utils.InferenceResponse([])]",
            """
    def initialize(self, args):
        family = pb_utils.MetricFamily("n", "d", pb_utils.MetricFamily.COUNTER)
        self.metric = family.Metric({"a": "b"})
        self.metric.increment(2)
        self.family = family
""",
        )
    )
    family = rig.hear(ServiceCall).frame
    assert (family.action, family.arguments["name"]) == ("new_family", "n")
    rig.serve(family.call)
    metric = rig.hear(ServiceCall).frame
    assert (metric.action, metric.arguments["labels"]) == ("new_metric", {"a": "b"})
    rig.serve(metric.call)
    increment = rig.hear(ServiceCall).frame
    assert (increment.call, increment.action) == (0, "increment")
    assert increment.arguments == {"metric": metric.arguments["metric"], "value": 2.0}
    assert rig.initialized().error == ""
