# SPDX-License-Identifier: Apache-2.0
"""A client's side of a connection of HTTP/2 without I/O of its own, strict about what it reads.

Frames, flow control and the states of streams are its own, so that a mistake of the server's code
is not shared; header blocks are read by `hpack`. What calls and answers look like, subclasses know.
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Callable
from typing import Any

import hpack

from tests.workload.calls import POLITE, Call, End, Kind
from tests.workload.connection import ClientConnection, ViolationError

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, PRIORITY, RST_STREAM, SETTINGS = 0, 1, 2, 3, 4
PUSH_PROMISE, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = 5, 6, 7, 8, 9
END_STREAM = ACK = 0x1
END_HEADERS, PADDED, WITH_PRIORITY = 0x4, 0x8, 0x20
CANCEL = 8
_MAX_FRAME_BYTES = 16_384
_DEFAULT_WINDOW_BYTES = 65_535
_CONNECTION_WINDOW_BYTES = 1 << 24
_LARGEST_WINDOW = (1 << 31) - 1
_MAX_STREAMS = 100  # until the server has said how many it allows
_CACHE_ENTRIES = 4096
_MOST_ENTRIES = 31  # of SETTINGS in a frame, with one more

_pack_header = struct.Struct(">IBI").pack
_unpack_header = struct.Struct(">IBI").unpack_from


def frame(kind: int, flags: int, stream_id: int, payload: bytes) -> bytes:
    return _pack_header(len(payload) << 8 | kind, flags, stream_id) + payload


def window_update(stream_id: int, increment: int) -> bytes:
    return frame(WINDOW_UPDATE, 0, stream_id, increment.to_bytes(4, "big"))


def varint(value: int) -> bytes:
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


def literal(name: str | bytes, value: str | bytes) -> bytes:
    """A field without indexing and without Huffman codes (RFC 7541, 6.2.2)."""
    texts = [each if isinstance(each, bytes) else each.encode() for each in (name, value)]
    return b"\0" + b"".join(map(_prefixed, texts))


def _prefixed(text: bytes) -> bytes:
    """A text with its length, an integer with a prefix of 7 bits (RFC 7541, 5.1)."""
    if len(text) < 127:
        return bytes((len(text),)) + text
    return b"\x7f" + varint(len(text) - 127) + text


class Stream:
    """A stream of the connection: one call, or the calls of a ModelStreamInfer."""

    __slots__ = (
        "answer", "buffer", "calls", "ended_here", "has_head", "id", "is_lane", "lane", "messages",
        "receive_left", "received", "send_left", "unsent", "wanted",
    )  # fmt: skip

    def __init__(self, stream_id: int, lane: int | None, send_left: int, receive_left: int) -> None:
        self.id = stream_id
        self.lane = lane
        self.is_lane = lane is not None
        self.calls: dict[str, Call] = {}  # open ones, by id
        self.send_left = send_left
        self.receive_left = receive_left  # what the server may still send
        self.received = 0  # since the last update of the window
        self.unsent: deque[tuple[memoryview, bool, Call]] = deque()  # data, whether it ends, whose
        self.buffer = bytearray()  # of a message that is not whole
        self.wanted = 5  # bytes that the buffer needs before it is looked at
        self.messages = 0
        self.has_head = False
        self.ended_here = False  # the client has ended its side
        self.answer: Any = None  # over HTTP, what was read of it


class Http2ClientConnection(ClientConnection):
    """One connection over HTTP/2.

    Args:
        now: see `ClientConnection`.
        call_later: the same.
        on_end: the same.
        window_bytes: how much the server may send on a stream before the client allows more.
        told: `on_lost` and `on_violation` of `ClientConnection`.
    """

    def __init__(
        self,
        now: Callable[[], float],
        call_later: Callable[..., Any],
        on_end: Callable[[Call], None],
        *,
        window_bytes: int = 1 << 20,
        **told: Any,
    ) -> None:
        super().__init__(now, call_later, on_end, **told)
        self._window_bytes = window_bytes
        self._decoder = hpack.Decoder()
        self._streams: dict[int, Stream] = {}
        self._lanes: dict[int, Stream] = {}
        self._raw: list[Call] = []  # invalid calls that have no stream
        self._next_id = 1
        self._max_streams = _MAX_STREAMS
        self._peer_window = _DEFAULT_WINDOW_BYTES  # of new streams
        self._peer_frame_bytes = _MAX_FRAME_BYTES
        self._send_left = _DEFAULT_WINDOW_BYTES  # of the connection
        self._receive_left = _CONNECTION_WINDOW_BYTES
        self._received = 0
        self._buffer = b""
        self._block: tuple[int, bool, bytes] | None = None  # stream, whether it ends, fragments
        self._has_settings = False
        self._goaway: tuple[int, int, str] | None = None  # last stream, code, text
        # Streams that the client has reset: frames on them were under way until the server has
        # acknowledged the SETTINGS that followed the reset.
        self._reset: dict[int, int] = {}
        self._answered: deque[int] = deque(maxlen=64)  # streams that both sides have ended
        self._settings_sent = 0
        self._settings_acknowledged = 0
        self._stream: Stream | None = None  # the one whose frame is read

    @property
    def is_usable(self) -> bool:
        return not (self.is_lost or self.is_cut or self._goaway is not None)

    @property
    def open_count(self) -> int:
        """How many calls have not ended."""
        streams = sum(len(stream.calls) for stream in self._streams.values())
        return streams + len(self._waiting) + len(self._raw)

    # What is sent over HTTP/2

    _blocks: dict[bytes, Any]  # what was read of header blocks before; of a class

    def _is_raw(self, call: Call) -> bool:
        """Whether the payload of a call is sent as it is, without a stream."""
        raise NotImplementedError

    def _write_call(self, call: Call, *, is_new: bool) -> tuple[bytes, bytes]:
        """The header block of a call, which a new stream needs, and the data behind it."""
        raise NotImplementedError

    def _read_block(self, pairs: list[tuple[str, str]]) -> Any:
        """Read the fields of a header block."""
        raise NotImplementedError

    def _take_block(self, stream_id: int, ends: bool, encoded: bytes) -> None:
        """A header block came."""
        raise NotImplementedError

    def _take_body(self, stream: Stream, body: bytes, *, ends: bool) -> None:
        """Data of a stream came."""
        raise NotImplementedError

    def _end_here(self, stream: Stream) -> None:
        """The server has ended a stream: so does the client, if it has not."""
        if stream.ended_here:
            self._forget(stream)
            self._answered.append(stream.id)
        else:
            self._reset_stream(stream)

    # Sending

    def _opened(self) -> None:
        settings = struct.pack(">HIHI", 2, 0, 4, self._window_bytes)  # no push; the window
        update = _CONNECTION_WINDOW_BYTES - _DEFAULT_WINDOW_BYTES
        self._settings_sent = 1
        self._transport.write(PREFACE + frame(SETTINGS, 0, 0, settings) + window_update(0, update))

    def _pump(self) -> None:
        if self._transport is None:
            return
        while (
            self._waiting
            and not self._is_held
            and self._sending is None
            and not self.is_cut
            and self._goaway is None
        ):
            call = self._waiting[0]
            lane = None if call.lane is None else self._lanes.get(call.lane)
            if lane is None and len(self._streams) >= self._max_streams:
                return
            self._waiting.popleft()
            if self._is_raw(call):
                self._raw.append(call)
                self._begin_sending(call, call.payload)
            else:
                if call.payload and call.kind is not Kind.INVALID:
                    self._change_settings(call.payload)
                self._send(call, lane)

    def _change_settings(self, entries: bytes) -> None:
        """Send SETTINGS, as many as servers take in a frame; then windows are as before."""
        own = struct.pack(">HI", 4, self._window_bytes)
        frames = [
            frame(SETTINGS, 0, 0, entries[at : at + _MOST_ENTRIES * len(own)] + own)
            for at in range(0, len(entries), _MOST_ENTRIES * len(own))
        ]
        self._settings_sent += len(frames)
        self._write(b"".join(frames))

    def _send(self, call: Call, stream: Stream | None) -> None:
        block, message = self._write_call(call, is_new=stream is None)
        ends = call.lane is None or call.closes_lane
        head = b""
        if stream is None:
            stream = Stream(self._next_id, call.lane, self._peer_window, self._window_bytes)
            self._next_id += 2
            self._streams[stream.id] = stream
            if call.lane is not None:
                self._lanes[call.lane] = stream
            flags = END_HEADERS if message else END_HEADERS | END_STREAM
            head = frame(HEADERS, flags, stream.id, block)
        if call.id in stream.calls:
            raise AssertionError(f"{call} is sent twice")
        stream.calls[call.id] = call
        if ends and stream.is_lane:
            del self._lanes[stream.lane]
        size = len(message)
        if not size:
            stream.ended_here = True
            self._begin_sending(call, head)
            return
        left = min(stream.send_left, self._send_left, self._peer_frame_bytes)
        if size <= left and not stream.unsent:
            stream.send_left -= size
            self._send_left -= size
            stream.ended_here = ends
            data = frame(DATA, END_STREAM if ends else 0, stream.id, message)
            self._begin_sending(call, head + data)
            return
        stream.unsent.append((memoryview(message), ends, call))
        data, ended = self._take_unsent(stream)
        self._begin_sending(call, head + data)
        if not ended and call.conduct is POLITE:
            call.outcome.sent_s = None

    def _take_unsent(self, stream: Stream) -> tuple[bytes, bool]:
        """DATA frames for what the windows allow; whether nothing is left."""
        pieces = []
        while stream.unsent:
            message, ends, call = stream.unsent[0]
            size = min(len(message), stream.send_left, self._send_left, self._peer_frame_bytes)
            if size <= 0 and message:
                break
            stream.send_left -= size
            self._send_left -= size
            is_last = size == len(message)
            flags = END_STREAM if ends and is_last else 0
            pieces.append(frame(DATA, flags, stream.id, message[:size]))
            if is_last:
                stream.unsent.popleft()
                stream.ended_here = ends
                if call.outcome.began_s is not None and self._sending is None:
                    call.outcome.sent_s = self._now()
            else:
                stream.unsent[0] = (message[size:], ends, call)
        return b"".join(pieces), not stream.unsent

    def _send_rest(self) -> None:
        """Windows have grown."""
        for stream in list(self._streams.values()):
            if stream.unsent and self._send_left > 0 and stream.send_left > 0:
                data, _ = self._take_unsent(stream)
                if data:
                    self._write(data)

    def _give_up(self, call: Call) -> None:
        """Reset the stream of a call, and all calls on it."""
        for stream in self._streams.values():
            if stream.calls.get(call.id) is call:
                break
        else:
            return
        if self._sending is not None and self._sending[0] is call:
            # Parts of frames cannot be taken back, and a stream is not there before its head.
            self._later(call, 0.001, self._cancel, call)
            return
        self._reset_stream(stream)
        for each in list(stream.calls.values()):
            self._finish(each, End.CANCELLED)
        self._pump()

    def _reset_stream(self, stream: Stream) -> None:
        """Reset a stream, and learn from the acknowledged SETTINGS when the server knows."""
        self._forget(stream)
        self._settings_sent += 1
        self._reset[stream.id] = self._settings_sent
        code = CANCEL.to_bytes(4, "big")
        self._write(frame(RST_STREAM, 0, stream.id, code) + frame(SETTINGS, 0, 0, b""))

    def _forget(self, stream: Stream) -> None:
        del self._streams[stream.id]
        if stream.lane is not None and self._lanes.get(stream.lane) is stream:
            del self._lanes[stream.lane]

    def _stop_sending(self, call: Call) -> None:
        # Others need the connection, so the rest of the frames has to follow anyway.
        assert self._sending is not None
        _, message, at = self._sending
        self._transport.write(message[at:])
        self._end_sending()

    # Reading

    def _receive(self, data: bytes) -> None:
        buffer = self._buffer + data if self._buffer else data
        self._buffer = b""
        at, size = 0, len(buffer)
        while size - at >= 9:
            length_and_kind, flags, stream_id = _unpack_header(buffer, at)
            length, kind = length_and_kind >> 8, length_and_kind & 0xFF
            end = at + 9 + length
            if end > size and length <= _MAX_FRAME_BYTES:
                break
            if kind > WINDOW_UPDATE or self._block is not None or not self._has_settings:
                self._check_frame(kind, flags, stream_id)
            take = _FRAMES.get(kind)
            if take is None or length > _MAX_FRAME_BYTES or stream_id >> 31:
                what = f"of kind {kind} on stream {stream_id} has {length} bytes"
                raise ViolationError(f"a frame {what}")
            self._stream = None
            take(self, flags, stream_id, bytes(buffer[at + 9 : end]))
            at = end
            if self.is_cut and not self._is_half_closed:
                return
        self._buffer = bytes(buffer[at:])

    def _check_frame(self, kind: int, flags: int, stream_id: int) -> None:
        """Check whether a frame may come now, inside of a header block or at the beginning."""
        if self._block is not None and (kind != CONTINUATION or stream_id != self._block[0]):
            raise ViolationError(f"a frame of kind {kind} came inside of a header block")
        if not self._has_settings and (kind != SETTINGS or flags & ACK):
            raise ViolationError(f"the first frame is of kind {kind}, not SETTINGS")

    def _find(self, stream_id: int, what: str) -> Stream | None:
        """The stream of a frame; None for one that this client has reset a moment ago."""
        stream = self._streams.get(stream_id)
        if stream is not None:
            self._stream = stream
            return stream
        if stream_id in self._reset:
            return None
        if stream_id == 0 or stream_id % 2 == 0 or stream_id >= self._next_id:
            raise ViolationError(f"{what} came on stream {stream_id}, which nobody opened")
        raise ViolationError(f"{what} came on stream {stream_id} after its end")

    def _take_data(self, flags: int, stream_id: int, payload: bytes) -> None:
        size = len(payload)
        self._receive_left -= size
        if self._receive_left < 0:
            raise ViolationError("DATA exceeds the window of the connection")
        self._received += size
        updates = b""
        if self._received >= _CONNECTION_WINDOW_BYTES // 2:
            updates = window_update(0, self._received)
            self._receive_left += self._received
            self._received = 0
        stream = self._find(stream_id, f"DATA of {size} bytes")
        if stream is not None:
            if not stream.has_head:
                raise ViolationError("DATA came before the head of the response")
            stream.receive_left -= size
            stream.received += size
            if stream.receive_left < 0:
                raise ViolationError(f"DATA exceeds the window of the stream by {size} bytes")
            if stream.received * 2 >= self._window_bytes:
                updates += window_update(stream_id, stream.received)
                stream.receive_left += stream.received
                stream.received = 0
            self._take_body(stream, _unpadded(flags, payload), ends=bool(flags & END_STREAM))
        if updates and not self.is_cut:
            self._write(updates)

    def _begin_block(self, flags: int, stream_id: int, payload: bytes) -> None:
        if flags & WITH_PRIORITY:
            raise ViolationError("HEADERS of a server have a priority")
        fragment = _unpadded(flags, payload)
        if flags & END_HEADERS:
            self._take_block(stream_id, bool(flags & END_STREAM), fragment)
        else:
            self._block = (stream_id, bool(flags & END_STREAM), fragment)

    def _take_continuation(self, flags: int, stream_id: int, fragment: bytes) -> None:
        if self._block is None:
            raise ViolationError("CONTINUATION came without a header block")
        _, ends, before = self._block
        self._block = (stream_id, ends, before + fragment)
        if flags & END_HEADERS:
            self._block = None
            self._take_block(stream_id, ends, before + fragment)

    def _decode(self, encoded: bytes) -> Any:
        """Read a header block; one that depends on no table and changes none is read once."""
        blocks, table = self._blocks, self._decoder.header_table
        has_table = bool(table.dynamic_entries)
        if not has_table:
            kept = blocks.get(encoded)
            if kept is not None:
                return kept
        try:
            pairs = self._decoder.decode(encoded)
        except hpack.HPACKError as error:
            raise ViolationError(f"a header block cannot be read ({error!r})") from error
        block = self._read_block(pairs)
        if not has_table and not table.dynamic_entries:
            if len(blocks) > _CACHE_ENTRIES:
                blocks.clear()
            blocks[encoded] = block
        return block

    def _take_reset(self, flags: int, stream_id: int, payload: bytes) -> None:
        if len(payload) != 4:
            raise ViolationError(f"RST_STREAM is {payload!r}")
        code = int.from_bytes(payload, "big")
        if code == 0 and stream_id in self._answered:
            self._answered.remove(stream_id)
            return  # the server ended the stream before it saw that the client had
        stream = self._find(stream_id, f"RST_STREAM {code}")
        if stream is None:
            return
        self._forget(stream)
        for call in list(stream.calls.values()):
            call.outcome.status = code
            call.outcome.error = f"RST_STREAM {code}"
            self._finish(call, End.RESET)
        self._pump()

    def _take_window_update(self, flags: int, stream_id: int, payload: bytes) -> None:
        increment = int.from_bytes(payload, "big")
        if len(payload) != 4 or not 0 < increment <= _LARGEST_WINDOW:
            raise ViolationError(f"WINDOW_UPDATE is {payload!r}")
        if stream_id == 0:
            self._send_left += increment
            left = self._send_left
        elif stream_id in self._streams:
            stream = self._streams[stream_id]
            stream.send_left += increment
            left = stream.send_left
        else:
            if stream_id % 2 == 0 or stream_id >= self._next_id:
                raise ViolationError(f"WINDOW_UPDATE came on stream {stream_id}")
            return  # the stream has ended meanwhile
        if left > _LARGEST_WINDOW:
            raise ViolationError(f"a window grew to {left}")
        self._send_rest()

    def _take_settings(self, flags: int, stream_id: int, payload: bytes) -> None:
        _check_connection_frame("SETTINGS", stream_id)
        if flags & ACK:
            self._settings_acknowledged += 1
            if payload or self._settings_acknowledged > self._settings_sent:
                raise ViolationError("SETTINGS were acknowledged that nobody sent")
            done = self._settings_acknowledged
            self._reset = {each: sent for each, sent in self._reset.items() if sent > done}
            return
        if len(payload) % 6:
            raise ViolationError(f"SETTINGS have {len(payload)} bytes")
        self._has_settings = True
        for name, value in struct.iter_unpack(">HI", payload):
            self._change_setting(name, value)
        self._write(frame(SETTINGS, ACK, 0, b""))
        self._send_rest()
        self._pump()

    def _change_setting(self, name: int, value: int) -> None:
        if name == 3:
            self._max_streams = value
        elif name == 4:
            if value > _LARGEST_WINDOW:
                raise ViolationError(f"INITIAL_WINDOW_SIZE is {value}")
            for stream in self._streams.values():
                stream.send_left += value - self._peer_window
            self._peer_window = value
        elif name == 5:
            if not _MAX_FRAME_BYTES <= value < 1 << 24:
                raise ViolationError(f"MAX_FRAME_SIZE is {value}")
            self._peer_frame_bytes = min(value, 1 << 20)
        elif name == 2 and value:
            raise ViolationError("a server allows push")

    def _take_ping(self, flags: int, stream_id: int, payload: bytes) -> None:
        _check_connection_frame("PING", stream_id)
        if len(payload) != 8 or flags & ACK:
            raise ViolationError(f"PING with flags {flags} is {payload!r}")
        self._write(frame(PING, ACK, 0, payload))

    def _take_goaway(self, flags: int, stream_id: int, payload: bytes) -> None:
        _check_connection_frame("GOAWAY", stream_id)
        if len(payload) < 8:
            raise ViolationError(f"GOAWAY is {payload!r}")
        last, code = struct.unpack_from(">II", payload)
        if self._goaway is not None and last > self._goaway[0]:
            raise ViolationError(f"GOAWAY named stream {self._goaway[0]}, then {last}")
        self._goaway = (last, code, payload[8:].decode("latin-1"))
        for stream in [each for each in self._streams.values() if each.id > last]:
            self._forget(stream)
            for call in list(stream.calls.values()):
                self._finish(call, End.UNSENT)  # the server says that it did nothing of it
        self._drop_unsent()

    # Ends

    def connection_lost(self, error: Exception | None) -> None:
        if error is None and self._goaway is not None and self._goaway[1]:
            error = ConnectionError(f"GOAWAY {self._goaway[1]}: {self._goaway[2]}")
        super().connection_lost(error)

    def _take_open(self) -> list[Call]:
        calls = self._raw
        for stream in self._streams.values():
            calls += stream.calls.values()
        self._raw = []
        self._streams.clear()
        self._lanes.clear()
        return calls

    def _current(self) -> Call | None:
        calls = self._stream.calls.values() if self._stream is not None else self._raw
        return next(iter(calls), None)


_FRAMES: dict[int, Callable[[Http2ClientConnection, int, int, bytes], None]] = {
    DATA: Http2ClientConnection._take_data,
    HEADERS: Http2ClientConnection._begin_block,
    CONTINUATION: Http2ClientConnection._take_continuation,
    RST_STREAM: Http2ClientConnection._take_reset,
    WINDOW_UPDATE: Http2ClientConnection._take_window_update,
    SETTINGS: Http2ClientConnection._take_settings,
    PING: Http2ClientConnection._take_ping,
    GOAWAY: Http2ClientConnection._take_goaway,
}


def _check_connection_frame(name: str, stream_id: int) -> None:
    if stream_id:
        raise ViolationError(f"{name} is on stream {stream_id}")


def _unpadded(flags: int, payload: bytes) -> bytes:
    if not flags & PADDED:
        return payload
    if not payload or payload[0] >= len(payload):
        raise ViolationError("the padding is longer than its frame")
    return payload[1 : len(payload) - payload[0]]
