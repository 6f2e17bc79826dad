# SPDX-License-Identifier: Apache-2.0
"""An engine and a client of it: called directly, or over the sockets of a front end.

The front end is in the process and on the event loop of the test, so that both of its sides can be
looked at.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from itertools import accumulate
from typing import Any

import numpy as np

from pytriton.base import dtypes
from pytriton.base.columns import ColumnKind
from pytriton.base.log_switches import LogSwitches
from pytriton.base.messages import InferRequest, InferTensor, RequestFields, TraceOrigin
from pytriton.base.model_spec import BatcherSpec, ModelSpec, ModelTensor
from pytriton.decorators import TritonContext
from pytriton.model_config import ModelConfig
from pytriton.runtime.executor.channel_instance import ChannelInstance
from pytriton.runtime.executor.columns import (
    ChunkSignature,
    make_members,
    shared_request,
)
from pytriton.runtime.executor.inference import Inference, ModelLabels
from pytriton.runtime.functions.bound_model import BoundModel
from pytriton.runtime.transport.arena import MemoryTrimmer
from pytriton.runtime.transport.frontend_frames import Configure
from pytriton.runtime.transport.link import socket_pair
from pytriton.runtime.transport.memory_channel import MemoryChannel
from pytriton.serving.engine.engine import Engine
from pytriton.serving.engine.model import Model
from pytriton.serving.server.api.local_client import LocalClient
from pytriton.serving.server.frontend.registry_feed import RegistryFeed
from pytriton.serving.server.frontend.remote_client import RemoteClient
from pytriton.serving.server.frontend.remote_tracing import RemoteTracing
from pytriton.serving.server.frontend.session import FrontEndSession, SharedParts
from pytriton.serving.server.tracing.settings import TraceSettings
from pytriton.serving.server.tracing.tracing import SpanExporter, Tracing
from tests.chunks import JoinedChunk, PiecesChunk
from tests.column_rig import NAMES, WIDTH, DoublingInstance, Ends, values_of
from tests.contract.benches import to_tensor
from tests.e2e.loop_waiting import comes_true
from tests.e2e.waiting import DEADLINE_S
from tests.fakes import FakeInstance, RecordingSink, infer_request


class Kept:
    """Keeps the spans of each traced request."""

    def __init__(self) -> None:
        self.traces: list[dict[str, Any]] = []

    def add(self, spans: list[Any]) -> None:
        self.traces.append({span.name: span for span in spans})

    async def close(self, timeout_s: float) -> None:
        raise AssertionError("nobody closes it")


class Control:
    """Loads and unloads models as a test says; the engine's models are the index."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []
        self.entries: list[Any] = []
        self.work: Callable[[], None] = lambda: None  # what a load or unload does
        self.is_serving = True

    def index(self, *, ready: bool = False) -> list[Any]:
        return [entry for entry in self.entries if entry.state == "READY" or not ready]

    async def load(self, name: str, config: str | None, files: Any, patterns: Any = None) -> None:
        self.calls.append(("load", name, config, dict(files)))
        await asyncio.sleep(0)
        self.work()

    async def unload(self, name: str, *, unload_dependents: bool = False) -> None:
        self.calls.append(("unload", name, unload_dependents))
        await asyncio.sleep(0)
        self.work()

    def is_ready(self) -> bool:
        return self.is_serving


class JoinedFrontEnd:
    """A front end and the core's session with it, joined by a pair of sockets."""

    def __init__(self, shared: SharedParts, name: str = "front end 0") -> None:
        ours, theirs = socket_pair()
        self.events: list[Any] = []  # what the core's pool hears
        self.frames: list[Any] = []  # what the process hears
        self.lost: list[Exception] = []
        self.exits = 0
        self.session = FrontEndSession(
            name, ours, shared, on_event=self.events.append, on_lost=self.lost.append
        )
        self.client = RemoteClient(
            theirs,
            shared.loop,
            on_exiting=self._on_exiting,
            on_frame=self.frames.append,
            on_lost=self.lost.append,
        )
        self.client.link.start()
        self.session.start(Configure(b"", LogSwitches(), 0))

    @property
    def link(self) -> Any:
        return self.client.link

    @property
    def channels(self) -> tuple[MemoryChannel, MemoryChannel]:
        """The core's end, and the front end's."""
        session: Any = self.session
        return session._channel.channel, self.link._channel.channel

    def exchange_updates(self) -> None:
        """Send what each side has to say about memory."""
        for channel in self.channels:
            channel.send_memory_update()

    def left_overs(self) -> dict[str, int]:
        """What is kept on both sides for requests; nothing if all of them have ended."""
        link = self.link
        counts = {
            "requests of the session": self.session.request_count,
            "calls of the link": len(link._calls),
            "chunks of the link": len(link._chunks),
            "numbered chunks": len(link._chunks._calls),
            "questions": len(link._questions),
            "waiting messages": len(link._items) + len(link._chunk_items),
            "blocks of the core": self.channels[0].tracker.lent_count,
            "blocks of the front end": self.channels[1].tracker.lent_count,
        }
        return {name: count for name, count in counts.items() if count}

    def close(self) -> None:
        self.session.close()
        self.client.link.close()

    def _on_exiting(self) -> None:
        self.exits += 1


class Call:
    """A request that was submitted, and what its sink was told."""

    def __init__(self, inference: Inference, sink: RecordingSink) -> None:
        self.inference = inference
        self.sink = sink

    @property
    def is_over(self) -> bool:
        return self.sink.final_count > 0

    @property
    def response(self) -> Any:
        assert (self.sink.errors, self.sink.final_count) == ([], 1)
        (only,) = self.sink.responses
        return only

    @property
    def values(self) -> dict[str, list[Any]]:
        return values_of(self.response)

    @property
    def error(self) -> str:
        """The text of the error that ended it; `refused: ` is before that of a refusal."""
        assert (self.sink.responses, self.sink.final_count) == ([], 1)
        (only,) = self.sink.errors
        return f"refused: {only.message}" if self.sink.refusals else only.message


class SteppedLoop(asyncio.SelectorEventLoop):
    """A loop that a test runs in steps, in real time: models run in threads here."""

    def run(self) -> None:
        """Let everything happen that does not wait for something outside."""
        self.run_until_complete(_some_rounds())

    def close(self) -> None:
        """End also what waits: a task that is freed so writes into the log of a later test."""
        if not self.is_closed():
            for task in asyncio.all_tasks(self):
                task.cancel()
            self.run()
        super().close()


async def _some_rounds() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


class Seam:
    """An engine with a client; `client` is the one under test."""

    def __init__(self, *, is_remote: bool) -> None:
        self.is_remote = is_remote
        self.loop = SteppedLoop()
        self.engine = Engine()
        self.control = Control()
        self.spans = Kept()
        self.tracing = Tracing(
            TraceSettings.read(["mode=opentelemetry", "rate=0"]), SpanExporter(self.spans)
        )
        self.local = LocalClient(self.engine, self.control, self.tracing.settings)
        self.client: Any = self.local
        self.engine.observers.add("tracing", self.tracing)
        self.front_ends: list[JoinedFrontEnd] = []
        self.ends = Ends()
        self.log: list[Any] = []  # names of requests in the order of their answers
        self._bound: list[tuple[BoundModel, ChannelInstance]] = []
        self._signatures: dict[Any, ChunkSignature] = {}
        self.memory = MemoryTrimmer(self.loop)  # of the instances
        if is_remote:
            rates = self.tracing.settings.rates
            feed = RegistryFeed(self.engine, self.local.is_serving, self.loop, rates)
            core_memory = MemoryTrimmer(self.loop)
            self.shared = SharedParts(
                self.engine, self.local, self.tracing, feed, core_memory, self.loop
            )
            self.add_front_end()
            self.client = self.front_ends[0].client
            tracing = RemoteTracing(self.client.link.send, self.client)
            self.client.observers.add("tracing", tracing)

    def add_front_end(self) -> JoinedFrontEnd:
        front_end = JoinedFrontEnd(self.shared, f"front end {len(self.front_ends)}")
        self.front_ends.append(front_end)
        return front_end

    # Models

    def doubling(self, instances: int = 1, **spec: Any) -> tuple[Model, list[DoublingInstance]]:
        """Add a ready model whose instances double `x` and `y`."""
        model = Model(doubling_spec(**spec), self.loop)
        version = str(model.spec.version)
        batching = model.spec.max_batch_size > 0
        made = [
            DoublingInstance(f"m_0_{index}", model, batching=batching, version=version)
            for index in range(instances)
        ]
        self.serve(model, made)
        return model, made

    def faked(self, concurrency: int = 1, **spec: Any) -> tuple[Model, FakeInstance]:
        """Add a ready model whose instance answers as a test says."""
        model = Model(doubling_spec(**spec), self.loop)
        instance = FakeInstance("m_0_0", model, concurrency)
        self.serve(model, [instance])
        return model, instance

    def bind(
        self, infer_func: Any, inputs: list[Any], outputs: list[Any], **config: Any
    ) -> tuple[Model, ChannelInstance]:
        """Add a ready model whose function runs in a thread, behind a channel."""
        decoupled = config.get("decoupled", False)
        bound = BoundModel("m", infer_func, inputs, outputs, config=ModelConfig(**config))
        bound.prepare(TritonContext())
        sockets, concurrency = bound.open_instances(lambda: None)
        batching = bound.config.batching
        spec = ModelSpec(
            name="m",
            version=1,
            platform="python",
            max_batch_size=bound.config.max_batch_size if batching else 0,
            inputs={each.name: tensor_spec(each) for each in bound.config.inputs},
            outputs={each.name: tensor_spec(each) for each in bound.config.outputs},
            required_inputs=frozenset(each.name for each in bound.config.inputs),
            batcher=BatcherSpec() if batching else None,
            decoupled=decoupled,
        )
        model = Model(spec, self.loop)
        labels = ModelLabels("m", "1", list(spec.inputs), batching=batching)
        instance = ChannelInstance(
            "m_0_0",
            labels,
            MemoryChannel(sockets[0], self.memory.arena),
            self.memory,
            self.loop,
            model,
            concurrency[0],
        )
        self._bound.append((bound, instance))
        self.serve(model, [instance])
        return model, instance

    def serve(self, model: Model, instances: list[Any]) -> None:
        """Register a model with instances, and make it ready on both sides."""
        self.engine.add(model)
        for instance in instances:
            model.add_instance(instance)
        self.engine.set_ready(model)
        self.run()

    # Requests

    def infer(
        self,
        values: list[int] | None = None,
        *,
        name: Any = None,
        inputs: dict[str, InferTensor] | None = None,
        traceparent: str | None = None,
        sink: Any = None,
        **fields: Any,
    ) -> Call:
        """Submit a request for `m` in this iteration of the loop."""
        if inputs is None:
            inputs = doubling_inputs(values or [1, 2])
        request = infer_request(
            **{"model_name": "m", "inputs": inputs, "received_ns": time.monotonic_ns(), **fields}
        )
        sink = sink or RecordingSink(name, self.log)
        if traceparent is not None:
            sink.origin = lambda: TraceOrigin("HTTP", traceparent)
        inference = self.client.infer(request, sink)
        return Call(inference, sink)

    def chunk(
        self,
        values: list[list[int]],
        *,
        model: Any = None,
        details: list[dict[str, Any]] | None = None,
        wanted: tuple[str, ...] | None = None,
        joined: bool = False,
        ends: Ends | None = None,
    ) -> tuple[Any, list[Inference]]:
        """Submit small requests with these values as a chunk; returns it and its members."""
        model = model or self.client.lookup("m")
        signature = self._signature(model, wanted)
        cells: list[Any] = [np.array(each, np.int32).tobytes() for each in values]
        rows = [len(each) // WIDTH for each in values]
        starts: Any = range(len(rows) + 1) if set(rows) == {1} else [0, *accumulate(rows)]
        sink = ends or self.ends
        chunk: Any
        if joined:
            column = memoryview(b"".join(cells))
            chunk = JoinedChunk.of(signature, sink, (column, column), starts)
        else:
            chunk = PiecesChunk.of(signature, sink, (cells, cells), starts)
        shared: dict[Any, InferRequest] = {}
        requests = []
        for index, each in enumerate(rows):
            own = details[index] if details else {}
            key = (each, *sorted(own.items()))
            if key not in shared:
                fields = RequestFields(**own)
                shared[key] = shared_request("m", signature, time.monotonic_ns(), fields, rows=each)
            requests.append(shared[key])
        members = make_members(chunk, model, requests)
        if model.quotas is None:
            model.submit_chunk(members, time.monotonic_ns())
        else:
            model.quotas.submit_chunk(model, members, time.monotonic_ns())
        return chunk, members

    def _signature(self, model: Any, wanted: tuple[str, ...] | None) -> ChunkSignature:
        kept = self._signatures.get((model, wanted))
        if kept is None:
            inputs = tuple(ColumnKind(name, dtypes.INT32, (WIDTH,), 4 * WIDTH) for name in NAMES)
            kept = self._signatures[model, wanted] = ChunkSignature(inputs, wanted)
        return kept

    # The loop

    def run(self) -> None:
        """Let everything happen that does not wait for time or for a thread."""
        for _ in range(3):
            self.loop.run()

    def finish(self, *instances: Any) -> None:
        while any(instance.running for instance in instances):
            for instance in instances:
                if instance.running:
                    instance.double()
            self.run()

    def until(self, condition: Callable[[], Any]) -> None:
        """Let the loop run until a condition comes true."""
        came_true = self.loop.run_until_complete(comes_true(condition))
        assert came_true, "the condition did not come true"

    def ask(self, answer: Any) -> Any:
        """The answer to a question, known or to be awaited."""
        if not asyncio.iscoroutine(answer):
            return answer
        return self.loop.run_until_complete(asyncio.wait_for(answer, DEADLINE_S))

    def exchange_updates(self) -> None:
        """Let all sides know which blocks are free again."""
        for _ in range(2):
            for front_end in self.front_ends:
                front_end.exchange_updates()
            for _, instance in self._bound:
                if instance._channel.is_open:
                    instance._channel.channel.send_memory_update()
            self.run()

    def until_nothing_is_left(self) -> None:
        """Wait until no request, chunk, question or block is kept on either side.

        A thread of a model may release its last block some time after it has answered.
        """
        end = time.monotonic() + DEADLINE_S
        while any(front_end.left_overs() for front_end in self.front_ends):
            found = [front_end.left_overs() for front_end in self.front_ends]
            assert time.monotonic() < end, found
            self.exchange_updates()
        assert [front_end.lost for front_end in self.front_ends if front_end.lost] == []
        assert [model for model in self.engine.models() if model.is_busy] == []

    def close(self) -> None:
        for front_end in self.front_ends:
            front_end.close()
        for bound, instance in self._bound:
            instance.stop()
            self.until(lambda bound=bound: not bound.is_alive())
        self.memory.stop()
        if self.is_remote:
            self.shared.memory.stop()
        self.loop.close()


def tensor_spec(tensor: Any) -> ModelTensor:
    dtype = dtypes.BYTES
    if np.dtype(tensor.dtype) != np.dtype(object):
        found = dtypes.from_numpy(np.dtype(tensor.dtype))
        assert found is not None
        dtype = found
    dims = tuple(tensor.shape)
    return ModelTensor(
        name=tensor.name, dtype=dtype, dims=dims, shape=dims, has_variable_dims=-1 in dims
    )


def doubling_spec(
    max_batch_size: int = 8, batcher: BatcherSpec | None = None, **fields: Any
) -> ModelSpec:
    """A model with the inputs and outputs `x` and `y`, which batches dynamically."""
    tensors = {
        name: ModelTensor(name=name, dtype=dtypes.INT32, dims=(WIDTH,), shape=(-1, WIDTH))
        for name in NAMES
    }
    is_batched = max_batch_size > 0
    return ModelSpec(
        **{"name": "m", "version": 1, "platform": "python", **fields},
        max_batch_size=max_batch_size,
        inputs=tensors,
        outputs=tensors,
        required_inputs=frozenset(tensors),
        batcher=(batcher or BatcherSpec()) if is_batched else None,
    )


def doubling_inputs(values: list[int], *, batching: bool = True) -> dict[str, InferTensor]:
    array = np.array(values, np.int32)
    if batching:
        array = array.reshape(-1, WIDTH)
    return {name: to_tensor(name, array) for name in NAMES}


def doubled(values: list[int], names: tuple[str, ...] = NAMES) -> dict[str, list[int]]:
    """The right answer."""
    return {name: [2 * value for value in values] for name in names}
