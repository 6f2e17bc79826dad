# SPDX-License-Identifier: Apache-2.0
"""Models of the Python backend that answer each request with what a test's function makes of it."""

from __future__ import annotations

import asyncio
import json
import queue
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils

# By the name of the model's folder, which a bench makes up.
FUNCTIONS: dict[str, Callable[..., Any]] = {}


class ModelRequest(dict[str, np.ndarray]):
    """A request in the form that functions of bound models get."""

    def __init__(self, request) -> None:
        super().__init__({tensor.name(): tensor.as_numpy() for tensor in request.inputs()})
        self.parameters = json.loads(request.parameters() or "{}")
        self.requested_output_names = request.requested_output_names()


class _Model:
    def initialize(self, args):
        self._function = FUNCTIONS[args["model_repository"]]

    def _answer(self, request):
        outputs = self._function(ModelRequest(request))
        tensors = [pb_utils.Tensor(name, array) for name, array in outputs.items()]
        return pb_utils.InferenceResponse(tensors)

    def _send(self, request):
        final = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL
        request.get_response_sender().send(self._answer(request), flags=final)


class PlainModel(_Model):
    def execute(self, requests):
        return [self._answer(request) for request in requests]


class SendingModel(_Model):
    """Sends its responses, though it could return them."""

    def execute(self, requests):
        for request in requests:
            self._send(request)


class CoroutineModel(_Model):
    """Returns its responses from a coroutine."""

    async def execute(self, requests):
        await asyncio.sleep(0)
        return [self._answer(request) for request in requests]


class DecoupledModel(SendingModel):
    """Sends its responses, as it must."""


class StreamModel(_Model):
    """Sends whatever a generator function yields, before `execute` returns."""

    def execute(self, requests):
        for request in requests:
            self._stream(request)

    def _stream(self, request):
        sender = request.get_response_sender()
        for array in self._function(ModelRequest(request)):
            if request.is_cancelled():
                break
            sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("y", array)]))
        sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)


class ThreadedStreamModel(StreamModel):
    """Like the former, but on a thread of its own for each request: `execute` returns at once."""

    def execute(self, requests):
        for request in requests:
            threading.Thread(target=self._stream, args=[request], daemon=True).start()


class SharedThreadModel(_Model):
    """Sends a response to each request in turn, from one thread for all, as engines do."""

    def initialize(self, args):
        super().initialize(args)
        self._requests = queue.SimpleQueue()
        threading.Thread(target=self._run, daemon=True).start()

    def execute(self, requests):
        for request in requests:
            self._requests.put(request)

    def finalize(self):
        self._requests.put(None)

    def _run(self):
        streams = {}
        while True:
            while not streams or not self._requests.empty():
                request = self._requests.get()
                if request is None:
                    return
                streams[request] = iter(self._function(ModelRequest(request)))
            for request, arrays in list(streams.items()):
                sender = request.get_response_sender()
                array = None if request.is_cancelled() else next(arrays, None)
                if array is not None:
                    sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("y", array)]))
                else:
                    sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
                    del streams[request]


class CoroutineStreamModel(_Model):
    """Sends whatever a generator function yields, from one coroutine for each request."""

    async def execute(self, requests):
        await asyncio.gather(*map(self._stream, requests))

    async def _stream(self, request):
        sender = request.get_response_sender()
        for array in self._function(ModelRequest(request)):
            if request.is_cancelled():
                break
            sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("y", array)]))
            await asyncio.sleep(0)
        sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)


class DecoupledCoroutineModel(_Model):
    async def execute(self, requests):
        await asyncio.sleep(0)
        for request in requests:
            self._send(request)
