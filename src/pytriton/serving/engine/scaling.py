# SPDX-License-Identifier: Apache-2.0
"""Decides how many instances a model should have. The caller passes the time and the load."""

from __future__ import annotations

import math
from collections import deque

import msgspec

FIRST_RETRY_S = 5.0  # after a start that failed; each further one in a row doubles it
MAX_RETRY_S = 120.0


class ScalingSettings(msgspec.Struct, frozen=True):
    """Between which numbers of instances a model is scaled, and when.

    Attributes:
        minimum: It never has fewer instances.
        maximum: It never wants more.
        target: How many full batches should wait or run for each slot of an instance.
        up_after_s: More instances are started after more were wanted for so long.
        down_after_s: Instances are ended after fewer were wanted for so long.
    """

    minimum: int = 1
    maximum: int = 1
    target: float = 1.0
    up_after_s: float = 2.0
    down_after_s: float = 120.0


class InstanceLoad(msgspec.Struct, frozen=True):
    """What the instances of a model have to do at one moment.

    Attributes:
        pending: The number of requests that wait.
        running: The number of requests that are being executed.
        ready: The number of instances that serve.
        starting: The number of instances that are being started, or wait for a place.
        capacity: How many requests an instance executes at a time: full batches in all its slots.
    """

    pending: int = 0
    running: int = 0
    ready: int = 0
    starting: int = 0
    capacity: int = 1


class ScalingPolicy:
    """Follows the load of one model: up soon, down late, so that it does not go up and down.

    Attributes:
        wanted: The number of instances that the load has asked for; `decide` updates it.
    """

    def __init__(self, settings: ScalingSettings) -> None:
        self.settings = settings
        self.wanted = settings.minimum
        self._more_since_s: float | None = None  # since when more than `wanted` are needed
        # The needs within the time after which instances are ended, without those that a later one
        # exceeds, each with its time: the first one is the highest.
        self._peaks: deque[tuple[float, int]] = deque()
        self._failures_in_a_row = 0
        self._retry_s = -math.inf  # no start before this time

    def decide(self, now_s: float, load: InstanceLoad) -> int:
        """Returns how many instances there should be, those that are being started included.

        Args:
            now_s: The time of a monotonic clock.
            load: What they have to do now.
        """
        need = self.need(load)
        self._note(now_s, need)
        self.wanted = min(self.wanted, self._peaks[0][1])
        if need <= self.wanted:
            self._more_since_s = None
        else:
            if self._more_since_s is None:
                self._more_since_s = now_s
            if now_s - self._more_since_s >= self.settings.up_after_s:
                self._more_since_s = None
                self.wanted = need
        present = load.ready + load.starting
        return min(self.wanted, present) if now_s < self._retry_s else self.wanted

    def need(self, load: InstanceLoad) -> int:
        """Returns how many instances this load needs, within the limits."""
        settings = self.settings
        requests = load.pending + load.running
        need = math.ceil(requests / (max(1, load.capacity) * settings.target))
        return min(max(need, settings.minimum), settings.maximum)

    def on_start_failed(self, now_s: float) -> float:
        """Ask for no more instances for some time; returns for how long."""
        delay_s = min(FIRST_RETRY_S * 2.0 ** min(self._failures_in_a_row, 16), MAX_RETRY_S)
        self._failures_in_a_row += 1
        self._retry_s = now_s + delay_s
        return delay_s

    def on_recovery(self) -> None:
        """Try at once: there may be a place now. If that fails, the pauses go on to grow."""
        self._retry_s = -math.inf

    def on_started(self) -> None:
        """There was a place for another instance, and it works."""
        self._failures_in_a_row = 0
        self._retry_s = -math.inf

    @property
    def is_at_rest(self) -> bool:
        """Whether nothing changes while the load stays as low as it is."""
        return self.wanted == self.settings.minimum and self._more_since_s is None

    def _note(self, now_s: float, need: int) -> None:
        peaks = self._peaks
        while peaks and peaks[-1][1] <= need:
            peaks.pop()
        peaks.append((now_s, need))
        while now_s - peaks[0][0] >= self.settings.down_after_s and len(peaks) > 1:
            peaks.popleft()

    def __repr__(self) -> str:
        settings = self.settings
        return f"<ScalingPolicy wants {self.wanted} of {settings.minimum} to {settings.maximum}>"
