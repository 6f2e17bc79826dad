# SPDX-License-Identifier: Apache-2.0
"""A pool of processes that parse large JSON; they are started on demand and stopped when idle."""

from __future__ import annotations

import asyncio
import contextlib
import io
import logging
import os
import subprocess
import sys
import threading
from typing import TYPE_CHECKING, Any

from pytriton.base import dtypes
from pytriton.base.errors import UnavailableError, error_from_code
from pytriton.base.messages import InferRequest, InferTensor
from pytriton.base.package import IMPORT_FOLDER
from pytriton.protocol.kserve_json import OutputChoice, OutputFormat
from pytriton.protocol.repository import LoadOverrides
from pytriton.serving.server.api.background import WORKERS, Background
from pytriton.serving.server.codec.messages import (
    LENGTH,
    Job,
    JobKind,
    ParsedModel,
    ParsedRequest,
    ReadLoad,
    ReadOpenAI,
    RefusedText,
    Reply,
    decode_reply,
    encode,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from pytriton.base.dtypes import Buffer
    from pytriton.base.model_spec import ModelSpec
    from pytriton.protocol.shared_memory import RegionPlace

    # Returns memory, given its size and the size of a header in it; None if there is none.
    Allocate = Callable[[int, int], memoryview | None]

logger = logging.getLogger(__name__)

# The directory of the package replaces the working directory at the start of sys.path: a user's
# file with the name of one of our modules must not be imported instead.
_BOOTSTRAP = (
    "import sys; sys.path[0] = sys.argv.pop(1); "
    "from pytriton.serving.server.codec.child import main; main()"
)
_PIPE_BYTES = 1 << 20
IDLE_S = 30.0
# A job with more text is stopped if its client disconnects, and its process is not used again,
# because it would keep much memory. A smaller job ends sooner than a new process would start.
_LONG_JOB_BYTES = 16 << 20
_LARGE_PAYLOAD_BYTES = 1 << 20


class CodecProcess:
    """Runs one job at a time. All methods block, but not other threads."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", _BOOTSTRAP, IMPORT_FOLDER],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            bufsize=0,
            env={**os.environ, "OPENBLAS_NUM_THREADS": "1"},  # each thread would take memory
        )
        assert isinstance(self._process.stdin, io.FileIO)
        assert isinstance(self._process.stdout, io.FileIO)
        for pipe in (self._process.stdin, self._process.stdout):
            _enlarge_pipe(pipe)
        self._jobs = self._process.stdin
        self._results = io.BufferedReader(self._process.stdout)

    @property
    def pid(self) -> int:
        """The process id."""
        return self._process.pid

    def run(self, job: Job, text: Buffer) -> Reply:
        """Run a job; EOFError if the process ended. Its payload is read before the next job."""
        head = encode(job)
        try:
            for part in (LENGTH.pack(len(head)) + head, text):
                view = memoryview(part)
                while view:
                    view = view[self._jobs.write(view) :]
        except BrokenPipeError:
            raise EOFError from None
        (length,) = LENGTH.unpack(self._read(LENGTH.size))
        reply: Reply = decode_reply(self._read(length))
        return reply

    def payload(self, sizes: Sequence[int]) -> list[Buffer]:
        """Read the payload of a reply, each part as bytes; EOFError if the process ended."""
        return [self._read(size) for size in sizes]

    def payload_into(self, memory: memoryview, sizes: Sequence[int]) -> list[Buffer]:
        """Read the payload of a reply into `memory`, part by part; EOFError if it ended."""
        parts: list[Buffer] = []
        for size in sizes:
            part, memory = memory[:size], memory[size:]
            parts.append(part)
            rest = part
            while rest:
                count = self._results.readinto(rest)
                if not count:
                    raise EOFError
                rest = rest[count:]
        return parts

    def _read(self, size: int) -> bytes:
        data = self._results.read(size)
        if len(data) < size:
            raise EOFError
        return data

    def kill(self) -> None:
        """Kill the process; a thread that waits for it gets EOFError."""
        self._process.kill()

    def close(self) -> None:
        """Kill the process, wait for its end and close the pipes; no thread may wait for it."""
        self._process.kill()
        self._process.wait()
        self._jobs.close()
        self._results.close()

    def __repr__(self) -> str:
        return f"<CodecProcess {self.pid}>"


def _enlarge_pipe(pipe: io.FileIO) -> None:
    """Enlarge the buffer of a pipe beyond 64 KiB, if the system supports it."""
    try:
        import fcntl  # noqa: PLC0415  it does not exist on every platform
    except ImportError:
        return
    if hasattr(fcntl, "F_SETPIPE_SZ"):
        with contextlib.suppress(OSError):  # the memory for a user's pipes is limited
            fcntl.fcntl(pipe, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)


def allocate_nothing(size: int, header_bytes: int) -> None:
    """Allocate nothing: tensors become bytes of this process."""


class _JobState:
    """The state of one job."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.is_long = job.text_bytes > _LONG_JOB_BYTES
        self.process: CodecProcess | None = None
        self.is_waiting = False  # no thread works on it: the payload waits for memory
        self.is_cancelled = False


class CodecPool:
    """Parses a few texts at the same time; others wait. It is only used in the event loop."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        background: Background | None = None,
        make_process: Callable[[], CodecProcess] = CodecProcess,
    ) -> None:
        self._loop = loop
        self._make_process = make_process
        self._background = background or Background(loop, "codec")
        # Held for a whole job: while a process waits for memory, its thread is free, but it is not.
        self._places = asyncio.Semaphore(WORKERS)
        self._lock = threading.Lock()  # for the two below, which threads change
        self._idle: list[CodecProcess] = []
        self._busy: dict[CodecProcess, None] = {}
        self._is_closed = False
        self._idle_timer: asyncio.TimerHandle | None = None

    async def infer(
        self,
        body: Buffer,
        header_length: int,
        spec: ModelSpec,
        max_bytes: int,
        allocate: Allocate = allocate_nothing,
    ) -> tuple[InferRequest, OutputFormat]:
        """Parse an infer request like `pytriton.protocol.kserve_json.parse_infer`.

        Large tensors are written to memory from `allocate`; memory of the model saves a copy in the
        event loop.
        """
        text = memoryview(body)[:header_length]
        job = Job(JobKind.INFER, len(text), max_bytes, len(body), ParsedModel.of(spec))
        reply, payload = await self._run_job(job, text, allocate)
        assert isinstance(reply, ParsedRequest)
        request = _request(reply, payload, memoryview(body)[header_length:], spec)
        choices = {name: OutputChoice(*each) for name, each in reply.output_choices.items()}
        return request, OutputFormat(OutputChoice(*reply.output_default), choices)

    async def generate(
        self, body: Buffer, spec: ModelSpec, allocate: Allocate = allocate_nothing
    ) -> InferRequest:
        """Parse a generate request like `pytriton.protocol.generate.parse_generate`."""
        job = Job(JobKind.GENERATE, len(body), 0, len(body), ParsedModel.of(spec))
        reply, payload = await self._run_job(job, body, allocate)
        assert isinstance(reply, ParsedRequest)
        return _request(reply, payload, memoryview(b""), spec)

    async def load(self, body: Buffer) -> LoadOverrides:
        """Parse a load request like `pytriton.protocol.repository.read_load`."""
        reply, payload = await self._run_job(Job(JobKind.LOAD, len(body), 0), body)
        assert isinstance(reply, ReadLoad)
        files = [content for content in payload if isinstance(content, bytes)]
        return LoadOverrides(reply.config, dict(zip(reply.file_sizes, files, strict=True)))

    async def openai(
        self, body: Buffer, task: bytes, allocate: Allocate = allocate_nothing
    ) -> tuple[bytes, list[Buffer]]:
        """Run a task of `pytriton.protocol.openai.large_body`; returns the reply and tensors."""
        job = Job(JobKind.OPENAI, len(body), 0, task=task)
        reply, payload = await self._run_job(job, body, allocate)
        assert isinstance(reply, ReadOpenAI)
        return reply.document, payload

    def close(self) -> None:
        """Stop all processes; their jobs fail."""
        with self._lock:
            self._is_closed = True
            for process in self._busy:
                process.kill()  # the thread that waits for it gets EOFError
        self._background.close()
        self._end_idle()

    def __repr__(self) -> str:
        return f"<CodecPool {len(self._busy)} busy {len(self._idle)} idle>"

    async def _run_job(
        self, job: Job, text: Buffer, allocate: Allocate = allocate_nothing
    ) -> tuple[Any, list[Buffer]]:
        state = _JobState(job)
        try:
            async with self._places:
                reply, payload = await self._background.run(self._begin, state, text)
                if payload is None:
                    memory = allocate(sum(reply.payload_sizes), 0)
                    payload = await self._background.run(self._finish, state, reply, memory)
        except BaseException:  # the client has left, or there is no memory for what was read
            self._cancel(state)
            raise
        finally:
            self._schedule_end_idle()
        if isinstance(reply, RefusedText):
            raise error_from_code(reply.code, reply.message)
        return reply, payload

    def _cancel(self, state: _JobState) -> None:
        with self._lock:
            state.is_cancelled = True
            process = state.process
            is_waiting = state.is_waiting
            if process is not None and process in self._busy and state.is_long:
                process.kill()  # a thread that waits for it gets EOFError
        if process is not None and is_waiting:
            self._release(process, is_reusable=False)

    # These methods run in threads.

    def _begin(self, state: _JobState, text: Buffer) -> tuple[Reply, list[Buffer] | None]:
        """Run a job; the payload is None if it should go to memory of the model, by `_finish`.

        A process that was idle may have ended already. If it does not answer, a new one runs the
        job again, unless it was killed because nobody waits for the job any more.
        """
        with self._lock:
            idle = self._idle.pop() if self._idle else None
            if idle is not None:
                self._busy[idle] = None
        if idle is not None:
            try:
                return self._run_in(idle, state, text)
            except UnavailableError:
                if state.is_cancelled or self._is_closed:
                    raise
        return self._run_in(self._start_process(), state, text)

    def _run_in(
        self, process: CodecProcess, state: _JobState, text: Buffer
    ) -> tuple[Reply, list[Buffer] | None]:
        with self._closing_on_error(state, process):
            with self._lock:
                state.process = process
                if state.is_cancelled:
                    raise EOFError
            reply = process.run(state.job, text)
            is_large = sum(reply.payload_sizes) > _LARGE_PAYLOAD_BYTES
            if is_large and isinstance(reply, ParsedRequest | ReadOpenAI):
                with self._lock:
                    state.is_waiting = not state.is_cancelled
                if state.is_cancelled:
                    raise EOFError
                return reply, None
            payload = process.payload(reply.payload_sizes)
        self._release(process, is_reusable=not state.is_long)
        return reply, payload

    def _finish(self, state: _JobState, reply: Reply, memory: memoryview | None) -> list[Buffer]:
        process = state.process
        assert process is not None
        with self._lock:
            state.is_waiting = False
        with self._closing_on_error(state, process):
            if state.is_cancelled:
                raise EOFError
            if memory is None:
                payload = process.payload(reply.payload_sizes)
            else:
                payload = process.payload_into(memory, reply.payload_sizes)
        self._release(process, is_reusable=not state.is_long)
        return payload

    @contextlib.contextmanager
    def _closing_on_error(self, state: _JobState, process: CodecProcess) -> Iterator[None]:
        """Close the process if an exception is raised; EOFError becomes UnavailableError."""
        try:
            yield
        except BaseException as error:
            self._release(process, is_reusable=False)
            if isinstance(error, EOFError):
                raise UnavailableError(
                    f"the process that read {state.job.text_bytes} bytes of JSON ended before it "
                    "was done"
                ) from None
            raise

    def _start_process(self) -> CodecProcess:
        try:
            process = self._make_process()
        except (MemoryError, OSError) as error:
            raise UnavailableError(
                f"no process could be started to read a large request: {error}"
            ) from error
        with self._lock:
            self._busy[process] = None
            if self._is_closed:
                process.kill()
        return process

    def _release(self, process: CodecProcess, *, is_reusable: bool) -> None:
        with self._lock:
            if process not in self._busy:  # it was stopped because its client disconnected
                return
            self._busy.pop(process, None)
            if is_reusable and not self._is_closed:
                self._idle.append(process)
                return
        process.close()

    # Idle processes

    def _schedule_end_idle(self) -> None:
        if self._idle_timer is not None:
            self._idle_timer.cancel()
        self._idle_timer = (
            None if self._is_closed else self._loop.call_later(IDLE_S, self._end_idle)
        )

    def _end_idle(self) -> None:
        if self._idle_timer is not None:
            self._idle_timer.cancel()
        with self._lock:
            idle, self._idle = self._idle, []
        for process in idle:
            logger.debug("%r is not needed any more", process)
            process.close()


def _request(
    reply: ParsedRequest,
    payload: list[Buffer],
    binary: memoryview,
    spec: ModelSpec,
) -> InferRequest:
    """Build the request of a reply; its binary tensors are in `binary`, one after the other."""
    inputs = {}
    contents = iter(payload)
    end = 0
    for each in reply.tensors:
        data: Buffer | RegionPlace
        if each.is_binary:
            data = binary[end : end + each.size]
            end += each.size
        elif each.place is not None:
            data = each.place
        else:
            data = next(contents)
        dtype = dtypes.BY_NAME[each.datatype]
        inputs[each.name] = InferTensor(each.name, dtype, each.shape, data)
    return InferRequest(
        spec.name,
        inputs,
        fields=reply.fields,
        outputs=reply.outputs,
        uses_regions=reply.uses_regions,
    )
