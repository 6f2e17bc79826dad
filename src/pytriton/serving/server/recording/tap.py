# SPDX-License-Identifier: Apache-2.0
"""Copies chosen requests with their answers for those who want them: recordings and a shadow.

The tap is in the engine's process, so it sees the requests of all front ends. What it copies is
bounded: a request for which no room is left is not copied but counted. Nothing that goes wrong here
reaches a client.
"""

from __future__ import annotations

import logging
import math
import time
import zlib
from collections import deque
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Any

from pytriton.base.messages import MemberFields
from pytriton.protocol.recording import Exchange, RecordedResponse, RecordedTensor

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from pytriton.base.errors import ServerError
    from pytriton.base.messages import (
        InferRequest,
        InferResponse,
        InferTensor,
        ResponseBurst,
        ResponseSink,
    )
    from pytriton.base.model_spec import ModelSpec
    from pytriton.runtime.executor.columns import ChunkSink, OutputColumn
    from pytriton.runtime.executor.inference import Inference
    from pytriton.serving.engine.engine import Engine

logger = logging.getLogger(__name__)

_EXCHANGE_BYTES = 1024  # that an exchange takes beside its tensors, about
_RESPONSE_BYTES = 256  # the same for each of its responses
_HASHES = 1 << 32


class ExchangeChoice:
    """Chooses requests by their model, and a share of them evenly; of sequences all or none."""

    def __init__(self, models: Collection[str] = (), share: float = 1.0) -> None:
        self._models = frozenset(models)  # empty: all
        self._share = share
        self._due = 0.0

    def takes(self, model: str, correlation_id: int | str) -> bool:
        """Returns whether the next request is chosen; one of another model does not count."""
        if self._models and model not in self._models:
            return False
        if correlation_id:  # each request of a sequence gets the same answer
            return zlib.crc32(str(correlation_id).encode()) < self._share * _HASHES
        self._due += self._share
        if self._due < 1.0:
            return False
        self._due -= 1.0
        return True

    def takes_of(self, model: str, count: int) -> Sequence[int]:
        """Returns which of the next requests are chosen; none of them is of a sequence."""
        if self._models and model not in self._models:
            return ()
        share, before = self._share, self._due
        due = self._due = before + share * count
        if due < 1.0:
            return ()
        chosen = int(due)
        self._due = due - chosen
        if chosen == count:
            return range(count)
        # The n-th is chosen with the request that makes the sum of shares reach n.
        return [
            min(count, math.ceil((number - before) / share)) - 1 for number in range(1, chosen + 1)
        ]


class TimeBudget:
    """Bounds the time that copies may take from other work, as a share of all time.

    Time that was spent drains away at the rate of the share. While more is left than the burst,
    nothing may be copied.
    """

    def __init__(self, share: float, burst_ns: int) -> None:
        self._share = share
        self._burst_ns = burst_ns
        self._level_ns = 0.0
        self._drained_ns = time.monotonic_ns()
        self.elsewhere_ns = 0  # spent by another thread, which counts up
        self._counted_ns = 0  # of these

    def spend(self, duration_ns: int) -> None:
        """Count time."""
        self._level_ns += duration_ns

    @property
    def is_spent(self) -> bool:
        """Whether nothing may be copied now."""
        now_ns = time.monotonic_ns()
        elsewhere_ns = self.elsewhere_ns
        level_ns = self._level_ns + elsewhere_ns - self._counted_ns
        self._counted_ns = elsewhere_ns
        self._level_ns = max(0.0, level_ns - self._share * (now_ns - self._drained_ns))
        self._drained_ns = now_ns
        return self._level_ns > self._burst_ns


class ExchangeQueue:
    """Whole exchanges that wait for their consumer, bounded by their bytes.

    The event loop reserves room and adds; the consumer may be another thread. Each of the two
    counters is written by one of them, so that no lock is needed.
    """

    def __init__(
        self, choice: ExchangeChoice, max_bytes: int, budget: TimeBudget | None = None
    ) -> None:
        self.choice = choice
        self.max_bytes = max_bytes
        self.budget = budget  # None: copies may take any time
        self.taken_count = 0  # exchanges that were added
        self.dropped_count = 0  # that were chosen, and for which there was no room
        self.waiting: deque[tuple[Exchange, int]] = deque()  # with the bytes that are reserved
        self._reserved_bytes = 0
        self._released_bytes = 0
        self.on_added: Callable[[], None] | None = None

    def wants(self, model: str, correlation_id: int | str) -> bool:
        """Returns whether the next request is chosen, and there is time to copy it."""
        if not self.choice.takes(model, correlation_id):
            return False
        if self.budget is not None and self.budget.is_spent:
            self.dropped_count += 1
            return False
        return True

    def wants_of(self, model: str, count: int) -> Sequence[int]:
        """Like `wants`, for requests that came together; returns their places."""
        chosen = self.choice.takes_of(model, count)
        if chosen and self.budget is not None and self.budget.is_spent:
            self.dropped_count += len(chosen)
            return ()
        return chosen

    def spend(self, began_ns: int) -> None:
        """Count the time since a copy began."""
        if self.budget is not None:
            self.budget.spend(time.monotonic_ns() - began_ns)

    def reserve(self, size: int) -> bool:
        """Take room for the bytes of an exchange; returns False if there is not enough."""
        if self.used_bytes + size > self.max_bytes:
            return False
        self._reserved_bytes += size
        return True

    def give_back(self, size: int) -> None:
        """Undo `reserve`, in the event loop: the exchange was dropped."""
        self._reserved_bytes -= size
        self.dropped_count += 1

    def release(self, size: int) -> None:
        """Free the room of an exchange that the consumer has used."""
        self._released_bytes += size

    @property
    def used_bytes(self) -> int:
        """The bytes of exchanges that run or wait."""
        return self._reserved_bytes - self._released_bytes

    def add(self, exchange: Exchange, size: int) -> None:
        """Pass on an exchange that has ended."""
        self.taken_count += 1
        self.waiting.append((exchange, size))
        if self.on_added is not None:
            self.on_added()


class _Capture:
    """An exchange while it runs, and who gets it."""

    __slots__ = ("_size", "exchange", "takers")

    def __init__(self, exchange: Exchange, takers: list[ExchangeQueue], size: int) -> None:
        self.exchange = exchange
        self.takers = takers
        self._size = size

    def add_response(self, tensors: Iterable[InferTensor], parameters: dict[str, Any]) -> None:
        """Copy a response, if there is room for it; otherwise nobody gets the exchange."""
        began_ns = time.monotonic_ns()
        tensors = list(tensors)
        size = _RESPONSE_BYTES + sum([_byte_count(each.data) for each in tensors])
        self._grow(size)
        if self.takers:
            outputs = [_copied(each) for each in tensors]
            self.exchange.responses.append(
                RecordedResponse(self._elapsed_ns(), outputs, parameters)
            )
        for taker in self.takers:
            taker.spend(began_ns)

    def add_error(self, error: ServerError) -> None:
        """Note an error."""
        self._grow(_RESPONSE_BYTES)
        if self.takers:
            code = int(error.code)
            response = RecordedResponse(self._elapsed_ns(), error=error.message, code=code)
            self.exchange.responses.append(response)

    def end(self) -> None:
        """Pass the exchange on; it has its last response."""
        self.exchange.ended_ns = self._elapsed_ns()
        takers, self.takers = self.takers, []
        for taker in takers:
            taker.add(self.exchange, self._size)

    def _grow(self, size: int) -> None:
        kept = []
        for taker in self.takers:
            if taker.reserve(size):
                kept.append(taker)
            else:
                taker.give_back(self._size)
        self.takers = kept
        self._size += size

    def _elapsed_ns(self) -> int:
        return max(0, time.monotonic_ns() - self.exchange.arrived_ns)


class TappedSink:
    """The sink of a request that is copied; passes everything on."""

    __slots__ = ("_capture", "_sink")

    def __init__(self, sink: ResponseSink, capture: _Capture) -> None:
        self._sink = sink
        self._capture: _Capture | None = capture

    def on_response(self, response: InferResponse | None, *, final: bool) -> None:
        """Pass a response on."""
        self._note(_note_response, response, final=final)
        self._sink.on_response(response, final=final)

    def on_burst(self, burst: ResponseBurst) -> None:
        """Pass many responses on, as the sink takes them."""
        self._note(_note_burst, burst, final=False)
        sink: Any = self._sink
        if hasattr(sink, "on_burst"):
            sink.on_burst(burst)
        else:
            for response in burst.responses():
                sink.on_response(response, final=False)

    def on_error(self, error: ServerError, *, final: bool = True) -> None:
        """Pass an error on."""
        self._note(_Capture.add_error, error, final=final)
        self._sink.on_error(error, final=final)

    def on_refused(self, error: ServerError) -> None:
        """Pass a refusal on."""
        self._note(_Capture.add_error, error, final=True)
        self._sink.on_refused(error)

    def _note(self, note: Callable[[_Capture, Any], None], what: Any, *, final: bool) -> None:
        capture = self._capture
        if capture is None:  # its end could not be delivered, and an error follows
            return
        try:
            note(capture, what)
            if final:
                self._capture = None
                capture.end()
        except Exception:
            self._capture = None
            logger.exception("an answer could not be recorded")


def _note_response(capture: _Capture, response: InferResponse | None) -> None:
    if response is not None:
        capture.add_response(response.outputs, response.parameters or {})


def _note_burst(capture: _Capture, burst: ResponseBurst) -> None:
    for response in burst.responses():
        capture.add_response(response.outputs, {})


class TappedChunkSink:
    """The sink of a chunk some of whose members are copied; passes everything on."""

    __slots__ = ("_captures", "_is_batched", "_sink", "protocol")

    def __init__(self, sink: ChunkSink, captures: dict[int, _Capture], *, is_batched: bool) -> None:
        self._sink = sink
        self._captures = captures  # by the index of the member
        self._is_batched = is_batched
        self.protocol = getattr(sink, "protocol", "")  # which traces ask for

    def on_rows(
        self, chunk: Any, first: int, end: int, outputs: Sequence[OutputColumn], row: int
    ) -> None:
        """Pass on the answers of members."""
        starts = chunk.row_starts
        self._sink.on_rows(chunk, first, end, outputs, row)
        try:
            for index in [each for each in self._captures if first <= each < end]:
                capture = self._captures.pop(index)
                at, until = (row + starts[each] - starts[first] for each in (index, index + 1))
                tensors = [each.tensor(at, until, is_batched=self._is_batched) for each in outputs]
                capture.add_response(tensors, {})
                capture.end()
        except Exception:
            logger.exception("answers could not be recorded")

    def on_outcome(
        self,
        chunk: Any,
        index: int,
        response: InferResponse | None,
        error: ServerError | None,
        *,
        is_refused: bool,
    ) -> None:
        """Pass on the end of one member."""
        capture = self._captures.pop(index, None)
        if capture is not None:
            try:
                if error is not None:
                    capture.add_error(error)
                else:
                    _note_response(capture, response)
                capture.end()
            except Exception:
                logger.exception("an answer could not be recorded")
        self._sink.on_outcome(chunk, index, response, error, is_refused=is_refused)


class EngineTap:
    """Shows the requests of an engine to consumers; without one, the engine does not know it."""

    def __init__(self, engine: Engine, chunk_observers: list[Callable[[Any], None]]) -> None:
        self._engine = engine
        self._chunk_observers = chunk_observers
        self._consumers: list[ExchangeQueue] = []

    def add(self, consumer: ExchangeQueue) -> None:
        """Copy requests for a consumer from now on."""
        if not self._consumers:
            self._engine.tap = self
            self._chunk_observers.append(self._observe_gathered)
        self._consumers.append(consumer)

    def remove(self, consumer: ExchangeQueue) -> None:
        """Copy no new requests for a consumer; those that run are still added."""
        if consumer not in self._consumers:
            return
        self._consumers.remove(consumer)
        if not self._consumers:
            self._engine.tap = None
            self._chunk_observers.remove(self._observe_gathered)

    # Called by the engine

    def observe(self, inference: Inference) -> None:
        """Look at a request that is about to be queued or refused."""
        request, sink = inference.request, inference.sink
        # Calls of models are parts of what clients sent. A request may be submitted twice.
        if request.call_depth or isinstance(sink, TappedSink):
            return
        try:
            capture = self._capture_request(request)
        except Exception:
            logger.exception("a request could not be recorded")
            return
        if capture is not None:
            inference.sink = TappedSink(sink, capture)

    def observe_chunk(
        self,
        chunk: Any,
        spec: ModelSpec,
        fields: Sequence[MemberFields],
        version: str,
        received_ns: int,
    ) -> None:
        """Look at a chunk that is about to be submitted."""
        try:
            captures = self._capture_members(chunk, spec, fields, received_ns)
            for capture in captures.values():
                capture.exchange.version = version
        except Exception:
            logger.exception("requests could not be recorded")
            return
        if captures:
            is_batched = spec.max_batch_size > 0
            chunk.sink = TappedChunkSink(chunk.sink, captures, is_batched=is_batched)

    def _observe_gathered(self, chunk: Any) -> None:
        received_ns = chunk.received_ns // len(chunk.fields)
        self.observe_chunk(chunk, chunk.model.spec, chunk.fields, chunk.version, received_ns)

    # Copies

    def _takers(self, model: str, correlation_id: int | str) -> list[ExchangeQueue]:
        return [each for each in self._consumers if each.wants(model, correlation_id)]

    def _capture_request(self, request: InferRequest) -> _Capture | None:
        takers = self._takers(request.model_name, request.correlation_id)
        if not takers:
            return None
        began_ns = time.monotonic_ns()
        tensors = list(request.inputs.values())
        size = _EXCHANGE_BYTES + sum([_byte_count(each.data) for each in tensors])
        takers = _with_room(takers, size)
        if not takers:
            return None
        model = self._engine.find(request.model_name, request.model_version)
        exchange = _exchange(
            MemberFields.of(request), request.model_name, request.received_ns, tensors
        )
        exchange.version = request.model_version
        exchange.outputs = None if request.outputs is None else list(request.outputs)
        exchange.is_decoupled = model is not None and model.spec.decoupled
        for taker in takers:
            taker.spend(began_ns)
        return _Capture(exchange, takers, size)

    def _capture_members(
        self, chunk: Any, spec: ModelSpec, fields: Sequence[MemberFields], received_ns: int
    ) -> dict[int, _Capture]:
        captures: dict[int, _Capture] = {}
        began_ns = time.monotonic_ns()
        wanted = self._takers_of_members(spec, fields)
        if not wanted:
            return captures
        starts, signature = chunk.row_starts, chunk.signature
        for index, wanting in wanted.items():
            own = fields[index]
            rows = (starts[index + 1] - starts[index],) if spec.max_batch_size > 0 else ()
            pieces = [
                chunk.pieces(place, index, index + 1) for place in range(len(signature.inputs))
            ]
            size = _EXCHANGE_BYTES + sum([len(each) for parts in pieces for each in parts])
            takers = _with_room(wanting, size)
            if not takers:
                continue
            exchange = _exchange(own, spec.name, received_ns, ())
            exchange.inputs = [
                RecordedTensor(
                    column.name, column.dtype.name, (*rows, *column.shape), b"".join(parts)
                )
                for column, parts in zip(signature.inputs, pieces, strict=True)
            ]
            exchange.outputs = None if signature.outputs is None else list(signature.outputs)
            captures[index] = _Capture(exchange, takers, size)
        for taker in {each: None for capture in captures.values() for each in capture.takers}:
            taker.spend(began_ns)
        return captures

    def _takers_of_members(
        self, spec: ModelSpec, fields: Sequence[MemberFields]
    ) -> dict[int, list[ExchangeQueue]]:
        """Returns who wants each of the members that somebody wants."""
        found: dict[int, list[ExchangeQueue]] = {}
        if spec.sequence is not None:
            for index, own in enumerate(fields):
                if takers := self._takers(spec.name, own.correlation_id):
                    found[index] = takers
            return found
        for consumer in self._consumers:
            for index in consumer.wants_of(spec.name, len(fields)):
                found.setdefault(index, []).append(consumer)
        return found


def _with_room(takers: list[ExchangeQueue], size: int) -> list[ExchangeQueue]:
    """Reserve room at each; returns those that have it, and counts a drop at the others."""
    kept = []
    for taker in takers:
        if taker.reserve(size):
            kept.append(taker)
        else:
            taker.dropped_count += 1
    return kept


def _exchange(
    fields: MemberFields, model: str, received_ns: int, tensors: Iterable[InferTensor]
) -> Exchange:
    return Exchange(
        arrived_ns=received_ns or time.monotonic_ns(),
        model=model,
        id=fields.id,
        parameters=dict(fields.parameters),
        priority=fields.priority,
        timeout_us=fields.timeout_us,
        correlation_id=fields.correlation_id,
        flags=fields.flags,
        inputs=[_copied(each) for each in tensors],
    )


def _byte_count(data: Any) -> int:
    return len(data) if isinstance(data, bytes) else memoryview(data).nbytes


def _copied(tensor: InferTensor) -> RecordedTensor:
    # The memory of a tensor is used again as soon as its request is answered.
    return RecordedTensor(tensor.name, tensor.dtype.name, tuple(tensor.shape), bytes(tensor.data))
