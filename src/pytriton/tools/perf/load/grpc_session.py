# SPDX-License-Identifier: Apache-2.0
"""One HTTP/2 connection with calls of ModelInfer: frames out, frames in, statuses of calls.

Only what a client of gRPC needs. Calls are told apart by their stream; header blocks that came
before are not decoded again. Whole answers that differ from one before in stream and data only are
recognised in 0.7 us; reading their three frames one after the other takes 2.5 us.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from urllib.parse import unquote

from pytriton.protocol.grpc.status import GrpcStatus
from pytriton.protocol.http2 import frames
from pytriton.protocol.http2.frames import ConnectionViolation, Setting, parse_settings
from pytriton.protocol.http2.headers import HeaderDecoder
from pytriton.protocol.http2.limits import Http2Limits
from pytriton.tools.perf.load.lane import LaneListener, RequestLane, clock
from pytriton.tools.perf.load.link import WOULD_BLOCK, WRITABLE, Dialer, SocketPoller, receiver
from pytriton.tools.perf.load.requests import GrpcRequests

_HEAD = frames.HEADER_BYTES
_FIXED = 5  # the bytes of a frame's head before its stream: length, type, flags

RECEIVE_BYTES = 1 << 17
CREDIT_BYTES = 1 << 30  # the windows are twice as large, so that they never close
_LAST_STREAM = frames.MAX_STREAM_ID - 2  # ids are not used again: RFC 9113, 5.1.1
_ENTRY = struct.Struct(">HI")
_SETTINGS = (
    (Setting.HEADER_TABLE_SIZE, 0),  # so that equal headers have equal blocks
    (Setting.ENABLE_PUSH, 0),
    (Setting.INITIAL_WINDOW_SIZE, frames.MAX_WINDOW),  # no answer waits for our credit
    (Setting.MAX_FRAME_SIZE, 1 << 20),
)
OPENING = (
    frames.PREFACE
    + frames.frame(frames.SETTINGS, 0, 0, b"".join(_ENTRY.pack(*entry) for entry in _SETTINGS))
    # The connection's window has no setting: RFC 9113, 6.9.2.
    + frames.window_update(0, frames.MAX_WINDOW - frames.DEFAULT_WINDOW)
)


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
    """The server's flow control: what may be sent now, and what waits; RFC 9113, 5.2. No I/O.

    Streams that send their only message at once need no entry: their window is never asked again.
    """

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
            or self._waiting  # which came first
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
            # Open windows change by the difference, and may become negative: RFC 9113, 6.9.2.
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


class RepeatedAnswer:
    """The frames of an answer: headers, one message, and trailers.

    Attributes:
        size: The bytes of the whole answer.
        data_bytes: The bytes of its DATA frame's content.
        trailers: The header block of its trailers.
    """

    __slots__ = (
        "_data_at",
        "_data_end",
        "_first",
        "_headers",
        "_last",
        "data_bytes",
        "size",
        "trailers",
    )

    def __init__(self, answer: bytes, headers_end: int, data_end: int) -> None:
        self.size = len(answer)
        self.data_bytes = data_end - headers_end - _HEAD
        self._data_at = headers_end
        self._first = answer[:_FIXED]
        self._headers = answer[_HEAD : headers_end + _FIXED]  # and how the DATA frame begins
        self._data_end = data_end
        self._last = answer[data_end : data_end + _FIXED]
        self.trailers = answer[data_end + _HEAD :]

    def stream(self, data: bytes, at: int) -> int:
        """The stream of such an answer at an offset; 0 if there is another thing."""
        data_end = at + self._data_end
        stream = data[at + _FIXED : at + _HEAD]
        # All three frames have to be of one stream; the bytes of the message may be any.
        if (
            data.startswith(self._first, at)
            and data.startswith(self._headers, at + _HEAD)
            and data.startswith(self._last, data_end)
            and data.startswith(self.trailers, data_end + _HEAD)
            and data.startswith(stream, data_end + _FIXED)
            and data.startswith(stream, at + self._data_at + _FIXED)
        ):
            return int.from_bytes(stream, "big")
        return 0


def repeated_answer(data: bytes) -> RepeatedAnswer | None:
    """The pattern of what was received, if that is one whole answer in three frames."""
    kinds: list[tuple[int, int]] = []
    streams: set[int] = set()
    ends = [0]
    while len(data) - ends[-1] >= _HEAD and len(kinds) < 4:
        word, flags, stream = frames.unpack_header(data, ends[-1])
        kinds.append((word & 0xFF, flags))
        streams.add(stream)
        ends.append(ends[-1] + _HEAD + (word >> 8))
    is_plain = kinds == [
        (frames.HEADERS, frames.END_HEADERS),
        (frames.DATA, 0),
        (frames.HEADERS, frames.END_HEADERS | frames.END_STREAM),
    ]
    if not is_plain or len(streams) > 1 or ends[-1] != len(data):
        return None
    return RepeatedAnswer(data, ends[1], ends[2])


class GrpcSession:
    """A connection from its opening to its end.

    Args:
        link: The way to the server.
        requests: Makes messages.
        block: The header block of calls.
        outcome: Receives the events of requests.
        poller: Waits for the connection.
    """

    def __init__(
        self,
        link: Dialer,
        requests: GrpcRequests,
        block: bytes,
        outcome: LaneListener,
        poller: SocketPoller,
    ) -> None:
        self._poller = poller
        self._outcome = outcome
        self._requests = requests
        self._looks = outcome.looks_at_answers
        self._lanes: dict[int, RequestLane] = {}
        self._next_stream = 1
        self._block = block
        # The head of HEADERS frames without the stream, the only part that differs.
        self._call_head = frames.pack_header(
            len(block) << 8 | frames.HEADERS, frames.END_HEADERS, 0
        )[:5]
        self._windows = SendWindows()
        self._decoder = HeaderDecoder(Http2Limits())
        self._blocks: dict[bytes, str | None] = {}  # what header blocks say; see `_take_block`
        self._partial_block = b""
        self._partial_flags = 0
        self._partial_stream = 0
        self._buffer = b""
        self._out: list[bytes] = []
        self._sending: list[RequestLane] = []  # lanes whose last byte is in `_out`
        self._rest = memoryview(b"")
        self._credit = 0
        self._messages: dict[int, bytes] = {}
        self._is_reading = False  # then requests gather, and are sent together at the end
        self._repeated: RepeatedAnswer | None = None
        self._learns = not self._looks  # a repeated answer is not read, so nothing could look at it
        self.is_leaving = False  # no more calls begin on it
        self._socket: socket.socket | None = link.open()
        self._receive = receiver(self._socket)
        poller.add(self._socket.fileno(), self.on_event)
        self._out.append(OPENING)

    @property
    def is_open(self) -> bool:
        return self._socket is not None

    @property
    def has_calls(self) -> bool:
        """Whether requests are under way."""
        return bool(self._lanes)

    def begin(self, lane: RequestLane) -> None:
        """Begin the call of a lane."""
        stream = self._next_stream
        self._next_stream = stream + 2
        if stream >= _LAST_STREAM:
            self.is_leaving = True
        self._lanes[stream] = lane
        message = self._requests.whole(lane.choice)
        packed = stream.to_bytes(4, "big")
        windows = self._windows
        if windows.admits(len(message)):
            # Joined once: 0.3 us less than two frames built apart.
            head = frames.pack_header(len(message) << 8, frames.END_STREAM, stream)
            self._out.append(b"".join((self._call_head, packed, self._block, head, message)))
            self._sending.append(lane)
        else:
            self._out.append(self._call_head + packed + self._block)
            windows.wait(Paced(stream, lane, memoryview(message), is_last=True))
            self._send_paced()
        if not self._is_reading:
            self.flush()

    def close(self) -> None:
        """Close the connection; calls under way are forgotten."""
        if self._socket is not None:
            self._poller.remove(self._socket.fileno())
            self._socket.close()
            self._socket = None
        self._lanes.clear()
        self._out.clear()

    def flush(self) -> None:
        """Send what has gathered, in one call of the operating system."""
        if self._socket is None or self._rest or not self._out:
            return
        data = self._out[0] if len(self._out) == 1 else b"".join(self._out)
        self._out.clear()
        try:
            sent = self._socket.send(data)
        except WOULD_BLOCK:
            sent = 0
        except OSError as error:
            self._fail(f"cannot send: {error}")
            return
        if sent != len(data):
            # What comes later stays in `_out` until this is gone, so that frames keep their order.
            self._rest = memoryview(data)[sent:]
            self._poller.want_write(self._socket.fileno(), wants=True)
        self._stamp_sent()

    def _stamp_sent(self) -> None:
        now = clock()
        for lane in self._sending:
            lane.sent_ns = now
        self._sending.clear()

    def on_event(self, event: int) -> None:
        """The connection can be read, or written if something is left to write."""
        if event & WRITABLE and not self._send_rest():
            return
        try:
            data = self._receive(RECEIVE_BYTES)
        except WOULD_BLOCK:
            return
        except OSError as error:
            self._fail(f"the connection was lost: {error}")
            return
        if not data:
            self._fail("the server closed the connection before its answer was complete")
            return
        self._is_reading = True
        try:
            self._read(self._buffer + data if self._buffer else data)
        except ConnectionViolation as error:
            self._fail(f"expected HTTP/2 of gRPC: {error}")
        finally:
            self._is_reading = False
        if self._out:
            self.flush()
        if self.is_leaving and not self.has_calls:
            self.close()

    def _read(self, data: bytes) -> None:
        at = 0
        end = len(data)
        unpack = frames.unpack_header
        now = clock()
        while end - at >= frames.HEADER_BYTES:
            repeated = self._repeated
            if repeated is not None and (stream := repeated.stream(data, at)):
                lane = self._lanes.get(stream)
                if lane is not None:
                    lane.responses = 1
                self._count(repeated.data_bytes)
                self._end(stream, "", now)
                at += repeated.size
                continue
            word, flags, stream = unpack(data, at)
            start = at + frames.HEADER_BYTES
            stop = start + (word >> 8)
            if stop > end:
                break  # the rest of the frame has not come yet
            kind = word & 0xFF
            if kind == frames.DATA:
                self._take_data(stream, flags, data, start, stop, now)
            elif kind == frames.HEADERS and flags & ~frames.END_STREAM == frames.END_HEADERS:
                self._take_block(stream, flags, data[start:stop], now)
            else:
                self._take_other(kind, flags, stream, data[start:stop], now)
            at = stop
        self._buffer = data[at:]
        if self._learns and at == end:
            self._learn(data)

    def _learn(self, data: bytes) -> None:
        """Recognise answers like this one from now on, if it was a whole one that went well."""
        found = repeated_answer(data)
        if found is not None and self._blocks.get(found.trailers) == "":
            self._repeated = found
            self._learns = False

    def _take_data(
        self, stream: int, flags: int, data: bytes, start: int, stop: int, now: int
    ) -> None:
        """A part of an answer; only its length counts, unless answers are kept."""
        self._count(stop - start)
        lane = self._lanes.get(stream)
        if lane is None:
            return  # of a call that ended; its bytes still count for the connection's window
        lane.responses = 1
        if self._looks:
            payload = unpadded(data[start:stop], flags)
            self._messages[stream] = self._messages.get(stream, b"") + payload
        if flags & frames.END_STREAM:
            self._end(stream, "expected trailers with a status, got none", now)

    def _count(self, size: int) -> None:
        """Give the server credit for what came, long before its window closes."""
        self._credit += size
        if self._credit >= CREDIT_BYTES:
            self._out.append(frames.window_update(0, self._credit))
            self._credit = 0

    def _take_block(self, stream: int, flags: int, block: bytes, now: int) -> None:
        """Headers or trailers: None in `_blocks` for those without a status."""
        try:
            error = self._blocks[block]
        except KeyError:
            error = self._decode(block)
        if flags & frames.END_STREAM:
            if error is None:
                error = "expected trailers with a status, got none"
            self._end(stream, error, now)
        elif error:  # such as an HTTP status of a proxy; what follows on the stream is ignored
            self._end(stream, error, now)

    def _decode(self, block: bytes) -> str | None:
        fields = dict(self._decoder.decode(block))
        error = status_error(fields)
        if self._decoder.is_table_changed:
            # The server uses a table, as it may before it has read our settings: equal blocks may
            # now mean other fields.
            self._blocks.clear()
            self._repeated = None
            self._learns = not self._looks
        elif len(self._blocks) < 1000:
            self._blocks[block] = error
        return error

    def _end(self, stream: int, error: str, now: int) -> None:
        lane = self._lanes.pop(stream, None)
        if lane is None:
            return
        self._windows.forget(stream)
        if self._looks and (message := self._messages.pop(stream, b"")) and not error:
            self._outcome.keep(lane, message, -1)
        if not error and not lane.responses:
            error = "expected a response, got none"
        self._outcome.finish(lane, now, error)

    def _drop(self, stream: int) -> RequestLane | None:
        self._windows.forget(stream)
        self._messages.pop(stream, None)
        return self._lanes.pop(stream, None)

    def _take_other(self, kind: int, flags: int, stream: int, payload: bytes, now: int) -> None:
        """Frames that are not part of a plain answer."""
        if kind == frames.SETTINGS and not flags & frames.ACK:
            for setting, value in parse_settings(payload):
                self._windows.apply(setting, value)
            self._out.append(frames.SETTINGS_ACK)
            self._send_paced()
        elif kind == frames.WINDOW_UPDATE and len(payload) == 4:
            self._windows.grow(stream, int.from_bytes(payload, "big"))
            self._send_paced()
        elif kind == frames.PING and not flags & frames.ACK:
            self._out.append(frames.ping(payload, frames.ACK))
        elif kind == frames.RST_STREAM and len(payload) == 4:
            self._take_reset(stream, int.from_bytes(payload, "big"), now)
        elif kind == frames.GOAWAY and len(payload) >= 8:
            self._take_goaway(payload)
        elif kind == frames.HEADERS:
            self._take_partial(stream, flags, unpadded(payload, flags), now)
        elif kind == frames.CONTINUATION:
            self._take_continuation(flags, payload, now)

    def _take_reset(self, stream: int, code: int, now: int) -> None:
        lane = self._drop(stream)
        if lane is not None:
            self._outcome.finish(lane, now, f"the server reset the call with code {code}")

    def _take_goaway(self, payload: bytes) -> None:
        """Calls that the server will not serve begin again on another connection."""
        last, code, debug = frames.parse_goaway(payload)
        self.is_leaving = True
        # Streams above the last one were not processed and may be sent again: RFC 9113, 6.8.
        for stream in [stream for stream in self._lanes if stream > last]:
            lane = self._drop(stream)
            assert lane is not None
            if code:
                text = debug[:200].decode("utf-8", "replace")
                self._outcome.lose(lane, clock(), f"the server ends with code {code}: {text}")
            else:
                lane.carrier.begin(lane)

    def _take_partial(self, stream: int, flags: int, block: bytes, now: int) -> None:
        if flags & frames.END_HEADERS:
            self._take_block(stream, flags, block, now)
        else:
            self._partial_block, self._partial_flags = block, flags
            self._partial_stream = stream

    def _take_continuation(self, flags: int, payload: bytes, now: int) -> None:
        # No other frame comes in between: RFC 9113, 6.10.
        self._partial_block += payload
        if flags & frames.END_HEADERS:
            block, self._partial_block = self._partial_block, b""
            self._take_block(self._partial_stream, self._partial_flags, block, now)

    def _send_paced(self) -> None:
        """Send what waited for the server's windows, as far as they are open now."""
        for frame, lane in self._windows.released():
            self._out.append(frame)
            if lane is not None:
                self._sending.append(lane)

    def _send_rest(self) -> bool:
        """Send what did not fit before; False if the connection was lost."""
        assert self._socket is not None
        try:
            sent = self._socket.send(self._rest)
        except WOULD_BLOCK:
            return True
        except OSError as error:
            self._fail(f"cannot send: {error}")
            return False
        self._rest = self._rest[sent:]
        if not self._rest:
            self._poller.want_write(self._socket.fileno(), wants=False)
            self.flush()
        return self._socket is not None

    def _fail(self, error: str) -> None:
        lanes = list(self._lanes.values())
        self.close()
        now = clock()
        for lane in lanes:
            self._outcome.lose(lane, now, error)


def unpadded(payload: bytes, flags: int) -> bytes:
    """The content of a DATA or HEADERS frame without padding and priority."""
    if flags & frames.PADDED:
        payload = payload[1 : len(payload) - payload[0]]
    if flags & frames.PRIORITY_FIELDS:
        payload = payload[5:]
    return payload


def status_error(fields: dict[bytes, bytes]) -> str | None:
    """The error that headers or trailers tell; empty: the call went well; None: no status."""
    http_status = fields.get(b":status", b"200")
    if http_status != b"200":
        return f"HTTP {http_status.decode('latin-1')}"
    status = fields.get(b"grpc-status")
    if status is None:
        return None
    if status == b"0":
        return ""
    message = unquote(fields.get(b"grpc-message", b"").decode("latin-1"))
    try:
        name = GrpcStatus(int(status)).name
    except ValueError:
        name = status.decode("latin-1")
    return f"{name}: {message}" if message else name
