# SPDX-License-Identifier: Apache-2.0
"""Shares a queue among principals by their weights, so that none of them can keep the others out.

This is fair queueing by virtual time. Each principal has a number that grows with the rows that it
got, divided by its weight, and the one with the smallest number is next. Who comes after a pause
begins where the others are: nobody saves up turns. There is no clock and no I/O.
"""

from __future__ import annotations

import heapq
from collections import OrderedDict
from typing import TYPE_CHECKING, Any, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from pytriton.runtime.executor.inference import Inference

_Item = TypeVar("_Item")

ANYBODY = ""  # the principal of clients that the server does not know
_KEPT_IDLE = 64  # principals that do not wait, whose numbers are kept until these are worthless


class FairShares:
    """What each principal has got of one model, and who is next.

    Args:
        weights: By principal; one that is not listed has the weight of `ANYBODY`, or 1.
        on_displaced: Called with a request that has lost its place in a full queue to another
            principal. It is in the queue no more, and has to be answered, but not before this
            returns.
    """

    __slots__ = ("_now", "_others", "_spent", "_waiting", "_weights", "on_displaced")

    def __init__(
        self, weights: Mapping[str, float], on_displaced: Callable[[Inference], None]
    ) -> None:
        self.on_displaced = on_displaced
        self._weights = weights
        self._others = weights.get(ANYBODY, 1.0)
        self._spent: dict[str, float] = {}  # the virtual time of each principal
        self._now = 0.0  # that of the one who was served last, when it was chosen
        self._waiting: dict[str, int] = {}  # in how many queues each of them waits

    def weight(self, principal: str) -> float:
        """Returns the weight of a principal."""
        return self._weights.get(principal, self._others)

    def begin(self, principal: str) -> None:
        """Note that a principal begins to wait: it has no claim to the time before."""
        waiting = self._waiting
        waiting[principal] = waiting.get(principal, 0) + 1
        spent = self._spent
        if spent.get(principal, 0.0) <= self._now:
            spent[principal] = self._now
        if len(spent) > 2 * len(waiting) + _KEPT_IDLE:
            # Those that are not ahead would begin at the same time if they were not known.
            self._spent = {
                name: at for name, at in spent.items() if at > self._now or name in waiting
            }

    def end(self, principal: str) -> None:
        """Note that a principal waits no more in one of the queues."""
        waiting = self._waiting
        waiting[principal] -= 1
        if not waiting[principal]:
            del waiting[principal]
            if not waiting:  # nobody has anything to share
                self._spent.clear()

    def spent(self, principal: str) -> float:
        """Returns the virtual time of a principal that waits."""
        return self._spent.get(principal, self._now)

    def charge(self, principal: str, rows: int) -> None:
        """Count rows that a principal got."""
        at = self._spent.get(principal, self._now)
        self._now = max(self._now, at)
        self._spent[principal] = at + rows / self.weight(principal)

    def charge_all(self, inferences: Iterable[Inference]) -> None:
        """Count a batch. Requests of a lost instance were counted with their first batch."""
        for inference in inferences:
            if not inference.is_put_back:
                request = inference.request
                self.charge(request.fields.principal, request.rows or 1)

    def __repr__(self) -> str:
        return f"<FairShares of {len(self._spent)} principals at {self._now:g}>"


class FairFifo(Generic[_Item]):
    """Waiting requests in the order of `FairShares`, each with a value: an ordered dictionary.

    Requests of one principal keep their order. It has those methods of `OrderedDict` that queues
    use, and may replace one in a queue.
    """

    __slots__ = ("_begun", "_first", "_flows", "_shares")

    def __init__(self, shares: FairShares, items: Iterable[tuple[_Item, Any]] = ()) -> None:
        self._shares = shares
        self._first: OrderedDict[_Item, Any] = OrderedDict()  # those before all principals
        # By principal, with a number that says who began to wait earlier; none is empty.
        self._flows: dict[str, tuple[int, OrderedDict[_Item, Any]]] = {}
        self._begun = 0
        for item, value in items:
            self[item] = value

    def principal_of(self, item: _Item) -> str:
        """Returns whose turn an item takes."""
        request: Any = item
        return request.request.fields.principal  # type: ignore[no-any-return]  # an `Inference`

    def rows_of(self, item: _Item) -> int:
        """Returns how much of a turn an item takes."""
        request: Any = item
        return request.request.rows or 1

    # Order

    def __iter__(self) -> Iterator[_Item]:
        """Iterates in the order of service; do not change it meanwhile."""
        yield from self._first
        if len(self._flows) == 1:
            ((_, only),) = self._flows.values()
            yield from only
            return
        shares = self._shares
        turns = [
            (shares.spent(principal), number, iter(flow), shares.weight(principal))
            for principal, (number, flow) in self._flows.items()
        ]
        heapq.heapify(turns)
        while turns:
            at, number, flow, weight = turns[0]
            item = next(flow, None)
            if item is None:
                heapq.heappop(turns)
                continue
            yield item
            heapq.heapreplace(turns, (at + self.rows_of(item) / weight, number, flow, weight))

    def items(self) -> Iterator[tuple[_Item, Any]]:
        """Iterates over items with their values, in the order of service."""
        for item in self:
            yield item, self[item]

    def __len__(self) -> int:
        return len(self._first) + sum([len(flow) for _, flow in self._flows.values()])

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {len(self)} waiting, of {len(self._flows)} principals>"

    # Places

    def counts(self) -> dict[str, int]:
        """Returns how many items each principal has."""
        counts = {principal: len(flow) for principal, (_, flow) in self._flows.items()}
        for item in self._first:
            principal = self.principal_of(item)
            counts[principal] = counts.get(principal, 0) + 1
        return counts

    def newest(self, principal: str) -> _Item | None:
        """Returns the item of a principal that came last; None if it has none."""
        flow = self._flows.get(principal)
        return None if flow is None else next(reversed(flow[1]))

    def __setitem__(self, item: _Item, value: Any) -> None:
        principal = self.principal_of(item)
        flow = self._flows.get(principal)
        if flow is None:
            self._begun += 1
            flow = self._flows[principal] = (self._begun, OrderedDict())
            self._shares.begin(principal)
        flow[1][item] = value

    def __getitem__(self, item: _Item) -> Any:
        if item in self._first:
            return self._first[item]
        return self._flows[self.principal_of(item)][1][item]

    def __contains__(self, item: _Item) -> bool:
        if item in self._first:
            return True
        flow = self._flows.get(self.principal_of(item))
        return flow is not None and item in flow[1]

    def __delitem__(self, item: _Item) -> None:
        if item in self._first:
            del self._first[item]
            return
        principal = self.principal_of(item)
        _, flow = self._flows[principal]
        del flow[item]
        if not flow:
            del self._flows[principal]
            self._shares.end(principal)

    def pop(self, item: _Item, default: Any = None) -> Any:
        """Remove an item; returns its value, or `default` if it is not here."""
        if item not in self:
            return default
        value = self[item]
        del self[item]
        return value

    def clear(self) -> None:
        """Remove all items."""
        self._first.clear()
        principals = list(self._flows)
        self._flows.clear()
        for principal in principals:
            self._shares.end(principal)

    def move_to_end(self, item: _Item, *, last: bool = True) -> None:
        """Put an item before those of all principals: an instance was lost with it."""
        assert not last, "expected an item for the front"
        value = self[item]
        del self[item]
        self._first[item] = value
        self._first.move_to_end(item, last=False)


def over_share(
    counts: Mapping[str, int], newcomer: str, limit: int, weight: Callable[[str], float]
) -> str | None:
    """Returns the principal that has to give a place of a full queue to a newcomer; None: nobody.

    A share is a part of the queue by weight, among those that wait there, and at least one place.
    A newcomer within its share takes a place of the one that is farthest above its own.
    """
    names = dict.fromkeys((*counts, newcomer))
    whole = sum(weight(name) for name in names)
    shares = {name: max(1.0, limit * weight(name) / whole) for name in names}
    if counts.get(newcomer, 0) + 1 > shares[newcomer]:
        return None
    above = {name: count / shares[name] for name, count in counts.items() if count > shares[name]}
    return max(above, key=above.__getitem__) if above else None
