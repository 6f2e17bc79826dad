# SPDX-License-Identifier: Apache-2.0
"""The same model as a backend of each kind, with the server's end of its channel in the test.

It echoes `x` as `y`. A batch that begins with -1 raises, and one that begins with -2 is refused.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import shutil
from typing import Any

import numpy as np
import pytest

from pytriton.decorators import TritonContext, batch
from pytriton.errors import InvalidArgumentError
from pytriton.model_config import ModelConfig
from pytriton.runtime.functions.bound_model import BoundModel
from pytriton.runtime.native_backend.stub import MACHINES
from pytriton.runtime.transport.frames import BatchFailure, BatchResult, Cancel, Credit, Finalize
from tests.contract.benches import floats
from tests.e2e.waiting import DEADLINE_S, eventually
from tests.native_backend.native_rig import NativeRig, compile_backend, config_of
from tests.python_backend.worker_rig import ANSWERS, Peer, WorkerRig, arrays_of

CONFIG = {**config_of({"x": "FP32"}, {"y": "FP32"}), "max_batch_size": 8}


def _checked(array):
    if array.flat[0] == -1:
        raise ValueError("broken")
    if array.flat[0] == -2:
        raise InvalidArgumentError("refused")
    return array


def _plain(requests):
    return [{"y": _checked(request["x"])} for request in requests]


@batch
def _whole(x):
    return {"y": _checked(x)}


async def _coroutine(requests):
    await asyncio.sleep(0)
    return _plain(requests)


def _generator(requests):
    yield _plain(requests)


async def _async_generator(requests):
    await asyncio.sleep(0)
    yield _plain(requests)


FUNCTIONS = {
    "function": (_plain, False),
    "function of whole batches": (_whole, False),
    "coroutine": (_coroutine, False),
    "generator": (_generator, True),
    "async generator": (_async_generator, True),
}
_HEAD = """
from pytriton.errors import InvalidArgumentError
FINAL = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL
def checked(array):
    if array.flat[0] == -1:
        raise ValueError("broken")
    if array.flat[0] == -2:
        raise InvalidArgumentError("refused")
    return array
def answer(request):
    array = checked(request.inputs()[0].as_numpy())
    return pb_utils.InferenceResponse([pb_utils.Tensor("y", array)])
def send(requests):
    for request, response in [(each, answer(each)) for each in requests]:
        request.get_response_sender().send(response, flags=FINAL)
class TritonPythonModel:
"""
_RETURNS = "    def execute(self, requests): return [answer(each) for each in requests]"
_SENDS = "    def execute(self, requests): send(requests)"
_THREAD = """
    def execute(self, requests):
        for each in requests:
            checked(each.inputs()[0].as_numpy())
        threading.Thread(target=send, args=[requests]).start()
"""
_COROUTINE = "    async def execute(self, requests): return [answer(each) for each in requests]"
_ENGINE = """
    async def execute(self, requests):
        for each in requests:
            checked(each.inputs()[0].as_numpy())
        for each in requests:
            sender = each.get_response_sender()
            await asyncio.sleep(0)
            sender.send(answer(each))
            sender.send(flags=FINAL)
"""
_WHOLE = "    def execute_batch(self, batch): return {'y': checked(batch.inputs['x'])}"
# The body of the model, and fields of its `Initialize`.
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "model.py": (_RETURNS, {}),
    "model.py that sends": (_SENDS, {}),
    "model.py with threads": (_THREAD, {}),
    "coroutine of a model.py": (_COROUTINE, {}),
    "decoupled model.py": (_SENDS, {"is_decoupled": True}),
    "engine with coroutines": (_ENGINE, {"is_decoupled": True}),
    "framework": (f"{_RETURNS}\n{_WHOLE}", {"package": ""}),
    "framework with whole batches only": (_WHOLE, {"package": ""}),
}
COMPILED = "compiled backend"
_LIBRARY = """
static float* data(TRITONBACKEND_Request* request, const int64_t** shape, uint64_t* size)
{
  TRITONBACKEND_Input* input;
  uint32_t dims, count;
  const void* buffer;
  TRITONSERVER_MemoryType type = TRITONSERVER_MEMORY_CPU;
  int64_t id = 0;
  TRITONBACKEND_RequestInputByIndex(request, 0, &input);
  TRITONBACKEND_InputProperties(input, NULL, NULL, shape, &dims, size, &count);
  TRITONBACKEND_InputBuffer(input, 0, &buffer, size, &type, &id);
  return (float*)buffer;
}
EXECUTE
{
  const int64_t* shape;
  uint64_t size;
  for (uint32_t i = 0; i < count; ++i) {
    float first = *data(requests[i], &shape, &size);
    if (first == -1) return TRITONSERVER_ErrorNew(TRITONSERVER_ERROR_INTERNAL, "broken");
    if (first == -2) return TRITONSERVER_ErrorNew(TRITONSERVER_ERROR_INVALID_ARG, "refused");
  }
  for (uint32_t i = 0; i < count; ++i) {
    float* input = data(requests[i], &shape, &size);
    TRITONBACKEND_Response* response;
    TRITONBACKEND_Output* output;
    TRITONSERVER_MemoryType type = TRITONSERVER_MEMORY_CPU;
    int64_t id = 0;
    void* buffer;
    TRITONBACKEND_ResponseNew(&response, requests[i]);
    TRITONBACKEND_ResponseOutput(response, &output, "y", TRITONSERVER_TYPE_FP32, shape, 2);
    TRITONBACKEND_OutputBuffer(output, &buffer, size, &type, &id);
    memcpy(buffer, input, size);
    TRITONBACKEND_ResponseSend(response, TRITONSERVER_RESPONSE_COMPLETE_FINAL, NULL);
    TRITONBACKEND_RequestRelease(requests[i], TRITONSERVER_REQUEST_RELEASE_ALL);
  }
  return NULL;
}
"""
KINDS = [*FUNCTIONS, *MODELS, COMPILED]


class Instance:
    """An instance of any kind, as the server sees it."""

    def __init__(self, peer, stop):
        self.stop = stop  # ends it; returns whether it ended well
        self._peer = peer

    def run(self, *requests):
        """Run a batch; the outputs of each request, or the frame or item with its error."""
        number = WorkerRig.execute(self._peer, *({"x": each} for each in requests))
        answers = [[] for _ in requests]
        open_positions = set(range(len(requests)))
        while open_positions:
            received = self._peer.hear(*ANSWERS)
            frame = received.frame
            if isinstance(frame, BatchFailure):
                return [frame] * len(requests)
            if isinstance(frame, BatchResult):
                whole = arrays_of(received, frame.outputs)["y"]
                ends = np.cumsum([len(each) for each in requests])
                return np.split(whole, ends[:-1])
            for item in frame.items:
                self._take(received, item, answers[item.position])
                assert item.batch == number
                assert item.position in open_positions, "answered after its end"
                if item.is_final:
                    open_positions.discard(item.position)
        for each in answers:
            assert len(each) == 1
        return [only for (only,) in answers]

    def cancel(self, batch, position):
        """Tell it that a request was cancelled."""
        self._peer.say(Cancel(batch, position))

    def _take(self, received, item, answers):
        if item.error is not None:
            answers.append(item)
        elif item.outputs:
            answers.append(arrays_of(received, item.outputs)["y"])
        if not item.is_final:
            self._peer.say(Credit(item.batch, item.position, 1))


def start_function(kind):
    """A bound function of a kind."""
    function, is_decoupled = FUNCTIONS[kind]
    config = ModelConfig(max_batch_size=8, decoupled=is_decoupled)
    model = BoundModel("m", function, floats("x"), floats("y"), config=config)
    model.prepare(TritonContext())
    (sock,), _ = model.open_instances(lambda: None)
    peer = Peer(sock)
    peer._batches = 0

    def stop():
        peer.close()
        has_ended = eventually(lambda: not model.is_alive())
        model.close(DEADLINE_S)
        return has_ended

    return Instance(peer, stop)


def start_worker(kind, zygote, folder):
    """A worker process with a model of a kind."""
    arguments = {"model_config": json.dumps(CONFIG)}
    if kind != COMPILED:
        body, fields = MODELS[kind]
        rig = WorkerRig(zygote, folder, _HEAD + body, arguments=arguments, **fields).start()
    elif shutil.which("cc") is None or not MACHINES:
        pytest.skip("there is no compiler")
    else:
        rig = NativeRig(zygote, compile_backend(folder, _LIBRARY), CONFIG)
        rig.start()

    def stop():
        rig.say(Finalize())
        rig.is_over = True
        with contextlib.suppress(EOFError):
            while True:
                rig.hear()
        rig.close()
        return zygote.wait(rig.pid) == 0

    return Instance(rig, stop)
