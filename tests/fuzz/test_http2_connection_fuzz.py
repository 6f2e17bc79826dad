# SPDX-License-Identifier: Apache-2.0
"""Random HTTP/2 for the HTTP port: heads, bodies, windows, resets, and what is invalid."""

from __future__ import annotations

import random

import msgspec

from pytriton.base.errors import UNEXPECTED
from pytriton.protocol.http2 import Http2ErrorCode, frames
from pytriton.protocol.http2.frames import frame
from pytriton.serving.server.http.http2_connection import Http2ServerConnection
from pytriton.serving.server.options.server_options import ClientLimits
from tests.fuzz.answering import PATIENCE_S, AnsweringService
from tests.fuzz.fuzzing import (
    Case,
    assert_reveals_nothing,
    assert_work_is_paid,
    fuzz,
    without_logged_errors,
)
from tests.fuzz.grpc_rig import FIXED_WORK, RandomSession, literal, random_element, resize
from tests.fuzz.mutation import mutate_bytes
from tests.fuzz.test_http_connection_fuzz import BODIES, LIMITS, OTHER_METHODS, TARGETS
from tests.server.http2_fakes import Http2Client, head
from tests.server.http_fakes import Client
from tests.wire.http2.frame_client import window_update

STREAMS = 24
WORK_BURST = 300
_MIN_PROBE_WINDOW = 1000
FIELDS = (
    (b"accept", b"*/*"), (b"accept-encoding", b"gzip;q=0.5, deflate, identity"),
    (b"content-type", b"application/json"), (b"cookie", b"c" * 300), (b"cookie", b"a=b"),
    (b"inference-header-content-length", b"10"), (b"authorization", b"Bearer abc"),
    (b"traceparent", b"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"),
    (b"user-agent", b"fuzz"), (b"expect", b"100-continue"), (b"te", b"trailers"), (b"x", b" a "),
)  # fmt: skip
WRONG_FIELDS = (
    (b"content-length", b"5"), (b"content-length", b"x"), (b"te", b"gzip"), (b"X-Upper", b"a"),
    (b"content-length", b"18446744073709551616"), (b"connection", b"close"), (b"a", b"\0"),
    (b"", b""), (b":status", b"200"), (b":path", b"/other"), (b":authority", b""), (b"a", b"\x1b"),
    (b"\xff", b"\xff"), (b"host", b"other"), (b"host", b"h"), (b"expect", b"200-ok"),
    (b"transfer-encoding", b"chunked"), (b"upgrade", b"h2c"), (b"content-encoding", b"gzip"),
    (b"content-encoding", b"br"), (b"inference-header-content-length", b"99999999999999999999"),
    (b"origin", b"http://evil"), (b"sec-fetch-site", b"cross-site"), (b"y", b"v" * 3000),
)  # fmt: skip


class HttpSession(RandomSession):
    """Frames of one client of the HTTP port."""

    def block(self, method: str = "") -> bytes:
        """A header block of a request in any form."""
        source = self.source
        body_method = source.choice((b"GET", b"POST", b"POST"))
        if source.random() < 0.1:
            body_method = source.choice(OTHER_METHODS)
        fields = head(source.choice(TARGETS), method=body_method)
        fields += source.choices(FIELDS, k=source.choice((0, 0, 0, 1, 2, 6)))
        if self.is_rude() or source.random() < 0.05:
            fields.append(source.choice(WRONG_FIELDS))
        if self.is_rude():
            fields.pop(source.randrange(len(fields)))
        if self.is_rude():
            source.shuffle(fields)
        parts = [resize(source.choice((0, 100, 4096)))] if source.random() < 0.05 else []
        first = source.choice((0, 0x10, 0x40, 0x40))
        is_huffman = source.random() < 0.3
        parts += [literal(*each, first, is_huffman=is_huffman) for each in fields]
        if self.is_rude():
            parts.insert(source.randrange(len(parts) + 1), random_element(source))
        block = b"".join(parts)
        return mutate_bytes(source, block) if self.is_rude() else block

    def call(self) -> list[bytes]:
        """A whole request."""
        stream_id = self.new_id()
        content = self.message()
        header = frame(frames.HEADERS, frames.END_HEADERS, stream_id, self.block())
        end = frame(frames.DATA, frames.END_STREAM, stream_id, content)
        return self.source.choice(([header + end], [header, end]))

    def message(self, method: str = "") -> bytes:
        """A body or a part of one."""
        body = self.source.choice(BODIES)
        return mutate_bytes(self.source, body) if self.is_rude() and body else body


class Http2Rig:
    """One connection of a server whose models answer at once."""

    def __init__(
        self, limits: ClientLimits = LIMITS, streams: int = STREAMS, work_burst: int = WORK_BURST
    ) -> None:
        self.service = AnsweringService(limits=limits)
        api = self.service.api
        api.http2_limits = msgspec.structs.replace(
            api.http2_limits,
            max_concurrent_streams=streams,
            work_burst=work_burst,
            work_per_second=0,
        )
        self.client = Client(api)
        self.client.transport.read_buffer = api.read_buffer

    def play(self, reads: list[bytes]) -> None:
        for read in reads:
            self.client.send(read)
            while self.service.answer():
                self.client.deliver()

    @property
    def is_over(self) -> bool:
        return self.client.saw_end or self.client.transport.is_closed

    def probe(self) -> None:
        """Send a valid request; it is answered, unless the connection has ended or is full."""
        connection = self.client.transport.protocol
        if not isinstance(connection, Http2ServerConnection) or self.is_over:
            return
        http2 = connection.http2
        stream_id = http2._core.streams.last_id + 2 | 1
        if http2.incomplete_input() is not None or stream_id > 2**31 - 100:
            return
        was_full = http2.open_streams >= STREAMS or http2.is_output_full
        block = b"".join(literal(*each) for each in head(b"/v2/health/live"))
        flags = frames.END_HEADERS | frames.END_STREAM
        wire = frame(frames.HEADERS, flags, stream_id, block)
        if http2.peer_settings.initial_window < _MIN_PROBE_WINDOW:
            wire += window_update(stream_id, _MIN_PROBE_WINDOW)
        reading = self._reader()
        self.play([wire])
        if self.is_over or was_full:
            return
        assert reading.reply(stream_id).status == 200, reading.replies

    def _reader(self) -> Http2Client:
        """Something that reads the frames that have come and will come."""
        reading = Http2Client.__new__(Http2Client)
        reading.__dict__.update(vars(self.client))
        Http2Client.begin_reading(reading)
        return reading

    def check_output(self, sent: bytes) -> None:
        """Assert that what came back is valid frames, and that no text is a mistake of ours."""
        if not isinstance(self.client.transport.protocol, Http2ServerConnection):
            return
        reading = self._reader()
        reading.read()
        for goaway in [each for each in reading.frames if each.kind == frames.GOAWAY]:
            assert_reveals_nothing(goaway.payload[8:], sent)
            assert goaway.payload[7] != Http2ErrorCode.INTERNAL_ERROR, goaway
        for reply in reading.replies.values():
            assert reply.reset != Http2ErrorCode.INTERNAL_ERROR
            assert reply.status < 500 or reply.status in (500, 501, 503), reply  # as Triton
            assert UNEXPECTED.encode() not in reply.body
            if reply.status >= 400:
                assert_reveals_nothing(reply.body, sent)

    def end(self) -> None:
        """Let the client leave, and assert that nothing is left of it."""
        self.client.reset()
        self.service.answer()
        api = self.service.api
        assert not api.connections
        assert len(api.watch) == 0
        assert len(api.tasks) == 0
        self.service.check_idle()
        self.service.loop.advance(PATIENCE_S)
        assert self.service.loop.timer_count <= 1


def check_session(reads: Case) -> None:
    rig, sent = Http2Rig(), b"".join(reads)
    with without_logged_errors():
        assert_work_is_paid(
            lambda: rig.play(reads), len(sent), fixed_work=FIXED_WORK, reads=len(reads)
        )
        rig.check_output(sent)
        rig.probe()
        rig.end()


def random_reads(source: random.Random) -> Case:
    return HttpSession(source).reads()


def polite_reads(source: random.Random) -> Case:
    return HttpSession(source, rudeness=0).reads()


def test_random_frames_are_answered_or_the_connection_ends():
    fuzz("HTTP/2 of the HTTP port", 250, random_reads, check_session)


def test_polite_frames_do_not_end_the_connection():
    def check(reads: Case) -> None:
        check_session(reads)
        rig = Http2Rig()
        rig.play(reads)

        assert isinstance(rig.client.transport.protocol, Http2ServerConnection)

    fuzz("polite HTTP/2", 60, polite_reads, check)
