# SPDX-License-Identifier: Apache-2.0
"""The HTTP API over a real engine, whose models answer what a test tells them to."""

from __future__ import annotations

import asyncio
import json

import msgspec
import numpy as np

from pytriton.base import dtypes
from pytriton.base.errors import ServerError
from pytriton.base.messages import InferResponse, InferTensor, ResponseBurst
from pytriton.runtime.executor.inference import Inference, Outcome, RunningBatch
from pytriton.serving.engine.config import config_from_text, normalise_config, spec_from_config
from pytriton.serving.engine.engine import Engine
from pytriton.serving.engine.model import Model
from pytriton.serving.server.api.background import LoopBudget
from pytriton.serving.server.api.local_client import LocalClient
from pytriton.serving.server.binding.bound_control import BoundControl
from pytriton.serving.server.codec.child import run_job
from pytriton.serving.server.codec.messages import decode_job, decode_reply, encode
from pytriton.serving.server.codec.pool import CodecPool
from pytriton.serving.server.http.api import HttpApi
from pytriton.serving.server.options.server_options import ClientLimits, ServerOptions
from pytriton.serving.server.process.logs import LogControl
from pytriton.serving.server.tracing.settings import TraceSettings
from tests.server.http_fakes import Answer, Client, FakeLoop

INFER = b"/v2/models/double/infer"
MODELS = {
    "double": """max_batch_size: 8
        input [ { name: "x" data_type: TYPE_FP32 dims: [ -1 ] } ]
        output [ { name: "y" data_type: TYPE_FP32 dims: [ -1 ] } ]""",
    "stream": """model_transaction_policy { decoupled: true }
        input [ { name: "prompt" data_type: TYPE_STRING dims: [ 1 ] } ]
        output [ { name: "text" data_type: TYPE_STRING dims: [ 1 ] } ]""",
}


class ScriptedInstance:
    """Runs whatever it is given until the test answers for it."""

    name = "scripted"
    free_slots = 1000
    is_idle = True
    executing_batches = ()

    def __init__(self, model: Model) -> None:
        self._model = model
        self.inferences: list[Inference] = []
        self.cancelled: list[Inference] = []
        self.granted = 0

    def start(self) -> None:
        self.inferences.clear()

    def execute(self, inferences: list[Inference], now_ns: int) -> None:
        for inference in inferences:
            inference.instance = self
        self.inferences += inferences

    def cancel(self, inference: Inference) -> None:
        self.cancelled.append(inference)

    def grant(self, inference: Inference, count: int) -> None:
        self.granted += count

    def stop(self) -> None:
        self._model.on_died(self, "it was stopped")

    def answer(self, *outputs: InferTensor, final: bool = True, index: int = 0, **more) -> None:
        """Respond to a request that runs; without outputs, only end it."""
        inference = self.inferences[index]
        response = None
        if outputs:
            name = self._model.spec.name
            response = InferResponse(name, "1", inference.request.fields.id, list(outputs), **more)
        self._report(inference, Outcome(0, response, None, final))

    def answer_burst(self, burst: ResponseBurst, index: int = 0) -> None:
        """Respond many times at once."""
        batch = RunningBatch(1, [self.inferences[index]], 0, {0})
        self._model.on_burst(self, batch, 0, burst, (0, 0))

    def fail(self, error: ServerError, index: int = 0) -> None:
        self._report(self.inferences[index], Outcome(0, None, error))

    def _report(self, inference: Inference, outcome: Outcome) -> None:
        batch = RunningBatch(1, [inference], 0, {0})
        self._model.on_outcomes(self, batch, [outcome], (0, 0))


class InlineBackground:
    """Does at once what a thread would do, and counts it."""

    def __init__(self) -> None:
        self.count = 0

    async def run(self, function, *arguments):
        self.count += 1
        return function(*arguments)

    def close(self) -> None:
        self.count = -1


class HeldBackground:
    """Runs what it is given when the test says so."""

    def __init__(self) -> None:
        self.waiting: list[asyncio.Future[None]] = []

    async def run(self, function, *arguments):
        self.waiting.append(asyncio.get_running_loop().create_future())
        await self.waiting[-1]
        return function(*arguments)

    def close(self) -> None:
        self.waiting.clear()


class InlineProcess:
    """Does a job of a codec process in this one."""

    pid = 0

    def run(self, job, text):
        reply, self._payload = run_job(decode_job(encode(job)), bytes(text))
        return decode_reply(encode(reply))

    def payload(self, sizes):
        assert [len(part) for part in self._payload] == list(sizes)
        return list(map(bytes, self._payload))

    def payload_into(self, memory, sizes):
        parts = []
        for part, size in zip(self.payload(sizes), sizes, strict=True):
            memory[:size] = part
            parts.append(memory[:size])
            memory = memory[size:]
        return parts

    def has_ended(self) -> bool:
        return False

    def kill(self) -> None:
        self.pid = -1

    def close(self) -> None:
        self.kill()


class Service:
    """A server without its sockets."""

    def __init__(
        self,
        limits: ClientLimits | None = None,
        *,
        control=None,
        loop=None,
        background=None,
        tracing=None,
        access=None,
        **options,
    ) -> None:
        self.loop = loop or FakeLoop()
        self.engine = Engine()
        self.options = ServerOptions(limits=limits or ClientLimits(), **options)
        self.control = control or BoundControl(self.engine, self.loop)
        traces = TraceSettings.read(self.options.trace_settings)
        self.background = background or InlineBackground()
        codec = CodecPool(self.loop, self.background, InlineProcess)
        self.client = LocalClient(
            self.engine,
            self.control,
            traces,
            strict_readiness=self.options.strict_readiness,
            change_log_settings=LogControl(self.options.log).change,
        )
        if tracing is not None:
            self.client.observers.add("tracing", tracing)
        self.api = HttpApi(self.client, self.options, self.loop, access=access)
        self.api._bodies._background, self.api._bodies._open_codec = self.background, codec
        # By the loop's clock, so that nothing waits for another turn on a busy machine.
        self.api._bodies._loop_budget = LoopBudget(self.loop, self.loop.time)
        self.instances: dict[str, ScriptedInstance] = {}
        for name, text in MODELS.items():
            self._serve(name, text)
        self.loop.run()

    def _serve(self, name: str, text: str) -> None:
        config = config_from_text(f'name: "{name}" backend: "python" {text}', "config.pbtxt")
        model = Model(
            spec_from_config(normalise_config(config), 1),
            self.loop,
            config_json=b"{}",
            is_bound=isinstance(self.control, BoundControl),
        )
        self.instances[name] = ScriptedInstance(model)
        self.engine.add(model)
        self.engine.set_ready(model)
        model.add_instance(self.instances[name])

    def annotate(self, name: str) -> None:
        """Let a model be a function with annotations from now on."""
        model = self.engine.lookup(name, "")
        model.spec = msgspec.structs.replace(model.spec, takes_parameters=False)

    @property
    def double(self) -> ScriptedInstance:
        return self.instances["double"]

    @property
    def stream(self) -> ScriptedInstance:
        return self.instances["stream"]

    def connect(self) -> Client:
        return Client(self.api)


def infer_body(*values: float, **more) -> bytes:
    tensor = {"name": "x", "shape": [1, len(values)], "datatype": "FP32", "data": values}
    return json.dumps({"inputs": [tensor], **more}).encode()


def ask(service: Service, request: bytes) -> Answer:
    client = service.connect()
    client.send(request)
    (answer,) = client.answers()
    return answer


def error(answer: Answer) -> str:
    document = json.loads(answer.body)
    assert document.keys() == {"error"}
    assert answer.headers[b"Content-Type"] == b"application/json"
    return document["error"]


def floats(*values: float) -> InferTensor:
    data = np.array(values, np.float32).tobytes()
    return InferTensor("y", dtypes.FP32, (1, len(values)), data)


def text(value: str) -> InferTensor:
    return InferTensor("text", dtypes.BYTES, (1,), dtypes.encode_bytes([value.encode()]))
