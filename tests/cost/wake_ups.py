# SPDX-License-Identifier: Apache-2.0
"""The work of single callbacks of the event loop, after a client has sent as much as one read has.

Whatever else a client causes, others wait for one callback at a time, so the most expensive one
says how long. A socket that stays readable is read several times in one callback.
"""

from __future__ import annotations

from tests.cost.counting import work_of
from tests.fake_network import FakeTransport
from tests.fakes import FakeLoop

# A line or a call takes 0.05 to 0.1 us, so this is about five milliseconds.
MOST_WORK = 60_000
_WAKE_UPS = 5  # that are counted: others are like the first ones


class WakeUpLoop(FakeLoop):
    """Runs single callbacks, and counts what they cost."""

    def work_of_next(self) -> int:
        callback, arguments = self._ready.popleft()
        return work_of(lambda: callback(*arguments), MOST_WORK)

    @property
    def is_idle(self) -> bool:
        return not self._ready


def work_of_wake_ups(loop: WakeUpLoop, transport: FakeTransport, wire: bytes) -> list[int]:
    """Returns the work of the callback that reads bytes, and of the first ones that follow.

    TooMuchWork is raised if one of them causes more than others should wait for.
    """
    transport.unread += wire
    costs = [work_of(transport.deliver, MOST_WORK)]
    while len(costs) < _WAKE_UPS and not loop.is_idle:
        costs.append(loop.work_of_next())
    return costs
