# SPDX-License-Identifier: Apache-2.0
"""Recordings of requests and answers, which a client starts and fetches over the HTTP port.

The server writes no file: the client gets the bytes of one in parts, and writes it where it may.
There is one recording at a time. It ends at one of its limits, when its client says so, or when
its client no longer fetches.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections import Counter
from typing import TYPE_CHECKING, Annotated, Any, Literal

import msgspec

from pytriton.base.errors import AlreadyExistsError, InvalidArgumentError, NotFoundError
from pytriton.protocol.recording import (
    MAGIC,
    RecordingEnd,
    RecordingHead,
    encode_record,
    redact,
)
from pytriton.serving.server.metrics.exposition import MetricSample, SampleFamily, gauge
from pytriton.serving.server.recording.tap import ExchangeChoice, ExchangeQueue

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pytriton.protocol.recording import Exchange
    from pytriton.serving.server.recording.tap import EngineTap

logger = logging.getLogger(__name__)

PART_BYTES = 4 << 20  # of one answer to the client
_WAIT_S = 1.0  # for something to fetch
_IDLE_S = 30.0  # without a fetch, after which the client counts as gone
_ENCODED_AT_ONCE = 256  # exchanges

# Why a recording ends, as the metric names it, and in words.
_REASONS = {
    "time": "the time limit was reached",
    "size": "the size limit was reached",
    "requests": "the limit of requests was reached",
    "stopped": "its client has stopped it",
    "disk": "its client cannot write it, for example because the disk is full",
    "gone": "its client does not fetch it any more",
    "exit": "the server stops",
}

_Positive = Annotated[float, msgspec.Meta(gt=0)]
_Share = Annotated[float, msgspec.Meta(gt=0, le=1)]
_Count = Annotated[int, msgspec.Meta(ge=1)]


class RecordingRequest(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """What a client wants to be recorded; it ends at the first limit that is reached."""

    models: list[str] = []  # empty: all
    share: _Share = 1.0  # of the requests
    seconds: _Positive = 60.0
    bytes: _Count = 1 << 30  # of the file
    requests: _Count | None = None
    redact: list[str] = []  # names of tensors and parameters
    buffer_bytes: Annotated[int, msgspec.Meta(ge=1 << 16, le=1 << 32)] = 64 << 20


class Fetch(msgspec.Struct, forbid_unknown_fields=True):
    """Asks for the bytes of a recording from `offset` on; those before are not needed again."""

    id: str
    offset: Annotated[int, msgspec.Meta(ge=0)] = 0


class StopRecording(msgspec.Struct, forbid_unknown_fields=True):
    """Ends a recording; what is left of it can still be fetched."""

    id: str
    reason: Literal["stopped", "disk"] = "stopped"


class RunningRecording:
    """One recording: exchanges come in, the bytes of a file go out."""

    def __init__(
        self,
        wanted: RecordingRequest,
        server: str,
        loop: asyncio.AbstractEventLoop,
        on_ended: Callable[[], None],
    ) -> None:
        self.id = os.urandom(8).hex()
        self.wanted = wanted
        self.reason = ""  # why it has ended, one of `_REASONS`; empty: it runs
        self.queue = ExchangeQueue(ExchangeChoice(wanted.models, wanted.share), wanted.buffer_bytes)
        self.queue.on_added = self._on_added
        self.number = 0  # of exchanges that are in the file
        self._loop = loop
        self._on_ended = on_ended
        self._redacted = frozenset(wanted.redact)
        self._buffer = bytearray(MAGIC)
        self._offset = 0  # in the file, of the buffer's begin
        self._sizes: list[tuple[int, int]] = []  # ends of exchanges in the file, what they reserve
        self._is_complete = False
        self._news = asyncio.Event()
        self._lock = asyncio.Lock()
        self.fetched_s = loop.time()
        self._timer = loop.call_later(wanted.seconds, self.end, "time")
        self._buffer += encode_record(
            RecordingHead(
                server=server,
                started_s=time.time(),
                started_ns=time.monotonic_ns(),
                models=wanted.models,
                share=wanted.share,
                redacted=wanted.redact,
            )
        )

    @property
    def is_fetched(self) -> bool:
        """Whether the client has everything, also the end."""
        return self._is_complete and not self._buffer

    def end(self, reason: str) -> None:
        """Record no more; what there is can still be fetched. May be called twice."""
        if not self.reason:
            self.reason = reason
            self._timer.cancel()
            self._on_ended()
            self._news.set()

    def status(self) -> dict[str, Any]:
        """Returns how far it is."""
        return {
            "id": self.id,
            "running": not self.reason,
            "reason": _REASONS.get(self.reason, ""),
            "recorded": self.queue.taken_count,
            "dropped": self.queue.dropped_count,
            "bytes": self._offset + len(self._buffer),
        }

    async def fetch(self, offset: int) -> bytes:
        """Returns the next part; an empty one if nothing came in time, or after the end.

        Raises:
            InvalidArgumentError: These bytes are gone, or not there yet.
        """
        self.fetched_s = self._loop.time()
        async with self._lock:  # a client that asks twice gets the same answer twice
            if not 0 <= offset - self._offset <= len(self._buffer):
                raise InvalidArgumentError(
                    f"expected an offset from {self._offset} to "
                    f"{self._offset + len(self._buffer)}, got {offset}"
                )
            self._forget(offset)
            await self._fill()
            self.fetched_s = self._loop.time()
            return bytes(memoryview(self._buffer)[:PART_BYTES])

    async def _fill(self) -> None:
        """Wait until there is something to fetch, and make records of what there is."""
        if self._buffer or self._is_complete:
            return
        if not self.queue.waiting and not self.reason:
            self._news.clear()
            handle = self._loop.call_later(_WAIT_S, self._news.set)
            await self._news.wait()
            handle.cancel()
        waiting = self.queue.waiting
        taken = [waiting.popleft() for _ in range(min(len(waiting), _ENCODED_AT_ONCE))]
        if taken:
            # In a thread: the checksum of a large tensor takes long.
            encoded = await self._loop.run_in_executor(None, self._encode, taken)
            for data, (_, reserved) in zip(encoded, taken, strict=True):
                self._add(data, reserved)
        # Requests that were under way at the end are not in the file.
        if self.reason and not waiting and not self._is_complete:
            self._is_complete = True
            dropped = self.queue.dropped_count
            end = RecordingEnd(reason=_REASONS[self.reason], exchanges=self.number, dropped=dropped)
            self._buffer += encode_record(end)

    def _encode(self, taken: list[tuple[Exchange, int]]) -> list[bytes]:
        encoded = []
        for number, (exchange, _) in enumerate(taken, self.number):
            record = msgspec.structs.replace(redact(exchange, self._redacted), number=number)
            encoded.append(encode_record(record))
        return encoded

    def _add(self, data: bytes, reserved: int) -> None:
        size = self._offset + len(self._buffer) + len(data)
        limit = self.wanted.requests
        if size > self.wanted.bytes or (limit is not None and self.number >= limit):
            self.queue.release(reserved)
            self.end("size")
            return
        self.number += 1
        self._buffer += data
        self._sizes.append((size, reserved))

    def _forget(self, offset: int) -> None:
        """Drop what the client has."""
        del self._buffer[: offset - self._offset]
        self._offset = offset
        while self._sizes and self._sizes[0][0] <= offset:
            self.queue.release(self._sizes.pop(0)[1])

    def _on_added(self) -> None:
        self._news.set()
        limit = self.wanted.requests
        if limit is not None and self.queue.taken_count >= limit:
            self.end("requests")


class Recordings:
    """Starts, feeds and ends the recordings of a server, and counts them."""

    def __init__(self, tap: EngineTap, server: str, loop: asyncio.AbstractEventLoop) -> None:
        self._tap = tap
        self._server = server
        self._loop = loop
        self._current: RunningRecording | None = None
        self._recorded = self._dropped = 0  # of recordings that have ended
        self._reasons: Counter[str] = Counter()
        self._watch: asyncio.TimerHandle | None = None

    async def do(self, action: str, body: bytes) -> Any:
        """Do what a client asks for: `status`, `start`, `fetch` or `stop`.

        Raises:
            ServerError: The request is malformed, or there is no such recording.
        """
        match action:
            case "start":
                return self._start(_read(body, RecordingRequest))
            case "fetch":
                wanted = _read(body, Fetch)
                return await self._fetch(self._found(wanted.id), wanted.offset)
            case "stop":
                stop = _read(body, StopRecording)
                recording = self._found(stop.id)
                recording.end(stop.reason)
                return recording.status()
        return {} if self._current is None else self._current.status()

    def _start(self, wanted: RecordingRequest) -> dict[str, Any]:
        current = self._current
        if current is not None and not current.reason:
            raise AlreadyExistsError("a recording runs already, and there is one at a time")
        if current is not None:
            self._count(current)
        self._current = recording = RunningRecording(
            wanted, self._server, self._loop, self._on_ended
        )
        self._tap.add(recording.queue)
        self._watch = self._loop.call_later(_IDLE_S, self._check)
        logger.info(
            "A recording has started: %s, %g of the requests, for up to %g s",
            ", ".join(wanted.models) or "all models",
            wanted.share,
            wanted.seconds,
        )
        return recording.status()

    def _found(self, recording_id: str) -> RunningRecording:
        current = self._current
        if current is None or current.id != recording_id:
            raise NotFoundError(f"there is no recording '{recording_id}'")
        return current

    async def _fetch(self, recording: RunningRecording, offset: int) -> bytes:
        part = await recording.fetch(offset)
        if recording.is_fetched and recording is self._current:
            self._count(recording)
        return part

    def _count(self, recording: RunningRecording) -> None:
        """Forget a recording that has ended."""
        self._recorded += recording.queue.taken_count
        self._dropped += recording.queue.dropped_count
        self._current = None
        if self._watch is not None:
            self._watch.cancel()

    def _on_ended(self) -> None:
        assert self._current is not None
        recording = self._current
        self._tap.remove(recording.queue)
        self._reasons[recording.reason] += 1
        logger.info(
            "The recording has ended: %s; it got %d requests, %d were dropped",
            _REASONS[recording.reason],
            recording.queue.taken_count,
            recording.queue.dropped_count,
        )

    def _check(self) -> None:
        """Free what a client does not fetch any more."""
        recording = self._current
        if recording is None:
            return
        if self._loop.time() - recording.fetched_s >= _IDLE_S:
            recording.end("gone")
            self._count(recording)
            return
        self._watch = self._loop.call_later(_IDLE_S, self._check)

    def close(self) -> None:
        """End what runs: the server stops."""
        if self._watch is not None:
            self._watch.cancel()
        if self._current is not None:
            self._current.end("exit")

    def families(self) -> Iterator[SampleFamily]:
        """Yields the metrics, once there was a recording."""
        current = self._current
        if current is None and not self._reasons:
            return
        recorded, dropped = self._recorded, self._dropped
        if current is not None:
            recorded += current.queue.taken_count
            dropped += current.queue.dropped_count
        is_running = current is not None and not current.reason
        yield gauge("nv_recording_running", "Whether requests are recorded", int(is_running))
        yield SampleFamily(
            "nv_recording_request_count",
            "counter",
            "Number of requests that were recorded",
            [MetricSample(recorded, {})],
        )
        yield SampleFamily(
            "nv_recording_drop_count",
            "counter",
            "Number of requests that should have been recorded and were not, as there was no room",
            [MetricSample(dropped, {})],
        )
        yield SampleFamily(
            "nv_recording_end_count",
            "counter",
            "Number of recordings that have ended, by the reason",
            [MetricSample(self._reasons[each], {"reason": each}) for each in _REASONS],
        )


def _read(body: bytes, kind: type[Any]) -> Any:
    try:
        return msgspec.json.decode(body or b"{}", type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InvalidArgumentError(f"the request for a recording is wrong: {error}") from error
