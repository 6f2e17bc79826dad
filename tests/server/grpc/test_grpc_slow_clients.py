# SPDX-License-Identifier: Apache-2.0
"""gRPC clients that take no answers, or end nothing that they begin: they wait, and are cut off."""

from __future__ import annotations

import time

import pytest

from pytriton.protocol.http2 import Http2Limits, frames
from pytriton.serving.server.api.pace import MIN_BYTES_PER_S
from pytriton.serving.server.options.server_options import ClientLimits, ServerOptions
from pytriton.testing import FakeClock
from tests.server.grpc_fakes import FakeEngine, GrpcClient, framed, infer_request
from tests.wire.http2.frame_client import data

LIMITS = ClientLimits(header_timeout_s=10, body_stall_timeout_s=20, write_stall_timeout_s=30)
OPTIONS = ServerOptions(limits=LIMITS)


class Watch:
    """Asks a connection every second whether it is to go on."""

    def __init__(self, client: GrpcClient) -> None:
        self.client = client
        self.clock = FakeClock(time.monotonic())  # the connection notes when bytes come

    def run(self, seconds: int) -> None:
        for _ in range(seconds):
            if not self.client.transport.saw_end:
                self.client.connection.check(self.clock.now_ns)
                self.client.loop.run()
            self.clock.advance(1)
        if self.client.transport.peer_reads:
            self.client.run()


def refused_calls(client: GrpcClient, count: int) -> bytes:
    """Heads that are answered at once with trailers alone."""
    return b"".join(client.head("/nobody/knows", end_stream=True) for _ in range(count))


def clog(client: GrpcClient) -> int:
    """Have calls refused, take no answer until the server reads no more; how many they were."""
    client.transport.peer_reads = False
    count = 0
    while client.transport.is_reading:
        client.receive(refused_calls(client, 500))
        count += 500
        assert count < 100_000, "the server reads on for ever"
    return count


# Clients that take nothing


@pytest.fixture
def client():
    return GrpcClient(OPTIONS)


def test_connection_whose_client_takes_no_refusals_is_not_read_on():
    client = GrpcClient()
    clog(client)

    waiting = len(client.transport.unsent) + sum(
        map(len, client.connection.http2._core.outbox.frames)
    )
    assert waiting < 2 * Http2Limits().max_waiting_frame_bytes


def test_connection_is_read_again_once_its_client_took_the_answers():
    client = GrpcClient()
    count = clog(client)
    client.transport.peer_reads = True
    client.transport.take(len(client.transport.unsent))
    client.run()

    assert client.transport.is_reading
    assert len([frame for frame in client.sent if frame.kind == frames.HEADERS]) == count


@pytest.mark.parametrize("client_reads", [True, False])
def test_client_that_sent_much_waits_until_others_were_served(client_reads):
    client = GrpcClient()
    client.transport.peer_reads = client_reads
    calls = refused_calls(client, 5000)

    client.connection.data_received(calls)

    assert len(calls) > 64 << 10
    assert not client.transport.is_reading
    client.loop.run()
    assert client.transport.is_reading


def test_client_that_sent_little_is_read_on():
    client = GrpcClient()

    client.connection.data_received(refused_calls(client, 10))

    assert client.transport.is_reading


def test_connection_is_read_on_while_data_waits_for_the_windows_of_its_client():
    client = GrpcClient(window=0)
    stream = client.call("ModelInfer", infer_request())
    client.engine.answer(content=bytes(128 << 20))
    client.run()

    assert client.transport.is_reading
    assert not client.response(stream).messages


def test_connection_with_much_data_for_a_client_that_takes_none_is_not_read_on():
    client = GrpcClient()
    client.transport.peer_reads = False
    client.call("ModelInfer", infer_request())
    client.engine.answer(content=bytes(128 << 20))
    client.run()
    client.open("ModelInfer")

    assert not client.transport.is_reading


def test_connection_is_read_again_while_the_rest_waits_for_the_windows_of_its_client():
    client = GrpcClient(window=8 << 20)
    client.transport.peer_reads = False
    client.call("ModelInfer", infer_request())
    client.engine.answer(content=bytes(128 << 20))
    client.run()
    client.open("ModelInfer")
    assert not client.transport.is_reading

    client.transport.peer_reads = True
    client.transport.take(len(client.transport.unsent))
    client.run()

    assert client.transport.is_reading


def test_client_that_takes_nothing_is_cut_off(client):
    clog(client)
    watch = Watch(client)
    watch.run(30)
    assert not client.transport.is_aborted

    watch.run(3)
    assert client.transport.is_aborted


def test_client_that_takes_a_little_is_not_cut_off(client):
    clog(client)
    watch = Watch(client)
    for _ in range(100):
        client.transport.take(MIN_BYTES_PER_S + 1)
        watch.run(1)

    assert not client.transport.saw_end


def test_client_that_does_not_take_the_last_words_of_a_connection_is_cut_off(client):
    client.transport.peer_reads = False
    client.receive(b"\0\0\4\x09\0\0\0\0\1abcd")  # CONTINUATION that follows no HEADERS
    assert client.transport.saw_end
    assert not client.transport.is_aborted
    clock = FakeClock(time.monotonic())
    for _ in range(33):
        client.connection.check(clock.now_ns)
        clock.advance(1)

    assert client.transport.is_aborted


# Clients that end nothing


def silent_client(*sent: bytes) -> GrpcClient:
    client = GrpcClient(OPTIONS, engine=FakeEngine(), speaks=False)
    for part in sent:
        client.receive(part)
    return client


SETTINGS = frames.frame(frames.SETTINGS, 0, 0, b"")


@pytest.mark.parametrize(
    "sent",
    [
        (),
        (frames.PREFACE[:10],),
        (frames.PREFACE,),
        (frames.PREFACE, SETTINGS[:4]),
        (frames.PREFACE, SETTINGS, b"\0\0\1"),
        (frames.PREFACE, SETTINGS, frames.frame(frames.HEADERS, 0, 1, b"")),
        (frames.PREFACE, SETTINGS, frames.frame(frames.HEADERS, 0, 1, b"a") + b"\0"),
    ],
    ids=["nothing", "half preface", "preface", "half settings", "half header", "block", "both"],
)
def test_connection_that_says_nothing_whole_is_ended(sent: tuple[bytes, ...]):
    client = silent_client(*sent)
    watch = Watch(client)
    watch.run(10)
    assert not client.transport.saw_end

    watch.run(3)
    assert client.transport.saw_end
    (goaway,) = client.goaways()
    assert b"too slowly" in goaway.payload


def test_more_of_a_head_wins_no_time():
    client = silent_client(frames.PREFACE, SETTINGS, b"\0\1\0\1\0\0\0\0\1")
    watch = Watch(client)
    for _ in range(12):
        client.receive(b"a")
        watch.run(1)

    assert client.transport.saw_end


def test_quiet_connection_that_ended_all_it_began_is_kept():
    client = silent_client(frames.PREFACE, SETTINGS)
    Watch(client).run(1000)

    assert not client.transport.saw_end


def test_half_a_data_frame_ends_its_connection(client):
    stream = client.call("ModelInfer", infer_request())
    client.receive(data(stream, bytes(1000))[:500])  # of a stream that was ended
    watch = Watch(client)
    watch.run(20)
    assert not client.transport.saw_end

    watch.run(3)
    assert client.transport.saw_end


@pytest.mark.parametrize("method", ["ModelInfer", "ModelStreamInfer", "ServerLive"])
def test_half_a_message_ends_its_call_and_nothing_else(client, method):
    other = client.open("ModelStreamInfer")
    stream = client.open(method)
    client.receive(data(stream, framed(infer_request())[:-1]))
    Watch(client).run(23)

    assert client.response(stream).status == "4"
    assert client.response(stream).text == "a message came too slowly"
    assert not client.response(other).status
    assert not client.transport.saw_end


def test_unary_call_without_a_message_is_ended(client):
    stream = client.open("ModelInfer")
    Watch(client).run(23)

    assert client.response(stream).text == "a request came too slowly"


def test_message_whose_rest_comes_in_time_is_taken(client):
    stream = client.open("ModelInfer")
    message = framed(infer_request())
    client.receive(data(stream, message[:-1]))
    Watch(client).run(15)
    client.receive(data(stream, message[-1:], end_stream=True))

    assert len(client.engine.inferences) == 1


def test_large_message_may_take_longer_than_the_limit(client):
    stream = client.open("ModelInfer")
    message = framed(infer_request(request_id="a" * 100_000))
    watch = Watch(client)
    for at in range(0, len(message), 1000):
        client.receive(data(stream, message[at : at + 1000], end_stream=at + 1000 >= len(message)))
        watch.run(1)

    assert len(client.engine.inferences) == 1


def test_request_that_the_model_takes_long_for_is_not_ended(client):
    stream = client.call("ModelInfer", infer_request())
    Watch(client).run(1000)
    client.engine.answer()
    client.run()

    assert client.response(stream).status == "0"
