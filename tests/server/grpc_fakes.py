# SPDX-License-Identifier: Apache-2.0
"""A client of a gRPC connection without sockets: fake loop, transport and engine, real frames."""

from __future__ import annotations

import asyncio
from typing import Any, NamedTuple

import hpack
import msgspec

from pytriton.base import dtypes
from pytriton.base.errors import NotFoundError, ServerError
from pytriton.base.messages import InferRequest, InferResponse, InferTensor
from pytriton.base.model_spec import ModelSpec, ModelTensor
from pytriton.base.protos import service_pb2
from pytriton.protocol.grpc import message_prefix
from pytriton.protocol.grpc.status import percent_decode
from pytriton.protocol.http2 import frames
from pytriton.runtime.executor.inference import Inference, Outcome
from pytriton.serving.engine.delivery import deliver, deliver_burst, refuse
from pytriton.serving.engine.observers import Observers
from pytriton.serving.server.api.background import LoopBudget
from pytriton.serving.server.api.local_client import LocalClient
from pytriton.serving.server.binding.bound_control import BoundControl
from pytriton.serving.server.grpc.api import GrpcApi
from pytriton.serving.server.operations.table import OPERATIONS
from pytriton.serving.server.options.server_options import ServerOptions
from pytriton.serving.server.process.logs import LogControl
from pytriton.serving.server.tracing.settings import TraceSettings
from tests.bursts import numbers_burst
from tests.fake_network import FakeTransport
from tests.fakes import FakeLoop
from tests.wire.http2.frame_client import data, parse_frames, rst_stream, setting, window_update

SERVICE = "/inference.GRPCInferenceService"
INITIAL_WINDOW_SIZE = 4
WINDOW = 1 << 30


class FakeModel:
    """A model of two floats in and one out; a decoupled one answers as often as a test says."""

    def __init__(self, name: str, *, decoupled: bool = False) -> None:
        def spec(tensor: str) -> ModelTensor:
            return ModelTensor(name=tensor, dtype=dtypes.FP32, dims=(1,), shape=(1,))

        self.spec = ModelSpec(
            name=name,
            version=1,
            platform="python",
            max_batch_size=0,
            inputs={"x": spec("x")},
            outputs={"y": spec("y")},
            required_inputs=frozenset({"x"}),
            batcher=None,
            decoupled=decoupled,
        )
        self.config_json = msgspec.json.encode({"name": name})
        self.takes_columns = False

    def body_memory(self, size: int, header_bytes: int) -> memoryview | None:
        return None


class FakeEngine:
    """Keeps requests until a test answers them, and what else it was told."""

    def __init__(self) -> None:
        self.is_exiting = False
        self.observers = Observers(self.find)
        self.is_serving = True
        self.settled = None
        self.loaded = {
            "coupled": FakeModel("coupled"),
            "stream": FakeModel("stream", decoupled=True),
        }
        self.inferences: list[Inference] = []
        self.cancelled: list[Inference] = []
        self.flow: list[tuple[str, str]] = []  # what was paused and resumed, by id
        self.refusal: ServerError | None = None  # of whatever comes
        self.unread: list[tuple[str, str]] = []  # requests that it never got: model and message
        self.unread_kinds: list[str] = []

    def refuse(self) -> None:
        self.is_exiting = True

    async def wait_until_known(self) -> None:
        """There are no other front ends."""

    def lookup(self, name: str, version: str = "") -> Any:
        if name not in self.loaded:
            raise NotFoundError(f"Request for unknown model: '{name}' is not found")
        return self.loaded[name]

    def find(self, name: str, version: str = "") -> Any:
        return self.loaded.get(name)

    def is_ready(self) -> bool:
        return self.is_serving

    def models(self) -> list[Any]:
        return []

    def ready_models(self) -> list[str]:
        return []

    def ready_versions(self, name: str) -> list[int]:
        return [1]

    def report_refusal(self, name: str, version: str, request_id: str, error: ServerError) -> None:
        self.unread.append((name, error.message))
        self.unread_kinds.append(error.kind)

    def infer(
        self, request: InferRequest, sink: Any, trace: Any = None, fitting: Any = None
    ) -> Inference:
        inference = Inference(request, sink, trace, self)
        if self.refusal is not None:
            refuse(inference, self.refusal)
        else:
            self.inferences.append(inference)
        return inference

    def cancel(self, inference: Inference) -> None:
        self.cancelled.append(inference)

    def pause(self, inference: Inference) -> None:
        self.flow.append(("pause", inference.request.fields.id))

    def resume(self, inference: Inference) -> None:
        self.flow.append(("resume", inference.request.fields.id))

    # What a test makes it do

    def inference(self, request_id: str) -> Inference:
        (found,) = [each for each in self.inferences if each.request.fields.id == request_id]
        return found

    def answer(
        self, request_id: str = "", content: bytes | None = b"\0\0\x80\x3f", *, final=True
    ) -> None:
        """Respond to a request; without content, with something that no codec can write."""
        output = InferTensor("y", dtypes.FP32, (len(content or b"") // 4,), content)
        inference = self.inference(request_id)
        response = InferResponse(inference.request.model_name, "1", request_id, [output])
        deliver(inference, Outcome(0, response, is_final=final))

    def answer_burst(self, request_id: str, numbers: bytes) -> None:
        """Respond to a request with many responses at once, one for each byte."""
        inference = self.inference(request_id)
        name = inference.request.model_name
        deliver_burst(inference, numbers_burst(numbers, name=name, request_id=request_id))

    def end(self, request_id: str = "") -> None:
        deliver(self.inference(request_id), Outcome(0))

    def fail(self, error: ServerError, request_id: str = "") -> None:
        deliver(self.inference(request_id), Outcome(0, None, error))


class GatedBackground:
    """Does what threads would do, when a test says so."""

    def __init__(self) -> None:
        self.gate = asyncio.Event()
        self.waiting = 0

    async def run(self, function: Any, *arguments: Any) -> Any:
        self.waiting += 1
        await self.gate.wait()
        self.waiting -= 1
        return function(*arguments)


class Response(NamedTuple):
    """What came back on a stream: its head, messages, and trailers; None where it has none yet."""

    head: dict[str, str]
    messages: list[bytes]
    trailers: dict[str, str] | None

    @property
    def status(self) -> str:
        return (self.trailers or {}).get("grpc-status", "")

    @property
    def text(self) -> str:
        return percent_decode((self.trailers or {}).get("grpc-message", "").encode())


class GrpcClient:
    """Speaks to one connection of a `GrpcApi`; nothing moves until `run`."""

    def __init__(
        self,
        options: ServerOptions | None = None,
        *,
        window: int = WINDOW,
        engine: Any = None,
        control: Any = None,
        loop: Any = None,
        background: Any = None,
        tracing: Any = None,
        access: Any = None,
        client: Any = None,
        operations: Any = OPERATIONS,
        speaks: bool = True,
    ) -> None:
        self.engine = engine or FakeEngine()
        self.loop = loop or FakeLoop()
        control = control or BoundControl(self.engine, self.loop)
        options = options or ServerOptions()
        traces = TraceSettings.read(options.trace_settings)
        self.client = client or LocalClient(
            self.engine,
            control,
            traces,
            strict_readiness=options.strict_readiness,
            change_log_settings=LogControl(options.log).change,
        )
        if tracing is not None:
            self.client.observers.add("tracing", tracing)
        self.api = GrpcApi(self.client, options, self.loop, access=access, operations=operations)
        # By the loop's clock, so that nothing waits for another turn on a busy machine.
        self.api.work.loop_budget = LoopBudget(self.loop, self.loop.time)
        if background is not None:
            self.api.work.background = background
        self.connection = self.api.make_connection()
        self.transport = FakeTransport(self.loop, self.connection)
        self.transport.read_buffer = self.api.read_buffer
        self.connection.connection_made(self.transport)
        self._encoder = hpack.Encoder()
        self._decoder = hpack.Decoder()
        self._next_stream = 1
        self.sent: list[Any] = []  # every frame that came back
        if not speaks:
            return
        payload = setting(INITIAL_WINDOW_SIZE, window)
        self.receive(frames.PREFACE + frames.frame(frames.SETTINGS, 0, 0, payload))
        self.receive(window_update(0, WINDOW))

    def run(self) -> None:
        """Let the loop run and read what was written."""
        self.loop.run()
        self.sent += parse_frames(bytes(self.transport.taken))
        self.transport.taken.clear()

    def receive(self, content: bytes) -> None:
        self.transport.receive(content)
        self.run()

    def head(self, path: str, *fields: tuple[str, str], **options: Any) -> bytes:
        content_type = options.get("content_type", "application/grpc")
        block = self._encoder.encode(
            [
                (":method", options.get("verb", "POST")),
                (":scheme", "http"),
                (":path", path),
                (":authority", "localhost"),
                ("te", "trailers"),
                ("content-type", content_type),
                *fields,
            ]
        )
        flags = frames.END_HEADERS | (frames.END_STREAM if options.get("end_stream") else 0)
        stream_id = self._next_stream
        self._next_stream += 2
        return frames.frame(frames.HEADERS, flags, stream_id, block)

    def open(self, method: str, *fields: tuple[str, str], **options: Any) -> int:
        """Begin a call; its stream."""
        path = method if method.startswith("/") else f"{SERVICE}/{method}"
        self.receive(self.head(path, *fields, **options))
        return self._next_stream - 2

    def send(self, stream_id: int, *messages: bytes, end: bool = True) -> None:
        self.receive(data(stream_id, b"".join(map(framed, messages)), end_stream=end))

    def call(self, method: str, message: bytes = b"", *fields: tuple[str, str]) -> int:
        """Make a unary call; its stream."""
        stream_id = self.open(method, *fields)
        self.send(stream_id, message)
        return stream_id

    def reset(self, stream_id: int) -> None:
        self.receive(rst_stream(stream_id))

    def response(self, stream_id: int) -> Response:
        blocks = []
        body = bytearray()
        for sent in self.sent:
            if sent.stream_id != stream_id:
                continue
            if sent.kind == frames.HEADERS:
                blocks.append(dict(self._decoder.decode(sent.payload)))
            elif sent.kind == frames.DATA:
                body += sent.payload
        if not blocks:
            return Response({}, [], None)
        trailers = blocks[-1] if "grpc-status" in blocks[-1] else None
        return Response(blocks[0], unframed(bytes(body)), trailers)

    def goaways(self) -> list[Any]:
        return [sent for sent in self.sent if sent.kind == frames.GOAWAY]


def framed(message: bytes) -> bytes:
    return message_prefix(len(message)) + message


def unframed(body: bytes) -> list[bytes]:
    messages = []
    at = 0
    while at < len(body):
        begin, at = at + 5, at + 5 + int.from_bytes(body[at + 1 : at + 5], "big")
        messages.append(body[begin:at])
    return messages


def infer_request(model: str = "coupled", request_id: str = "", **fields: Any) -> bytes:
    """A request with one float."""
    request = service_pb2.ModelInferRequest(model_name=model, id=request_id, **fields)
    request.inputs.add(name="x", datatype="FP32", shape=[1])
    request.raw_input_contents.append(b"\0\0\x80\x3f")
    content: bytes = request.SerializeToString()
    return content
