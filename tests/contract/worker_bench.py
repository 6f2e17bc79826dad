# SPDX-License-Identifier: Apache-2.0
"""A model.py in a real worker, but on a thread of the test: its functions can be closures."""

from __future__ import annotations

import functools
import logging
import pathlib
import threading

from pytriton.runtime.backend.connection import ServerConnection
from pytriton.runtime.executor.python_instance import PythonInstance
from pytriton.runtime.executor.remote.instance_port import InstancePort, RemoteLink
from pytriton.runtime.executor.remote.remote_launcher import RemoteWorker
from pytriton.runtime.executor.remote.starter import ProcessPlace
from pytriton.runtime.executor.worker import LocalWorker
from pytriton.runtime.pb_utils.runtime import set_runtime
from pytriton.runtime.transport.arena import Arena
from pytriton.runtime.transport.frames import Initialize
from pytriton.runtime.transport.link import socket_pair
from pytriton.runtime.transport.memory_channel import MemoryChannel
from pytriton.runtime.transport.stream_channel import StreamChannel
from pytriton.runtime.worker_process.process import make_worker
from tests.contract.benches import InstanceBench, labels_of, state_names
from tests.contract.worker_models import FUNCTIONS
from tests.transport.tcp import tcp_pair

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
    "one thread of a model.py": ("shared_thread_stream.py", True),
    "coroutines of a model.py": ("coroutine_stream.py", True),
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
        self._connection = ServerConnection.of_worker(channel)
        self.channel = self._connection.outbox.channel
        self._fork_socket = fork_socket
        self._on_end = on_end

    def run(self):
        try:
            frame = self._connection.next_job().frame
            worker = make_worker(frame, self._connection, self._fork_socket)
            worker.run(frame)
        except Exception:  # where a process would end; the server is gone, for example
            logger.debug("the worker ended", exc_info=True)
            worker._backend._coroutines.stop()
        finally:
            set_runtime(None)  # of this process, which goes on
            self._connection.close()
            if self._fork_socket is not None:
                self._fork_socket.close()
            self._on_end()


class EndedWith:
    """What started a remote worker: it tells that the worker's thread has ended."""

    def __init__(self, exited):
        self.places = (ProcessPlace("node-a", "n1", 0),)
        self.exited = exited

    def kill(self):
        """Do nothing: the connection is cut, which ends the thread."""


class WorkerBench(InstanceBench):
    """A model of the Python backend."""

    is_remote = False  # True: connected over TCP, as a worker on another machine

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
        worker = self._start_remote() if self.is_remote else self._start_local()
        self.far_channel = self._thread.channel
        labels = labels_of(inputs, sequence, batching=batching, is_model_file=True)
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

    def _start_local(self):
        channel, far_channel = socket_pair()
        fork_socket, far_fork_socket = socket_pair()
        exited = self._start_thread(MemoryChannel(far_channel, Arena()), far_fork_socket)
        return LocalWorker("m_0_0", 0, (channel, fork_socket), lambda: None, exited)

    def _start_remote(self):
        sock, far = tcp_pair()
        exited = self._start_thread(StreamChannel(far), None)
        where = "(node node-a, process 0)"
        self.lost_reasons = (f"exited with code 0 {where}", f"its connection was lost {where}")
        ticket = InstancePort(self.loop, "").expect("m_0_0-1", "")
        worker = RemoteWorker(
            "m_0_0", [RemoteLink(sock, None)], EndedWith(exited), ticket, self.loop
        )
        worker.watch()
        return worker

    def _start_thread(self, channel, fork_socket):
        exited = self.loop.create_future()
        tell = functools.partial(
            self.loop.call_soon_threadsafe, exited.set_result, "exited with code 0"
        )
        self._thread = WorkerThread(channel, fork_socket, tell)
        return exited

    def is_alive(self) -> bool:
        return not self.instance.ended.done() or self._thread.is_alive()
