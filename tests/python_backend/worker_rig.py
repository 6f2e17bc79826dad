# SPDX-License-Identifier: Apache-2.0
"""Real worker processes, with the server's end of their sockets in the test's hands."""

from __future__ import annotations

import contextlib
import os
import pathlib
import select
import signal
import socket
import subprocess
import sys
import textwrap
from typing import Any

import numpy as np

from pytriton.base.dtypes import BYTES, array_to_bytes_elements, encode_bytes, from_numpy
from pytriton.runtime.transport.arena import Arena
from pytriton.runtime.transport.frames import (
    BatchFailure,
    BatchResult,
    Execute,
    Finalize,
    InferReply,
    Initialize,
    Initialized,
    MemoryFrame,
    ResponsesFrame,
    ServiceReply,
    WorkerLogLine,
)
from pytriton.runtime.transport.link import socket_pair, stream_pair
from pytriton.runtime.transport.memory_channel import MemoryChannel
from pytriton.runtime.transport.refs import TensorRef
from pytriton.runtime.transport.zygote import Exited, Forked, ForkWorker, ZygoteLink
from tests.e2e.waiting import DEADLINE_S
from tests.response_rows import with_items_only

ANSWERS = (BatchResult, ResponsesFrame, BatchFailure)
HEADER = """
import asyncio, os, sys, threading, time
import numpy as np
import triton_python_backend_utils as pb_utils
"""


class ZygoteRig:
    def __init__(self, *preload):
        ours, theirs = stream_pair()
        ours.settimeout(DEADLINE_S)
        command = [sys.executable, "-m", "pytriton.runtime.worker_process.zygote"]
        command += [f"--preload={name}" for name in preload]
        with theirs:
            descriptor = theirs.fileno()
            self.process = subprocess.Popen(
                [*command, "--control-fd", str(descriptor)], pass_fds=[descriptor]
            )
        self.link = ZygoteLink(ours)
        self._calls = 0
        self._exits: dict[int, int] = {}

    def fork(self, title="worker", environment=None):
        """A worker: its process id and our ends of its two sockets."""
        self._calls += 1
        channel, far_channel = socket_pair()
        fork_socket, far_fork_socket = socket_pair()
        with far_channel, far_fork_socket:
            message = ForkWorker(self._calls, title, environment or {})
            self.link.send(message, [far_channel.fileno(), far_fork_socket.fileno()])
        while not isinstance(answer := self.link.receive(), Forked):
            self._note(answer)
        assert answer.call == self._calls
        assert answer.pid
        return answer.pid, channel, fork_socket

    def wait(self, pid):
        """How a worker ended, as a status of `os.waitpid`."""
        while pid not in self._exits:
            self._note(self.link.receive())
        return self._exits.pop(pid)

    def _note(self, message):
        assert isinstance(message, Exited)
        self._exits[message.pid] = message.status

    def close(self):
        self.link.close()
        assert self.process.wait(DEADLINE_S) == 0


class Peer:
    """The server's end of a channel."""

    def __init__(self, sock):
        sock.settimeout(DEADLINE_S)
        self.channel = MemoryChannel(sock, Arena())
        self.lines: list[WorkerLogLine] = []

    def say(self, frame, payload=None):
        self.channel.send(frame, payload)

    def hear(self, *kinds):
        """The next message, of one of these kinds; log lines are put aside."""
        while True:
            received = self.channel.receive()
            frame = received.frame
            if isinstance(frame, WorkerLogLine) and WorkerLogLine not in kinds:
                self.lines.append(frame)
            elif not isinstance(frame, MemoryFrame):
                assert not kinds or isinstance(frame, kinds), frame
                return with_items_only(received)

    def hears_nothing(self, seconds=0.05):
        """Whether no message comes for a moment."""
        return not select.select([self.channel.fileno()], [], [], seconds)[0]

    def reply(self, call, arrays=None, **fields):
        payload = self.channel.payload()
        refs = None if arrays is None else place_all(payload, arrays)
        self.say(InferReply(call, refs, **fields), payload)

    def serve(self, call, value=None, error=None):
        self.say(ServiceReply(call, value, error))

    def close(self):
        self.channel.close()


class WorkerRig(Peer):
    """A worker that the zygote forked, and its model."""

    def __init__(self, zygote: ZygoteRig, folder: pathlib.Path, source: str = "", **options: Any):
        self.zygote = zygote
        environment = options.pop("environment", None)
        self.pid, channel, self.fork_socket = zygote.fork(
            options.pop("title", "worker"), environment
        )
        super().__init__(channel)
        self.is_over = False
        self._batches = 0
        self.model_directory = folder / "m"
        self.path = self.model_directory / "1" / options.pop("filename", "model.py")
        if source:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self.path.write_text(HEADER + textwrap.dedent(source))
        arguments = {
            "model_config": '{"name": "m", "max_batch_size": 8}',
            "model_instance_kind": "CPU",
            "model_instance_name": "m_0_0",
            "model_instance_device_id": "0",
            "model_repository": str(self.model_directory),
            "model_version": "1",
            "model_name": "m",
        }
        arguments |= options.pop("arguments", {})
        fields = {"output_names": ["y"], "is_batching": True, **options}
        outputs = fields.pop("output_names")
        package = fields.pop("package", "1")
        self.say(Initialize(str(self.path), package, arguments, outputs, **fields))

    def initialized(self) -> Initialized:
        return self.hear(Initialized).frame

    def start(self):
        """Wait until the model can take batches."""
        report = self.initialized()
        assert report.error == ""
        return self

    def execute(self, *requests, **fields):
        """Send a batch; its number."""
        self._batches += 1
        payload = self.channel.payload()
        rows = [next((len(array) for array in each.values()), 1) for each in requests]
        names = list(requests[0])
        whole = {name: np.concatenate([each[name] for each in requests]) for name in names}
        refs = place_all(payload, whole)
        self.say(Execute(self._batches, rows, refs, **fields), payload)
        return self._batches

    def execute_refs(self, rows, refs, payload):
        """Send a batch whose tensors are placed already."""
        self._batches += 1
        self.say(Execute(self._batches, rows, refs), payload)

    def run(self, *requests, **fields):
        """Run a batch; the outputs of each request, or the error in their place."""
        batch = self.execute(*requests, **fields)
        return self.answers(batch, len(requests))

    def answers(self, batch, count):
        """What each of so many requests of a batch was answered."""
        answers: dict[int, Any] = {}
        is_returned = False
        while len(answers) < count or not is_returned:
            received = self.hear(*ANSWERS)
            frame = received.frame
            if isinstance(frame, ResponsesFrame):
                is_returned = is_returned or frame.returned_batch == batch
                for item in frame.items:
                    assert item.is_final
                    assert item.position not in answers
                    answers[item.position] = answer_of(received, item)
                continue
            is_returned = True
            if isinstance(frame, BatchFailure):
                answers = dict.fromkeys(range(count), frame.error) | answers
            else:
                answers.update(enumerate(_cut(received, frame, count)))
        return [answers[position] for position in range(count)]

    def finish(self):
        """Let the model finalize; the status that the process ends with."""
        self.say(Finalize())
        self.is_over = True
        with contextlib.suppress(EOFError):
            while True:
                self.lines.append(self.hear(WorkerLogLine).frame)
        return self.zygote.wait(self.pid)

    def log(self):
        return "\n".join(line.message for line in self.lines)

    def close(self):
        super().close()
        self.fork_socket.close()
        if not self.is_over:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)
            self.zygote.wait(self.pid)


def connect_forked(fork_socket: socket.socket) -> Peer:
    """The channel that a process opens which the worker forked."""
    fork_socket.settimeout(DEADLINE_S)
    _, (descriptor,), _, _ = socket.recv_fds(fork_socket, 16, 1)
    return Peer(socket.socket(fileno=descriptor))


def place_all(payload, arrays):
    """References to arrays that are put into a payload."""
    refs = []
    for name, array in arrays.items():
        dtype = from_numpy(array.dtype)
        data = encode_bytes(array_to_bytes_elements(array)) if dtype is BYTES else array.tobytes()
        block, offset = payload.add((data,), len(data))
        refs.append(TensorRef(name, dtype.number, array.shape, offset, len(data), block))
    return refs


def arrays_of(received, refs):
    return {ref.name: received.array(ref) for ref in refs}


def answer_of(received, item):
    """The outputs of a response, or its error's text."""
    if item.error is not None:
        return item.error
    if item.is_rescheduled:
        return "rescheduled"
    return None if item.outputs is None else arrays_of(received, item.outputs)


def _cut(received, frame, count):
    whole = arrays_of(received, frame.outputs)
    if count == 1:
        return [whole]
    return [{name: array[at : at + 1] for name, array in whole.items()} for at in range(count)]


def is_alive(pid):
    """Whether a process runs; a zombie does not."""
    try:
        status = pathlib.Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
    return status.rpartition(")")[2].split()[0] not in "ZX"
