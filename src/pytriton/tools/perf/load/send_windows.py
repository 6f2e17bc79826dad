# SPDX-License-Identifier: Apache-2.0
"""The server's flow control: how much may be sent now, and what waits until more may. No I/O."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from pytriton.protocol.http2 import frames
from pytriton.protocol.http2.frames import Setting
from pytriton.tools.perf.load.lane import RequestLane


@dataclass(slots=True)
class Paced:
    """A message that did not fit into the windows.

    Attributes:
        stream: The stream that it goes to.
        lane: Whose request it is.
        left: What is left to send.
        is_last: Whether the stream ends with it.
    """

    stream: int
    lane: RequestLane
    left: memoryview
    is_last: bool


class SendWindows:
    """The windows of a connection and of those of its streams that wait or live long."""

    def __init__(self) -> None:
        self._connection = frames.DEFAULT_WINDOW
        self._initial = frames.DEFAULT_WINDOW
        self._max_frame = frames.DEFAULT_MAX_FRAME
        self._streams: dict[int, int] = {}
        self._waiting: list[Paced] = []

    def admits(self, size: int) -> bool:
        """Whether a new stream may send so much at once; it is counted if so."""
        if (
            size > self._connection
            or size > self._initial
            or size > self._max_frame
            or self._waiting
        ):
            return False
        self._connection -= size
        return True

    def keep(self, stream: int) -> None:
        """Count what a stream sends from now on, because it lives long."""
        self._streams[stream] = self._initial

    def admits_on(self, stream: int, size: int) -> bool:
        """Whether a stream that is kept may send so much at once; it is counted if so."""
        if size > self._streams[stream] or not self.admits_more(size):
            return False
        self._streams[stream] -= size
        self._connection -= size
        return True

    def admits_more(self, size: int) -> bool:
        return size <= self._connection and size <= self._max_frame and not self._waiting

    def wait(self, paced: Paced) -> None:
        """Send this as the windows allow it."""
        self._streams.setdefault(paced.stream, self._initial)
        self._waiting.append(paced)

    def released(self) -> Iterator[tuple[bytes, RequestLane | None]]:
        """Frames that may be sent now, each with the lane whose message it ends."""
        blocked: set[int] = set()
        for paced in list(self._waiting):
            while paced.left and paced.stream not in blocked:
                window = self._streams.get(paced.stream, 0)
                size = min(len(paced.left), window, self._connection, self._max_frame)
                if size <= 0:
                    blocked.add(paced.stream)
                    break
                self._streams[paced.stream] -= size
                self._connection -= size
                part, paced.left = paced.left[:size], paced.left[size:]
                is_end = not paced.left
                flags = frames.END_STREAM if is_end and paced.is_last else 0
                frame = frames.frame(frames.DATA, flags, paced.stream, bytes(part))
                yield frame, paced.lane if is_end else None
        for paced in [paced for paced in self._waiting if not paced.left]:
            self._waiting.remove(paced)
            if paced.is_last:
                self._streams.pop(paced.stream, None)

    def grow(self, stream: int, size: int) -> None:
        """The server opens a window, that of the connection if the stream is 0."""
        if not stream:
            self._connection += size
        elif stream in self._streams:
            self._streams[stream] += size

    def apply(self, setting: int, value: int) -> None:
        """A setting of the server."""
        if setting == Setting.INITIAL_WINDOW_SIZE:
            for stream in self._streams:
                self._streams[stream] += value - self._initial
            self._initial = value
        elif setting == Setting.MAX_FRAME_SIZE:
            self._max_frame = value

    def forget(self, stream: int) -> None:
        """A stream ended."""
        if stream in self._streams:
            del self._streams[stream]
            self._waiting = [paced for paced in self._waiting if paced.stream != stream]
