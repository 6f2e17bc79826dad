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
from collections import Counter, deque
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Any

from pytriton.protocol.recording import Exchange, RecordedResponse, RecordedTensor
from pytriton.serving.server.recording.pacing import FollowedSequences

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from pytriton.base.errors import ServerError
    from pytriton.base.messages import (
        InferRequest,
        InferResponse,
        InferTensor,
        MemberFields,
        ResponseBurst,
        ResponseSink,
    )
    from pytriton.base.model_spec import ModelSpec
    from pytriton.runtime.executor.columns import ChunkSink, OutputColumn
    from pytriton.runtime.executor.inference import Inference
    from pytriton.serving.engine.engine import Engine
    from pytriton.serving.server.recording.pacing import ShadowPace

logger = logging.getLogger(__name__)

_EXCHANGE_BYTES = 1024  # that an exchange takes beside its tensors, about
_RESPONSE_BYTES = 256  # the same for each of its responses
_LARGE_BYTES = 64 << 10  # of inputs that take longer to copy than the rest of a request
_HASHES = 1 << 32
_FIRST, _LAST = 1, 2  # the flags of a sequence


class ExchangeChoice:
    """Chooses requests by their model, and a share of them evenly; of sequences all or none."""

    def __init__(self, models: Collection[str] = (), share: float = 1.0) -> None:
        self.models = frozenset(models)  # empty: all
        self._share = share
        self._due = 0.0

    def means(self, model: str) -> bool:
        """Returns whether requests to a model may be chosen; its name may lack the namespace."""
        models = self.models
        return not models or model in models or model.rpartition("::")[2] in models

    def takes(self, model: str, correlation_id: int | str) -> bool:
        """Returns whether the next request is chosen; one of another model does not count."""
        if not self.means(model):
            return False
        if correlation_id:  # each request of a sequence gets the same answer
            return zlib.crc32(str(correlation_id).encode()) < self._share * _HASHES
        self._due += self._share
        if self._due < 1.0:
            return False
        self._due -= 1.0
        return True

    def takes_number(self, count: int) -> int:
        """Returns how many of the next requests are chosen, whichever they are."""
        due = self._due + self._share * count
        chosen = int(due)
        self._due = due - chosen
        return chosen

    def takes_of(self, model: str, count: int) -> Sequence[int]:
        """Returns which of the next requests are chosen; none of them is of a sequence."""
        if not self.means(model):
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


class ExchangeQueue:
    """Whole exchanges that wait for their consumer, bounded by their bytes.

    The event loop reserves room and adds; the consumer may be another thread. Each of the two
    counters is written by one of them, so that no lock is needed.
    """

    def __init__(
        self, choice: ExchangeChoice, max_bytes: int, pace: ShadowPace | None = None
    ) -> None:
        self.choice = choice
        self.max_bytes = max_bytes
        self.pace = pace  # None: copies may take any time
        self.sequences = FollowedSequences()  # only with a pace: what it drops tears gaps
        self.taken_count = 0  # exchanges that were added
        self._drops: Counter[str] = Counter()  # that were chosen and not added, by the reason
        self._skipped_count = 0  # requests that came while nothing could be copied
        self.waiting: deque[tuple[Exchange, int]] = deque()  # with the bytes that are reserved
        self._reserved_bytes = 0
        self._released_bytes = 0
        self.on_added: Callable[[], None] | None = None

    @property
    def dropped_count(self) -> int:
        """How many exchanges were chosen and not added."""
        return sum(self.drops.values())

    @property
    def drops(self) -> Counter[str]:
        """How many they are by the reason."""
        self._count_skipped()
        return self._drops

    def skips(self, model: str, count: int) -> bool:
        """Returns whether nothing can be copied now; then the requests are counted by addition."""
        pace = self.pace
        if pace is None or time.monotonic_ns() >= pace.closed_until_ns:
            return False
        if self.choice.means(model):
            self._skipped_count += count
        return True

    def _count_skipped(self) -> None:
        """Say how many of the requests that were skipped would have been chosen."""
        count, self._skipped_count = self._skipped_count, 0
        if count and self.pace is not None:
            self._drops[self.pace.reason] += self.choice.takes_number(count)

    def wants(self, fields: MemberFields | InferRequest, model: str) -> bool:
        """Returns whether the next request is chosen, and its copy can be afforded."""
        correlation_id = fields.correlation_id
        if not self.choice.takes(model, correlation_id):
            return False
        pace = self.pace
        if pace is None:
            return True
        is_first = bool(fields.flags & _FIRST)
        if correlation_id and not self.sequences.has(model, correlation_id, is_first=is_first):
            self._drops["sequence"] += 1
            return False
        if not self._allowed(pace, 1):
            self._drop(pace.reason, fields, model)
            return False
        return True

    def wants_of(self, model: str, count: int) -> Sequence[int]:
        """Like `wants`, for requests that came together, of no sequence; returns their places."""
        chosen = self.choice.takes_of(model, count)
        pace = self.pace
        if pace is None or not chosen:
            return chosen
        allowed = self._allowed(pace, len(chosen))
        if allowed == len(chosen):
            return chosen
        self._drops[pace.reason or "budget"] += len(chosen) - allowed
        return [chosen[place * len(chosen) // allowed] for place in range(allowed)]

    def reserve(self, size: int, fields: MemberFields | InferRequest, model: str) -> bool:
        """Take room for a request that is wanted; returns False if there is not enough."""
        pace = self.pace
        if self.used_bytes + size > self.max_bytes:
            self._drop("room", fields, model)
            return False
        if pace is not None:
            if size > _LARGE_BYTES and not self._allowed(pace, 1, size):
                self._drop(pace.reason, fields, model)
                return False
            pace.take()
            if fields.correlation_id:
                is_last = bool(fields.flags & _LAST)
                self.sequences.follow(model, fields.correlation_id, is_last=is_last)
        self._reserved_bytes += size
        return True

    def _allowed(self, pace: ShadowPace, count: int, size: int = 0) -> int:
        self._count_skipped()  # before the reason is another one
        return pace.allows(count, time.monotonic_ns(), size)

    def grow(self, exchange: Exchange, reserved: int, more: int) -> bool:
        """Take more room for an exchange; if there is not enough, it is dropped with what it had.

        Returns:
            Whether it goes on.
        """
        pace = self.pace
        reason = ""
        if self.used_bytes + more > self.max_bytes:
            reason = "room"
        elif pace is not None and exchange.responses and pace.is_overdrawn(time.monotonic_ns()):
            reason = "budget"  # a long stream
        if not reason:
            self._reserved_bytes += more
            return True
        self.give_up(reason, reserved, exchange, exchange.model)
        return False

    def give_up(
        self,
        reason: str,
        reserved: int,
        fields: MemberFields | InferRequest | Exchange,
        model: str,
    ) -> None:
        """Undo `reserve`: the exchange is dropped."""
        self._reserved_bytes -= reserved
        if self.pace is not None:
            self.pace.give_up()
        self._drop(reason, fields, model)

    def _drop(
        self, reason: str, fields: MemberFields | InferRequest | Exchange, model: str
    ) -> None:
        self._drops[reason] += 1
        if fields.correlation_id:
            self.sequences.lose(model, fields.correlation_id)

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

    __slots__ = ("_size", "exchange", "pace", "takers")

    def __init__(self, exchange: Exchange, takers: list[ExchangeQueue], size: int) -> None:
        self.exchange = exchange
        self.takers = takers
        self.pace = _pace_of(takers)
        self._size = size

    def add_response(self, tensors: Iterable[InferTensor], parameters: dict[str, Any]) -> None:
        """Copy a response, if there is room for it; otherwise nobody gets the exchange."""
        tensors = list(tensors)
        if self._grow(_RESPONSE_BYTES + sum([_byte_count(each.data) for each in tensors])):
            outputs = [_copied(each) for each in tensors]
            self.exchange.responses.append(
                RecordedResponse(self._elapsed_ns(), outputs, parameters)
            )

    def add_error(self, error: ServerError) -> None:
        """Note an error."""
        if self._grow(_RESPONSE_BYTES):
            code = int(error.code)
            response = RecordedResponse(self._elapsed_ns(), error=error.message, code=code)
            self.exchange.responses.append(response)

    def end(self) -> None:
        """Pass the exchange on; it has its last response."""
        self.exchange.ended_ns = self._elapsed_ns()
        takers, self.takers = self.takers, []
        for taker in takers:
            taker.add(self.exchange, self._size)

    def give_up(self) -> None:
        """Free what the exchange holds: it could not be copied."""
        takers, self.takers = self.takers, []
        for taker in takers:
            taker.give_up("error", self._size, self.exchange, self.exchange.model)

    def _grow(self, more: int) -> bool:
        exchange, size = self.exchange, self._size
        self.takers = [each for each in self.takers if each.grow(exchange, size, more)]
        self._size += more
        return bool(self.takers)

    def _elapsed_ns(self) -> int:
        return max(0, time.monotonic_ns() - self.exchange.arrived_ns)


def _pace_of(takers: Iterable[ExchangeQueue]) -> ShadowPace | None:
    """Returns the pace of the taker that has one: there is one shadow."""
    for taker in takers:
        if taker.pace is not None:
            return taker.pace
    return None


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
        pace = capture.pace
        began_ns = 0 if pace is None else time.thread_time_ns()
        try:
            note(capture, what)
            if final:
                capture.end()
            if not capture.takers:  # it is over, or nobody has room for it any more
                self._capture = None
        except Exception:
            self._capture = None
            capture.give_up()
            logger.exception("an answer could not be recorded")
        if pace is not None:
            pace.spend(time.thread_time_ns() - began_ns, 0)


def _note_response(capture: _Capture, response: InferResponse | None) -> None:
    if response is not None:
        capture.add_response(response.outputs, response.parameters or {})


def _note_burst(capture: _Capture, burst: ResponseBurst) -> None:
    for response in burst.responses():
        capture.add_response(response.outputs, {})


class TappedChunkSink:
    """The sink of a chunk some of whose members are copied; passes everything on."""

    __slots__ = ("_captures", "_is_batched", "_pace", "_sink", "protocol")

    def __init__(self, sink: ChunkSink, captures: dict[int, _Capture], *, is_batched: bool) -> None:
        self._sink = sink
        self._captures = captures  # by the index of the member
        self._is_batched = is_batched
        self._pace = _pace_of(taker for each in captures.values() for taker in each.takers)
        self.protocol = getattr(sink, "protocol", "")  # which traces ask for

    def on_rows(
        self, chunk: Any, first: int, end: int, outputs: Sequence[OutputColumn], row: int
    ) -> None:
        """Pass on the answers of members."""
        starts = chunk.row_starts
        self._sink.on_rows(chunk, first, end, outputs, row)
        pace = self._pace
        began_ns = 0 if pace is None else time.thread_time_ns()
        answered = [each for each in self._captures if first <= each < end]
        captures = [self._captures.pop(index) for index in answered]
        try:
            for index, capture in zip(answered, captures, strict=True):
                at, until = (row + starts[each] - starts[first] for each in (index, index + 1))
                tensors = [each.tensor(at, until, is_batched=self._is_batched) for each in outputs]
                capture.add_response(tensors, {})
                capture.end()
        except Exception:
            for capture in captures:
                capture.give_up()
            logger.exception("answers could not be recorded")
        if pace is not None:
            pace.spend(time.thread_time_ns() - began_ns, 0)

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
                capture.give_up()
                logger.exception("an answer could not be recorded")
        self._sink.on_outcome(chunk, index, response, error, is_refused=is_refused)


class EngineTap:
    """Shows the requests of an engine to consumers; without one, the engine does not know it."""

    def __init__(self, engine: Engine, chunk_observers: list[Callable[[Any], None]]) -> None:
        self._engine = engine
        self._chunk_observers = chunk_observers
        self._consumers: list[ExchangeQueue] = []
        self._only: ExchangeQueue | None = None  # of them, if there is one

    def add(self, consumer: ExchangeQueue) -> None:
        """Copy requests for a consumer from now on."""
        if not self._consumers:
            self._engine.tap = self
            self._chunk_observers.append(self._observe_gathered)
        self._consumers.append(consumer)
        self._only = consumer if len(self._consumers) == 1 else None

    def remove(self, consumer: ExchangeQueue) -> None:
        """Copy no new requests for a consumer; those that run are still added."""
        if consumer not in self._consumers:
            return
        self._consumers.remove(consumer)
        self._only = self._consumers[0] if len(self._consumers) == 1 else None
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
        if request.device is not None:  # the server never sees its tensors
            return
        only = self._only
        # A gap in a sequence has to be noted.
        if only is not None and not request.correlation_id and only.skips(request.model_name, 1):
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
        fields: Sequence[MemberFields | InferRequest],
        version: str,
        received_ns: int,
    ) -> None:
        """Look at a chunk that is about to be submitted."""
        only = self._only
        if only is not None and spec.sequence is None and only.skips(spec.identifier, len(fields)):
            return
        captures: dict[int, _Capture] = {}
        try:
            wanted = self._takers_of_members(spec, fields)
            if not wanted:
                return
            self._capture_members(chunk, spec, fields, version, received_ns, wanted, captures)
        except Exception:
            for capture in captures.values():
                capture.give_up()
            logger.exception("requests could not be recorded")
            return
        if captures:
            is_batched = spec.max_batch_size > 0
            chunk.sink = TappedChunkSink(chunk.sink, captures, is_batched=is_batched)

    def _observe_gathered(self, chunk: Any) -> None:
        received_ns = chunk.received_ns // len(chunk.fields)
        self.observe_chunk(chunk, chunk.model.spec, chunk.fields, chunk.version, received_ns)

    # Copies

    def _capture_request(self, request: InferRequest) -> _Capture | None:
        name = request.model_name
        takers = [each for each in self._consumers if each.wants(request, name)]
        if not takers:
            return None
        pace = _pace_of(takers)
        began_ns = 0 if pace is None else time.thread_time_ns()
        tensors = list(request.inputs.values())
        size = _EXCHANGE_BYTES + sum([_byte_count(each.data) for each in tensors])
        takers = [each for each in takers if each.reserve(size, request, name)]
        capture = None
        if takers:
            exchange = _exchange(request, name, request.received_ns)
            capture = _Capture(exchange, takers, size)
            try:
                model = self._engine.find(name, request.model_version)
                exchange.inputs = [_copied(each) for each in tensors]
                exchange.version = request.model_version
                exchange.outputs = None if request.outputs is None else list(request.outputs)
                exchange.is_decoupled = model is not None and model.spec.decoupled
            except BaseException:
                capture.give_up()
                raise
        if pace is not None:
            pace.spend(time.thread_time_ns() - began_ns, len(takers))
        return capture

    def _capture_members(
        self,
        chunk: Any,
        spec: ModelSpec,
        fields: Sequence[MemberFields | InferRequest],
        version: str,
        received_ns: int,
        wanted: dict[int, list[ExchangeQueue]],
        captures: dict[int, _Capture],
    ) -> None:
        """Fill `captures` with those that are wanted, by their places, as far as there is room."""
        pace = _pace_of(taker for takers in wanted.values() for taker in takers)
        began_ns = 0 if pace is None else time.thread_time_ns()
        starts, signature = chunk.row_starts, chunk.signature
        places = range(len(signature.inputs))
        for index, wanting in wanted.items():
            own = fields[index]
            pieces = [chunk.pieces(place, index, index + 1) for place in places]
            size = _EXCHANGE_BYTES + sum([len(each) for parts in pieces for each in parts])
            takers = [each for each in wanting if each.reserve(size, own, spec.identifier)]
            if not takers:
                continue
            exchange = _exchange(own, spec.identifier, received_ns)
            captures[index] = _Capture(exchange, takers, size)
            rows = (starts[index + 1] - starts[index],) if spec.max_batch_size > 0 else ()
            exchange.inputs = [
                RecordedTensor(
                    column.name, column.dtype.name, (*rows, *column.shape), b"".join(parts)
                )
                for column, parts in zip(signature.inputs, pieces, strict=True)
            ]
            exchange.outputs = None if signature.outputs is None else list(signature.outputs)
            exchange.version = version
        if pace is not None:
            pace.spend(time.thread_time_ns() - began_ns, len(captures))

    def _takers_of_members(
        self, spec: ModelSpec, fields: Sequence[MemberFields | InferRequest]
    ) -> dict[int, list[ExchangeQueue]]:
        """Returns who wants each of the members that somebody wants."""
        found: dict[int, list[ExchangeQueue]] = {}
        name = spec.identifier
        if spec.sequence is not None:
            for index, own in enumerate(fields):
                if takers := [each for each in self._consumers if each.wants(own, name)]:
                    found[index] = takers
            return found
        for consumer in self._consumers:
            for index in consumer.wants_of(name, len(fields)):
                found.setdefault(index, []).append(consumer)
        return found


def _exchange(fields: MemberFields | InferRequest, model: str, received_ns: int) -> Exchange:
    return Exchange(
        arrived_ns=received_ns or time.monotonic_ns(),
        model=model,
        id=fields.id,
        parameters=dict(fields.parameters),
        priority=fields.priority,
        timeout_us=fields.timeout_us,
        correlation_id=fields.correlation_id,
        flags=fields.flags,
    )


def _byte_count(data: Any) -> int:
    return len(data) if isinstance(data, bytes) else memoryview(data).nbytes


def _copied(tensor: InferTensor) -> RecordedTensor:
    # The memory of a tensor is used again as soon as its request is answered.
    return RecordedTensor(tensor.name, tensor.dtype.name, tuple(tensor.shape), bytes(tensor.data))
