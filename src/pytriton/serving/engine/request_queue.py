# SPDX-License-Identifier: Apache-2.0
"""The waiting requests of a model in order: priority levels, queue policies and deadlines.

There is no I/O; the caller passes the time. `batcher` divides the requests into batches.
"""

from __future__ import annotations

import heapq
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain, takewhile
from typing import Any

from pytriton.base.errors import ServerError, UnavailableError
from pytriton.base.model_spec import BatcherSpec, QueuePolicySpec, QueueTimeoutAction
from pytriton.runtime.executor.inference import Inference
from pytriton.serving.engine.fairness import FairFifo, FairShares, over_share

# The requests of one FIFO, each with the token of its deadline. It is an ordered dictionary because
# a cancelled request can be removed from the middle in O(1), which frees its tensors; a deque would
# have to be searched, or would hold them until their turn. It costs 0.1 us per request more.
# If principals share the queue, `FairFifo` takes its place.
Fifo = OrderedDict[Inference, int] | FairFifo[Inference]

_NO_DEADLINE = 0
_STALE_ENTRIES_KEPT = 64


def add_each(
    add: Callable[[Inference, int], None], inferences: Sequence[Inference], now_ns: int
) -> dict[Inference, ServerError]:
    """Queue requests one by one with `add`; returns those that it refused."""
    refused: dict[Inference, ServerError] = {}
    for inference in inferences:
        try:
            add(inference, now_ns)
        except ServerError as error:  # noqa: PERF203  each request may be refused
            refused[inference] = error
    return refused


def first_again(waiting: Iterable[Inference], inferences: Iterable[Inference]) -> list[Inference]:
    """Returns requests that were put back, the last one first, for the front of a queue.

    Those that were put back before and wait there are among them, so that requests of several
    instances that are lost one after the other keep their order.
    """
    earlier = takewhile(lambda inference: inference.is_put_back, waiting)
    again = dict.fromkeys((*earlier, *inferences))
    return sorted(again, key=lambda each: (each.queued_ns, each.index))[::-1]


class DeadlineHeap:
    """The deadlines of waiting requests, earliest first.

    The entry of a request that left the queue stays in the heap, without a reference to the
    request, until the stale entries outnumber the live ones; then all stale entries are dropped. So
    the heap is never much larger than twice the queue, no matter how many requests with distant
    deadlines have passed through it.
    """

    __slots__ = ("_entries", "_inferences", "_last_token")

    def __init__(self) -> None:
        self._entries: list[tuple[int, int]] = []  # deadline and token
        self._inferences: dict[int, Inference] = {}  # by token
        self._last_token = _NO_DEADLINE

    def add(self, inference: Inference) -> int:
        """Add the request's deadline; returns the token for `discard`."""
        self._last_token = token = self._last_token + 1
        self._inferences[token] = inference
        if len(self._entries) > 2 * len(self._inferences) + _STALE_ENTRIES_KEPT:
            self._entries = [entry for entry in self._entries if entry[1] in self._inferences]
            heapq.heapify(self._entries)
        heapq.heappush(self._entries, (inference.deadline_ns, token))
        return token

    def discard(self, token: int) -> None:
        """Remove a deadline; `_NO_DEADLINE` is ignored."""
        self._inferences.pop(token, None)

    def earliest_ns(self) -> int:
        """Returns the earliest deadline; 0 if there is none."""
        entries = self._entries
        if not self._inferences:
            entries.clear()  # the usual case, and faster than popping one by one
        while entries:
            deadline_ns, token = entries[0]
            if token in self._inferences:
                return deadline_ns
            heapq.heappop(entries)
        return 0

    def pop_expired(self, now_ns: int) -> list[Inference]:
        """Remove and return the requests whose deadline has passed, earliest first."""
        expired = []
        while 0 < self.earliest_ns() <= now_ns:
            _, token = heapq.heappop(self._entries)
            expired.append(self._inferences.pop(token))
        return expired

    def check_integrity(self) -> None:
        """Check that each live deadline has an entry, and that the earliest one is first."""
        entries = self._entries
        for index in range(1, len(entries)):
            assert entries[(index - 1) // 2] <= entries[index], f"{self} is no heap at {index}"
        deadlines = {token: deadline_ns for deadline_ns, token in entries}
        for token, inference in self._inferences.items():
            assert deadlines.get(token) == inference.deadline_ns, f"{inference} has no deadline"

    def token_of(self, inference: Inference) -> int:
        """Returns the token of a request's deadline, for checks: it searches for it."""
        found = (token for token, each in self._inferences.items() if each is inference)
        return next(found, _NO_DEADLINE)

    @property
    def entry_count(self) -> int:
        """The size of the heap, with the stale entries."""
        return len(self._entries)

    def __len__(self) -> int:
        return len(self._inferences)

    def __repr__(self) -> str:
        return f"<DeadlineHeap {len(self)} live of {self.entry_count} entries>"


def make_fifo(shares: FairShares | None, items: Iterable[tuple[Inference, Any]] = ()) -> Any:
    """Returns a queue with these requests, in the order of arrival or of shares."""
    return OrderedDict(items) if shares is None else FairFifo[Inference](shares, items)


class PriorityLevel:
    """The requests of one level: first those on time, then those moved back by DELAY."""

    __slots__ = ("delayed", "fifos", "has_policy", "policy", "waiting")

    def __init__(self, policy: QueuePolicySpec, shares: FairShares | None = None) -> None:
        self.policy = policy
        self.has_policy = bool(policy.default_timeout_us or policy.max_queue_size)
        self.waiting: Fifo = OrderedDict()
        self.delayed: Fifo = OrderedDict()
        self.share(shares)

    def share(self, shares: FairShares | None) -> None:
        """Let principals share the level from now on; None: the order of arrival decides."""
        self.waiting = make_fifo(shares, self.waiting.items())
        self.delayed = make_fifo(shares, self.delayed.items())
        policy = self.policy
        delays = policy.default_timeout_us and policy.timeout_action is QueueTimeoutAction.DELAY
        self.fifos = (self.waiting, self.delayed) if delays else (self.waiting,)

    def is_full(self) -> bool:
        limit = self.policy.max_queue_size
        return 0 < limit <= len(self.waiting) + len(self.delayed)

    def timeout_us(self, inference: Inference) -> int:
        """Returns a request's queue timeout; it can be shorter than the level's but not longer."""
        default_us = self.policy.default_timeout_us
        if (
            self.policy.allow_timeout_override
            and 0 < inference.request.fields.timeout_us < default_us
        ):
            return inference.request.fields.timeout_us
        return default_us


class RequestQueue:
    """All waiting requests of a model, in the order in which they are to run.

    A batcher is a subclass with a method `next` that decides which requests are executed.
    """

    __slots__ = (
        "_deadlines",
        "_default_level",
        "_fifos",
        "_has_timeouts",
        "_levels",
        "_rejected",
        "_shares",
        "_spec",
    )

    def __init__(self, spec: BatcherSpec) -> None:
        self._spec = spec
        self._levels: dict[int, PriorityLevel] = {}
        self._fifos: list[Fifo] = []  # in the order of execution
        self._deadlines = DeadlineHeap()
        self._has_timeouts = False
        self._shares: FairShares | None = None  # None: nobody shares the queue
        self._rejected: list[Inference] = []  # not in the queue, not yet returned by `expire`
        self._default_level = self._open_level(spec.default_priority_level)

    def share(self, shares: FairShares | None) -> None:
        """Let principals share the queue from now on; None: the order of arrival decides."""
        self._shares = shares
        for level in self._levels.values():
            level.share(shares)
        self._list_fifos()

    def add(self, inference: Inference, now_ns: int) -> None:
        """Append a request to its level and set its `queued_ns` and `deadline_ns`.

        Raises UnavailableError if its priority level is full.
        """
        level = (
            self._level_of(inference) if inference.request.fields.priority else self._default_level
        )
        if level.has_policy:
            self._add_under_policy(level, inference, now_ns)
        else:
            inference.queued_ns = now_ns
            level.waiting[inference] = _NO_DEADLINE

    def add_all(self, inferences: Sequence[Inference], now_ns: int) -> dict[Inference, ServerError]:
        """Append requests like `add`; returns those that were refused, each with its error."""
        level = self._default_level
        if self._spec.priority_levels or level.has_policy:
            return add_each(self.add, inferences, now_ns)
        waiting = level.waiting
        for inference in inferences:
            inference.queued_ns = now_ns
            waiting[inference] = _NO_DEADLINE
        return {}

    def put_back(self, inferences: Sequence[Inference], now_ns: int) -> None:
        """Queue requests again before all others of their level, however full that is."""
        levels: dict[int, list[Inference]] = {}
        for inference in inferences:
            levels.setdefault(inference.request.fields.priority, []).append(inference)
        for each in levels.values():
            self._put_first(self._level_of(each[0]), each, now_ns)

    def _put_first(self, level: PriorityLevel, inferences: list[Inference], now_ns: int) -> None:
        """Put requests to the front of a level, with a new queue timeout each."""
        waiting = level.waiting
        for inference in inferences:
            timeout_us = level.timeout_us(inference)
            inference.deadline_ns = now_ns + 1000 * timeout_us if timeout_us else 0
            token = self._deadlines.add(inference) if timeout_us else _NO_DEADLINE
            waiting[inference] = token
        for inference in first_again(waiting, inferences):
            waiting.move_to_end(inference, last=False)

    def remove(self, inference: Inference) -> bool:
        """Remove a waiting request; returns False if it is not in the queue."""
        level = self._level_of(inference)
        token = level.waiting.pop(inference, None)
        if token is None:
            token = level.delayed.pop(inference, None)
        if token:
            self._deadlines.discard(token)
        return token is not None

    def expire(self, now_ns: int) -> list[Inference]:
        """Apply the timeout actions that are due; returns the requests to be rejected."""
        self._apply_timeouts(now_ns)
        rejected, self._rejected = self._rejected, []
        return rejected

    def next_deadline_ns(self) -> int:
        """Returns the time at which to call `expire`; 0: never."""
        if not self._has_timeouts:
            return 0
        return self._rejected[0].deadline_ns if self._rejected else self._deadlines.earliest_ns()

    def take_all(self) -> list[Inference]:
        waiting = list(self._in_order())
        for inference in waiting:
            self.remove(inference)
        rejected, self._rejected = self._rejected, []
        return rejected + waiting

    def _in_order(self) -> Iterator[Inference]:
        """Iterates over the waiting requests as they are to run; do not change the queue then."""
        fifos = self._fifos
        return iter(fifos[0]) if len(fifos) == 1 else chain.from_iterable(fifos)

    def _drop_first(self, inferences: list[Inference]) -> None:
        """Remove the first requests of `_in_order`."""
        if self._has_timeouts:
            for inference in inferences:
                self.remove(inference)
            return
        left = inferences
        for fifo in self._fifos:
            if len(left) < len(fifo):
                for inference in left:
                    del fifo[inference]
                return
            left = left[len(fifo) :] if len(left) > len(fifo) else []
            fifo.clear()

    def _apply_timeouts(self, now_ns: int) -> None:
        """Reject or delay the requests whose deadline has passed."""
        for inference in self._deadlines.pop_expired(now_ns):
            level = self._level_of(inference)
            del level.waiting[inference]
            if level.policy.timeout_action is QueueTimeoutAction.DELAY:
                inference.deadline_ns = 0
                level.delayed[inference] = _NO_DEADLINE
            else:
                self._rejected.append(inference)

    def _add_under_policy(self, level: PriorityLevel, inference: Inference, now_ns: int) -> None:
        if level.is_full() and not self._make_room(level, inference):
            request_id = inference.request.fields.id or "<id_unknown>"
            raise UnavailableError(f"[request id: {request_id}] Exceeds maximum queue size")
        inference.queued_ns = now_ns
        timeout_us = level.timeout_us(inference)
        inference.deadline_ns = now_ns + 1000 * timeout_us if timeout_us else 0
        level.waiting[inference] = self._deadlines.add(inference) if timeout_us else _NO_DEADLINE

    def _make_room(self, level: PriorityLevel, inference: Inference) -> bool:
        """Take a place from the principal that is farthest above its share of a full level.

        Returns whether there is room now: not if the newcomer is above its own share.
        """
        shares, waiting, delayed = self._shares, level.waiting, level.delayed
        if shares is None or not isinstance(waiting, FairFifo) or not isinstance(delayed, FairFifo):
            return False
        counts = waiting.counts()
        for principal, count in delayed.counts().items():
            counts[principal] = counts.get(principal, 0) + count
        limit = level.policy.max_queue_size
        loser = over_share(counts, inference.request.fields.principal, limit, shares.weight)
        if loser is None:
            return False
        displaced = waiting.newest(loser) or delayed.newest(loser)
        if displaced is None:  # all of them were put back: they ran before, and have to run again
            return False
        self.remove(displaced)
        shares.on_displaced(displaced)
        return True

    def _level_of(self, inference: Inference) -> PriorityLevel:
        priority = inference.request.fields.priority
        if 0 < priority <= self._spec.priority_levels:
            return self._levels.get(priority) or self._open_level(priority)
        return self._default_level

    def _open_level(self, number: int) -> PriorityLevel:
        """Make a level when it is first used, since a configuration may allow any number."""
        policy = self._spec.queue_policies.get(number, self._spec.default_queue_policy)
        self._levels[number] = opened = PriorityLevel(policy, self._shares)
        self._has_timeouts = self._has_timeouts or policy.default_timeout_us > 0
        self._list_fifos()
        return opened

    def _list_fifos(self) -> None:
        in_order = [self._levels[number] for number in sorted(self._levels)]
        self._fifos = [fifo for level in in_order for fifo in level.fifos]

    def check_integrity(self) -> None:
        """Check that each request waits once, at its level, with its own deadline or none."""
        self._deadlines.check_integrity()
        levels = [self._levels[number] for number in sorted(self._levels)]
        fifos = [fifo for level in levels for fifo in level.fifos]
        assert list(map(id, fifos)) == list(map(id, self._fifos)), f"{self} has lost a level"
        seen = set(self._rejected)
        assert len(seen) == len(self._rejected), f"{self} has rejected a request twice"
        tokens = 0
        for level in levels:
            assert level.delayed is level.fifos[-1] or not level.delayed, f"{level} hides requests"
            for inference, token in (*level.waiting.items(), *level.delayed.items()):
                assert inference not in seen, f"{inference} is in two places"
                seen.add(inference)
                assert self._level_of(inference) is level, f"{inference} is at another level"
                assert token == self._deadlines.token_of(inference), f"{inference}: wrong token"
                tokens += token != _NO_DEADLINE
        assert tokens == len(self._deadlines), f"{self} has deadlines of requests that have left"

    def __len__(self) -> int:
        return sum(map(len, self._fifos))

    def __repr__(self) -> str:
        delayed = sum(len(level.delayed) for level in self._levels.values())
        return (
            f"<{type(self).__name__} {len(self)} waiting, {delayed} of them delayed, "
            f"{len(self._deadlines)} with a deadline>"
        )
