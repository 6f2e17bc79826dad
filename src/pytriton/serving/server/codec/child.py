# SPDX-License-Identifier: Apache-2.0
"""The process that parses large JSON: it receives jobs on standard input until that is closed.

A job may take long, because the server answers other requests meanwhile. Its memory is limited: a
job that needs more fails, so that the machine does not run out of memory.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import pathlib
import signal
import threading
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, BinaryIO

from pytriton.base.errors import InvalidArgumentError, ServerError, UnavailableError
from pytriton.base.lazy_module import LazyModule
from pytriton.protocol.kserve_json import ALL_JSON
from pytriton.protocol.large_json import (
    check_memory,
    check_objects,
    parse_large_generate,
    parse_large_infer,
)
from pytriton.protocol.repository import read_load
from pytriton.protocol.shared_memory import RegionPlace
from pytriton.serving.server.codec.messages import (
    LENGTH,
    Job,
    JobKind,
    ParsedModel,
    ParsedRequest,
    ParsedTensor,
    ReadLoad,
    ReadOpenAI,
    RefusedText,
    Reply,
    decode_job,
    encode,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pytriton.base.dtypes import Buffer
    from pytriton.base.messages import InferRequest
    from pytriton.protocol.kserve_json import OutputFormat
    from pytriton.protocol.openai import large_body
else:
    large_body = LazyModule("pytriton.protocol.openai.large_body")

# The limit for names, shapes and parameters, which the server has to decode in its event loop.
MAX_HEAD_BYTES = 1 << 20
MAX_MESSAGE_CHARACTERS = 16 << 10
# The memory for parsing a text: most requests need two to five times its size.
_MEMORY_BYTES = 1 << 30
_MEMORY_FACTOR = 6


def run_job(job: Job, text: bytes) -> tuple[Reply, list[Buffer]]:
    """Execute a job; returns the reply and the payload that follows it."""
    try:
        if job.kind is JobKind.LOAD:
            return _load(text)
        if job.kind is JobKind.OPENAI:
            document, parts = large_body.read_large(job.task, text)
            return ReadOpenAI(document, list(map(len, parts))), list(parts)
        return _request(job, text)
    except MemoryError:
        error: ServerError = UnavailableError(
            f"reading {len(text)} bytes of JSON takes more than the "
            f"{_memory_bytes(len(text))} bytes of memory that are allowed for it"
        )
    except ServerError as raised:
        error = raised
    return RefusedText(error.code, error.message[:MAX_MESSAGE_CHARACTERS]), []


def _request(job: Job, text: bytes) -> tuple[Reply, list[Buffer]]:
    spec = (job.model or ParsedModel("", [], [])).spec()
    output_format = ALL_JSON
    memory_bytes = _memory_bytes(len(text))
    if job.kind is JobKind.GENERATE:
        request = parse_large_generate(text, spec, memory_bytes)
    else:
        body = _unread_body(job.body_bytes)
        request, output_format = parse_large_infer(text, body, spec, job.max_bytes, memory_bytes)
    tensors = request.inputs.values()
    reply = _checked(_reply(request, output_format), "names, shapes and parameters")
    elsewhere = (memoryview, RegionPlace)
    return reply, [each.data for each in tensors if not isinstance(each.data, elsewhere)]


def _checked(reply: Reply, words: str) -> Reply:
    size = len(encode(reply))
    if size > MAX_HEAD_BYTES:
        raise InvalidArgumentError(
            f"expected at most {MAX_HEAD_BYTES} bytes of {words} in a request, got {size}"
        )
    return reply


def _unread_body(size: int) -> Buffer:
    """Returns a buffer that uses no memory, because it is never read."""
    return memoryview(mmap.mmap(-1, size, prot=mmap.PROT_READ)) if size else b""


def _reply(request: InferRequest, output_format: OutputFormat) -> ParsedRequest:
    descriptions = [
        ParsedTensor(
            each.name,
            each.dtype.name,
            each.shape,
            *_place(each.data),
        )
        for each in request.inputs.values()
    ]
    return ParsedRequest(
        descriptions,
        request.fields,
        request.outputs,
        output_format.default,
        dict(output_format.listed),
        request.uses_regions,
    )


def _place(data: Any) -> tuple[int, bool, RegionPlace | None]:
    if isinstance(data, RegionPlace):
        return 0, False, data
    return len(data), isinstance(data, memoryview), None


def _load(text: bytes) -> tuple[Reply, list[Buffer]]:
    check_objects(text)
    check_memory(text, _memory_bytes(len(text)))
    overrides = read_load(text)
    sizes = {path: len(content) for path, content in overrides.files.items()}
    reply = _checked(ReadLoad(overrides.config, sizes), "configuration and names of files")
    return reply, list(overrides.files.values())


def _memory_bytes(text_bytes: int) -> int:
    return _MEMORY_BYTES + _MEMORY_FACTOR * text_bytes


def _limit_memory(limit_bytes: int) -> None:
    try:
        import resource  # noqa: PLC0415  it does not exist on every platform
    except ImportError:
        return
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    limit = limit_bytes if hard == resource.RLIM_INFINITY else min(limit_bytes, hard)
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_DATA, (limit, hard))


def _lower_priority() -> None:
    """Give the server priority for the processor, and be the first victim of the OOM killer."""
    os.nice(10)
    with contextlib.suppress(OSError):
        pathlib.Path("/proc/self/oom_score_adj").write_text("1000")


def _receive_jobs(source: BinaryIO, jobs: SimpleQueue[tuple[Job, bytes]]) -> None:
    """Read jobs; when the server ends, exit at once, even if a job is being executed."""
    try:
        while head := source.read(LENGTH.size):
            job = decode_job(source.read(LENGTH.unpack(head)[0]))
            _limit_memory(_memory_bytes(job.text_bytes))
            jobs.put((job, source.read(job.text_bytes)))
    finally:
        os._exit(0)


def _write(descriptor: int, parts: Iterable[Buffer]) -> None:
    for part in parts:
        view = memoryview(part)
        while view:
            view = view[os.write(descriptor, view) :]


def main() -> None:
    """Execute jobs until the server ends."""
    for number in (signal.SIGINT, signal.SIGTERM):  # the server handles them, and ends this process
        signal.signal(number, signal.SIG_IGN)
    results = os.dup(1)
    os.dup2(2, 1)  # printed text must not be mixed with results
    _lower_priority()
    jobs: SimpleQueue[tuple[Job, bytes]] = SimpleQueue()
    source = os.fdopen(os.dup(0), "rb")
    threading.Thread(target=_receive_jobs, args=(source, jobs), daemon=True).start()
    while True:
        job, text = jobs.get()
        reply, payload = run_job(job, text)
        del text
        head = encode(reply)
        with contextlib.suppress(BrokenPipeError):  # the server ended: the other thread will exit
            _write(results, (LENGTH.pack(len(head)), head, *payload))
        del reply, payload
