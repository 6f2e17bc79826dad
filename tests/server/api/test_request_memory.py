# SPDX-License-Identifier: Apache-2.0
"""The budget for the memory of request bodies."""

from __future__ import annotations

import gc
import gzip
import threading
import zlib

import numpy as np
import pytest

from pytriton.base.errors import UnavailableError
from pytriton.protocol.compression import decompress
from pytriton.protocol.grpc import GrpcError, GrpcStatus, MessageAssembler, message_prefix
from pytriton.runtime.transport.arena import Arena, block_bytes, forget
from pytriton.serving.server.api.request_memory import UNCOUNTED_BYTES, RequestMemory
from tests.server.grpc_fakes import GrpcClient, framed, infer_request
from tests.server.http_fakes import Client, ScriptedHandler, chunked, get, post
from tests.wire.http2.frame_client import data

LARGE = 256 << 10
SMALL = 60_000


def test_lease_counts_what_was_taken_until_it_is_deleted():
    memory = RequestMemory(100)
    lease = memory.lease()
    lease.grow(60)
    lease.grow(40)

    assert memory.used_bytes == 100
    del lease
    assert memory.used_bytes == 0


def test_lease_beyond_the_budget_is_refused_and_gives_all_back():
    memory = RequestMemory(100)
    other, lease = memory.lease(), memory.lease()
    other.grow(50)
    lease.grow(50)

    with pytest.raises(UnavailableError) as caught:
        lease.grow(1)
    assert caught.value.message == (
        "no memory for this request now: request bodies use 100 of at most 100 bytes (see "
        "--max-request-memory), try again later"
    )
    assert memory.used_bytes == 50
    assert memory.refused_count == 1


def test_budget_of_zero_refuses_nothing():
    memory = RequestMemory()
    lease = memory.lease()
    lease.grow(1 << 60)

    assert memory.refusal(1 << 62) is None
    assert memory.used_bytes == 1 << 60


def test_body_that_does_not_fit_now_is_refused_before_it_is_read():
    memory = RequestMemory(100)
    lease = memory.lease()
    lease.grow(30)

    assert memory.refusal(70) is None
    assert memory.refusal(71) is not None
    assert memory.used_bytes == 30


@pytest.mark.parametrize("make", [bytes, bytearray, lambda size: np.zeros(size, np.uint8).data])
def test_memory_is_counted_as_long_as_somebody_reads_a_part_of_it(make):
    memory = RequestMemory(2 * LARGE)
    lease = memory.lease()
    lease.grow(LARGE)
    view = lease.attach(make(LARGE))
    del lease

    part = np.frombuffer(view[100:200], np.uint8)[5:]
    del view
    assert memory.used_bytes == LARGE
    del part
    assert memory.used_bytes == 0


def test_memory_of_an_arena_is_found_by_its_block_after_it_is_counted():
    arena = Arena()
    block = arena.allocate(LARGE)
    memory = RequestMemory(2 * LARGE)
    view = memory.hold(block_bytes(block).data[10:])

    assert memory.used_bytes == LARGE - 10
    del view
    assert memory.used_bytes == 0


def test_small_memory_is_not_counted():
    memory = RequestMemory(1)
    body = bytes(UNCOUNTED_BYTES)

    assert memory.hold(body) is body
    assert memory.used_bytes == 0


def test_threads_never_take_more_than_the_budget_together():
    memory = RequestMemory(1000)
    kept, most = [], []

    def take() -> None:
        for _ in range(500):
            lease = memory.lease()
            try:
                lease.grow(7)
            except UnavailableError:
                continue
            most.append(memory.used_bytes)
            if len(kept) < 50:
                kept.append(lease)

    threads = [threading.Thread(target=take) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert max(most) <= 1000
    assert memory.used_bytes == 7 * len(kept)
    kept.clear()
    assert memory.used_bytes == 0


def test_pages_of_a_body_that_was_never_complete_are_given_back():
    arena = Arena()
    block = arena.allocate(1 << 20)
    view = block_bytes(block).data[100:]
    view[:] = b"x" * len(view)
    forget(view)

    assert view[:1] == b"x"  # the first page is not all of this view
    assert not any(view[8192:-8192])


# Over HTTP


def client(budget: int, **limits) -> Client:
    found = Client(**limits)
    found.handler.request_memory.limit_bytes = budget
    return found


def test_large_body_is_counted_until_its_request_is_answered():
    found = client(2 * LARGE)
    found.send(post(bytes(LARGE), b"/later"))
    memory = found.handler.request_memory

    assert memory.used_bytes == LARGE
    found.handler.later.pop().answer()
    found.handler.requests.clear()
    assert memory.used_bytes == 0


def test_part_of_a_body_is_counted_as_it_comes():
    found = client(2 * LARGE)
    body = post(bytes(LARGE), b"/later")
    found.send(body[: LARGE // 2])

    assert LARGE // 4 < found.handler.request_memory.used_bytes < LARGE // 2
    found.reset()
    assert found.handler.request_memory.used_bytes == 0


def test_body_that_does_not_fit_is_refused_with_its_head():
    found = client(LARGE)
    found.send(post(bytes(LARGE + 1))[:200])

    (answer,) = found.answers()
    assert answer.status == 503
    assert answer.headers[b"Retry-After"] == b"1"
    assert b"--max-request-memory" in answer.body
    assert found.saw_end


def test_second_body_is_refused_when_the_first_has_taken_the_memory():
    handler = ScriptedHandler(client(1).handler.limits, client(1).loop)
    handler.request_memory.limit_bytes = LARGE + LARGE // 2
    first, second = Client(handler), Client(handler)
    body = post(bytes(LARGE), b"/later")
    for each in (first, second):
        each.send(body[: LARGE // 2])
    first.send(body[LARGE // 2 :])
    second.send(body[LARGE // 2 :])

    assert first.statuses() == []
    assert second.statuses() == [503]
    handler.later.pop().answer()
    first.deliver()
    assert first.statuses() == [200]


def test_chunked_body_is_counted_once_it_is_large():
    found = client(LARGE)
    small = [bytes(1000)] * 60
    found.send(chunked(*small, target=b"/later"))

    assert found.handler.request_memory.used_bytes == 0
    found.handler.later.pop().answer()
    found.handler.requests.clear()
    found.send(chunked(*small, *small, target=b"/later"))
    assert found.handler.request_memory.used_bytes == 120_000
    assert bytes(found.handler.requests[0].body) == bytes(120_000)
    found.handler.later.pop().answer()
    found.handler.requests.clear()
    assert found.handler.request_memory.used_bytes == 0
    found.send(chunked(*small * 5))
    assert found.answers()[-1].status == 503


def parts_of(text: bytes, size: int) -> list[bytes]:
    return [text[at : at + size] for at in range(0, len(text), size)]


@pytest.mark.parametrize(
    "text",
    [
        post(bytes(SMALL), b"/later"),
        post(bytes(SMALL), b"/later", b"Expect: 100-continue"),
        chunked(*[bytes(1000)] * 50, target=b"/later"),
        get(b"/later", b"X-Long: " + b"x" * SMALL),
    ],
    ids=["body", "expected body", "chunks", "head"],
)
def test_small_request_is_counted_while_it_is_incomplete(text):
    found = client(2 * LARGE)
    memory = found.handler.request_memory
    *parts, last = parts_of(text, 10_000)
    received = 0
    for part in parts:
        found.send(part)
        received += len(part)

        assert memory.used_bytes == received

    found.send(last)

    assert len(found.handler.later) == 1
    assert memory.used_bytes == 0


@pytest.mark.parametrize("seen_before", [False, True])
def test_small_request_in_two_small_reads_is_not_counted(seen_before):
    found = client(1)
    text = post(bytes(3000))
    if seen_before:
        found.send(text)
    for part in parts_of(text, 2000):
        found.send(part)

        assert found.handler.request_memory.used_bytes == 0

    assert set(found.statuses()) == {200}


@pytest.mark.parametrize("end", ["reset", "stop", "timeout"])
def test_memory_of_a_small_request_that_does_not_end_is_given_back(end):
    found = client(2 * LARGE)
    found.send(post(bytes(SMALL))[:20_000])

    assert found.handler.request_memory.used_bytes == 20_000

    if end == "reset":
        found.reset()
    elif end == "stop":
        found.connection.end()
    else:
        found.loop.advance(found.handler.limits.body_stall_timeout_s + 2)
    assert found.handler.request_memory.used_bytes == 0


def test_slow_small_requests_take_no_more_than_the_budget():
    first = client(1)
    handler = first.handler
    handler.request_memory.limit_bytes = 5 * SMALL
    clients = [Client(handler) for _ in range(20)]
    text = post(bytes(SMALL))
    for each in clients:
        each.send(text[:30_000])
        each.send(text[30_000:-1])

        assert handler.request_memory.used_bytes <= 5 * SMALL

    refused = [each for each in clients if each.statuses() == [503]]
    waiting = [each for each in clients if not each.statuses()]

    assert len(refused) == 16
    assert len(waiting) == 4
    assert b"Retry-After: 1" in refused[0].received
    for each in waiting:
        each.send(text[-1:])

        assert each.statuses() == [200]
    assert handler.request_memory.used_bytes == 0


def test_request_in_one_read_is_served_without_memory_in_the_budget():
    found = client(1)
    found.handler.request_memory.take(1)
    found.send(post(bytes(SMALL)))

    assert found.statuses() == [200]


def test_chunked_body_that_becomes_large_is_counted_once():
    found = client(2 * LARGE)
    text = chunked(*[bytes(1000)] * 120, target=b"/later")
    for part in parts_of(text, 10_000):
        found.send(part)

    assert len(found.handler.later) == 1
    assert found.handler.request_memory.used_bytes == 120_000


# Over gRPC


def assembler(memory: RequestMemory, **more) -> MessageAssembler:
    return MessageAssembler(1 << 30, open_lease=memory.lease, **more)


@pytest.mark.parametrize("pieces", [1, 7])
def test_large_message_is_counted_until_it_is_read(pieces):
    memory = RequestMemory(2 * LARGE)
    found = assembler(memory)
    data = message_prefix(LARGE) + bytes(LARGE)
    step = -(-len(data) // pieces)
    messages = [
        each for at in range(0, len(data), step) for each in found.feed(data[at : at + step])
    ]

    assert [bytes(message) for message in messages] == [bytes(LARGE)]
    assert memory.used_bytes == LARGE
    messages.clear()
    assert memory.used_bytes == 0


def test_message_in_memory_of_its_model_is_counted_as_it_comes():
    memory = RequestMemory(2 * LARGE)
    found = assembler(memory, allocate=lambda size, start: np.empty(size, np.uint8).data)
    found.feed(message_prefix(LARGE) + bytes(1000))
    found.buffer[:2000] = bytes(2000)
    found.buffer_updated(2000)

    assert memory.used_bytes == 3000
    assert found.stop() is not None
    gc.collect()
    assert memory.used_bytes == 0


def test_message_that_does_not_fit_is_refused_with_its_start():
    memory = RequestMemory(LARGE - 1)

    with pytest.raises(GrpcError) as caught:
        assembler(memory).feed(message_prefix(LARGE) + b"x")
    assert caught.value.status is GrpcStatus.UNAVAILABLE
    assert "--max-request-memory" in caught.value.message
    assert memory.used_bytes == 0


def test_compressed_message_is_counted_as_large_as_it_becomes():
    memory = RequestMemory(LARGE)
    packed = gzip.compress(bytes(4 * LARGE))
    (inflation,) = assembler(memory, encoding="gzip").feed(
        message_prefix(len(packed), is_compressed=True) + packed
    )

    with pytest.raises(GrpcError) as caught:
        inflation.finish()
    assert caught.value.status is GrpcStatus.UNAVAILABLE
    assert memory.used_bytes == 0


def test_compressed_message_within_the_budget_is_counted_until_it_is_read():
    memory = RequestMemory(4 * LARGE)
    packed = gzip.compress(bytes(LARGE))
    (inflation,) = assembler(memory, encoding="gzip").feed(
        message_prefix(len(packed), is_compressed=True) + packed
    )
    message = inflation.finish()
    del inflation

    assert memory.used_bytes == LARGE == len(message)
    del message
    assert memory.used_bytes == 0


def test_inflating_stops_at_the_budget():
    lease = RequestMemory(LARGE).lease()

    with pytest.raises(UnavailableError):
        decompress(zlib.compress(bytes(4 * LARGE)), "deflate", 1 << 30, lease.grow)


def grpc_client(budget: int = 2 * LARGE) -> tuple[GrpcClient, RequestMemory]:
    client = GrpcClient()
    memory = client.connection.work.memory
    memory.limit_bytes = budget
    return client, memory


def request_of(size: int) -> bytes:
    return framed(infer_request(raw_input_contents=[bytes(size)]))


@pytest.mark.parametrize("size", [100, 30_000, SMALL])
@pytest.mark.parametrize("method", ["ModelInfer", "ModelStreamInfer"])
def test_small_message_is_counted_while_it_is_incomplete(method, size):
    client, memory = grpc_client()
    message = request_of(size)
    stream_id = client.open(method)
    client.receive(data(stream_id, message[:50]))

    assert memory.used_bytes == 45

    client.receive(data(stream_id, message[50:-1]))

    assert memory.used_bytes == len(message) - 6
    client.reset(stream_id)
    gc.collect()
    assert memory.used_bytes == 0


def test_whole_message_is_counted_while_the_end_of_its_call_is_missing():
    client, memory = grpc_client()
    message = request_of(SMALL)
    stream_id = client.open("ModelInfer")
    client.receive(data(stream_id, message))

    assert memory.used_bytes == len(message) - 5

    client.receive(data(stream_id, b"", end_stream=True))

    assert client.engine.inferences
    assert memory.used_bytes == len(message) - 5  # once, as every message of this size that waits


def test_small_message_of_another_method_is_counted_while_it_is_incomplete():
    client, memory = grpc_client()
    stream_id = client.open("ModelConfig")
    client.receive(data(stream_id, message_prefix(SMALL) + bytes(SMALL - 1)))

    assert memory.used_bytes == SMALL - 1


def test_incomplete_small_messages_take_no_more_than_the_budget():
    client, memory = grpc_client(budget=5 * SMALL)
    streams = [client.open("ModelInfer") for _ in range(20)]
    for stream_id in streams:
        client.receive(data(stream_id, message_prefix(SMALL) + bytes(SMALL - 1)))

        assert memory.used_bytes <= 5 * SMALL

    responses = [client.response(each) for each in streams]

    assert [each.status for each in responses if each.trailers] == ["14"] * 15
    assert "--max-request-memory" in responses[-1].text
