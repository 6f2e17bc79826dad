# SPDX-License-Identifier: Apache-2.0
"""Clients that hold much memory and are slow are ended while it is short; others are not."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator

import numpy as np
import pytest

from pytriton.protocol.grpc import message_prefix
from pytriton.protocol.http2 import Http2ErrorCode, frames
from pytriton.serving.server.api.pace import HOLDING_S, MIN_BYTES_PER_S, Holder, Lateness, Pace
from pytriton.serving.server.api.request_memory import RequestMemory
from pytriton.serving.server.api.services import ClientService
from pytriton.serving.server.api.shortage import (
    CHECK_S,
    PATIENCE_S,
    TOO_SLOW,
    Shortage,
    UnreadAnswers,
    unread_limit,
)
from pytriton.serving.server.frontend.front_end import FrontEnd
from pytriton.serving.server.grpc.call_state import CLIENT
from pytriton.serving.server.options.server_options import ClientLimits, ServerOptions
from pytriton.serving.server.process.resources import usable_memory
from pytriton.serving.server.process.tls import TlsPorts
from tests.fakes import FakeLoop
from tests.server.grpc_fakes import GrpcClient, infer_request
from tests.server.http2_fakes import Http2Client, head, length
from tests.server.http_fakes import Client, get, post
from tests.server.http_models import INFER, Service
from tests.wire.http2.frame_client import data, window_update

MIB = 1 << 20


# Who is too slow


def holder(key: str, nbytes: int, moved: int = 0) -> Holder:
    return Holder(key, nbytes, moved, lambda nbytes: None)


def late(*looks: tuple[float, list[Holder]], patience_s: float = 1.0) -> list[str]:
    """Those that are late at the last of several looks, in their order."""
    lateness = Lateness()
    for now, holders in looks:
        lateness.look(holders, now)
    return [str(each.key) for each in lateness.late(looks[-1][0], patience_s)]


def test_least_rate_grows_with_what_is_held():
    pace = Pace()
    for now in range(1, 11):
        pace.advance(MIB, now, held=60 * MIB)

    assert pace.stalled_s(10) == 0
    for now in range(11, 21):
        pace.advance(MIB - 1, now, held=60 * MIB)
    assert pace.stalled_s(20) == 10


def test_least_rate_of_who_holds_nothing_is_that_of_everybody():
    pace = Pace()
    pace.advance(MIN_BYTES_PER_S, 1.0)

    assert pace.stalled_s(1.0) == 0
    pace.advance(MIN_BYTES_PER_S - 1, 2.0)
    assert pace.stalled_s(2.0) == 1


def test_holder_that_moves_nothing_is_late():
    assert late((0, [holder("a", MIB)]), (0.9, [holder("a", MIB)])) == []
    assert late((0, [holder("a", MIB)]), (1, [holder("a", MIB)])) == ["a"]


def test_holder_that_keeps_its_pace_is_not_late():
    assert late(*[(now, [holder("a", 60 * MIB, now * MIB)]) for now in range(100)]) == []


def test_holder_that_began_anew_has_its_time_again():
    assert late(*[(0, [holder("a", MIB, 500)]), (5, [holder("a", MIB, 400)])]) == []


def test_who_stands_still_leaves_before_who_reads_slowly_and_holds_more():
    looks = [
        (now, [holder("slow", 64 * MIB, now * MIB // 2), holder("still", 32 * MIB)])
        for now in range(10)
    ]

    assert late(*looks) == ["still", "slow"]


def test_of_those_that_stand_still_who_holds_most_leaves_first():
    holders = [holder("a", 2 * MIB), holder("b", 3 * MIB), holder("c", 2 * MIB + 1)]

    assert late((0, holders), (2, holders)) == ["b", "c", "a"]


def test_who_holds_much_less_than_others_stays():
    holders = [holder("small", 1000), holder("large", MIB)]

    assert late((0, holders), (2, holders)) == ["large"]


def test_limit_is_a_part_of_the_outputs_or_of_the_memory():
    assert unread_limit(64 << 30, 0) == 2 << 30
    assert unread_limit(4 << 30, 0) == 1 << 30
    assert unread_limit(64 << 30, 2) == 1 << 30
    assert unread_limit(64 << 30, 16) == 512 << 20


# Answers that nobody reads


class Reader:
    """A connection whose client has read a part of an answer."""

    def __init__(self, unread: UnreadAnswers, nbytes: int) -> None:
        self.unread, self.nbytes, self.moved, self.was_ended = unread, nbytes, 0, False
        unread.count(self, nbytes)

    def count_unread(self) -> Holder:
        return Holder(self, self.nbytes, self.moved, self.end)

    def end(self, nbytes: int) -> None:
        self.was_ended = True
        self.unread.count(self, 0)


def test_readers_below_the_limit_are_left_alone():
    loop = FakeLoop()
    readers = [Reader(UnreadAnswers(loop, 3 * MIB), MIB) for _ in range(3)]
    loop.advance(1000)

    assert not any(reader.was_ended for reader in readers)
    assert loop.timer_count == 0


def test_slow_readers_are_ended_until_there_is_room():
    loop = FakeLoop()
    unread = UnreadAnswers(loop, 3 * MIB)
    readers = [Reader(unread, MIB) for _ in range(5)]
    fast = Reader(unread, 0)
    fast.nbytes = MIB
    unread.count(fast, MIB)
    for _ in range(20):
        fast.moved += MIB
        loop.advance(0.1)

    assert not fast.was_ended
    assert sum(reader.was_ended for reader in readers) == 3
    assert unread.used_bytes == 3 * MIB
    assert loop.timer_count == 0


def test_readers_have_time_unless_memory_runs_out_fast():
    for count, time_s in ((3, PATIENCE_S), (4, PATIENCE_S / 4)):
        loop = FakeLoop()
        unread = UnreadAnswers(loop, 2 * MIB)
        readers = [Reader(unread, MIB) for _ in range(count)]
        loop.advance(time_s - 0.01)

        assert not any(reader.was_ended for reader in readers)
        loop.advance(0.02)
        assert sum(reader.was_ended for reader in readers) == count - 2


def test_reader_that_has_read_everything_does_not_count():
    loop = FakeLoop()
    unread = UnreadAnswers(loop, MIB)
    reader = Reader(unread, MIB)
    unread.count(reader, 0)
    unread.count(reader, 0)

    assert unread.used_bytes == 0
    assert list(unread._holders()) == []


class Answers:
    """Large answers of a test, and which of them are still in memory."""

    def __init__(self) -> None:
        self._alive: list[weakref.ref] = []

    def make(self, nbytes: int = MIB) -> memoryview:
        array = np.zeros(nbytes, np.uint8)
        self._alive.append(weakref.ref(array))
        return array.data

    @property
    def count(self) -> int:
        gc.collect()
        return sum(each() is not None for each in self._alive)


def test_http1_client_that_does_not_read_is_ended_and_one_that_reads_is_not():
    first = Client()
    handler, loop, answers = first.handler, first.loop, Answers()
    handler.unread = UnreadAnswers(loop, 2 * MIB)
    clients = [first, *(Client(handler) for _ in range(4))]
    for client in clients[1:]:
        client.transport.peer_reads = False
    for client in clients:
        client.send(get(b"/later"))
        handler.later.pop().answer(answers.make())
    loop.run()

    assert handler.unread.used_bytes > 4 * MIB
    loop.advance(PATIENCE_S + CHECK_S)
    assert handler.unread.used_bytes <= 2 * MIB + 3000
    aborted = [client.transport.is_aborted for client in clients]
    assert (aborted[0], sum(aborted)) == (False, handler.unread.ended_count)
    assert len(first.answers()[0].body) == MIB
    loop.advance(1000)
    assert handler.unread.used_bytes == 0  # the others have read nothing for too long


def test_http1_answer_counts_in_full_until_its_last_part_was_read():
    client = Client()
    client.transport.peer_reads = False
    client.send(get(b"/later"))
    client.handler.later.pop().answer(bytes(MIB))
    whole = client.handler.unread.used_bytes
    client.transport.take(MIB - 100_000)
    client.connection.check_progress(client.loop.time())

    assert client.handler.unread.used_bytes == whole > MIB
    client.transport.take(90_000)
    assert client.handler.unread.used_bytes == 0


def http2_client(window: int = 0, limit: int = 0) -> Http2Client:
    client = Http2Client(window=window)
    client.handler.unread.limit_bytes = limit
    return client


def ask(client: Http2Client, answer: memoryview | bytes) -> int:
    stream_id = client.get(b"/later")
    client.handler.later.pop().answer(answer)
    client.loop.run()
    return stream_id


def test_http2_streams_that_are_not_read_are_reset_and_release_all():
    client, answers = Http2Client(window=0), Answers()
    unread = UnreadAnswers(client.loop, 4 * MIB)
    client.connection._unread = unread
    streams = [ask(client, answers.make(size * MIB)) for size in (1, 3, 2)]

    assert unread.used_bytes == 6 * MIB
    assert answers.count == 3
    client.loop.advance(PATIENCE_S + CHECK_S)
    resets = [client.reply(stream_id).reset for stream_id in streams]
    assert resets == [None, Http2ErrorCode.ENHANCE_YOUR_CALM, None]
    assert unread.used_bytes == 3 * MIB
    assert unread.ended_count == 1
    assert answers.count == 2
    assert not client.saw_end


def test_http2_answer_counts_in_full_until_its_last_part_was_passed_on():
    client = Http2Client(window=0)
    stream_id = ask(client, bytes(MIB))
    for _ in range(3):
        client.send(window_update(stream_id, MIB // 4))

        assert client.handler.unread.used_bytes == MIB

    client.send(window_update(stream_id, MIB // 4))

    assert client.handler.unread.used_bytes == 0
    assert len(client.answer(stream_id).body) == MIB


def test_http2_connection_that_takes_nothing_is_closed():
    client, answers = Http2Client(window=1 << 30), Answers()
    unread = client.connection._unread = UnreadAnswers(client.loop, MIB)
    client.transport.peer_reads = False
    for _ in range(3):
        ask(client, answers.make())
    client.loop.advance(PATIENCE_S + CHECK_S)

    assert client.transport.is_aborted
    assert unread.used_bytes == 0
    assert answers.count == 0


def test_http2_connection_that_takes_no_small_answers_is_closed_in_the_end():
    client = Http2Client(window=1 << 30, write_stall_timeout_s=30)
    client.transport.peer_reads = False
    for _ in range(10):
        ask(client, bytes(10_000))

    assert client.connection.http2.open_streams == 0
    client.loop.advance(35)
    assert client.transport.is_aborted


def test_grpc_call_that_is_not_read_is_reset_and_releases_all():
    client, answers = GrpcClient(window=0), Answers()
    unread = client.connection._unread = UnreadAnswers(client.loop, 2 * MIB)
    for number in range(3):
        client.call("ModelInfer", infer_request(request_id=str(number)))
        client.engine.answer(str(number), answers.make())
        client.engine.inferences.clear()
    client.run()

    assert unread.used_bytes > 3 * MIB
    client.loop.advance(PATIENCE_S + CHECK_S)
    client.run()
    resets = [frame for frame in client.sent if frame.kind == frames.RST_STREAM]
    assert [frame.payload for frame in resets] == [b"\0\0\0\x0b"] * 2
    assert unread.ended_count == 2
    assert unread.used_bytes <= 2 * MIB
    assert answers.count == 1


def test_grpc_stream_that_is_not_read_is_reset_and_abandons_its_requests():
    client, answers = GrpcClient(window=0), Answers()
    unread = client.connection._unread = UnreadAnswers(client.loop, MIB // 2)
    stream = client.open("ModelStreamInfer")
    client.send(stream, infer_request(request_id="a"), end=False)
    client.engine.answer("a", answers.make(), final=False)
    client.run()

    assert unread.used_bytes > MIB // 2
    client.loop.advance(PATIENCE_S + CHECK_S)
    client.run()
    assert stream not in {call.stream_id for call in client.connection.open_calls()}
    assert unread.used_bytes == 0
    assert client.connection.http2.unread_bytes == 0


def test_grpc_connection_that_takes_nothing_is_closed_and_releases_all():
    client, answers = GrpcClient(), Answers()
    unread = client.connection._unread = UnreadAnswers(client.loop, 2 * MIB)
    client.transport.peer_reads = False
    client.call("ModelInfer", infer_request())
    client.engine.answer(content=answers.make(8 * MIB))
    client.engine.inferences.clear()
    client.run()
    client.loop.advance(PATIENCE_S + CHECK_S)

    assert client.transport.is_aborted
    assert unread.used_bytes == 0
    assert answers.count == 0


# Requests that come slowly


class Budget:
    """A budget for request bodies, watched as a front end watches it."""

    def __init__(self, memory: RequestMemory, limit: int, *clients: Client | GrpcClient) -> None:
        self.memory, self._clients = memory, clients
        memory.limit_bytes = limit
        shortage = Shortage(clients[0].loop, memory.missing_bytes, self._uploads, limit * 2)
        memory.on_refused = shortage.begin

    def _uploads(self) -> Iterator[Holder]:
        for client in self._clients:
            yield from client.connection.uploads()

    @property
    def used(self) -> int:
        gc.collect()
        return self.memory.used_bytes


def test_http1_upload_that_trickles_is_refused_when_others_need_its_memory():
    client = Client()
    other = Client(client.handler)
    budget = Budget(client.handler.request_memory, MIB, client, other)
    body = post(bytes(MIB // 2))
    client.send(post(bytes(MIB))[: 900 << 10])
    client.loop.advance(20)
    other.send(body)

    assert other.statuses() == [503]
    assert client.statuses() == []
    for _ in range(10):
        client.loop.advance(PATIENCE_S / 5)
        if not client.saw_end:
            client.send(b"x" * 64)
    (answer,) = client.answers()
    assert answer.status == 408
    assert TOO_SLOW.encode() in answer.body
    assert budget.used == 0
    assert client.handler.refusals["http_request_time"] == 1
    assert Client(client.handler).send(body).statuses() == [200]


def test_http1_upload_that_keeps_its_pace_is_left_alone():
    client = Client()
    other = Client(client.handler)
    Budget(client.handler.request_memory, MIB, client, other)
    text = post(bytes(MIB))
    client.send(text[: 900 << 10])
    at = 900 << 10
    step = int((1 << 20) / HOLDING_S) + 1
    while at < len(text):
        other.send(post(bytes(MIB // 2)))
        other = Client(client.handler)
        client.send(text[at : at + step])
        at += step
        client.loop.advance(1)

    assert client.statuses() == [200]


def test_upload_that_nobody_waits_for_may_be_slow():
    client = Client()
    budget = Budget(client.handler.request_memory, MIB, client)
    client.send(post(bytes(MIB))[: 900 << 10])
    for _ in range(300):
        client.send(b"x" * 300)
        client.loop.advance(1)

    assert client.statuses() == []
    assert budget.used > 900 << 10


@pytest.mark.parametrize("held, asked", [(400 << 10, MIB), (900 << 10, 2 * MIB)])
def test_body_ends_nobody_if_half_is_free_or_it_can_never_fit(held, asked):
    client = Client()
    other = Client(client.handler)
    Budget(client.handler.request_memory, MIB, client, other)
    client.send(post(bytes(MIB))[:held])
    other.send(post(bytes(asked))[:200])
    client.loop.advance(30)

    assert other.statuses() == [503]
    assert client.statuses() == []


@pytest.mark.parametrize("is_announced", [True, False])
def test_http2_upload_that_trickles_is_refused_and_releases_all(is_announced):
    client = Http2Client()
    budget = Budget(client.handler.request_memory, MIB, client)
    lines = [length(bytes(MIB))] if is_announced else []
    slow = client.open(head(b"/later", *lines, method=b"POST"))
    client.send_data(slow, bytes(900 << 10))
    kept = client.open(head(b"/later", length(bytes(5000)), method=b"POST"))
    client.send_data(kept, bytes(4999))
    refused = client.post(bytes(MIB // 2))

    assert client.reply(refused).status == 503
    client.loop.advance(2 * PATIENCE_S)
    reply = client.reply(slow)
    assert reply.status == 408
    assert TOO_SLOW.encode() in reply.body
    assert budget.used == 4999
    assert client.reply(kept).status == 0
    assert client.answer(client.post(bytes(MIB // 2))).status == 200


@pytest.mark.parametrize("method", ["ModelInfer", "ModelStreamInfer"])
@pytest.mark.parametrize("sent", [900 << 10, MIB])
def test_grpc_message_that_trickles_is_refused_and_releases_all(method, sent):
    if method == "ModelStreamInfer" and sent == MIB:
        return  # it is complete, and its model has it
    client = GrpcClient()
    budget = Budget(client.connection.work.memory, MIB, client)
    slow = client.open(method)
    message = infer_request(raw_input_contents=[bytes(MIB - 100)])
    message += bytes(MIB - len(message)) if sent == MIB else b""
    client.receive(data(slow, message_prefix(MIB)))
    client.receive(data(slow, message[:sent]))

    assert budget.used == sent
    refused = client.open("ModelInfer")
    client.receive(data(refused, message_prefix(MIB // 2) + bytes(1000)))
    assert client.response(refused).status == "14"
    client.loop.advance(2 * PATIENCE_S)
    client.run()
    assert (client.response(slow).status, client.response(slow).text) == ("14", TOO_SLOW)
    assert budget.used == 0
    assert client.connection.work.refusals["grpc_request_time"] == 1


def test_http1_request_that_waits_for_a_client_to_read_is_ended():
    client = Client()
    other = Client(client.handler)
    budget = Budget(client.handler.request_memory, MIB, client, other)
    client.transport.peer_reads = False
    client.send(get(b"/big") + post(bytes(900 << 10)))

    assert budget.used == 900 << 10
    client.loop.advance(30)
    assert not client.transport.is_aborted
    assert other.send(post(bytes(MIB // 2))).statuses() == [503]
    client.loop.advance(2 * PATIENCE_S)
    assert client.transport.is_aborted
    assert budget.used == 0


def test_http2_request_that_waits_for_a_client_to_read_is_ended():
    client = Http2Client(window=0)
    other = Client(client.handler)
    budget = Budget(client.handler.request_memory, MIB, client, other)
    ask(client, bytes(64 * MIB))
    waiting = client.post(bytes(900 << 10), b"/later")

    assert budget.used == 900 << 10
    assert client.handler.later == []
    assert other.send(post(bytes(MIB // 2))).statuses() == [503]
    client.loop.advance(2 * PATIENCE_S)
    assert client.reply(waiting).reset == Http2ErrorCode.ENHANCE_YOUR_CALM
    assert budget.used == 0
    assert not client.saw_end


def test_grpc_messages_that_wait_for_a_client_to_read_are_ended():
    client = GrpcClient(window=0)
    budget = Budget(client.connection.work.memory, MIB, client)
    stream = client.open("ModelStreamInfer")
    client.send(stream, infer_request(request_id="a"), end=False)
    client.engine.answer("a", bytes(2 * MIB), final=False)
    client.run()
    client.connection._calls[stream].waits |= CLIENT
    client.receive(data(stream, bytes(900 << 10)))

    assert budget.used >= 900 << 10
    refused = client.open("ModelInfer")
    client.receive(data(refused, message_prefix(MIB // 2) + bytes(1000)))
    assert client.response(refused).status == "14"
    client.loop.advance(2 * PATIENCE_S)
    client.run()
    assert stream not in {call.stream_id for call in client.connection.open_calls()}
    assert client.connection.http2.open_streams == 0
    assert budget.used == 0


@pytest.mark.parametrize("processes", [0, 3])
def test_front_end_watches_all_of_its_ports(processes):
    service = Service()
    limits = ClientLimits(max_request_memory_bytes=(processes + 1) * MIB)
    options = ServerOptions(limits=limits, frontend_processes=processes)
    ports = TlsPorts(service.loop)
    front_end = FrontEnd(service.client, options, service.loop, ports)
    vertex = front_end._cloud_api(ClientService.VERTEX_AI)
    slow = Client(front_end._http).send(post(bytes(MIB), INFER)[: 900 << 10])
    refused = Client(front_end._http).send(post(bytes(MIB // 2), INFER))
    elsewhere = Client(vertex).connection
    service.loop.advance(2 * PATIENCE_S)

    assert slow.statuses() == [408]
    assert refused.statuses() == [503]
    assert elsewhere in front_end._connections()
    use = front_end.limit_use()
    assert use.refusals["http_request_time"] == 1
    assert use.refusals["unread_answers"] == 0
    assert use.most_unread_bytes == unread_limit(usable_memory(), processes)
    assert front_end.unread is front_end._http.unread is front_end._grpc.unread is vertex.unread
