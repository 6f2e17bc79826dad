# SPDX-License-Identifier: Apache-2.0
"""The processes that read large JSON: started when there is some, ended when there was none."""

from __future__ import annotations

import asyncio
import logging
import threading
from typing import TYPE_CHECKING, Any

from pytriton import dtypes
from pytriton.errors import UnavailableError, error_from_code
from pytriton.messages import InferRequest, InferTensor
from pytriton.server.api.background import Background
from pytriton.server.codec.messages import Job, Kind, ModelForm, ReadLoad, ReadRequest, Refused
from pytriton.server.codec.process import CodecProcess
from pytriton.wire.output_format import OutputChoice, OutputFormat
from pytriton.wire.repository import LoadForm

if TYPE_CHECKING:
    from collections.abc import Callable

    from pytriton.dtypes import Buffer
    from pytriton.engine.model_spec import ModelSpec

logger = logging.getLogger(__name__)

IDLE_S = 30.0
# A job with more text is not finished for a client that left, and its process is not used again,
# since it would keep much memory. One with less is done before a new process would be there.
_LONG_JOB_BYTES = 16 << 20


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
        self, body: Buffer, header_length: int, spec: ModelSpec, max_bytes: int
    ) -> tuple[InferRequest, OutputFormat]:
        """Read an infer request as `pytriton.wire.kserve_json.parse_infer` does."""
        text = memoryview(body)[:header_length]
        job = Job(Kind.INFER, len(text), max_bytes, len(body), ModelForm.of(spec))
        reply, payload = await self._ask(job, text)
        assert isinstance(reply, ReadRequest)
        request = _request(reply, payload, memoryview(body)[header_length:], spec)
        choices = {name: OutputChoice(*each) for name, each in reply.output_choices.items()}
        return request, OutputFormat(OutputChoice(*reply.output_default), choices)

    async def generate(self, body: Buffer, spec: ModelSpec) -> InferRequest:
        """Read a generate request as `pytriton.wire.generate.parse_generate` does."""
        job = Job(Kind.GENERATE, len(body), 0, len(body), ModelForm.of(spec))
        reply, payload = await self._ask(job, body)
        assert isinstance(reply, ReadRequest)
        return _request(reply, payload, memoryview(b""), spec)

    async def load(self, body: Buffer) -> LoadForm:
        """Read a load request as `pytriton.wire.repository.read_load` does."""
        reply, payload = await self._ask(Job(Kind.LOAD, len(body), 0), body)
        assert isinstance(reply, ReadLoad)
        return LoadForm(reply.config, dict(zip(reply.file_sizes, payload, strict=True)))

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

    async def _ask(self, job: Job, text: Buffer) -> tuple[Any, list[bytes]]:
        used: list[CodecProcess] = []
        try:
            reply, payload = await self._background.run(self._work, job, text, used)
        except asyncio.CancelledError:
            if used and used[0] in self._busy and job.text_bytes > _LONG_JOB_BYTES:
                used[0].kill()
            raise
        finally:
            self._plan_reaping()
        if isinstance(reply, Refused):
            raise error_from_code(reply.code, reply.message)
        return reply, payload

    # On threads

    def _work(self, job: Job, text: Buffer, used: list[CodecProcess]) -> tuple[Any, list[bytes]]:
        process = self._take()
        used.append(process)
        try:
            answer = process.ask(job, text)
        except BaseException as error:
            with self._lock:
                self._busy.discard(process)
            process.close()
            if isinstance(error, EOFError):
                raise UnavailableError(
                    f"the process that read {job.text_bytes} bytes of JSON ended before it was done"
                ) from None
            raise
        self._give_back(process, is_reusable=job.text_bytes <= _LONG_JOB_BYTES)
        return answer

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
    payload: list[bytes],
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
