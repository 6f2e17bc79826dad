# SPDX-License-Identifier: Apache-2.0
"""A gRPC server without sockets for random clients, and the frames and header blocks they send."""

from __future__ import annotations

import gzip
import random
from collections.abc import Iterable
from typing import Any

import msgspec
from hpack.huffman import HuffmanEncoder
from hpack.huffman_constants import REQUEST_CODES, REQUEST_CODES_LENGTH

from pytriton.base.errors import UNEXPECTED
from pytriton.base.protos import service_pb2
from pytriton.protocol.grpc import message_prefix
from pytriton.protocol.http2 import frames
from pytriton.protocol.http2.frames import Http2ErrorCode, frame
from tests.fake_network import FakeTransport
from tests.fuzz.answering import AnsweringService
from tests.fuzz.fuzzing import assert_reveals_nothing, assert_work_is_paid, without_logged_errors
from tests.fuzz.mutation import mutate_bytes, mutate_message
from tests.server.grpc_fakes import SERVICE, GrpcClient, framed
from tests.wire.http2.frame_client import setting, window_update

STREAMS = 24
WORK_BURST = 300
# What the budget of a connection pays for, beside what its bytes do.
FIXED_WORK = 10_000
PATIENCE_S = 180
_MAX_PROBED_ID = 2**31 - 100
_MIN_PROBE_WINDOW = 1000


class GrpcRig:
    """One connection of a server whose models answer at once."""

    def __init__(self, *, streams: int = STREAMS, work_burst: int = WORK_BURST, **limits) -> None:
        self.service = AnsweringService()
        self.client = client = GrpcClient(
            engine=self.service.engine,
            loop=self.service.loop,
            control=self.service.control,
            background=self.service.background,
            speaks=False,
        )
        client.transport.lose()
        client.loop.run()
        client.api.http2_limits = msgspec.structs.replace(
            client.api.http2_limits,
            max_concurrent_streams=streams,
            work_burst=work_burst,
            work_per_second=0,
            **limits,
        )
        self.connection = client.connection = client.api.make_connection()
        client.transport = FakeTransport(client.loop, client.connection)
        client.transport.read_buffer = client.api.read_buffer
        client.connection.connection_made(client.transport)
        client.sent.clear()

    def play(self, reads: Iterable[bytes]) -> None:
        """Let the client send; models answer after each read."""
        for read in reads:
            self.client.transport.receive(read)
            self.client.loop.run()
            self.answer()

    def answer(self) -> None:
        while self.service.answer():
            pass

    @property
    def is_over(self) -> bool:
        return self.connection.http2.is_terminated or self.client.transport.saw_end

    def probe(self) -> None:
        """Make a valid call; it is answered, unless the connection has ended or expects a rest."""
        http2 = self.connection.http2
        stream_id = http2._core.streams.last_id + 2 | 1
        if self.is_over or http2.incomplete_input() is not None or stream_id > _MAX_PROBED_ID:
            return
        was_full = http2.open_streams >= http2._core.limits.max_concurrent_streams
        wire = frame(frames.HEADERS, frames.END_HEADERS, stream_id, plain_block("ServerLive"))
        if http2.peer_settings.initial_window < _MIN_PROBE_WINDOW:
            wire += window_update(stream_id, _MIN_PROBE_WINDOW)
        wire += frame(frames.DATA, frames.END_STREAM, stream_id, framed(b""))
        self.play([wire])
        self.client.run()
        if self.is_over:
            return
        response = self.client.response(stream_id)
        if was_full:
            refused = frames.rst_stream(stream_id, Http2ErrorCode.REFUSED_STREAM)
            resets = [each for each in self.client.sent if each.stream_id == stream_id]
            assert [frame(*each[:3], each.payload) for each in resets][:1] == [refused]
        else:
            assert response.status == "0", response
            assert response.messages == [b"\x08\x01"]

    def check_output(self, sent: bytes) -> None:
        """Assert that what came back is valid frames, and that no text is a mistake of ours."""
        self.client.run()
        goaways = self.client.goaways()
        for goaway in goaways:
            assert_reveals_nothing(goaway.payload[8:], sent)
            assert goaway.payload[7] != Http2ErrorCode.INTERNAL_ERROR, goaway
        assert bool(goaways) == self.connection.http2.is_terminated
        for sent_frame in self.client.sent:
            if sent_frame.kind == frames.HEADERS:
                fields = dict(self.client._decoder.decode(sent_frame.payload))
                text = fields.get("grpc-message", "")
                assert_reveals_nothing(text, sent)
                assert UNEXPECTED.split(",")[0].replace(" ", "") not in text.replace("%20", "")

    def end(self) -> None:
        """Let the client leave, and assert that nothing is left of it."""
        client = self.client
        if not client.transport.is_lost:
            client.transport.lose(ConnectionResetError())
        client.loop.run()
        self.answer()
        self.service.check_idle()
        assert not client.api.connections
        assert not self.connection._calls
        assert len(client.api.tasks) == 0
        client.loop.advance(PATIENCE_S)
        assert client.loop.timer_count == 0


def check_session(reads: list[bytes], **options: Any) -> GrpcRig:
    """Play a client, probe the connection, and look at what is left and what it cost."""
    rig = GrpcRig(**options)
    sent = b"".join(reads)
    with without_logged_errors():
        assert_work_is_paid(
            lambda: rig.play(reads), len(sent), fixed_work=FIXED_WORK, reads=len(reads)
        )
        rig.check_output(sent)
        rig.client.sent.clear()
        rig.probe()
        rig.end()
    return rig


def infer_request(model: str = "double", request_id: str = "7") -> bytes:
    """A request that its model can answer, if there is one."""
    request = service_pb2.ModelInferRequest(model_name=model, id=request_id)
    if model == "stream":
        request.inputs.add(name="prompt", datatype="BYTES", shape=[1])
        request.raw_input_contents.append(b"\1\0\0\0a")
    else:
        request.inputs.add(name="x", datatype="FP32", shape=[1, 1])
        request.raw_input_contents.append(b"\0\0\x80\x3f")
    content: bytes = request.SerializeToString()
    return content


# Header blocks

_HUFFMAN = HuffmanEncoder(REQUEST_CODES, REQUEST_CODES_LENGTH)


def integer(number: int, prefix_bits: int, first: int = 0, pad_bytes: int = 0) -> bytes:
    """Returns an integer of HPACK after the bits of `first`, perhaps longer than it has to be."""
    largest = (1 << prefix_bits) - 1
    if number < largest:
        return bytes((first | number,))
    encoded = bytearray((first | largest,))
    number -= largest
    while number >= 0x80:
        encoded.append(number & 0x7F | 0x80)
        number >>= 7
    encoded.append(number)
    for _ in range(pad_bytes):
        encoded[-1] |= 0x80
        encoded.append(0)
    return bytes(encoded)


def string(text: bytes, *, is_huffman: bool = False) -> bytes:
    if is_huffman:
        text = _HUFFMAN.encode(text)
    return integer(len(text), 7, 0x80 if is_huffman else 0) + text


def literal(name: bytes, value: bytes, first: int = 0, *, is_huffman: bool = False) -> bytes:
    """A field without an index: 0x40 adds it to the table, 0 and 0x10 do not."""
    return bytes((first,)) + string(name, is_huffman=is_huffman) + string(value)


def resize(size: int, pad_bytes: int = 0) -> bytes:
    return integer(size, 5, 0x20, pad_bytes)


def call_fields(method: str) -> list[tuple[bytes, bytes]]:
    path = method if method.startswith("/") else f"{SERVICE}/{method}"
    return [
        (b":method", b"POST"),
        (b":scheme", b"http"),
        (b":path", path.encode()),
        (b":authority", b"localhost"),
        (b"te", b"trailers"),
        (b"content-type", b"application/grpc"),
    ]


def plain_block(method: str) -> bytes:
    """The block of a call, which does not use the table."""
    return b"".join(literal(*each) for each in call_fields(method))


METHODS = (
    "ModelInfer", "ModelInfer", "ModelInfer", "ModelStreamInfer", "ModelStreamInfer", "ServerLive",
    "ServerMetadata", "ModelMetadata", "ModelConfig", "ModelStatistics", "RepositoryIndex",
    "RepositoryModelLoad", "SystemSharedMemoryStatus", "SystemSharedMemoryRegister", "TraceSetting",
    "LogSettings", "/grpc.health.v1.Health/Check", "/grpc.health.v1.Health/Watch", "Nobody", "/",
    "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo",
)  # fmt: skip
OTHER_FIELDS = (
    (b"grpc-timeout", b"1S"), (b"grpc-timeout", b"99999999H"), (b"grpc-encoding", b"gzip"),
    (b"grpc-accept-encoding", b"gzip, identity,,"), (b"user-agent", b"fuzz"), (b"x-bin", b"AAAA"),
    (b"x-bin", b"AA,AA,"), (b"a", b" b "), (b"cookie", b"c" * 300), (b"triton-request-id", b"1"),
    (b"traceparent", b"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"),
)  # fmt: skip
WRONG_FIELDS = (
    (b"grpc-timeout", b"0n"), (b"grpc-timeout", b"x"), (b"grpc-encoding", b"br"), (b"x-bin", b"!"),
    (b"content-length", b"5"), (b"content-length", b"x"), (b"te", b"gzip"), (b"X-Upper", b"a"),
    (b"content-length", b"18446744073709551616"), (b"connection", b"close"), (b"a", b"\0"),
    (b"", b""), (b":status", b"200"), (b":path", b"/other"), (b":authority", b""),
    (b"\xff", b"\xff"), (b"content-type", b"text/plain"), (b"traceparent", b"00-x"),
)  # fmt: skip


def random_block(source: random.Random, method: str, rudeness: float = 0.1) -> bytes:
    """A header block of a call in any form, with something wrong as often as `rudeness` says."""

    def is_rude() -> bool:
        return source.random() < rudeness

    fields = call_fields(method)
    fields += source.choices(OTHER_FIELDS, k=source.choice((0, 0, 0, 1, 2, 6)))
    if is_rude():
        fields.append(source.choice(WRONG_FIELDS))
    if is_rude():
        fields.pop(source.randrange(len(fields)))
    if is_rude():
        source.shuffle(fields)
    parts = []
    if source.random() < 0.1:
        sizes = [source.choice((0, 1, 100)), source.choice((100, 4096))]
        if is_rude():
            sizes.append(source.choice((4097, 2**20)))
        parts += [resize(size) for size in sizes]
    first = source.choice((0, 0x10, 0x40, 0x40))
    is_huffman = source.random() < 0.3
    parts += [literal(*each, first, is_huffman=is_huffman) for each in fields]
    if is_rude():
        parts.insert(source.randrange(len(parts) + 1), random_element(source))
    block = b"".join(parts)
    return mutate_bytes(source, block) if is_rude() else block


def random_element(source: random.Random) -> bytes:
    """A part of a block that a client need not send, or must not."""
    number = source.choice((0, 1, 30, 61, 62, 63, 127, 255, 16_383, 2**31, 2**32, 2**63, 2**70))
    return source.choice(
        (
            lambda: integer(number, 7, 0x80),
            lambda: integer(number, 7, 0x80, source.choice((1, 5, 30))),
            lambda: resize(min(number, 2**40)),
            lambda: integer(number, 6, 0x40) + string(b"v"),
            lambda: integer(number, 4, 0x10) + string(b"v", is_huffman=True),
            lambda: b"\x40" + integer(number, 7) + b"short",
            lambda: b"\x40\x01a" + integer(number, 7, 0x80) + b"\xff" * 8,
            lambda: literal(b"n" * 100, b"v" * 4000, 0x40),
            lambda: b"\x82" * source.choice((1, 50, 700)),
            lambda: b"\xbe" * source.choice((1, 50, 700)),
        )
    )()


# Frames


class RandomSession:
    """Frames of one client; the source decides everything."""

    def __init__(self, source: random.Random, rudeness: float | None = None) -> None:
        self.source = source
        self.next_id = 1
        self.open_ids: list[int] = []  # of calls whose end the client has not sent
        self.rudeness = source.choice((0, 0.005, 0.02, 0.2)) if rudeness is None else rudeness

    def reads(self) -> list[bytes]:
        """The preface and some frames, in reads of any size."""
        source = self.source
        entries = b"".join(
            setting(4, source.choice((0, 1, 65_535, 2**20)))
            for _ in range(source.choice((0, 0, 1)))
        )
        wire = [frames.PREFACE + frame(frames.SETTINGS, 0, 0, entries) + window_update(0, 2**30)]
        for _ in range(source.choice((3, 10, 30))):
            wire += self.some_frames()
        if source.random() < 0.3:  # in reads that end anywhere
            text, size = b"".join(wire), source.choice((5, 100, 5000))
            size = max(size, len(text) // 100)
            return [text[at : at + size] for at in range(0, len(text), size)]
        if source.random() < 0.3:  # all that comes after the preface at once
            return [wire[0], b"".join(wire[1:])]
        return wire

    def is_rude(self) -> bool:
        return self.source.random() < self.rudeness

    def stream_id(self) -> int:
        """The id of a call that is open."""
        if self.is_rude():
            return self.source.choice((0, 2, self.next_id, self.next_id + 10, 2**31 - 1, 2**31 + 1))
        return self.source.choice(self.open_ids)

    def new_id(self) -> int:
        if self.is_rude():
            return self.source.choice((0, 1, 2, self.next_id + 1, 2**31 - 1))
        stream_id, self.next_id = self.next_id, self.next_id + self.source.choice((2, 2, 2, 4))
        return stream_id

    def flags(self, *usual: int) -> int:
        return self.source.randrange(256) if self.is_rude() else self.source.choice(usual)

    def some_frames(self) -> list[bytes]:
        """One or several frames that belong together."""
        makers = [self.call, self.call, self.call, self.call, self.head, self.head, self.split]
        makers += [self.settings, self.update, self.ping, self.other]
        if self.open_ids:
            makers += [self.data, self.data, self.data, self.data, self.update_call, self.reset]
        made = self.source.choice(makers)()
        if self.is_rude():
            at = self.source.randrange(len(made))
            made[at] = self.damaged(made[at])
        return made

    def damaged(self, wire: bytes) -> bytes:
        """A frame with another length, kind, or anything else."""
        kind = self.source.randrange(4)
        if kind == 0:
            size = self.source.choice((0, 1, len(wire), 16_384, 2**20, 2**24 - 1))
            return size.to_bytes(3, "big") + wire[3:]
        if kind == 1:
            return wire[:3] + bytes((self.source.randrange(12),)) + wire[4:]
        return mutate_bytes(self.source, wire)

    def block(self, method: str = "") -> bytes:
        return random_block(self.source, method or self.source.choice(METHODS), self.rudeness)

    def call(self) -> list[bytes]:
        """A whole call."""
        stream_id, method = self.new_id(), self.source.choice(METHODS)
        count = 1
        if method == "ModelStreamInfer" or self.is_rude():
            count = self.source.choice((0, 1, 2, 5))
        content = b"".join(self.message(method) for _ in range(count))
        head = frame(frames.HEADERS, frames.END_HEADERS, stream_id, self.block(method))
        end = frame(frames.DATA, frames.END_STREAM, stream_id, content)
        return self.source.choice(([head + end], [head, end]))

    def head(self) -> list[bytes]:
        block = self.block(self.source.choice(("", "ModelInfer", "ModelStreamInfer")))
        flags = self.flags(4, 4, 4, 4, 4, 5, 0x24, 0xC)
        stream_id = self.new_id()
        if not flags & frames.END_STREAM:
            self.open_ids.append(stream_id)
        if flags & frames.PRIORITY_FIELDS:
            block = bytes(4) + b"\x10" + block
        if flags & frames.PADDED:
            block = b"\x03" + block + bytes(3)
        return [frame(frames.HEADERS, flags, stream_id, block)]

    def split(self) -> list[bytes]:
        """A block in several frames, between which others may come that must not."""
        block = self.block()
        count = self.source.choice((1, 2, 5, 15))
        if self.is_rude():
            count = 40
        size = -(-len(block) // (count + 1))
        parts = [block[at : at + size] for at in range(0, len(block), size)] or [b""]
        stream_id = self.new_id()
        self.open_ids.append(stream_id)
        made = [frame(frames.HEADERS, 0, stream_id, parts[0])]
        for number, part in enumerate(parts[1:], 2):
            flags = frames.END_HEADERS if number == len(parts) else 0
            other = self.stream_id() if self.is_rude() else stream_id
            made.append(frame(frames.CONTINUATION, flags, other, part))
            if self.is_rude():
                made += self.ping()
        if len(parts) == 1:
            made.append(frame(frames.CONTINUATION, frames.END_HEADERS, stream_id, b""))
        return made

    def message(self, method: str = "ModelInfer") -> bytes:
        """A message with its prefix: mostly a valid one, or one that a change made invalid."""
        source = self.source
        request = b""
        if method.endswith("Infer") or self.is_rude():
            request = infer_request(source.choice(("double", "double", "stream", "nobody")))
        elif source.random() < 0.5:
            request = b"\x0a\x06double"  # the name of a model, where the method needs one
        kind = source.randrange(12)
        if kind == 0:
            request = b""
        elif kind == 1:
            request = mutate_message(source, request)
        elif kind == 2:
            request = gzip.compress(request * source.choice((1, 100)), 1, mtime=0)
            return message_prefix(len(request), is_compressed=True) + request
        elif kind == 3 and self.is_rude():
            wrong = source.choice((0, 1, len(request) + 1, 2**20, 2**31, 2**32 - 1))
            return bytes((source.choice((0, 1, 2)),)) + wrong.to_bytes(4, "big") + request
        return message_prefix(len(request)) + request

    def data(self) -> list[bytes]:
        source = self.source
        payload = b"".join(self.message() for _ in range(source.choice((0, 1, 1, 3))))
        if source.random() < 0.2:
            payload = payload[: source.randrange(len(payload) + 1)]
        if source.random() < 0.03:
            payload += source.choice((bytes(5000), b"\xff" * 70_000))
        flags = self.flags(0, 0, 0, 1, 8)
        if flags & frames.PADDED:
            padding = source.choice((0, 1, 200))
            payload = bytes((padding,)) + payload + bytes(padding)
        stream_id = self.stream_id()
        if flags & frames.END_STREAM and stream_id in self.open_ids:
            self.open_ids.remove(stream_id)
        return [frame(frames.DATA, flags, stream_id, payload)]

    def settings(self) -> list[bytes]:
        source = self.source
        count = source.choice((0, 1, 1, 2, 6, 30))
        values = {1: 4096, 2: 0, 3: 100, 4: 2**20, 5: 16_384, 6: 65_535, 9: 7}
        entries = b""
        for _ in range(50 if self.is_rude() else count):
            number = source.choice((1, 1, 2, 3, 4, 4, 4, 5, 6, 9))
            value = source.choice((0, 1, 65_535)) if number in (1, 4) else values[number]
            if self.is_rude():
                number, value = source.randrange(2**16), source.randrange(2**32)
            entries += setting(number, value)
        if self.is_rude():
            entries += b"\0"
        stream_id = self.stream_id() if self.is_rude() and self.open_ids else 0
        flags = self.flags(0, 1) if not entries else self.flags(0)
        return [frame(frames.SETTINGS, flags, stream_id, entries)]

    def update_call(self) -> list[bytes]:
        return self.update(self.stream_id())

    def update(self, stream_id: int = 0) -> list[bytes]:
        increment = self.source.choice((1, 100, 65_535, 2**20))
        if self.is_rude():
            increment = self.source.choice((0, 2**31 - 1, 2**31, 2**32 - 1))
        return [frame(frames.WINDOW_UPDATE, self.flags(0), stream_id, increment.to_bytes(4, "big"))]

    def reset(self) -> list[bytes]:
        stream_id, code = self.stream_id(), self.source.choice((0, 8, 2**32 - 1))
        if stream_id in self.open_ids and not self.is_rude():
            self.open_ids.remove(stream_id)
        return [frame(frames.RST_STREAM, self.flags(0), stream_id, code.to_bytes(4, "big"))]

    def ping(self) -> list[bytes]:
        payload = self.source.choice((b"12345678", b"shutdown", b"keepaliv"))
        return [frame(frames.PING, self.flags(0, 1, 1, 1), 0, payload)]

    def other(self) -> list[bytes]:
        """Frames that change nothing, and those that clients must not send."""
        kind = self.source.choice((frames.PRIORITY, frames.GOAWAY, 10, 255))
        if self.is_rude():
            kind = frames.PUSH_PROMISE
        size = {frames.PRIORITY: 5, frames.GOAWAY: 8}.get(kind, self.source.randrange(30))
        stream_id = 0 if kind == frames.GOAWAY else self.next_id
        return [frame(kind, self.flags(0), stream_id, self.source.randbytes(size))]
