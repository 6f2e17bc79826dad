# SPDX-License-Identifier: Apache-2.0
"""What the log says of exceptions that models raise: each place once in full, then with a count.

A place is a model, a class of exceptions and the line of the user's own code. `RepeatedFailures`
decides and has no clock; `FailureLog` has the clock, and a thread for counts that nothing follows.
"""

from __future__ import annotations

import dataclasses
import os
import re
import threading
import time
from typing import TYPE_CHECKING, NamedTuple

from pytriton.base.threads import start_thread
from pytriton.base.user_frames import UserFrame, own_frame

if TYPE_CHECKING:
    from collections.abc import Callable

    Write = Callable[["Failure"], None]

PERIOD_S = 10.0  # between two lines of a place
QUIET_S = 600.0  # after that time without it, a place is written in full again
MAX_PLACES = 200
_END_TIMEOUT_S = 2.0  # for the thread, which writes only
_MAX_MESSAGE = 300  # characters of a message in the line with a count
_NUMBERS = re.compile(r"\d+")


class Failure(NamedTuple):
    """What is written: an exception in full, or how often it was repeated."""

    text: str  # one line: the class, the message and the place
    error: BaseException | None  # None: this is a line with a count
    frame: UserFrame | None  # where the user's code failed


@dataclasses.dataclass(slots=True)
class _Place:
    failure: Failure  # the newest one
    written_s: float  # when its last line was written
    seen_s: float
    count: int = 0  # since then

    def repeats(self, now_s: float) -> Failure:
        """Returns the line with the count, which begins again."""
        count, seconds = self.count, max(1, round(now_s - self.written_s))
        self.count, self.written_s = 0, now_s
        times = "1 more time" if count == 1 else f"{count} more times"
        text = f"{self.failure.text} ({times} in the last {seconds} s)"
        return Failure(text, None, self.failure.frame)


class RepeatedFailures:
    """Counts exceptions by their places, of which it knows a bounded number."""

    def __init__(self) -> None:
        self._places: dict[tuple[str, ...], _Place] = {}  # the longest unseen first
        self._ready: list[Failure] = []  # of places that had to go

    def add(
        self,
        model: str,
        error: BaseException,
        now_s: float,
        default: UserFrame | None = None,
        hint: str = "",
    ) -> Failure | None:
        """Count an exception; returns it if it is to be written in full, with a hint at the end.

        `default` is the place of an exception that no code of the user has raised, for example
        where the function begins whose answer was wrong.
        """
        frame = own_frame(error)
        key = _key(model, error, frame)
        frame = frame or default
        return self.count(key, Failure(_line(model, error, frame) + hint, error, frame), now_s)

    def count(self, key: tuple[str, ...], failure: Failure, now_s: float) -> Failure | None:
        """Count a failure at the place that `key` means; returns it if it is to be written."""
        place = self._places.pop(key, None)
        if place is not None and place.count:
            is_new = False
        else:
            is_new = place is None or now_s - place.seen_s >= QUIET_S
        if is_new or place is None:
            place = _Place(failure._replace(error=None), now_s, now_s)
        else:
            place.failure, place.seen_s = failure._replace(error=None), now_s
            place.count += 1
        self._places[key] = place
        self._bound(now_s)
        return failure if is_new else None

    def due(self, now_s: float, *, is_end: bool = False) -> list[Failure]:
        """Returns the lines with counts whose time has come; at the end, all of them."""
        ready, self._ready = self._ready, []
        for place in self._places.values():
            if place.count and (is_end or now_s - place.written_s >= PERIOD_S):
                ready.append(place.repeats(now_s))
        return ready

    def next_s(self) -> float | None:
        """Returns when the next line is due; None if nothing waits."""
        times = [each.written_s + PERIOD_S for each in self._places.values() if each.count]
        return min(times, default=None)

    def _bound(self, now_s: float) -> None:
        while len(self._places) > MAX_PLACES:
            place = self._places.pop(next(iter(self._places)))
            if place.count:
                self._ready.append(place.repeats(now_s))


class FailureLog:
    """Writes exceptions with `write`, which is called on the thread that raised, or a later one."""

    def __init__(self, write: Write, clock: Callable[[], float] = time.monotonic) -> None:
        self._write = write
        self._clock = clock
        self._begin()

    def _begin(self) -> None:
        self._process = os.getpid()
        self._repeated = RepeatedFailures()
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None

    def add(
        self,
        model: str,
        error: BaseException,
        default: UserFrame | None = None,
        hint: str = "",
    ) -> None:
        """Write an exception, or count it; see `RepeatedFailures.add`."""
        if os.getpid() != self._process:  # a fork has neither the thread nor, perhaps, the lock
            self._begin()
        with self._lock:
            now_s = self._clock()
            failure = self._repeated.add(model, error, now_s, default, hint)
            lines = self._repeated.due(now_s, is_end=self._ended.is_set())
            if self._thread is None and self._repeated.next_s() is not None:
                # Without a thread, the next exception or the end writes the counts.
                self._thread = start_thread(self._report, "pytriton-failures")
        for each in [*lines, failure]:
            if each is not None:
                self._write(each)

    def close(self) -> None:
        """Write the counts that wait. What comes afterwards is written at once."""
        self._ended.set()
        with self._lock:
            thread = self._thread
            lines = [] if thread else self._repeated.due(self._clock(), is_end=True)
        for each in lines:
            self._write(each)
        if thread is not None and thread is not threading.current_thread():
            thread.join(_END_TIMEOUT_S)

    def _report(self) -> None:
        """Write counts that no other exception has brought along."""
        while True:
            with self._lock:
                next_s = self._repeated.next_s()
                if next_s is None:
                    self._thread = None
                    return
            is_end = self._ended.wait(max(0.0, next_s - self._clock()))
            with self._lock:
                lines = self._repeated.due(self._clock(), is_end=is_end)
            for each in lines:
                self._write(each)


def model_label(name: str, version: int | str, instance: int, instance_count: int) -> str:
    """Returns what the log calls a model; version 1 and a single instance have no number."""
    label = f"model '{name}'"
    if str(version) != "1":
        label += f" version {version}"
    return f"{label} instance {instance}" if instance_count > 1 else label


def _line(model: str, error: BaseException, frame: UserFrame | None) -> str:
    message = message_of(error)
    if len(message) > _MAX_MESSAGE:
        message = message[:_MAX_MESSAGE] + " ..."
    # A class may say how the log calls it, for example not at all.
    name = getattr(error, "log_name", type(error).__name__)
    text = ": ".join(part for part in (model, name, message) if part)
    return f"{text} at {frame}" if frame is not None else text


def message_of(error: BaseException) -> str:
    """Returns the text of an exception of user code, which may raise another one."""
    try:
        return str(error)
    except Exception:  # noqa: BLE001  the traceback says enough
        return "<its text could not be created>"


def _key(model: str, error: BaseException, frame: UserFrame | None) -> tuple[str, ...]:
    kind = type(error).__name__
    if frame is not None:
        return model, kind, frame.file, str(frame.line)
    return model, kind, _NUMBERS.sub("#", message_of(error)[:_MAX_MESSAGE])
