# SPDX-License-Identifier: Apache-2.0
"""Keeps many sequences going on one gRPC stream over a raw socket, to measure no client library.

Whenever a request is answered, the next one of its sequence is sent, and after the last one the
next sequence begins. Every answer is checked. On its own:
python -m benchmarks.sequence_client GRPC_PORT MODEL SEQUENCES
"""

from __future__ import annotations

import socket
import struct
import sys
import time
from dataclasses import dataclass

import hpack
from tritonclient.grpc import service_pb2

from benchmarks import http2
from benchmarks.http2 import (
    ACK,
    DATA,
    END_HEADERS,
    END_STREAM,
    FRAME_HEAD,
    HEADERS,
    INITIAL_WINDOW,
    INITIAL_WINDOW_SIZE,
    PING,
    SETTINGS,
    WINDOW_UPDATE,
    frame,
)

METHOD = "ModelStreamInfer"
STREAM = 1
LENGTH = 10  # requests of a sequence
_PLACE = 2**48 - 1  # of the id in a template: seven bytes as a varint
_read_response = service_pb2.ModelStreamInferResponse.FromString
_MESSAGE_HEAD = struct.Struct(">BI")


@dataclass
class _Slot:
    """A sequence that goes on."""

    sequence: int
    position: int = 0  # of the request that was sent last


class _Requests:
    """The framed requests of a slot; only the id of the sequence differs."""

    def __init__(self, model: str, slot: int) -> None:
        self._parts = [self._split(model, slot, position) for position in range(LENGTH)]

    def make(self, sequence: int, position: int) -> bytes:
        before, after = self._parts[position]
        return before + _varint(sequence) + after

    def _split(self, model: str, slot: int, position: int) -> tuple[bytes, bytes]:
        request = service_pb2.ModelInferRequest(model_name=model, id=str(slot))
        request.parameters["sequence_id"].int64_param = _PLACE
        request.parameters["sequence_start"].bool_param = position == 0
        request.parameters["sequence_end"].bool_param = position == LENGTH - 1
        request.inputs.add(name="x", datatype="FP32", shape=[1, 1])
        request.raw_input_contents.append(struct.pack("<f", 1))
        message = request.SerializeToString()
        before, after = message.split(_varint(_PLACE))
        return _MESSAGE_HEAD.pack(0, len(message)) + before, after


def _varint(number: int) -> bytes:
    """Seven bytes, whatever the number: protobuf reads what is padded with zeros, too."""
    return bytes([number >> 7 * at & 0x7F | 0x80 for at in range(6)] + [number >> 42 & 0x7F])


class SequenceStream:
    """The only call on a new connection."""

    def __init__(self, connection: socket.socket, model: str, slots: int, first_id: int) -> None:
        self._socket = connection
        self._requests = [_Requests(model, slot) for slot in range(slots)]
        self._slots: list[_Slot | None] = [None] * slots
        self._next_id = first_id
        self._left = 0  # sequences that may still begin
        self._deadline = 0.0
        self._answered = 0
        self._received = bytearray()
        self._data = bytearray()
        self._outgoing: list[bytes] = []
        self._stream_window = self._connection_window = INITIAL_WINDOW
        self._initial_window = INITIAL_WINDOW
        self._header_blocks: list[bytes] = []
        self._is_open = False
        self._is_over = False

    def open(self) -> None:
        headers = hpack.Encoder().encode(http2.call_headers(METHOD))
        self._socket.sendall(http2.opening() + frame(HEADERS, END_HEADERS, STREAM, headers))
        while not self._is_open:
            self._receive()

    def run(self, seconds: float, sequences: int = 2**40) -> tuple[int, float]:
        """Begin sequences in all slots for that time, at most so many; finish all of them.

        Returns:
            The number of answered requests, and how many seconds they took.
        """
        begin = time.perf_counter()
        self._deadline = begin + seconds
        self._left, self._answered = sequences, 0
        for slot in range(len(self._slots)):
            self._begin(slot)
        self._send()
        while any(slot is not None for slot in self._slots):
            self._receive()
            self._take_responses()
            self._send()
        return self._answered, time.perf_counter() - begin

    def hold(self) -> None:
        """Begin a sequence in every slot and send its first request only."""
        self._left, self._deadline = len(self._slots), 0.0
        self._answered = 0
        for slot in range(len(self._slots)):
            self._begin(slot)
        self._send()
        while self._answered < len(self._slots):
            self._receive()
            self._take_responses(goes_on=False)
            self._send()

    def close(self) -> None:
        """End the call."""
        self._socket.sendall(frame(DATA, END_STREAM, STREAM, b""))
        while not self._is_over:
            self._receive()
        http2.check_status(hpack.Decoder(), self._header_blocks)

    def _begin(self, slot: int) -> None:
        if not self._left:
            self._slots[slot] = None
            return
        self._left -= 1
        self._slots[slot] = _Slot(self._next_id)
        self._outgoing.append(self._requests[slot].make(self._next_id, 0))
        self._next_id += 1

    def _take_responses(self, *, goes_on: bool = True) -> None:
        data, at = self._data, 0
        if goes_on and time.perf_counter() > self._deadline:
            self._left = 0
        while len(data) - at >= 5:
            end = at + 5 + int.from_bytes(data[at + 1 : at + 5], "big")
            if end > len(data):
                break
            self._take_response(_read_response(bytes(data[at + 5 : end])), goes_on=goes_on)
            at = end
        del data[:at]

    def _take_response(
        self, message: service_pb2.ModelStreamInferResponse, *, goes_on: bool
    ) -> None:
        response = message.infer_response
        if message.error_message:
            raise RuntimeError(f"expected a response, got the error {message.error_message!r}")
        number = int(response.id)
        slot = self._slots[number]
        if slot is None:
            raise RuntimeError(f"got two responses to one request of slot {number}")
        (total,) = struct.unpack("<f", response.raw_output_contents[0])
        if total != slot.position + 1:
            raise RuntimeError(f"expected the sum {slot.position + 1} of a sequence, got {total}")
        self._answered += 1
        if not goes_on:
            return
        slot.position += 1
        if slot.position < LENGTH:
            self._outgoing.append(self._requests[number].make(slot.sequence, slot.position))
        else:
            self._begin(number)

    def _send(self) -> None:
        """Send all requests for which the server has opened its windows."""
        while self._outgoing:
            parts, size = [], 0
            room = min(self._stream_window, self._connection_window, http2.INITIAL_MAX_FRAME)
            while self._outgoing and size + len(self._outgoing[0]) <= room:
                part = self._outgoing.pop(0)
                parts.append(part)
                size += len(part)
            if not parts:
                return
            self._stream_window -= size
            self._connection_window -= size
            self._socket.sendall(frame(DATA, 0, STREAM, b"".join(parts)))

    def _receive(self) -> None:
        chunk = self._socket.recv(2**20)
        if not chunk:
            raise ConnectionError(f"the server closed after {self._answered} responses")
        buffer = self._received
        buffer += chunk
        at, end = 0, len(buffer)
        while end - at >= FRAME_HEAD.size:
            length_and_kind, flags, stream = FRAME_HEAD.unpack_from(buffer, at)
            payload_at = at + FRAME_HEAD.size
            next_at = payload_at + (length_and_kind >> 8)
            if next_at > end:
                break
            self._take(length_and_kind & 0xFF, flags, stream, buffer[payload_at:next_at])
            at = next_at
        del buffer[:at]

    def _take(self, kind: int, flags: int, stream: int, payload: bytearray) -> None:
        if kind == DATA and not flags:
            self._data += payload
        elif kind == WINDOW_UPDATE:
            self._add_window(stream, int.from_bytes(payload, "big"))
        elif kind == HEADERS and flags | END_STREAM == END_HEADERS | END_STREAM:
            self._header_blocks.append(bytes(payload))
            self._is_over = bool(flags & END_STREAM)
        elif kind == SETTINGS and not flags & ACK:
            for setting, value in struct.iter_unpack(">HI", payload):
                if setting == INITIAL_WINDOW_SIZE:
                    self._stream_window += value - self._initial_window
                    self._initial_window = value
            self._socket.sendall(frame(SETTINGS, ACK, 0, b""))
            self._is_open = True
        elif kind == PING and not flags & ACK:
            self._socket.sendall(frame(PING, ACK, 0, bytes(payload)))
        elif kind not in (SETTINGS, PING):
            raise ConnectionError(f"got a frame of type {kind} with flags {flags}: {payload!r}")

    def _add_window(self, stream: int, size: int) -> None:
        if stream:
            self._stream_window += size
        else:
            self._connection_window += size


if __name__ == "__main__":
    with http2.connect(int(sys.argv[1])) as opened:
        measured = SequenceStream(opened, sys.argv[2], slots=64, first_id=time.time_ns() >> 20)
        measured.open()
        requests, elapsed_s = measured.run(seconds=3600, sequences=int(sys.argv[3]))
        measured.close()
        print(f"{requests / elapsed_s:,.0f} requests/s")
