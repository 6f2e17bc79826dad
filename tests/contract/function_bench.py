# SPDX-License-Identifier: Apache-2.0
"""A bound function in a real worker, but on a thread of the test: it can be a closure."""

from __future__ import annotations

import logging
import threading

from pytriton.model_config import ModelConfig, Ray
from pytriton.runtime.backend.connection import ServerConnection
from pytriton.runtime.executor.python_instance import PythonInstance
from pytriton.runtime.executor.worker import LocalWorker
from pytriton.runtime.functions.ray_model import GivenFunction, RayModel
from pytriton.runtime.transport.arena import Arena
from pytriton.runtime.transport.frames import Initialize
from pytriton.runtime.transport.link import socket_pair
from pytriton.runtime.transport.memory_channel import MemoryChannel
from pytriton.runtime.worker_process.function_worker import FunctionWorker
from tests.contract.benches import COUPLED, DECOUPLED, InstanceBench, labels_of
from tests.contract.worker_bench import LoggingServices

# How a function of one request becomes a callable, and whether that is decoupled.
FUNCTIONS = {
    f"{kind} in a worker": (make, kind in DECOUPLED)
    for kind, make in {**COUPLED, **DECOUPLED}.items()
    if kind in ("plain", "coroutine", "generator")
}
logger = logging.getLogger(__name__)

_made = []


def make():
    """The factory that workers of the tests import."""
    return _made.pop()


class FunctionThread(threading.Thread):
    """What is the main thread of a worker process elsewhere."""

    def __init__(self, channel, on_end):
        super().__init__(name="worker", daemon=True)
        self._connection = ServerConnection.of_worker(MemoryChannel(channel, Arena()))
        self.channel = self._connection.outbox.channel
        self.worker = FunctionWorker(self._connection)
        self._on_end = on_end

    def run(self):
        try:
            self.worker.run(self._connection.next_job().frame)
        except Exception:  # where a process would end; the server is gone, for example
            logger.debug("the worker ended", exc_info=True)
        finally:
            self._connection.close()
            self._on_end()


class FunctionBench(InstanceBench):
    raised_log = "model 'm': "
    lost_error = "Stub process 'm_0_0' is not healthy. "
    lost_reasons = ("exited with code 0", "it closed its connection")

    def __init__(self, loop, infer_func, inputs, outputs, *, strict=False, **config):
        _made.append(infer_func)
        function = GivenFunction("tests.contract.function_bench:make", [], inputs, outputs)
        model = RayModel(
            "m", function, inputs, outputs, 1, ModelConfig(**config), Ray(), strict=strict
        )
        batching = model.config.batching
        super().__init__(loop, batching=batching)
        channel, far_channel = socket_pair()
        fork_socket, far_fork_socket = socket_pair()
        exited = loop.create_future()

        def on_end():
            far_fork_socket.close()
            loop.call_soon_threadsafe(exited.set_result, "exited with code 0")

        self.stops = 0
        self._thread = FunctionThread(far_channel, on_end)
        self._thread.worker.backend._end_unrecoverably = self._on_unrecoverable
        self.far_channel = self._thread.channel
        worker = LocalWorker("m_0_0", 0, (channel, fork_socket), lambda: None, exited)
        labels = labels_of(inputs, config.get("sequence"), batching=batching)
        self.instance = PythonInstance(worker, labels, self.memory, loop, self, LoggingServices())
        frame = Initialize(
            "",
            "",
            {"model_name": "m", "model_instance_name": "m_0_0", "model_version": "1"},
            [],
            function=model.ray.function,
        )
        self._thread.start()
        loop.run_until_complete(self.instance.initialize(frame))
        self.instance.start()

    def is_alive(self) -> bool:
        return not self.instance.ended.done() or self._thread.is_alive()

    def _on_unrecoverable(self):
        self.stops += 1
