# SPDX-License-Identifier: Apache-2.0
"""Models whose `execute` is a coroutine function."""

from __future__ import annotations

import numpy as np
import pytest

from pytriton.runtime.transport.credit import RESPONSE_WINDOW
from pytriton.runtime.transport.frames import (
    BatchFailure,
    BatchResult,
    Cancel,
    Credit,
    InferCallFrame,
    ResponsesFrame,
)

X = np.array([[1.0]], np.float32)
PREFIX = "Failed to process the request(s) for model 'm_0_0', message: "
RESPONSE = "pb_utils.InferenceResponse([pb_utils.Tensor('y', np.ones((1, 1), np.float32))])"


def model(body, rest=""):
    lines = "\n".join(f"        {line}" for line in body.strip().splitlines())
    return f"""
def response():
    return {RESPONSE}

class TritonPythonModel:
    def initialize(self, args):
        self.arrived = 0
        self.changed = asyncio.Condition()

    async def execute(self, requests):
{lines}
{rest}
"""


# Nobody is answered before four batches have arrived: calls that do not overlap would wait.
MEETING = """
async with self.changed:
    self.arrived += 1
    self.changed.notify_all()
    await self.changed.wait_for(lambda: self.arrived >= 4)
"""


def test_worker_says_that_calls_overlap(start_worker):
    assert start_worker(model("return [response()]")).initialized().is_async


def test_plain_model_does_not_overlap(start_worker):
    source = "class TritonPythonModel:\n    def execute(self, requests): return [None]"
    assert not start_worker(source).initialized().is_async


def test_coupled_calls_overlap(worker):
    rig = worker(model(MEETING + "return [response() for each in requests]"))
    batches = [rig.execute({"x": X}) for _ in range(4)]
    assert {rig.hear(BatchResult).frame.batch for _ in range(4)} == set(batches)


def test_quick_call_overtakes_a_slow_one(worker):
    rig = worker(
        model(
            """
if requests[0].request_id() == "slow":
    while not requests[0].is_cancelled():
        await asyncio.sleep(0.001)
return [response()]
"""
        )
    )
    slow = rig.execute({"x": X}, ids={0: "slow"})
    quick = rig.execute({"x": X})
    assert rig.hear(BatchResult).frame.batch == quick
    rig.say(Cancel(slow, 0))
    assert rig.hear(BatchResult).frame.batch == slow


def test_wrong_result_fails_its_batch(worker):
    rig = worker(model("return 5"))
    (error,) = rig.run({"x": X})
    assert error == f"{PREFIX}Expected a list in the execute return, found type '<class 'int'>'."


def test_background_tasks_go_on_after_the_answer(worker):
    rig = worker(
        model(
            """
async def later(sender):
    await asyncio.sleep(0.01)
    sender.send(response(), 1)

self.task = asyncio.create_task(later(requests[0].get_response_sender()))
"""
        )
    )
    (outputs,) = rig.run({"x": X})
    assert outputs["y"].tolist() == [[1]]


def test_loop_ends_before_finalize(worker):
    rig = worker(
        model(
            """
async def background():
    try:
        await asyncio.sleep(3600)
    finally:
        pb_utils.Logger.log_info("background ended")

self.task = asyncio.create_task(background())
await asyncio.sleep(0)
return [response()]
""",
            """
    def finalize(self):
        pb_utils.Logger.log_info(f"done: {self.task.done()}")
""",
        )
    )
    rig.run({"x": X})
    assert rig.finish() == 0
    assert rig.log() == "background ended\ndone: True"


def test_decoupled_calls_return_at_once(worker):
    rig = worker(
        model(MEETING + "requests[0].get_response_sender().send(response(), 1)"),
        is_decoupled=True,
    )
    batches = []
    for _ in range(4):
        batches.append(rig.execute({"x": X}))
        assert rig.hear(ResponsesFrame).frame.returned_batch == batches[-1]
    answered = []
    while len(answered) < 4:
        answered += [item.batch for item in rig.hear(ResponsesFrame).frame.items]
    assert sorted(answered) == batches


def test_decoupled_failure_is_logged_and_ends_open_requests(worker):
    rig = worker(
        model(
            """
requests[0].get_response_sender().send(response(), 1)
requests[1].get_response_sender().send(response())
raise ValueError("no")
"""
        ),
        is_decoupled=True,
    )
    batch = rig.execute({"x": X}, {"x": X})
    assert rig.hear(ResponsesFrame).frame.returned_batch == batch
    items = []
    while len(items) < 3:
        items += rig.hear(ResponsesFrame).frame.items
    last = items[-1]
    assert (last.position, last.is_final) == (1, True)
    assert last.error.startswith(f"{PREFIX}ValueError: no")
    assert "ValueError: no" in rig.log()


def test_decoupled_coroutine_must_return_none(worker):
    rig = worker(model("return [response()]"), is_decoupled=True)
    rig.execute({"x": X})
    assert rig.hear(ResponsesFrame).frame.items == []
    (item,) = rig.hear(ResponsesFrame).frame.items
    assert item.error == (
        f"{PREFIX}Python model 'm_0_0' is using the decoupled mode and the execute function must"
        " return None."
    )


def test_calls_of_other_models_overlap(worker):
    rig = worker(
        model(
            """
calls = [
    pb_utils.InferenceRequest(
        model_name=f"other{number}", inputs=[], requested_output_names=["y"]
    ).async_exec()
    for number in range(20)
]
answers = await asyncio.gather(*calls)
assert not any(answer.has_error() for answer in answers)
return [pb_utils.InferenceResponse(answers[7].output_tensors())]
"""
        )
    )
    batch = rig.execute({"x": X})
    calls = [rig.hear(InferCallFrame).frame for _ in range(20)]
    assert {call.blocked_batch for call in calls} == {0}
    for call in reversed(calls):
        number = float(call.model_name.removeprefix("other"))
        rig.reply(call.call, {"y": np.array([[number]], np.float32)})
    (outputs,) = rig.answers(batch, 1)
    assert outputs["y"].tolist() == [[7]]


def test_plain_function_may_return_a_coroutine(worker):
    rig = worker(
        f"""
class TritonPythonModel:
    def execute(self, requests):
        async def answer():
            return [{RESPONSE}]
        return answer()
"""
    )
    (outputs,) = rig.run({"x": X})
    assert outputs["y"].tolist() == [[1]]


@pytest.mark.parametrize("count", [1, 3])
def test_credit_reaches_a_thread_of_a_coroutine(worker, count):
    rig = worker(
        model(
            f"""
def stream():
    sender = requests[0].get_response_sender()
    for _ in range({RESPONSE_WINDOW + count}):
        sender.send(response())
    sender.send(flags=1)

await asyncio.get_running_loop().run_in_executor(None, stream)
"""
        ),
        is_decoupled=True,
    )
    batch = rig.execute({"x": X})
    items = []
    while len(items) < RESPONSE_WINDOW:
        items += rig.hear(ResponsesFrame).frame.items
    rig.say(Credit(batch, 0, count))
    while len(items) < RESPONSE_WINDOW + count + 1:
        items += rig.hear(ResponsesFrame).frame.items
    assert items[-1].is_final


def test_failure_of_a_coupled_batch_comes_once(worker):
    rig = worker(model("raise ValueError()"))
    rig.execute({"x": X}, {"x": X})
    rig.hear(BatchFailure)
    assert rig.hears_nothing()
