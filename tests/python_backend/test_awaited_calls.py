# SPDX-License-Identifier: Apache-2.0
"""Calls that event loops await, and for which batch calls are made."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest

from pytriton.runtime.backend.connection import ServerConnection
from pytriton.runtime.pb_utils.failures import TritonModelException
from pytriton.runtime.pb_utils.request import InferenceRequest
from pytriton.runtime.pb_utils.response import when_ready
from pytriton.runtime.python_backend.runtime import BlsCall, CallOrigin
from pytriton.runtime.transport.arena import Arena
from pytriton.runtime.transport.frames import CancelCall, InferCallFrame
from pytriton.runtime.transport.link import socket_pair
from pytriton.runtime.transport.memory_channel import MemoryChannel
from tests.python_backend.worker_rig import DEADLINE_S, Peer

X = np.array([[1.0]], np.float32)
HELPERS = """
from pytriton.runtime.pb_utils.runtime import current_runtime

def call(name="other"):
    return pb_utils.InferenceRequest(model_name=name, inputs=[], requested_output_names=["y"])

def response(answer=None):
    return pb_utils.InferenceResponse([] if answer is None else answer.output_tensors())

def log(value):
    pb_utils.Logger.log_info(str(value))
"""


def model(body, *, keyword="async def", rest=""):
    lines = "\n".join(f"        {line}" for line in body.strip().splitlines())
    return f"""
{HELPERS}
class TritonPythonModel:
    {keyword} execute(self, requests):
{lines}
{rest}
"""


def reply_to_all(rig, count):
    """Answer calls, the last one first, each with the number in its model's name."""
    calls = [rig.hear(InferCallFrame).frame for _ in range(count)]
    for each in reversed(calls):
        rig.reply(each.call, {"y": np.array([[float(each.model_name)]], np.float32)})
    return calls


# Which batch


@pytest.mark.parametrize(
    "body",
    [
        "await call().async_exec()",
        "await asyncio.create_task(ask())",
        "await asyncio.to_thread(call().exec)",
        "await asyncio.get_running_loop().run_in_executor(None, call().exec)",
    ],
)
def test_calls_say_for_which_batch_they_are_made(worker, body):
    rig = worker(
        model(
            f"""
async def ask():
    return await call().async_exec()
{body}
return [response()]
"""
        )
    )
    batches = {rig.execute({"x": X}), rig.execute({"x": X})}
    calls = [rig.hear(InferCallFrame).frame for _ in batches]
    assert {each.batch for each in calls} == batches
    assert [(each.blocked_batch, each.blocks_loop) for each in calls] == [(0, False)] * 2
    for each in calls:
        rig.reply(each.call, {"y": X})
        assert rig.answers(each.batch, 1) == [{}]


def test_call_that_stops_the_loop_says_so(worker):
    rig = worker(model("return [response(call().exec())]"))
    batch = rig.execute({"x": X})
    received = rig.hear(InferCallFrame).frame
    assert (received.batch, received.blocked_batch, received.blocks_loop) == (0, batch, True)
    rig.reply(received.call, {"y": X})
    rig.answers(batch, 1)


def test_call_of_a_thread_of_the_models_own_is_for_no_batch(worker):
    body = """
thread = threading.Thread(target=call().exec)
thread.start()
thread.join()
return [response()]
"""
    rig = worker(model(body, keyword="def"))
    batch = rig.execute({"x": X})
    received = rig.hear(InferCallFrame).frame
    assert (received.batch, received.blocked_batch) == (0, 0)
    rig.reply(received.call, {"y": X})
    rig.answers(batch, 1)


def test_awaited_call_of_a_plain_execute_is_for_its_batch(worker):
    rig = worker(
        model("return [response(asyncio.run(self.ask()))]", keyword="def", rest=ASK),
    )
    for _ in range(2):
        batch = rig.execute({"x": X})
        received = rig.hear(InferCallFrame).frame
        assert (received.batch, received.blocked_batch) == (batch, 0)
        rig.reply(received.call, {"y": X})
        assert rig.answers(batch, 1)[0]["y"].tolist() == [[1]]


ASK = """
    async def ask(self):
        return await call().async_exec()
"""


# Who reads


@pytest.mark.parametrize(
    "keyword, body",
    [
        ("async def", "answers = await ask()"),
        ("def", "answers = asyncio.run(ask())"),
        (
            "def",
            """
loop = asyncio.new_event_loop()
threading.Thread(target=loop.run_forever, daemon=True).start()
answers = asyncio.run_coroutine_threadsafe(ask(), loop).result()
""",
        ),
    ],
    ids=["own-loop", "loop-in-execute", "loop-of-a-thread"],
)
def test_many_calls_are_awaited_with_few_threads(worker, keyword, body):
    rig = worker(
        model(
            f"""
async def ask():
    return await asyncio.gather(*(call(str(each)).async_exec() for each in range(200)))
{body}
assert threading.active_count() < 8, threading.enumerate()
values = [answer.output_tensors()[0].as_numpy().item() for answer in answers]
assert values == list(range(200)), values
return [response()]
""",
            keyword=keyword,
        )
    )
    for _ in range(2):
        batch = rig.execute({"x": X})
        reply_to_all(rig, 200)
        assert rig.answers(batch, 1) == [{}]


def test_loop_is_answered_while_the_models_thread_waits_for_it(worker):
    body = """
if not hasattr(self, "loop"):
    async def keep_loop():
        self.loop = asyncio.get_running_loop()
        return [response()]
    return keep_loop()
return [response(asyncio.run_coroutine_threadsafe(self.ask(), self.loop).result())]
"""
    rig = worker(model(body, keyword="def", rest=ASK))
    rig.run({"x": X})
    for _ in range(2):
        batch = rig.execute({"x": X})
        rig.reply(rig.hear(InferCallFrame).frame.call, {"y": X})
        assert rig.answers(batch, 1)[0]["y"].tolist() == [[1]]


def test_server_that_is_gone_fails_what_is_awaited():
    ours, theirs = socket_pair()
    connection = ServerConnection(MemoryChannel(ours, Arena()))
    peer = Peer(theirs)
    call = BlsCall(connection, is_decoupled=False)
    request = InferenceRequest(model_name="m", inputs=[], requested_output_names=[])

    async def ask():
        call.start(request, CallOrigin())
        result = when_ready(call, BlsCall.receive)
        await asyncio.to_thread(peer.hear, InferCallFrame)
        peer.close()
        return await asyncio.wait_for(result, DEADLINE_S)

    with pytest.raises(TritonModelException, match="The server is gone"):
        asyncio.run(ask())
    with pytest.raises(TritonModelException, match="The server is gone"):
        asyncio.run(asyncio.wait_for(await_again(call), DEADLINE_S))
    connection.close()


async def await_again(call):
    return await when_ready(call, BlsCall.receive)


# Responses one by one


def test_responses_are_awaited_one_by_one(worker):
    rig = worker(
        model(
            """
answers = await call().async_exec(decoupled=True)
values = []
async for each in answers:
    values += [tensor.as_numpy().item() for tensor in each.output_tensors()]
    other = await call("between").async_exec()
assert values == [0.0, 1.0, 2.0], values
assert len([each async for each in answers]) == 4
assert len(list(answers)) == 4
return [response()]
"""
        )
    )
    batch = rig.execute({"x": X})
    first = rig.hear(InferCallFrame).frame
    assert first.is_decoupled
    for number in range(4):
        rig.reply(first.call, *([{"y": X * number}] if number < 3 else []), is_final=number == 3)
        between = rig.hear(InferCallFrame).frame
        assert between.model_name == "between"
        rig.reply(between.call, {})
    assert rig.answers(batch, 1) == [{}]


# Giving up

CANCELLED = """
try:
    await task
except asyncio.CancelledError:
    log("cancelled")
"""


def test_cancelled_task_cancels_its_call_and_leaves_none_behind(worker):
    rig = worker(
        model(
            f"""
async def ask():
    return await call().async_exec()
task = asyncio.create_task(ask())
await asyncio.sleep(0)
task.cancel()
{CANCELLED}
await call("last").async_exec()
connection = current_runtime()._connection
log(connection)
log(connection.loop_reader)
return [response()]
"""
        )
    )
    batch = rig.execute({"x": X})
    number = rig.hear(InferCallFrame).frame.call
    assert rig.hear(CancelCall).frame.call == number
    rig.reply(number, error="cancelled", error_code=7)
    rig.reply(rig.hear(InferCallFrame).frame.call, {})
    rig.answers(batch, 1)
    log = rig.log()
    assert "cancelled\n<Connection calls=0 " in log
    assert "<LoopReader main=0 helper=0>" in log


def test_task_that_is_cancelled_between_responses_cancels_its_call(worker):
    rig = worker(
        model(
            f"""
async def ask():
    async for each in await call().async_exec(decoupled=True):
        self.has_one.set()
self.has_one = asyncio.Event()
task = asyncio.create_task(ask())
await self.has_one.wait()
task.cancel()
{CANCELLED}
return [response()]
"""
        )
    )
    batch = rig.execute({"x": X})
    number = rig.hear(InferCallFrame).frame.call
    rig.reply(number, {"y": X}, is_final=False)
    assert rig.hear(CancelCall).frame.call == number
    assert rig.answers(batch, 1) == [{}]
    assert rig.log() == "cancelled"


def test_loop_that_ends_gives_its_calls_up(worker):
    rig = worker(
        model(
            """
async def ask():
    asyncio.create_task(self.ask())
    await asyncio.sleep(0)
    await asyncio.sleep(0)
asyncio.run(ask())
return [response()]
""",
            keyword="def",
            rest=ASK,
        )
    )
    batch = rig.execute({"x": X})
    number = rig.hear(InferCallFrame).frame.call
    assert rig.hear(CancelCall).frame.call == number
    assert rig.answers(batch, 1) == [{}]
