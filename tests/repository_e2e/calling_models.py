# SPDX-License-Identifier: Apache-2.0
"""Models that call one another, in each way that there is."""

from __future__ import annotations

from tests.repository_e2e.model_files import DECOUPLED, Files, config, decoupled_code, model

_TOP = """
import asyncio
import threading

import numpy as np
import triton_python_backend_utils as pb_utils


def call(name, *values):
    return pb_utils.InferenceRequest(
        model_name=name,
        inputs=[pb_utils.Tensor("X", np.array([values], np.float32))],
        requested_output_names=["Y"],
    )


def row(request):
    return request.inputs()[0].as_numpy()[0].tolist()


def response(*values):
    return pb_utils.InferenceResponse([pb_utils.Tensor("Y", np.array([values], np.float32))])


def checked(answer):
    if answer.has_error():
        raise pb_utils.TritonModelException(answer.error().message())
    return answer


def value(answer):
    tensors = checked(answer).output_tensors()
    return tensors[0].as_numpy().item() if tensors else 0.0


def passed_on(answer):
    if answer.has_error():
        return pb_utils.InferenceResponse(error=answer.error())
    return response(value(answer))


def total(answers, is_decoupled):
    return sum(map(value, answers)) if is_decoupled else value(answers)


def take_exec(name, is_decoupled):
    return total(call(name, 3.0).exec(decoupled=is_decoupled), is_decoupled)


async def take_async_exec(name, is_decoupled):
    return total(await call(name, 3.0).async_exec(decoupled=is_decoupled), is_decoupled)
"""


def coroutine(body: str, *, initialize: str = "pass", methods: str = "") -> str:
    """A model.py whose `execute` is a coroutine function; `body` has x, and returns a response."""
    return f"""{_TOP}

class TritonPythonModel:
    def initialize(self, args):
        {initialize}

    async def execute(self, requests):
        return list(await asyncio.gather(*(self.answer(each, *row(each)) for each in requests)))

    async def answer(self, request, x, *rest):
{_indent(body)}
{methods}
"""


def plain(body: str) -> str:
    """The same with a plain `execute`."""
    return f"""{_TOP}

class TritonPythonModel:
    def execute(self, requests):
        return [self.answer(each, *row(each)) for each in requests]

    def answer(self, request, x, *rest):
{_indent(body)}
"""


def _indent(body: str) -> str:
    return "\n".join(f"        {line}" for line in body.strip("\n").splitlines())


_IN_A_THREAD = """
answers = []
thread = threading.Thread(target=lambda: answers.append({}))
thread.start()
thread.join()
return response(*answers)
"""

_ALONE = config(max_batch_size=1)


def caller(source: str) -> Files:
    return model(source, _ALONE)


# By the way of the call and by who makes it; each calls the model that its input says.
_TARGETS = 'name, is_decoupled = ("countdown", True) if x else ("one", False)\n'
CELLS: dict[str, Files] = {
    "exec_sync": caller(plain(_TARGETS + "return response(take_exec(name, is_decoupled))")),
    "exec_async": caller(coroutine(_TARGETS + "return response(take_exec(name, is_decoupled))")),
    "exec_thread": caller(plain(_TARGETS + _IN_A_THREAD.format("take_exec(name, is_decoupled)"))),
    "async_exec_sync": caller(
        plain(_TARGETS + "return response(asyncio.run(take_async_exec(name, is_decoupled)))")
    ),
    "async_exec_async": caller(
        coroutine(_TARGETS + "return response(await take_async_exec(name, is_decoupled))")
    ),
    "async_exec_thread": caller(
        plain(_TARGETS + _IN_A_THREAD.format("asyncio.run(take_async_exec(name, is_decoupled))"))
    ),
}

TARGETS: dict[str, Files] = {
    "one": model(),
    "countdown": model(
        decoupled_code("for value in range(int(x[0, 0]), 0, -1):\n    send([[value]])"),
        config(DECOUPLED),
    ),
}

# A decoupled coroutine passes responses of another model on as they come; a plain model adds them.
RELAYS: dict[str, Files] = {
    "relay": model(
        _TOP
        + """

class TritonPythonModel:
    async def execute(self, requests):
        await asyncio.gather(*(self.relay(each, *row(each)) for each in requests))

    async def relay(self, request, x):
        sender = request.get_response_sender()
        async for each in await call("countdown", x).async_exec(decoupled=True):
            sender.send(checked(each))
        sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
""",
        config(DECOUPLED),
    ),
    "relayed": caller(plain('return response(take_exec("relay", True))')),
}

CIRCLES: dict[str, Files] = {
    "sync_self": caller(plain('return passed_on(call("sync_self", x).exec())')),
    "blocking_self": caller(coroutine('return passed_on(call("blocking_self", x).exec())')),
    # As deep as its input says.
    "deep": caller(
        coroutine(
            """
if x <= 0:
    return response(0.0)
answer = await call("deep", x - 1).async_exec()
return passed_on(answer) if answer.has_error() else response(value(answer) + 1)
"""
        )
    ),
}

# Asks `deep` or `meeting` so many times at once: how many answers, how many errors.
GATHER = caller(
    coroutine(
        """
depth, name = rest
names = ["deep", "meeting"]
calls = [call(names[int(name)], depth).async_exec() for _ in range(int(x))]
answers = await asyncio.gather(*calls)
errors = [answer.error().message() for answer in answers if answer.has_error()]
assert all("never be answered" in each for each in errors), errors[:3]
return response(len(answers) - len(errors), len(errors))
"""
    )
)

# Nobody is answered before so many are there, as the input says.
MEETING = caller(
    coroutine(
        """
async with self.changed:
    self.arrived += 1
    self.changed.notify_all()
    await self.changed.wait_for(lambda: self.arrived >= x)
return response(self.arrived)
""",
        initialize="self.arrived, self.changed = 0, asyncio.Condition()",
    )
)

# Waits until it is cancelled; asked with -1, it says how often it was.
PATIENT = caller(
    coroutine(
        """
if x < 0:
    return response(self.cancelled)
while not request.is_cancelled():
    await asyncio.sleep(0.001)
self.cancelled += 1
return response(0.0)
""",
        initialize="self.cancelled = 0",
    )
)

# Calls the one above and is cancelled; how many of its calls are left over.
HASTY = caller(
    coroutine(
        """
from pytriton.runtime.pb_utils.runtime import current_runtime

task = asyncio.ensure_future(call("patient", 1.0).async_exec())
await asyncio.sleep(0)
task.cancel()
await asyncio.wait([task])
assert task.cancelled()
connection = current_runtime()._connection
while "calls=0" not in repr(connection):
    await asyncio.sleep(0.001)
return response(0.0)
"""
    )
)
