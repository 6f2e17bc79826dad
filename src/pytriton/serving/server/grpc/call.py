# SPDX-License-Identifier: Apache-2.0
"""One gRPC call: it receives messages, and sends messages and a status.

Subclasses implement the methods of the services. Work that takes long is done in threads, and a
call that cannot process more holds its data: it is not acknowledged, so the window of its stream
closes and the client stops sending.
"""

from __future__ import annotations

import math
from collections import deque
from typing import TYPE_CHECKING, Any

from pytriton.base.errors import ServerError
from pytriton.protocol.compression import compress
from pytriton.protocol.grpc import (
    OK_TRAILERS,
    RESPONSE_HEADS,
    GrpcError,
    GrpcStatus,
    Inflation,
    MessageAssembler,
    encode_trailers,
    encode_trailers_only,
    message_prefix,
)
from pytriton.protocol.grpc.messages import PREFIX_BYTES, Message, pack_prefix
from pytriton.protocol.http2 import Http2ErrorCode, IncompleteInput
from pytriton.protocol.kserve_pb_response import message_size
from pytriton.runtime.transport.arena import forget
from pytriton.serving.server.access.client_addresses import FORWARDED, FORWARDED_FOR
from pytriton.serving.server.api.authorization import RestrictedProtocol
from pytriton.serving.server.api.status import GRPC_STATUS, retry_metadata
from pytriton.serving.server.grpc.call_state import ENDED, OPEN, TURN
from pytriton.serving.server.grpc.call_work import SMALL_BYTES, CompressedSends

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pytriton.base.dtypes import Buffer
    from pytriton.protocol.grpc import CallHead
    from pytriton.protocol.http2.headers import Field
    from pytriton.serving.server.access.decisions import HeaderLookup
    from pytriton.serving.server.api.request_memory import MemoryLease
    from pytriton.serving.server.grpc.connection import GrpcConnection

# Smaller parts are joined, because a client may send each byte in a separate frame.
_HELD_PART_BYTES = 64 << 10

IDENTITY = "identity"
_IDENTITY_HEAD = RESPONSE_HEADS[IDENTITY]
_RESTRICTED_PREFIX = RestrictedProtocol.GRPC.value[3].encode()
_ADDRESS_LISTS = frozenset({FORWARDED_FOR, FORWARDED})
_REFUSAL_DELAY_S = 0.05
# Other clients are served after so many messages of one read: each takes up to 25 us, and one
# without content has only five bytes.
MESSAGES_PER_TURN = 128
# Up to this size, a copy is cheaper than another buffer in the gathering write.
_JOINED_BYTES = 32 << 10


class GrpcCall:
    """A call from its head to its status.

    Its `state` is how much of it is over, and `waits` are the reasons why it takes no message for
    now. See `call_state` for both, with pictures.
    """

    __slots__ = (
        "_assembler",
        "_has_head",
        "_held",
        "_message",
        "_sends",
        "connection",
        "deadline_s",
        "encoding",
        "head",
        "state",
        "stream_id",
        "waits",
    )

    def __init__(self, connection: GrpcConnection, stream_id: int, head: CallHead) -> None:
        self.connection = connection
        self.stream_id = stream_id
        self.head = head
        self.encoding = IDENTITY  # of the messages that are sent
        self.state = OPEN
        self.waits = 0  # a sum of `Wait`
        self.deadline_s = math.inf  # by the clock of the event loop
        self._held: HeldData | None = None
        self._assembler: MessageAssembler | None = None
        self._has_head = False
        self._sends: CompressedSends | None = None
        self._message: Buffer | None = None  # for UnaryCall, whose own __init__ would take 0.3 us

    # Receiving

    def on_data(self, data: Buffer, *, end_stream: bool) -> None:
        # Data keeps its order: while some is held, later data is held behind it.
        if self._held is None:
            if not self.waits:
                self._read(data, end_stream=end_stream)
                return
            self._held = self._hold(b"", is_ended=False)
        self._held.add(data, is_ended=end_stream)

    def on_whole(self, body: bytes) -> None:
        """Process all the data of a call, which came with its head."""
        self.on_data(body, end_stream=True)

    def _read(self, data: Buffer, *, end_stream: bool) -> HeldData | None:
        """Process messages until there is a reason to wait; the rest is held, and returned."""
        assembler = self._assembler
        if assembler is None:
            assembler = self._assembler = self.make_assembler()
        rest = data
        left = MESSAGES_PER_TURN
        while rest:
            message, rest = assembler.take(rest)
            # A call may end with any message; the rest of what was read then only has to be
            # acknowledged.
            if message is not None and self.state is not ENDED:
                self._accept(message)
                left -= 1
                if self.waits or (left <= 0 and rest):
                    if not self.waits:
                        self.wait_for_turn()
                    self._held = self._hold(rest, is_ended=end_stream)
                    self.acknowledge(len(data) - len(rest))
                    return self._held
        # The rest of a large message is read into its memory, without a copy.
        self.connection.set_buffer(self.stream_id, assembler.buffer)
        self._end_part(assembler, len(data), end_stream=end_stream)
        return None

    def _hold(self, data: Buffer, *, is_ended: bool) -> HeldData:
        return HeldData(data, self.connection.work.memory.lease(), is_ended=is_ended)

    def resume_input(self) -> None:
        """Process held data if there is no reason to wait any more."""
        held = self._held
        if held is None or self.waits or self.state is ENDED:
            return
        self._held = None
        try:
            # Held data may be empty and end the stream: then only the end has to be processed.
            again = None if held.parts else self._read(b"", end_stream=held.is_ended)
            while held.parts and again is None:
                part = held.parts.popleft()
                again = self._read(part, end_stream=held.is_ended and not held.parts)
            if again is not None:
                again.extend(held)
        except Exception as error:  # noqa: BLE001  it is sent to the client
            self.connection.fail_call(self, error)
        if self.connection.http2.has_output:
            self.connection.flush_soon()

    def wait_for_turn(self) -> None:
        """Take no message before the next turn of the connection: others have to be served."""
        if not self.waits & TURN:
            self.waits |= TURN
            self.connection.resume_later(self)

    def on_turn(self) -> None:
        """Called in the next turn of the connection after `resume_later`."""
        self.waits &= ~TURN
        self.resume_input()

    def on_buffered(self, size: int, *, end_stream: bool) -> None:
        """Process received data that is already in the buffer of its message."""
        assembler = self._assembler
        assert assembler is not None
        message = assembler.buffer_updated(size)
        if message is not None and self.state is not ENDED:
            self._accept(message)
            if self.waits:
                self._held = self._hold(b"", is_ended=end_stream)
                self.acknowledge(size)
                return
        self._end_part(assembler, size, end_stream=end_stream)

    def _end_part(self, assembler: MessageAssembler, size: int, *, end_stream: bool) -> None:
        if end_stream:
            if not assembler.is_between_messages:
                raise GrpcError(
                    GrpcStatus.INTERNAL, "expected a whole message, got the stream's end"
                )
            assembler.release()
            self.on_half_close()
        elif self._message is not None:
            assembler.keep(len(self._message))
        self.acknowledge(size)

    def _stop_input(self) -> None:
        """Give back the memory of messages that will never be complete, or processed."""
        self._held = None
        if self._assembler is not None and not self._assembler.is_between_messages:
            memory = self._assembler.stop()
            if memory is not None:
                self.connection.set_buffer(self.stream_id, None)
                forget(memory)

    def make_assembler(self) -> MessageAssembler:
        """Returns the assembler of the client's messages; most methods have only small ones."""
        connection = self.connection
        return MessageAssembler(
            connection.max_small_bytes,
            self.head.encoding,
            open_lease=connection.work.memory.lease,
        )

    def _accept(self, message: Message) -> None:
        if isinstance(message, Inflation):
            # Until a thread has inflated the message, the call is busy and holds what follows.
            self.connection.work.run_in_thread(self, self.on_message, message.finish)
        else:
            self.on_message(message)

    def incomplete_input(self) -> IncompleteInput | None:
        """Returns the message that has been received in part, if any."""
        assembler = self._assembler
        if self._held is not None or assembler is None or assembler.is_between_messages:
            return None
        return IncompleteInput("a message", assembler.partial_messages, assembler.left)

    @property
    def upload_bytes(self) -> int:
        """How much memory the part of a request takes whose client has to send the rest."""
        assembler = self._assembler
        if self._held is not None or assembler is None:
            return 0
        return assembler.held_bytes or (0 if self._message is None else len(self._message))

    @property
    def held_bytes(self) -> int:
        """How much data of the client waits until the call processes more."""
        return 0 if self._held is None else self._held.nbytes

    @property
    def watched(self) -> Any:
        """What the port notes about the call; see `Members`."""
        return self.connection.http2.watched(self.stream_id)

    def acknowledge(self, size: int) -> None:
        self.connection.http2.acknowledge(self.stream_id, size)

    def on_message(self, message: Buffer) -> None:
        """Called for each message of the client."""

    def on_half_close(self) -> None:
        """Called when the client has sent its last message."""

    def on_writable(self) -> None:
        """Called when the client has read most of the output after `send` returned False."""

    def on_abandoned(self) -> None:
        """Called when the client does not need a response any more."""

    # Responding

    def send(self, parts: list[Buffer]) -> bool:
        """Send a message; returns False if the caller should pause until `on_writable`."""
        if self.encoding == IDENTITY:
            size = message_size(parts)
            framed = [pack_prefix(False, size), *parts]
            # One join takes 1 us less than looking at each part of a small message.
            small = size <= _JOINED_BYTES
            return self.send_framed([b"".join(framed)] if small else gather(framed))
        if self._sends is None:
            self._sends = CompressedSends(self)
        return self._sends.send(parts)

    def send_now(self, parts: list[Buffer]) -> bool:
        """Send a message that is small or not to be compressed."""
        return self.send_framed(gather(self.frame(parts)))

    def frame(self, parts: list[Buffer]) -> list[Buffer]:
        """Returns a message with its prefix, compressed if needed; other threads may call this."""
        return frame_message(parts, self.encoding)

    def send_framed(self, parts: list[Buffer]) -> bool:
        """Send a message with its prefix."""
        connection = self.connection
        http2 = connection.http2
        if not self._has_head:
            self._has_head = True
            http2.send_headers(self.stream_id, RESPONSE_HEADS[self.encoding])
        is_ready = True
        for part in parts:
            is_ready = http2.send_data(self.stream_id, part)
        connection.flush_soon()
        return is_ready

    def respond(self, parts: list[Buffer]) -> None:
        """Send the only message and OK."""
        connection = self.connection
        if self.encoding != IDENTITY:
            if message_size(parts) > SMALL_BYTES:
                connection.work.run_in_thread(self, self._respond_compressed, self.frame, parts)
            else:
                self._respond_compressed(self.frame(parts))
            return
        body = frame_message(parts)
        self.state = ENDED
        connection.http2.send_response(self.stream_id, _IDENTITY_HEAD, body, OK_TRAILERS)
        connection.remove_call(self)

    def _respond_compressed(self, body: list[Buffer]) -> None:
        self.state = ENDED
        head = RESPONSE_HEADS[self.encoding]
        self.connection.http2.send_response(self.stream_id, head, body, OK_TRAILERS)
        self.connection.remove_call(self)

    def finish(
        self,
        status: GrpcStatus = GrpcStatus.OK,
        message: str = "",
        metadata: Sequence[Field] = (),
    ) -> None:
        """End the call with a status and metadata, after all messages that were sent."""
        if self.state is ENDED:
            return
        self.state = ENDED
        self._stop_input()
        if self._sends is None or not self._sends.finish(status, message, metadata):
            self.finish_now(status, message, metadata)
        self.connection.remove_call(self)

    def finish_now(self, status: GrpcStatus, message: str, metadata: Sequence[Field] = ()) -> None:
        http2 = self.connection.http2
        # gRPC over HTTP/2, "Responses": a call without messages ends with its head (Trailers-Only).
        if self._has_head:
            http2.send_trailers(self.stream_id, encode_trailers(status, message, metadata))
        else:
            block = encode_trailers_only(status, message, metadata)
            http2.send_headers(self.stream_id, block, end_stream=True)
        self.connection.flush_soon()

    def fail(self, error: ServerError) -> None:
        """End the call with an error of the engine."""
        status = GrpcStatus(GRPC_STATUS[error.code])
        self.finish(status, error.message, retry_metadata(error))

    def on_unreadable(self, error: GrpcError) -> None:
        """Called when a message of the client is too large or damaged, before the call ends."""

    def drop(self, code: Http2ErrorCode) -> None:
        """Reset the stream of the call at once; queued output is dropped."""
        self.connection.http2.reset(self.stream_id, code)
        self.connection.remove_call(self)
        self.abandon()

    def abandon(self) -> None:
        """Stop serving the call; nothing more is sent."""
        # Closed first: abandoning makes the engine answer, which must not be sent.
        if self.state is not ENDED:
            self.state = ENDED
            self._stop_input()
            self.on_abandoned()

    def __repr__(self) -> str:
        name, state = type(self).__name__, self.state.name
        return f"<{name} {self.head.path} on stream {self.stream_id}, {state}>"


class UnaryCall(GrpcCall):
    """A call with one request message and one response message."""

    __slots__ = ()

    def on_request(self, message: Buffer) -> None:
        """Called with the complete request."""

    def on_data(self, data: Buffer, *, end_stream: bool) -> None:
        """Process received data, with a fast path for a small request that came at once."""
        size = len(data) - PREFIX_BYTES
        if (
            end_stream
            and isinstance(data, bytes)
            and 0 <= size <= self.connection.max_small_bytes
            and data.startswith(pack_prefix(False, size))
            and self._assembler is None
        ):
            self.on_request(data[PREFIX_BYTES:])
        else:
            super().on_data(data, end_stream=end_stream)

    def incomplete_input(self) -> IncompleteInput | None:
        """Returns the missing part of the request; at least its end is missing."""
        return super().incomplete_input() or IncompleteInput("a request", 0, 1)

    def on_message(self, message: Buffer) -> None:
        """Keep the message until the client has ended its half of the stream."""
        if self._message is not None:
            raise GrpcError(GrpcStatus.INTERNAL, "expected one message, got more")
        self._message = message

    def on_half_close(self) -> None:
        if self._message is None:
            raise GrpcError(GrpcStatus.INTERNAL, "expected one message, got none")
        message, self._message = self._message, None
        self.on_request(message)


class RefusedGrpcCall(GrpcCall):
    """A call that ends with an error once the client has sent everything, or after a short delay.

    Some clients, such as gRPC's for asyncio, lose a status that arrives while they still write.
    """

    __slots__ = ("_refusal",)

    def __init__(
        self,
        status: GrpcStatus,
        message: str,
        connection: GrpcConnection,
        stream_id: int,
        head: CallHead,
        metadata: Sequence[Field] = (),
    ) -> None:
        super().__init__(connection, stream_id, head)
        self._refusal = (status, message, metadata)
        connection.call_later(_REFUSAL_DELAY_S, self._refuse)

    def on_data(self, data: Buffer, *, end_stream: bool) -> None:
        """Drop received data."""
        self.acknowledge(len(data))
        if end_stream:
            self._refuse()

    def _refuse(self) -> None:
        self.finish(*self._refusal)


def header_of(head: CallHead) -> HeaderLookup:
    """Returns what finds the values of metadata, for authorisation.

    Several different values of a name are never accepted: they are no value of a restricted API,
    and joined, they are no credential. Lists of addresses are joined in their order.
    """

    def header(name: bytes) -> bytes | None:
        key = name.decode()
        if name in _ADDRESS_LISTS:
            parts = [str(value).encode("latin-1") for other, value in head.metadata if other == key]
            return b", ".join(parts) if parts else None
        values = {value for other, value in head.metadata if other == key}
        found = sorted([it.encode("latin-1") if isinstance(it, str) else it for it in values])
        if len(found) > 1 and not name.startswith(_RESTRICTED_PREFIX):
            return b", ".join(found)
        return found[0] if len(found) == 1 else None

    return header


def frame_message(parts: list[Buffer], encoding: str = IDENTITY) -> list[Buffer]:
    """Returns a message with its prefix; a large one in few buffers."""
    if encoding == IDENTITY:
        size = message_size(parts)
        framed = [pack_prefix(False, size), *parts]
        return framed if size <= _JOINED_BYTES else gather(framed)
    compressed = compress(parts, encoding)
    return gather([message_prefix(message_size(compressed), is_compressed=True), *compressed])


def gather(parts: list[Buffer]) -> list[Buffer]:
    """Join adjacent small buffers; large ones are not copied."""
    gathered: list[Buffer] = []
    small: list[Buffer] = []
    for part in parts:
        if len(part) <= _JOINED_BYTES:
            small.append(part)
            continue
        gathered += [b"".join(small), part] if small else [part]
        small = []
    if small:
        gathered.append(b"".join(small))
    return gathered


class HeldData:
    """Data in the order of its arrival, and whether the stream ends after it."""

    __slots__ = ("_leases", "is_ended", "parts")

    def __init__(self, data: Buffer, lease: MemoryLease, *, is_ended: bool) -> None:
        lease.grow(len(data))
        self._leases = [lease]
        self.parts: deque[Buffer] = deque((data,) if data else ())
        self.is_ended = is_ended

    def add(self, data: Buffer, *, is_ended: bool) -> None:
        self._leases[-1].grow(len(data))
        self.is_ended = is_ended
        last = self.parts[-1] if self.parts else b""
        if isinstance(last, bytearray) and len(last) < _HELD_PART_BYTES:
            last += data
        elif data:
            self.parts.append(bytearray(data))

    @property
    def nbytes(self) -> int:
        """How much of the budget it takes."""
        return sum(lease.nbytes for lease in self._leases)

    def extend(self, later: HeldData) -> None:
        """Append data that came later."""
        self.is_ended = later.is_ended
        self.parts += later.parts
        self._leases += later._leases
