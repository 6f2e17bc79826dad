# SPDX-License-Identifier: Apache-2.0
"""Parses request bodies and encodes response bodies; large ones outside of the event loop."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, TypeAlias, TypeVar

from pytriton.base.errors import (
    InvalidArgumentError,
    ServerError,
    error_for_clients,
)
from pytriton.base.lazy_module import LazyModule
from pytriton.protocol.compression import decompress, decompress_small
from pytriton.protocol.generate import parse_generate
from pytriton.protocol.kserve_json import parse_header_length, parse_infer
from pytriton.protocol.repository import read_load
from pytriton.serving.server.api.background import MEDIUM_BYTES, SMALL_BYTES, Background, LoopBudget
from pytriton.serving.server.http.request import LARGE_BODY_BYTES, SMALL_BODY, private_memory

Answer = TypeVar("Answer")

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Awaitable, Callable

    from pytriton.base.background_tasks import BackgroundTasks
    from pytriton.base.dtypes import Buffer
    from pytriton.base.messages import InferRequest
    from pytriton.protocol.kserve_json import OutputFormat
    from pytriton.protocol.repository import LoadOverrides
    from pytriton.serving.engine.served_model import ServedModel
    from pytriton.serving.server.api.request_memory import RequestMemory
    from pytriton.serving.server.codec import pool
    from pytriton.serving.server.codec.pool import CodecPool
    from pytriton.serving.server.http.request import HttpRequest

    ReadInfer = tuple[InferRequest, OutputFormat]
    Deferred: TypeAlias = Callable[[], Awaitable[Answer]]
else:
    pool = LazyModule("pytriton.serving.server.codec.pool")


class Bodies:
    """Parses and encodes the bodies of one port.

    If a body is large, a method returns a function instead; calling and awaiting that gives the
    result. Both raise ServerError if the body is malformed.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        tasks: BackgroundTasks,
        max_bytes: int,
        memory: RequestMemory,
    ) -> None:
        self._memory = memory
        self._tasks = tasks
        self._background = Background(loop, "http")
        self._loop = loop
        self._open_codec: CodecPool | None = None
        self._max_bytes = max_bytes
        self._loop_budget = LoopBudget(loop)

    def close(self) -> None:
        if self._open_codec is not None:
            self._open_codec.close()
        self._background.close()

    @property
    def _codec(self) -> CodecPool:
        if self._open_codec is None:
            self._open_codec = pool.CodecPool(self._loop)
        return self._open_codec

    # Requests

    def infer(
        self, http: HttpRequest, model: ServedModel, inflated: Buffer | None = None
    ) -> ReadInfer | Deferred[ReadInfer]:
        """Parse an infer request; returns it and the format of its outputs.

        Its JSON is parsed by its size: now, in a later iteration of the loop, or in another
        process. Binary tensors behind the JSON are only sliced, so their size does not count.
        """
        body: Buffer = http.body
        if b"content-encoding" in http.head.headers:
            if inflated is None and (inflated := self._inflated(http)) is None:
                return partial(self._infer_inflated, http, model)
            body = inflated
        spec, header_length = model.spec, None
        length_text = http.head.headers.get(b"inference-header-content-length")
        if length_text is not None:
            header_length = parse_header_length(length_text.decode("latin-1"), len(body))
        json_length = len(body) if header_length is None else header_length
        if json_length > SMALL_BYTES:
            codec, max_bytes = self._codec, self._max_bytes
            allocate = partial(self._allocate, model)
            return partial(codec.infer, body, json_length, spec, max_bytes, allocate)
        if json_length > MEDIUM_BYTES and not self._loop_budget.is_free():
            read = partial(parse_infer, body, header_length, spec)
            return partial(self._loop_budget.run, read)
        return parse_infer(body, header_length, spec)

    async def _infer_inflated(self, http: HttpRequest, model: ServedModel) -> ReadInfer:
        reading = self.infer(http, model, await self._inflate(http))
        return reading if isinstance(reading, tuple) else await reading()

    def generate(
        self, http: HttpRequest, model: ServedModel
    ) -> InferRequest | Deferred[InferRequest]:
        if http.head.headers.get(b"content-encoding", b"identity").lower() != b"identity":
            raise InvalidArgumentError(
                "Unsupported content-encoding, only 'identity' is supported."
            )
        if len(http.body) > SMALL_BYTES:
            allocate = partial(self._allocate, model)
            return partial(self._codec.generate, http.body, model.spec, allocate)
        if len(http.body) > MEDIUM_BYTES and not self._loop_budget.is_free():
            return partial(self._loop_budget.run, partial(parse_generate, http.body, model.spec))
        return parse_generate(http.body, model.spec)

    async def openai(self, http: HttpRequest, task: bytes) -> tuple[bytes, list[Buffer]]:
        """Read a large body of OpenAI's routes; see `CodecPool.openai`."""
        return await self._codec.openai(http.body, task, self._allocate_private)

    def _allocate_private(self, size: int, _: int) -> memoryview:
        return memoryview(self._memory.hold(private_memory(size)))

    def _allocate(self, model: ServedModel, size: int, header_bytes: int) -> memoryview | None:
        """Returns memory of a model for the tensors of a large JSON text, which will fill it."""
        memory = model.body_memory(size, header_bytes)
        return None if memory is None else memoryview(self._memory.hold(memory))

    def load(self, http: HttpRequest) -> LoadOverrides | Deferred[LoadOverrides]:
        body: Buffer = http.body
        if body and b"content-encoding" in http.head.headers:
            inflated = self._inflated(http)
            if inflated is None:
                return partial(self._load_inflated, http)
            body = inflated
        if len(body) > SMALL_BYTES:
            return partial(self._codec.load, body)
        return read_load(body)

    async def _load_inflated(self, http: HttpRequest) -> LoadOverrides:
        body = await self._inflate(http)
        return await self._codec.load(body)

    def settings(self, http: HttpRequest) -> Buffer:
        """Returns the decompressed body of a request with a few options, which is always small."""
        body: Buffer | None = http.body
        if body and b"content-encoding" in http.head.headers:
            body = self._inflated(http, LARGE_BODY_BYTES)
        if body is None or len(body) > LARGE_BODY_BYTES:
            raise InvalidArgumentError(SMALL_BODY)
        return body

    def _inflated(self, http: HttpRequest, small_bytes: int = SMALL_BYTES) -> Buffer | None:
        """Returns the decompressed body; None if it is not small, before or after that."""
        encoding = http.head.headers[b"content-encoding"].decode("latin-1")
        if len(http.body) > small_bytes:
            return None
        inflated = decompress_small(http.body, encoding, self._max_bytes, small_bytes)
        return None if inflated is None else self._hold(inflated, http)

    async def _inflate(self, http: HttpRequest) -> Buffer:
        encoding = http.head.headers[b"content-encoding"].decode("latin-1")
        lease = self._memory.lease()
        try:
            inflated = await self._background.run(
                decompress, http.body, encoding, self._max_bytes, lease.grow
            )
        except BaseException:
            lease.close()  # a traceback may keep it until the next collection of garbage
            raise
        return inflated if inflated is http.body else lease.attach(inflated)

    def _hold(self, inflated: Buffer, http: HttpRequest) -> Buffer:
        return inflated if inflated is http.body else self._memory.hold(inflated)

    # Responses

    def write_in_thread(
        self,
        write: Callable[[], Answer],
        on_written: Callable[[Answer], None],
        on_error: Callable[[ServerError], None],
    ) -> None:
        """Encode a body in a thread, then call `on_written` or `on_error` in the event loop."""
        self._write(partial(self._background.run, write), on_written, on_error)

    def can_write_now(self) -> bool:
        """Returns whether a body of more than `MEDIUM_BYTES` may be written in this iteration."""
        return self._loop_budget.is_free()

    def write_in_turn(
        self,
        write: Callable[[], Answer],
        on_written: Callable[[Answer], None],
        on_error: Callable[[ServerError], None],
    ) -> None:
        """Encode a body in a later iteration of the event loop, then call one of the two."""
        self._write(partial(self._loop_budget.run, write), on_written, on_error)

    def _write(
        self,
        write: Deferred[Answer],
        on_written: Callable[[Answer], None],
        on_error: Callable[[ServerError], None],
    ) -> None:
        async def work() -> None:
            try:
                answer = await write()
            except Exception as error:  # noqa: BLE001  it is logged
                on_error(as_server_error(error))
            else:
                on_written(answer)

        self._tasks.start(work())


def as_server_error(error: Exception) -> ServerError:
    """Returns the error for the client of a response that could not be written."""
    return error_for_clients(error, "it wrote a response")
