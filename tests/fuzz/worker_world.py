# SPDX-License-Identifier: Apache-2.0
"""The server's side of workers, with the workers' ends of the channels in a fuzzer's hands.

Engine, models, instances, services and metrics are the server's own; processes there are none. Time
passes when nothing is to be done, and what is counted of the loop is its turns.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import struct
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import numpy as np

from pytriton.base import dtypes
from pytriton.base.messages import InferTensor
from pytriton.runtime.executor.channel_instance import ChannelInstance
from pytriton.runtime.executor.inference import ModelLabels
from pytriton.runtime.executor.python_instance import PythonInstance
from pytriton.runtime.executor.worker import LocalWorker, WorkerSpec
from pytriton.runtime.transport import frames, memory_channel, peer_account
from pytriton.runtime.transport.arena import Arena, MemoryTrimmer
from pytriton.runtime.transport.link import socket_pair, stream_pair
from pytriton.runtime.transport.memory_channel import MemoryChannel
from pytriton.runtime.transport.peer_account import ProtocolError
from pytriton.runtime.transport.refs import TensorRef
from pytriton.runtime.transport.stream_channel import StreamChannel, pack_head
from pytriton.serving.engine.config import config_from_text, normalise_config, spec_from_config
from pytriton.serving.engine.engine import Engine
from pytriton.serving.engine.model import Model
from pytriton.serving.repository.loading.plans import InstancePlan
from pytriton.serving.repository.loading.python_version import PythonVersion
from pytriton.serving.repository.services import custom_metrics, model_services
from pytriton.serving.repository.services.custom_metrics import CustomMetrics
from pytriton.serving.repository.services.model_services import ModelServices, SharedServices
from pytriton.serving.server.metrics.page import server_family_names
from pytriton.testing import FakeEventLoop
from tests.fakes import RecordingSink, request

INT32 = dtypes.INT32.number
CONFIG = """name: "{name}" backend: "python" {more}
    input [ {{ name: "IN" data_type: TYPE_INT32 dims: [ -1 ] }} ]
    output [ {{ name: "OUT" data_type: TYPE_INT32 dims: [ -1 ] }} ]"""
BATCHES = "max_batch_size: 8 dynamic_batching {}"
DECOUPLED = "model_transaction_policy { decoupled: true }"
# How a worker is reached, and what kind of model it says it runs.
KINDS = ("model", "decoupled", "bound", "forked", "portable", "remote", "starting")
_PORTABLE = ("portable", "remote")  # their messages go through streams

# Small limits, which floods reach soon.
LIMITS = (
    (peer_account, "MAX_MESSAGE_BYTES", 2 << 20),
    (peer_account, "MAX_PARTIAL_BYTES", 3 << 20),
    (peer_account, "MAX_UNREAD_BYTES", 256 << 10),
    (peer_account, "MAX_MAPPED_BYTES", 64 << 20),
    (peer_account, "MAX_SEGMENTS", 32),
    (peer_account, "MAX_CALLS", 20),
    (peer_account, "MAX_CALL_BYTES", 1 << 20),
    (memory_channel, "MAX_RELEASES", 500),
    (custom_metrics, "MAX_FAMILIES", 20),
    (custom_metrics, "MAX_SERIES", 200),
    (custom_metrics, "MAX_CHARACTERS", 1 << 16),
    (model_services, "MAX_RUNNING", 20),
    (model_services, "_LINES_AT_ONCE", 50),
)


@contextlib.contextmanager
def small_limits() -> Iterator[None]:
    """Let workers reach what the server holds for them at most."""
    with contextlib.ExitStack() as stack:
        for module, name, limit in LIMITS:
            stack.enter_context(mock.patch.object(module, name, limit))
        yield


class TurnLoop(FakeEventLoop):
    """A loop that counts its turns, and knows how much processor time the longest has taken."""

    def __init__(self) -> None:
        super().__init__()
        self.turns = 0
        self.longest_ns = 0
        self.problems: list[dict[str, Any]] = []
        self.set_exception_handler(lambda _, context: self.problems.append(context))

    def _run_once(self) -> None:
        began_ns = time.thread_time_ns()
        super()._run_once()
        self.turns += 1
        self.longest_ns = max(self.longest_ns, time.thread_time_ns() - began_ns)


class Worker:
    """The far end of a worker's channel, and who answers there: a good worker, until told else."""

    def __init__(self, loop: TurnLoop, far: socket.socket, kind: str = "model") -> None:
        self.loop = loop
        self._kind = kind
        self._socket = far
        self.channel: Any = StreamChannel(far) if kind == "remote" else MemoryChannel(far, Arena())
        self.fork_socket: socket.socket | None = None
        self.exited: asyncio.Future[str] = loop.create_future()
        self.is_hostile = False
        self.is_reading = True
        self._queue: deque[tuple[bytes, list[int]]] = deque()  # what is to be sent as it is
        far.setblocking(False)
        loop.add_reader(far.fileno(), self._on_readable)

    def exit(self) -> None:
        """The process is gone, with all that it has not sent."""
        if not self.exited.done():
            self.stop_reading()
            self._end_queue()
            self.channel.close()
            if self.fork_socket is not None:
                self.fork_socket.close()
            self.exited.set_result("it was killed")

    def stop_reading(self) -> None:
        """Leave what the server sends."""
        if self.is_reading:
            self.is_reading = False
            self.loop.remove_reader(self.channel.fileno())

    def say(self, message: bytes, descriptors: list[int]) -> None:
        """Send a message as it is when there is room, and close these descriptors then."""
        if self._kind == "portable":
            message = struct.pack("<I", len(message)) + message
        elif self._kind == "remote":
            message = _of_stream(message)
        self._queue.append((message, descriptors))
        if self.exited.done():
            self._end_queue()
        else:
            self.loop.add_writer(self.channel.fileno(), self._on_writable)

    def _end_queue(self) -> None:
        for descriptor in [each for _, descriptors in self._queue for each in descriptors]:
            os.close(descriptor)
        self._queue.clear()
        if self.channel.fileno() >= 0:
            self.loop.remove_writer(self.channel.fileno())

    def _on_writable(self) -> None:
        try:
            while self._queue:
                message, descriptors = self._queue[0]
                if descriptors and self._kind != "remote":
                    sent = socket.send_fds(self._socket, [message], descriptors)
                else:
                    sent = self._socket.send(message)
                for descriptor in self._queue.popleft()[1]:
                    os.close(descriptor)
                if sent < len(message):
                    self._queue.appendleft((message[sent:], []))
        except BlockingIOError:
            return
        except OSError:  # the server has closed the channel
            pass
        self._end_queue()

    def _on_readable(self) -> None:
        try:
            while self.is_reading and (received := self.channel.receive()) is not None:
                if not self.is_hostile:
                    self._answer(received)
        except EOFError:
            self.exit()
        except ProtocolError:
            # Such as that blocks are released which the channel here knows nothing of.
            assert self.is_hostile

    def _answer(self, received: Any) -> None:
        frame = received.frame
        if isinstance(frame, frames.Initialize):
            self.channel.send(frames.Initialized())
        elif isinstance(frame, frames.CheckReady):
            self.channel.send(frames.ReadyReport(frame.call, True))
        elif isinstance(frame, frames.Finalize):
            self.exit()
        elif isinstance(frame, frames.Execute):
            self._echo(received, frame)

    def _echo(self, received: Any, frame: frames.Execute) -> None:
        array = received.array(frame.inputs[0])
        payload = self.channel.payload()
        block, offset = payload.add([array.tobytes()], array.nbytes)
        ref = TensorRef("OUT", INT32, array.shape, offset, array.nbytes, block)
        now_ns = time.monotonic_ns()
        self.channel.send(frames.BatchResult(frame.batch, now_ns, now_ns, [ref]), payload)


def _of_stream(message: bytes) -> bytes:
    """Returns a message as channels to other machines have it."""
    (length,) = struct.unpack_from("<I", message.ljust(4, b"\0"))
    end = 4 + length
    inline = message[end + -end % 16 :]
    return pack_head(length, len(inline)) + message[4:end] + bytes(-length % 16) + inline


class RemoteWorker(LocalWorker):
    """See `WorkerHandle`: a process of another machine."""

    node = "far"

    def open_channel(self, arena: Arena) -> StreamChannel:
        """See `WorkerHandle`."""
        return StreamChannel(self.channel, peer_account.PeerAccount())


class Control:
    """Loads and unloads nothing, in time."""

    def __init__(self) -> None:
        self.asked: Counter[str] = Counter()

    def index(self, *, ready: bool = False) -> list[Any]:
        return []

    def is_ready(self) -> bool:
        return True

    async def load(self, name: str, config: Any, files: Any, patterns: Any = None) -> None:
        self.asked["load"] += 1

    async def unload(self, name: str, *, unload_dependents: bool = False) -> None:
        self.asked["unload"] += 1


class Served:
    """A model of workers, and these."""

    def __init__(self, world: World, name: str, text: str, kind: str = "model") -> None:
        self._world = world
        self._kind = kind
        self._starting: asyncio.Task[Any] | None = None
        self.name = name
        config = config_from_text(CONFIG.format(name=name, more=text), "config.pbtxt")
        self.spec = spec_from_config(normalise_config(config), 1)
        self.memory = MemoryTrimmer(world.loop)
        self.labels = ModelLabels(
            name, "1", ["IN"], batching=self.spec.max_batch_size > 0, is_model_file=True
        )
        self.workers: list[Worker] = []
        self.version = PythonVersion(self._make_model, self._start, world.loop)
        self.model = self.version.model

    def open(self) -> None:
        """Start the worker."""
        loop = self._world.loop
        task = loop.create_task(self.version.add(InstancePlan(name=f"{self.name}_0_0", kind="CPU")))
        if self._kind == "starting" and not self.workers:
            self._starting = task
            self._world.turn(2)
            self.workers[0].is_hostile = True
        else:
            loop.run_until_complete(task)

    def recover(self) -> None:
        """Start a worker again, if the first one could not be started."""
        starting, self._starting = self._starting, None
        if starting is not None and starting.done() and starting.exception() is not None:
            self.open()

    def close(self) -> None:
        """Unload the model, which the engine does not know any more."""
        self._world.loop.run_until_complete(self.version.drain_and_stop(5.0))
        for worker in self.workers:
            worker.exit()
        self.memory.stop()

    def _make_model(self, supervisor: Any) -> Model:
        return Model(self.spec, self._world.loop, config_json=b"{}", supervisor=supervisor)

    async def launch(self, spec: WorkerSpec) -> LocalWorker:
        """See `Launcher`."""
        near, far = stream_pair() if self._kind in _PORTABLE else socket_pair()
        near_fork, far_fork = socket_pair()
        worker = Worker(self._world.loop, far, self._kind)
        worker.fork_socket = far_fork
        self.workers.append(worker)
        kind = RemoteWorker if self._kind == "remote" else LocalWorker
        sockets = (near, near_fork)
        return kind(spec.instance_name, 4321, sockets, worker.exit, worker.exited)

    async def _start(self, plan: InstancePlan) -> PythonInstance:
        world = self._world
        services = ModelServices(world.shared, self.name, plan.name)
        frame = frames.Initialize(
            "/m/1/model.py", "1", {}, ["OUT"], is_decoupled=self.spec.decoupled
        )
        instance = await PythonInstance.launch(
            self,
            WorkerSpec(instance_name=plan.name, title=""),
            frame,
            self.labels,
            self.memory,
            world.loop,
            self.model,
            services,
        )
        services.instance = instance
        services.is_loading = False
        return instance


class Bound(Served):
    """A model of two bound functions, whose processes are workers here, too."""

    def __init__(self, world: World, name: str, text: str, kind: str) -> None:
        super().__init__(world, name, text, kind)
        self.model = Model(self.spec, world.loop, config_json=b"{}")

    def open(self) -> None:
        """See `Served`."""
        for index in range(2):
            near, far = socket_pair()
            channel = MemoryChannel(near, self.memory.arena, account=peer_account.PeerAccount())
            self.workers.append(Worker(self._world.loop, far))
            self.model.add_instance(
                ChannelInstance(
                    f"{self.name}_0_{index}",
                    self.labels,
                    channel,
                    self.memory,
                    self._world.loop,
                    self.model,
                    4,
                )
            )

    def close(self) -> None:
        """See `Served`."""
        self.model.stop()
        super().close()


class World:
    """A server with a good model `echo` and a model `wild`, whose first worker misbehaves."""

    def __init__(self, kind: str) -> None:
        self.loop = TurnLoop()
        self.engine = Engine()
        self.metrics = CustomMetrics(server_family_names)
        self.control = Control()
        self.shared = SharedServices(
            self.engine,
            self.control,
            self.metrics,
            self.loop,
        )
        self.sinks: list[RecordingSink] = []
        self.echo = self._serve(Served(self, "echo", ""))
        text = DECOUPLED if kind == "decoupled" else BATCHES
        self.wild = self._serve((Bound if kind == "bound" else Served)(self, "wild", text, kind))
        self.worker = self.wild.workers[0]
        if kind == "forked":
            self.worker = self._fork(self.worker)

    def _serve(self, served: Served) -> Served:
        self.engine.add(served.model)
        served.open()
        self.engine.set_ready(served.model)
        return served

    def _fork(self, parent: Worker) -> Worker:
        """Let a worker fork, and its child have a channel."""
        near, far = socket_pair()
        assert parent.fork_socket is not None
        with near:
            socket.send_fds(parent.fork_socket, [b"in"], [near.fileno()])
        self.loop.run()
        return Worker(self.loop, far)

    # Clients

    def ask(self, name: str, numbers: list[int]) -> RecordingSink:
        """Send a request of a client."""
        sink = RecordingSink(numbers)
        data = np.array(numbers, np.int32).tobytes()
        spec = self.wild.spec if name == "wild" else self.echo.spec
        shape = (1, len(numbers)) if spec.max_batch_size else (len(numbers),)
        tensor = InferTensor("IN", dtypes.INT32, shape, data)
        self.engine.infer(request(model_name=name, inputs={"IN": tensor}), sink)
        self.sinks.append(sink)
        return sink

    def turn(self, count: int) -> None:
        """Let the loop make turns, without letting time pass."""
        last = self.loop.turns + count
        stop: Callable[[], Any] = self.loop.stop
        while self.loop.turns < last:
            before = self.loop.turns
            self.loop.call_soon(stop)
            self.loop.run_forever()
            assert self.loop.turns > before

    # The end

    def close(self) -> None:
        """Unload everything."""
        for served in (self.wild, self.echo):
            self.engine.remove(served.model)
        self.worker.exit()
        self.loop.advance(60)
        for served in (self.wild, self.echo):
            served.close()
        self.loop.run()
