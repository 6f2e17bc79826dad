# SPDX-License-Identifier: Apache-2.0
"""A model.py in a real worker, but on a thread of the test: its functions can be closures."""

from __future__ import annotations

import logging
import pathlib
import threading

from pytriton.executor.model_labels import ModelLabels
from pytriton.executor.python_instance import PythonInstance
from pytriton.executor.worker import Worker as WorkerProcess
from pytriton.pb_utils.runtime import set_runtime
from pytriton.python_backend.worker import Worker
from pytriton.transport.link import socket_pair
from pytriton.transport.worker_frames import Initialize
from tests.contract.benches import InstanceBench, added_names, state_names
from tests.contract.worker_models import FUNCTIONS

_FILES = pathlib.Path(__file__).parent / "model_files" / "1"
# The model's file, and whether it is decoupled.
WORKERS = {
    "model.py": ("plain.py", False),
    "model.py that sends": ("sending.py", False),
    "coroutine of a model.py": ("coroutine.py", False),
    "decoupled model.py": ("decoupled.py", True),
    "decoupled coroutine of a model.py": ("decoupled_coroutine.py", True),
}
STREAMS = {
    "stream of a model.py": ("stream.py", True),
    "threads of a model.py": ("threaded_stream.py", True),
}
logger = logging.getLogger(__name__)


class LoggingServices:
    """The services of a worker that calls nothing: only its log lines are heard."""

    def log(self, line):
        logger.error("%s", line.message)

    def close(self):
        pass


class WorkerThread(threading.Thread):
    """What is the main thread of a worker process elsewhere."""

    def __init__(self, channel, fork_socket, on_end):
        super().__init__(name="worker", daemon=True)
        self._worker = Worker(channel, fork_socket)
        self.channel = self._worker._connection.outbox.channel
        self._fork_socket = fork_socket
        self._on_end = on_end

    def run(self):
        try:
            self._worker._serve()
        except Exception:  # where a process would end; the server is gone, for example
            logger.debug("the worker ended", exc_info=True)
            self._worker._coroutines.stop()
        finally:
            set_runtime(None)  # of this process, which goes on
            self._worker._connection.close()
            self._fork_socket.close()
            self._on_end()


class WorkerBench(InstanceBench):
    """A model of the Python backend."""

    raised_log = "Traceback (most recent call last)"
    lost_error = "Stub process 'm_0_0' is not healthy. "
    lost_reasons = ("exited with code 0", "it closed its connection")

    def __init__(
        self,
        loop,
        kind,
        function,
        inputs,
        outputs,
        *,
        batching=True,
        max_batch_size=4,
        sequence=None,
    ):
        super().__init__(loop, batching=batching)
        filename, is_decoupled = {**WORKERS, **STREAMS}[kind]
        channel, far_channel = socket_pair()
        fork_socket, far_fork_socket = socket_pair()
        exited = loop.create_future()

        def on_end():
            loop.call_soon_threadsafe(exited.set_result, "exited with code 0")

        self._thread = WorkerThread(far_channel, far_fork_socket, on_end)
        self.far_channel = self._thread.channel
        worker = WorkerProcess("m_0_0", 0, (channel, fork_socket), lambda: None, exited)
        labels = ModelLabels(
            "m",
            "1",
            [*(spec.name for spec in inputs), *added_names(sequence)],
            batching=batching,
            is_model_file=True,
            state_outputs=state_names(sequence),
        )
        self.instance = PythonInstance(worker, labels, self.memory, loop, self, LoggingServices())
        FUNCTIONS[str(id(self))] = function
        frame = Initialize(
            str(_FILES / filename),
            "1",
            {"model_name": "m", "model_instance_name": "m_0_0", "model_repository": str(id(self))},
            [*(spec.name for spec in outputs), *state_names(sequence)],
            is_decoupled=is_decoupled,
            is_batching=batching,
        )
        self._thread.start()
        loop.run_until_complete(self.instance.initialize(frame))
        self.instance.start()

    def is_alive(self) -> bool:
        return not self.instance.ended.done() or self._thread.is_alive()
