# SPDX-License-Identifier: Apache-2.0
"""The processes that read large JSON: started when there is some, ended when there was none."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from typing import TYPE_CHECKING, Any

from pytriton import dtypes
from pytriton.errors import UnavailableError, error_from_code
from pytriton.messages import InferRequest, InferTensor
from pytriton.server.api.background import Background
from pytriton.server.codec.messages import (
    Job,
    Kind,
    ModelForm,
    ReadLoad,
    ReadRequest,
    Refused,
    Reply,
)
from pytriton.server.codec.process import CodecProcess
from pytriton.wire.output_format import OutputChoice, OutputFormat
from pytriton.wire.repository import LoadForm

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pytriton.dtypes import Buffer
    from pytriton.engine.model_spec import ModelSpec

    Allocate = Callable[[int, int], memoryview | None]  # by size; the second is a header's

logger = logging.getLogger(__name__)

IDLE_S = 30.0
# A job with more text is not finished for a client that left, and its process is not used again,
# since it would keep much memory. One with less is done before a new process would be there.
_LONG_JOB_BYTES = 16 << 20
_LARGE_PAYLOAD_BYTES = 1 << 20


def no_memory(size: int, header_bytes: int) -> None:
    """An allocator for who has none."""


class _Turn:
    """One job on its way through a process."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.is_long = job.text_bytes > _LONG_JOB_BYTES
        self.process: CodecProcess | None = None
        self.is_waiting = False  # for memory, with the payload still to be taken
        self.is_given_up = False


class CodecPool:
    """Reads a few texts at once, the others wait. Used from the event loop only."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        background: Background | None = None,
        make_process: Callable[[], CodecProcess] = CodecProcess,
    ) -> None:
        self._loop = loop
        self._make_process = make_process
        self._background = background or Background(loop, "codec")
        self._lock = threading.Lock()  # for the two below: threads take and give back
        self._idle: list[CodecProcess] = []
        self._busy: set[CodecProcess] = set()
        self._is_closed = False
        self._reaping: asyncio.TimerHandle | None = None

    async def infer(
        self,
        body: Buffer,
        header_length: int,
        spec: ModelSpec,
        max_bytes: int,
        allocate: Allocate = no_memory,
    ) -> tuple[InferRequest, OutputFormat]:
        """Read an infer request as `pytriton.wire.kserve_json.parse_infer` does.

        Large tensors go to what `allocate` gives: memory of the model saves a copy on the loop.
        """
        text = memoryview(body)[:header_length]
        job = Job(Kind.INFER, len(text), max_bytes, len(body), ModelForm.of(spec))
        reply, payload = await self._ask(job, text, allocate)
        assert isinstance(reply, ReadRequest)
        request = _request(reply, payload, memoryview(body)[header_length:], spec)
        choices = {name: OutputChoice(*each) for name, each in reply.output_choices.items()}
        return request, OutputFormat(OutputChoice(*reply.output_default), choices)

    async def generate(
        self, body: Buffer, spec: ModelSpec, allocate: Allocate = no_memory
    ) -> InferRequest:
        """Read a generate request as `pytriton.wire.generate.parse_generate` does."""
        job = Job(Kind.GENERATE, len(body), 0, len(body), ModelForm.of(spec))
        reply, payload = await self._ask(job, body, allocate)
        assert isinstance(reply, ReadRequest)
        return _request(reply, payload, memoryview(b""), spec)

    async def load(self, body: Buffer) -> LoadForm:
        """Read a load request as `pytriton.wire.repository.read_load` does."""
        reply, payload = await self._ask(Job(Kind.LOAD, len(body), 0), body)
        assert isinstance(reply, ReadLoad)
        files = [content for content in payload if isinstance(content, bytes)]
        return LoadForm(reply.config, dict(zip(reply.file_sizes, files, strict=True)))

    def close(self) -> None:
        """End all processes; what they work on is over."""
        with self._lock:
            self._is_closed = True
            for process in self._busy:
                process.kill()  # the thread that waits for it sees its end
        self._background.close()
        self._end_idle()

    def __repr__(self) -> str:
        return f"<CodecPool {len(self._busy)} busy {len(self._idle)} idle>"

    async def _ask(
        self, job: Job, text: Buffer, allocate: Allocate = no_memory
    ) -> tuple[Any, list[Buffer]]:
        turn = _Turn(job)
        try:
            reply, payload = await self._background.run(self._begin, turn, text)
            if payload is None:
                memory = allocate(sum(reply.payload_sizes), 0)
                payload = await self._background.run(self._finish, turn, reply, memory)
        except asyncio.CancelledError:
            self._give_up(turn)
            raise
        finally:
            self._plan_reaping()
        if isinstance(reply, Refused):
            raise error_from_code(reply.code, reply.message)
        return reply, payload

    def _give_up(self, turn: _Turn) -> None:
        with self._lock:
            turn.is_given_up = True
            process = turn.process
            is_waiting = turn.is_waiting
            if process is not None and process in self._busy and turn.is_long:
                process.kill()  # a thread that waits for it sees its end
        if process is not None and is_waiting:
            self._give_back(process, is_reusable=False)

    # On threads

    def _begin(self, turn: _Turn, text: Buffer) -> tuple[Reply, list[Buffer] | None]:
        """Have the text read; None for a payload that is worth memory of its model."""
        process = turn.process = self._take()
        with self._ending(turn, process):
            reply = process.ask(turn.job, text)
            is_large = sum(reply.payload_sizes) > _LARGE_PAYLOAD_BYTES
            if is_large and isinstance(reply, ReadRequest):
                with self._lock:
                    turn.is_waiting = not turn.is_given_up
                if turn.is_given_up:
                    raise EOFError
                return reply, None
            payload = process.payload(reply.payload_sizes)
        self._give_back(process, is_reusable=not turn.is_long)
        return reply, payload

    def _finish(self, turn: _Turn, reply: Reply, memory: memoryview | None) -> list[Buffer]:
        process = turn.process
        assert process is not None
        with self._lock:
            turn.is_waiting = False
        with self._ending(turn, process):
            if turn.is_given_up:
                raise EOFError
            if memory is None:
                payload = process.payload(reply.payload_sizes)
            else:
                payload = process.payload_into(memory, reply.payload_sizes)
        self._give_back(process, is_reusable=not turn.is_long)
        return payload

    @contextlib.contextmanager
    def _ending(self, turn: _Turn, process: CodecProcess) -> Iterator[None]:
        """End the process if it fails."""
        try:
            yield
        except BaseException as error:
            self._give_back(process, is_reusable=False)
            if isinstance(error, EOFError):
                raise UnavailableError(
                    f"the process that read {turn.job.text_bytes} bytes of JSON ended before it "
                    "was done"
                ) from None
            raise

    def _take(self) -> CodecProcess:
        with self._lock:
            process = self._idle.pop() if self._idle else None
            if process is not None:
                self._busy.add(process)
        if process is None:
            try:
                process = self._make_process()
            except OSError as error:
                raise UnavailableError(
                    f"no process could be started to read a large request: {error}"
                ) from error
            with self._lock:
                self._busy.add(process)
                if self._is_closed:
                    process.kill()
        return process

    def _give_back(self, process: CodecProcess, *, is_reusable: bool) -> None:
        with self._lock:
            if process not in self._busy:  # its client left, and it was ended for that
                return
            self._busy.discard(process)
            if is_reusable and not self._is_closed:
                self._idle.append(process)
                return
        process.close()

    # Idle processes

    def _plan_reaping(self) -> None:
        if self._reaping is not None:
            self._reaping.cancel()
        self._reaping = None if self._is_closed else self._loop.call_later(IDLE_S, self._end_idle)

    def _end_idle(self) -> None:
        if self._reaping is not None:
            self._reaping.cancel()
        with self._lock:
            idle, self._idle = self._idle, []
        for process in idle:
            logger.debug("%r is not needed any more", process)
            process.close()


def _request(
    reply: ReadRequest,
    payload: list[Buffer],
    binary: memoryview,
    spec: ModelSpec,
) -> InferRequest:
    """The request of a reply; its binary tensors lie in `binary`, one after the other."""
    inputs = {}
    contents = iter(payload)
    end = 0
    for each in reply.tensors:
        data: Buffer
        if each.is_binary:
            data = binary[end : end + each.size]
            end += each.size
        else:
            data = next(contents)
        dtype = dtypes.BY_NAME[each.datatype]
        inputs[each.name] = InferTensor(each.name, dtype, each.shape, data)
    return InferRequest(
        spec.name,
        inputs,
        id=reply.id,
        outputs=reply.outputs,
        parameters=reply.parameters,
        priority=reply.priority,
        timeout_us=reply.timeout_us,
        correlation_id=reply.correlation_id,
        flags=reply.flags,
    )
