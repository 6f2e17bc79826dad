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

from pytriton.base.messages import RequestFields
from pytriton.protocol.recording import Exchange, RecordedResponse, RecordedTensor
from pytriton.serving.engine.observers import Observer, Watcher
from pytriton.serving.server.recording.pacing import FollowedSequences

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from pytriton.base.messages import InferRequest, InferTensor
    from pytriton.serving.engine.observers import Members, Observers, Run
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

    def wants(self, fields: RequestFields, model: str) -> bool:
        """Returns whether a request of a sequence is chosen, and its copy can be afforded."""
        correlation_id = fields.correlation_id
        if not self.choice.takes(model, correlation_id):
            return False
        pace = self.pace
        if pace is None:
            return True
        is_first = bool(fields.flags & _FIRST)
        if not self.sequences.has(model, correlation_id, is_first=is_first):
            self._drops["sequence"] += 1
            return False
        if not self._allowed(pace, 1):
            self._drop(pace.reason, fields, model)
            return False
        return True

    def wants_of(self, model: str, count: int) -> Sequence[int]:
        """Like `wants`, for requests of no sequence that came together; returns their places."""
        chosen = self.choice.takes_of(model, count)
        pace = self.pace
        if pace is None or not chosen:
            return chosen
        allowed = self._allowed(pace, len(chosen))
        if allowed == len(chosen):
            return chosen
        self._drops[pace.reason or "budget"] += len(chosen) - allowed
        return [chosen[place * len(chosen) // allowed] for place in range(allowed)]

    def reserve(self, size: int, fields: RequestFields, model: str) -> bool:
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
        fields: RequestFields | Exchange,
        model: str,
    ) -> None:
        """Undo `reserve`: the exchange is dropped."""
        self._reserved_bytes -= reserved
        if self.pace is not None:
            self.pace.give_up()
        self._drop(reason, fields, model)

    def _drop(self, reason: str, fields: RequestFields | Exchange, model: str) -> None:
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

    def add(self, run: Run, index: int) -> None:
        """Copy what the request gets; if there is no room for it, nobody gets the exchange."""
        elapsed_ns = max(0, run.answered_ns - self.exchange.arrived_ns)
        responses = self.exchange.responses
        for tensors, parameters in run.answers(index):
            if self._grow(_RESPONSE_BYTES + sum([_byte_count(each.data) for each in tensors])):
                outputs = [_copied(each) for each in tensors]
                responses.append(RecordedResponse(elapsed_ns, outputs, parameters))
        error = run.error
        if error is not None and self._grow(_RESPONSE_BYTES):
            code = int(error.code)
            responses.append(RecordedResponse(elapsed_ns, error=error.message, code=code))
        if run.is_final:
            self.exchange.ended_ns = elapsed_ns
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


def _pace_of(takers: Iterable[ExchangeQueue]) -> ShadowPace | None:
    """Returns the pace of the taker that has one: there is one shadow."""
    for taker in takers:
        if taker.pace is not None:
            return taker.pace
    return None


class TapWatcher(Watcher):
    """Copies the answers to requests that are copied, by their indices."""

    def __init__(self, captures: dict[int, _Capture]) -> None:
        self._captures = captures
        self._pace = _pace_of(taker for each in captures.values() for taker in each.takers)

    def answered(self, run: Run) -> None:
        """Copy answers."""
        pace = self._pace
        began_ns = 0 if pace is None else time.thread_time_ns()
        for index in [each for each in self._captures if run.first <= each < run.end]:
            capture = self._captures[index]
            try:
                capture.add(run, index)
            except Exception:
                capture.give_up()
                logger.exception("an answer could not be recorded")
            if not capture.takers:  # it is over, or nobody has room for it any more
                del self._captures[index]
        if pace is not None:
            pace.spend(time.thread_time_ns() - began_ns, 0)


class EngineTap(Observer):
    """Shows the requests of an engine to consumers; without one, it does not observe them."""

    def __init__(self, observers: Observers) -> None:
        self._observers = observers
        self._consumers: list[ExchangeQueue] = []

    def add(self, consumer: ExchangeQueue) -> None:
        """Copy requests for a consumer from now on."""
        self._consumers.append(consumer)
        self._observers.add("recording", self)

    def remove(self, consumer: ExchangeQueue) -> None:
        """Copy no new requests for a consumer; those that run are still added."""
        if consumer in self._consumers:
            self._consumers.remove(consumer)
            if not self._consumers:
                self._observers.remove("recording")

    def begun(self, members: Members) -> TapWatcher | None:
        """Copy requests that somebody wants, as far as there is room."""
        first, consumers = members.requests[0], self._consumers
        # Calls of models are parts of what clients sent. The server never sees tensors on devices.
        if first.call_depth or first.device is not None:
            return None
        # A gap in a sequence has to be noted.
        is_skipped = len(consumers) == 1 and not first.fields.correlation_id
        if is_skipped and consumers[0].skips(first.model_name, len(members)):
            return None
        captures: dict[int, _Capture] = {}
        try:
            wanted = self._takers(members.requests)
            if wanted:
                _capture(members, wanted, captures)
        except BaseException:
            for capture in captures.values():
                capture.give_up()
            raise
        return TapWatcher(captures) if captures else None

    def _takers(self, requests: Sequence[InferRequest]) -> dict[int, list[ExchangeQueue]]:
        """Returns who wants each of the requests that somebody wants."""
        found: dict[int, list[ExchangeQueue]] = {}
        name = requests[0].model_name
        for consumer in self._consumers:
            places: Iterable[int] = (
                [index for index, each in enumerate(requests) if consumer.wants(each.fields, name)]
                if requests[0].fields.correlation_id
                else consumer.wants_of(name, len(requests))
            )
            for index in places:
                found.setdefault(index, []).append(consumer)
        return found


def _capture(
    members: Members, wanted: dict[int, list[ExchangeQueue]], captures: dict[int, _Capture]
) -> None:
    """Fill `captures` with those that are wanted, by their places, as far as there is room."""
    pace = _pace_of(taker for takers in wanted.values() for taker in takers)
    began_ns = 0 if pace is None else time.thread_time_ns()
    spec = members.spec
    for index, wanting in wanted.items():
        request, tensors = members.requests[index], members.inputs(index)
        name = request.model_name
        size = _EXCHANGE_BYTES + sum([_byte_count(each.data) for each in tensors])
        takers = [each for each in wanting if each.reserve(size, request.fields, name)]
        if takers:
            exchange = _exchange(request)
            captures[index] = _Capture(exchange, takers, size)
            exchange.inputs = [_copied(each) for each in tensors]
            exchange.is_decoupled = spec is not None and spec.decoupled
    if pace is not None:
        pace.spend(time.thread_time_ns() - began_ns, len(captures))


def _exchange(request: InferRequest) -> Exchange:
    return Exchange(
        arrived_ns=request.received_ns or time.monotonic_ns(),
        model=request.model_name,
        version=request.model_version,
        id=request.fields.id,
        outputs=None if request.outputs is None else list(request.outputs),
        parameters=dict(request.fields.parameters),
        priority=request.fields.priority,
        timeout_us=request.fields.timeout_us,
        correlation_id=request.fields.correlation_id,
        flags=request.fields.flags,
    )


def _byte_count(data: Any) -> int:
    return len(data) if isinstance(data, bytes) else memoryview(data).nbytes


def _copied(tensor: InferTensor) -> RecordedTensor:
    # The memory of a tensor is used again as soon as its request is answered.
    return RecordedTensor(tensor.name, tensor.dtype.name, tuple(tensor.shape), bytes(tensor.data))
