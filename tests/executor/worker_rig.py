# SPDX-License-Identifier: Apache-2.0
"""The server's end of a worker, with the worker's end in the test's hands: no process at all."""

from __future__ import annotations

import asyncio
import gc
import time

import numpy as np
import psutil
import uvloop
from msgspec import structs

from pytriton.base.dtypes import from_numpy
from pytriton.base.messages import InferResponse, InferTensor
from pytriton.runtime.executor.inference import ModelLabels, burst_outcomes
from pytriton.runtime.executor.python_instance import PythonInstance
from pytriton.runtime.executor.worker import LocalWorker
from pytriton.runtime.transport.arena import Arena, MemoryTrimmer
from pytriton.runtime.transport.frames import Initialize, Initialized
from pytriton.runtime.transport.link import socket_pair
from pytriton.runtime.transport.memory_channel import MemoryChannel
from pytriton.runtime.transport.refs import TensorRef
from tests.e2e.waiting import DEADLINE_S, eventually
from tests.fakes import inference

INITIALIZE = Initialize("/models/m/1/model.py", "1", {}, ["y"])


class FakeCall:
    """An inference that the test answers."""

    def __init__(self, frame, inputs, sink):
        self.frame = frame
        self.inputs = {name: bytes(tensor.data) for name, tensor in inputs.items()}
        self.sink = sink
        self.events = []

    def cancel(self):
        self.events.append("cancel")

    def pause(self):
        self.events.append("pause")

    def resume(self):
        self.events.append("resume")


class FakeServices:
    """Keeps what a worker asked for; `refusal` is raised instead."""

    def __init__(self):
        self.calls: list[FakeCall] = []
        self.served = []
        self.lines = []
        self.refusal: Exception | None = None
        self.closed = 0

    def infer(self, call, inputs, sink):
        if self.refusal is not None:
            raise self.refusal
        self.calls.append(FakeCall(call, inputs, sink))
        return self.calls[-1]

    def serve(self, action, arguments, reply):
        if self.refusal is not None:
            raise self.refusal
        self.served.append((action, arguments, reply))

    def log(self, line):
        self.lines.append(line.message)

    def close(self):
        self.closed += 1


class WorkerRig:
    """An instance, the far ends of its sockets, and what owner and services heard."""

    costs = None  # of batches: nobody asks for them here

    def __init__(self, *, is_decoupled=False, grace_s=30.0):
        self.loop = asyncio.new_event_loop()
        self.events: list[object] = []
        self.deaths: list[str] = []
        self.losses = 0
        self.kills = 0
        self.services = FakeServices()
        self.memory = MemoryTrimmer(self.loop)
        channel, far = socket_pair()
        fork_socket, self.far_fork_socket = socket_pair()
        self.far = MemoryChannel(far, Arena())
        self.exited = self.loop.create_future()
        worker = LocalWorker("m_0_0", 4321, (channel, fork_socket), self._on_kill, self.exited)
        labels = ModelLabels("m", "1", ["x"], batching=True, is_model_file=True)
        self.instance = PythonInstance(
            worker, labels, self.memory, self.loop, self, self.services, grace_s
        )
        self._is_decoupled = is_decoupled

    def _on_kill(self):
        self.kills += 1

    def shown(self, error, batch):
        return error

    def on_outcomes(self, instance, batch, outcomes, times_ns):
        self.events.append((batch.id, outcomes))

    def on_burst(self, instance, batch, position, burst, times_ns):
        self.on_outcomes(instance, batch, burst_outcomes(position, burst), times_ns)

    def on_unavailable(self, instance):
        assert not instance.free_slots
        self.losses += 1

    def on_died(self, instance, reason):
        self.deaths.append(reason)

    def begin(self):
        """Let the worker be told to initialize."""
        frame = structs.replace(INITIALIZE, is_decoupled=self._is_decoupled)
        task = self.loop.create_task(self.instance.initialize(frame))
        self.turn()
        assert isinstance(self.far.receive().frame, Initialize)
        return task

    def start(self, report=None):
        """Let the worker report that it is ready, and take the instance into service."""
        task = self.begin()
        self.far.send(report or Initialized())
        self.loop.run_until_complete(task)
        self.instance.start()
        return self

    def execute(self, count=1, **fields):
        """Hand over a batch; its id."""
        tensor = InferTensor("x", from_numpy(np.dtype("u1")), (1, 4), b"abcd")
        self.inferences = [inference(inputs={"x": tensor}, **fields) for _ in range(count)]
        self.instance.execute(self.inferences, 0)
        return self.inferences[0].batch_id

    def say(self, *frames):
        for frame in frames:
            self.far.send(frame)
        self.turn()

    def hear(self):
        return self.far.receive().frame

    def exit(self, cause):
        self.far.close()
        self.exited.set_result(cause)
        self.turn()

    def turn(self, count=5):
        """Let the loop do what is due."""

        async def wait():
            for _ in range(count):
                await asyncio.sleep(0)

        self.loop.run_until_complete(wait())

    def wait_for(self, condition):
        self.loop.run_until_complete(until(condition))

    def close(self):
        if not self.exited.done():
            self.exit("exited with code 0")
        self.turn()
        assert self.instance.ended.done()
        self.far.close()
        self.far_fork_socket.close()
        self.loop.close()


def on_a_loop(coroutine):
    """Run a coroutine on a loop of its own, of the server's kind."""
    loop = uvloop.new_event_loop()
    try:
        return loop.run_until_complete(coroutine)
    finally:
        loop.run_until_complete(loop.shutdown_default_executor())
        loop.close()


def run_leaving_nothing(scenario):
    """Run a scenario, and see that it leaves no process and no descriptor."""
    me = psutil.Process()
    before = set(me.children(recursive=True))
    on_a_loop(asyncio.sleep(0))  # the first one opens what all have in common
    gc.collect()  # or what other tests left is closed meanwhile
    opened = me.num_fds()
    on_a_loop(scenario())

    gc.collect()  # a loop that is closed may have a descriptor of its own until then
    # Threads of other tests may open something for a while, or have closed it meanwhile.
    assert eventually(lambda: set(me.children(recursive=True)) <= before)
    assert eventually(lambda: me.num_fds() <= opened)


async def until(condition):
    """Let the loop run until a condition comes true."""
    end = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < end
        await asyncio.sleep(0.001)


def place(channel, **arrays):
    """References to arrays, and the payload with their bytes."""
    payload = channel.payload()
    refs = []
    for name, array in arrays.items():
        block, offset = payload.add([array.tobytes()], array.nbytes)
        number = from_numpy(array.dtype).number
        refs.append(TensorRef(name, number, array.shape, offset, array.nbytes, block))
    return refs, payload


def response(**arrays):
    """A response of another model."""
    outputs = [
        InferTensor(name, from_numpy(array.dtype), array.shape, array.tobytes())
        for name, array in arrays.items()
    ]
    return InferResponse("other", "1", "", outputs)
