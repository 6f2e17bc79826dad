# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import tracemalloc

import pytest

from pytriton.protocol.http2 import (
    ConnectionTerminated,
    DataReceived,
    Http2ErrorCode,
    Http2Limits,
    frames,
)
from pytriton.protocol.http2.frames import ConnectionViolation, frame
from pytriton.protocol.http2.limits import Cost, PingPolicy, WorkBudget
from pytriton.protocol.http2.outbox import Outbox
from pytriton.protocol.http2.reader import FRAMES_AT_ONCE
from tests.wire.http2.frame_client import (
    INITIAL_WINDOW_SIZE,
    RESPONSE_HEAD,
    FrameClient,
    data,
    ping,
    responding,
    rst_stream,
    setting,
    settings,
    window_update,
)

SECOND_NS = 1_000_000_000
MAX_HEADER_LIST_SIZE = 6
RESET = 3  # a stream
PREFACE_UNITS = 1  # a FrameClient begins with SETTINGS


def is_calmed(events) -> bool:
    return (
        bool(events)
        and isinstance(events[-1], ConnectionTerminated)
        and events[-1].code is Http2ErrorCode.ENHANCE_YOUR_CALM
    )


class Payer:
    """Pays from a budget of its own."""

    def __init__(self, **limits: int) -> None:
        self.outbox = Outbox(Http2Limits())
        self.budget = WorkBudget(Http2Limits(**limits), self.outbox)

    def can_pay(self, units: int, now_ns: int) -> bool:
        try:
            self.budget.charge(Cost("noise", units), 1, now_ns)
        except ConnectionViolation:
            return False
        return True


def test_budget_comes_back_with_time():
    payer = Payer(work_burst=2, work_per_second=10)

    at_once = [payer.can_pay(1, SECOND_NS) for _ in range(3)]
    later = [payer.can_pay(1, SECOND_NS + 200_000_000) for _ in range(2)]
    much_later = [payer.can_pay(1, 100 * SECOND_NS) for _ in range(3)]

    assert at_once == [True, True, False]
    assert later == [True, False]
    assert much_later == [True, True, False]


def test_budget_ignores_a_clock_that_goes_back():
    payer = Payer(work_burst=1, work_per_second=1)

    assert [payer.can_pay(1, now) for now in (5 * SECOND_NS, SECOND_NS)] == [True, False]


def test_budget_comes_back_with_parts_of_responses_and_their_bytes():
    payer = Payer(work_burst=100, work_per_second=0)
    assert payer.can_pay(100, SECOND_NS)
    payer.outbox.activity += 1
    payer.outbox.window -= 640

    assert payer.can_pay(14, SECOND_NS)
    assert not payer.can_pay(1, SECOND_NS)


def test_rapid_reset_ends_the_connection():
    client = FrameClient(Http2Limits(work_burst=1000 + PREFACE_UNITS, work_per_second=1))

    for number in range(100):
        assert not is_calmed(
            client.send(client.headers(2 * number + 1), rst_stream(2 * number + 1))
        )

    assert is_calmed(client.send(client.headers(201), rst_stream(201)))


def test_cancelling_now_and_then_is_fine():
    client = FrameClient(Http2Limits(work_burst=1000 + PREFACE_UNITS, work_per_second=100))

    for number in range(1000):
        client.now_ns += SECOND_NS // 10
        assert not is_calmed(
            client.send(client.headers(2 * number + 1), rst_stream(2 * number + 1))
        )


def test_making_us_reset_streams_costs_the_same_as_resetting_them():
    client = FrameClient(Http2Limits(work_burst=1100 + PREFACE_UNITS, work_per_second=1))
    for number in range(100):
        client.send(client.headers(2 * number + 1), window_update(2 * number + 1, 0))
        client.output()

    assert is_calmed(client.send(client.headers(201), window_update(201, 0)))


@pytest.mark.parametrize(
    "limits", [Http2Limits(max_continuations=10), Http2Limits(max_header_block_bytes=1000)]
)
def test_continuation_flood_ends_the_connection(limits):
    client = FrameClient(limits)
    client.send(frame(frames.HEADERS, 0, 1, b"\x82"))
    flood = [frame(frames.CONTINUATION, 0, 1, bytes(100))] * 10

    assert not is_calmed(client.send(*flood[:9]))
    assert is_calmed(client.send(*flood))


@pytest.mark.parametrize("flood", [ping(), settings()])
def test_client_that_reads_no_replies_is_cut_off(flood):
    client = FrameClient(Http2Limits(max_pending_replies=50, max_ping_strikes=10_000))

    assert client.send(*[flood] * 50) == []
    assert is_calmed(client.send(flood))
    assert len(client.output()) == 51


def test_client_that_reads_its_replies_may_go_on():
    client = FrameClient(Http2Limits(max_pending_replies=50))

    for _ in range(10):
        assert client.send(*[settings()] * 50) == []
        client.output()


@pytest.mark.parametrize(
    "noise",
    [
        data(1, b""),
        data(RESET, b""),
        data(RESET, b"x"),
        frame(frames.HEADERS, frames.END_HEADERS, RESET, b"\x82"),
        frame(frames.PRIORITY, 0, 1, bytes(5)),
        frame(0x77, 0, 0, b""),
        settings(),
        settings(flags=frames.ACK),
        ping(),
        ping(flags=frames.ACK),
        frame(frames.GOAWAY, 0, 0, bytes(8)),
        rst_stream(RESET),
        window_update(0, 1),
        window_update(1, 1),
        window_update(RESET, 1),
    ],
)
def test_frames_beside_requests_are_paid_for(noise):
    client = FrameClient(
        Http2Limits(work_burst=100 + PREFACE_UNITS, work_per_second=1, max_ping_strikes=10_000)
    )
    client.open(1, RESET)
    client.connection.reset(RESET)
    client.output()

    for _ in range(100):
        assert not is_calmed(client.send(noise))
        client.output()

    assert is_calmed(client.send(noise))


def test_late_data_of_small_messages_is_free():
    client = FrameClient(Http2Limits(work_burst=100, work_per_second=1))
    client.open(RESET)
    client.connection.reset(RESET)

    assert client.send(*[data(RESET, bytes(100))] * 10_000) == []


def test_continuations_are_paid_for_across_header_blocks():
    client = FrameClient(Http2Limits(work_burst=100 + PREFACE_UNITS, work_per_second=1))
    parts = [frame(frames.CONTINUATION, 0, 0, b"")] * 9

    def block(stream_id):
        client.send(frame(frames.HEADERS, 0, stream_id, client.block()))
        last = frame(frames.CONTINUATION, frames.END_HEADERS, stream_id, b"")
        return client.send(*[part[:5] + stream_id.to_bytes(4, "big") for part in parts], last)

    assert not any(is_calmed(block(2 * number + 1)) for number in range(10))
    assert is_calmed(block(21))


def test_settings_of_too_many_entries_end_the_connection():
    client = FrameClient()
    entry = setting(INITIAL_WINDOW_SIZE, 100)

    assert not is_calmed(client.send(settings(*[entry] * 32)))
    assert is_calmed(client.send(settings(*[entry] * 33)))


def test_entries_of_settings_are_paid_for():
    client = FrameClient(Http2Limits(work_burst=330 + PREFACE_UNITS, work_per_second=1))
    noise = settings(*[setting(MAX_HEADER_LIST_SIZE, 100)] * 32)

    assert not is_calmed(client.send(*[noise] * 10))
    assert is_calmed(client.send(noise))


def test_windows_of_many_streams_are_not_resized_again_and_again():
    client = FrameClient()
    client.open(*range(1, 3001, 2))
    sizes = [settings(setting(INITIAL_WINDOW_SIZE, 100 + number % 2)) for number in range(2000)]

    answered = 0
    for size in sizes:
        if is_calmed(client.send(size)):
            break
        client.output()
        answered += 1

    assert answered == 10_000 // (2 + 1500 // 8)


def test_streams_above_the_limit_are_paid_for():
    client = FrameClient(
        Http2Limits(max_concurrent_streams=1, work_burst=400 + PREFACE_UNITS, work_per_second=1)
    )
    client.open(1)

    for number in range(1, 101):
        assert not is_calmed(client.send(client.headers(2 * number + 1)))
        client.output()

    assert is_calmed(client.send(client.headers(203)))


@pytest.mark.parametrize("window,is_refused", [(1, True), (127, False), (1023, False)])
def test_windows_may_be_small_but_not_tiny(window, is_refused):
    client = FrameClient(settings=setting(INITIAL_WINDOW_SIZE, window))
    client.open(1, end_stream=True)
    client.connection.send_headers(1, RESPONSE_HEAD)
    client.connection.send_data(1, bytes(1 << 20))

    seen = False
    for _ in range(10_000):
        sent = len(client.data_sent(1))
        seen = is_calmed(client.send(window_update(1, sent), window_update(0, sent)))
        if seen or not client.connection.has_output:
            break

    assert seen is is_refused


def test_each_small_part_of_a_response_may_be_confirmed_at_once():
    client = responding(1)

    for _ in range(12_000):
        client.connection.send_data(1, b"token")
        client.output()
        assert client.send(window_update(1, 5), window_update(0, 5)) == []


def test_header_bomb_ends_the_connection():
    client = FrameClient()
    client.send(client.headers(1, [(":method", "POST"), ("x", "v" * 4000)]))

    assert is_calmed(client.send(frame(frames.HEADERS, frames.END_HEADERS, 3, b"\xbe" * 5000)))


def test_million_tiny_frames_become_an_event_for_all_that_are_read_at_once():
    client = FrameClient()
    client.open(1)
    chunk = data(1, b"x") * 20_000

    tracemalloc.start()
    events = client.send(chunk)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()

    assert b"".join(event.data for event in events) == b"x" * 20_000
    assert len(events) == -(-20_000 // FRAMES_AT_ONCE)
    assert peak < 1 << 20


def test_tiny_frames_of_two_streams_stay_apart():
    client = FrameClient()
    client.open(1, 3)

    events = client.send(
        data(1, b"a"), data(3, b"b"), data(3, b"c", end_stream=True), data(1, b"d")
    )

    assert events == [
        DataReceived(1, b"a", end_stream=False),
        DataReceived(3, b"bc", end_stream=True),
        DataReceived(1, b"d", end_stream=False),
    ]


def test_sixteen_mebibytes_arrive_as_views_without_a_copy():
    client = FrameClient()
    client.open(1)
    wire = b"".join(data(1, bytes(1 << 20)) for _ in range(16))
    received = 0

    tracemalloc.start()
    for start in range(0, len(wire), 1 << 18):
        chunk = wire[start : start + (1 << 18)]
        for event in client.send(chunk):
            assert len(event.data) < 4096 or isinstance(event.data, memoryview)
            received += len(event.data)
            client.connection.acknowledge(1, len(event.data))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()

    assert received == 16 << 20
    assert peak < 2 << 20


def test_stall_is_seen_after_its_time_and_not_before():
    client = FrameClient(Http2Limits(max_stall_ns=60 * SECOND_NS), settings=setting(4, 5))
    client.open(1, 3, end_stream=True)
    for stream_id in (1, 3):
        client.connection.send_response(stream_id, RESPONSE_HEAD, (b"0123456789",), b"")
    client.output()
    start = client.now_ns

    assert client.connection.stalled_streams(start) == []
    assert client.connection.stalled_streams(start + 59 * SECOND_NS) == []
    client.send(window_update(3, 5))
    client.output()

    assert client.connection.stalled_streams(start + 60 * SECOND_NS) == [1]


@pytest.mark.parametrize("step,stalled", [(1, [1]), (20_000, [])])
def test_window_opened_byte_by_byte_is_a_stall(step, stalled):
    client = FrameClient(Http2Limits(max_stall_ns=60 * SECOND_NS), settings=setting(4, 0))
    client.open(1, end_stream=True)
    client.connection.send_response(1, RESPONSE_HEAD, (bytes(10_000_000),), b"")
    client.send(window_update(0, 1 << 30))
    seen = []

    for _ in range(100):
        client.now_ns += SECOND_NS
        client.send(window_update(1, step))
        client.output()
        seen = client.connection.stalled_streams(client.now_ns)

    assert seen == stalled


def test_answer_that_waits_a_second_time_starts_a_new_stall():
    client = FrameClient(Http2Limits(max_stall_ns=60 * SECOND_NS), settings=setting(4, 0))
    client.open(1, end_stream=True)
    client.connection.send_headers(1, RESPONSE_HEAD)
    client.connection.send_data(1, b"first")
    assert client.connection.stalled_streams(client.now_ns) == []
    client.send(window_update(1, 5))
    client.output()
    client.connection.send_data(1, b"second")

    assert client.connection.stalled_streams(client.now_ns + 100 * SECOND_NS) == []
    assert client.connection.stalled_streams(client.now_ns + 160 * SECOND_NS) == [1]


def ping_until_calmed(client: FrameClient, interval_ns: int, most: int = 20) -> int | None:
    for number in range(1, most + 1):
        client.now_ns += interval_ns
        if client.send(ping()):
            return number
        client.output()
    return None


def test_pings_too_close_together_end_the_connection_as_grpc_says():
    client = FrameClient()
    client.open(1)

    assert ping_until_calmed(client, 10 * SECOND_NS) == 4

    assert client.output()[-1].payload[4:] == b"\0\0\0\x0btoo_many_pings"


@pytest.mark.parametrize("is_open,interval_s", [(True, 300), (False, 7200)])
def test_pings_at_the_allowed_pace_are_answered(is_open, interval_s):
    client = FrameClient()
    if is_open:
        client.open(1)

    assert ping_until_calmed(client, interval_s * SECOND_NS) is None


def test_pings_without_streams_must_be_rarer():
    assert ping_until_calmed(FrameClient(), 300 * SECOND_NS) == 4


def test_sending_forgives_pings():
    client = FrameClient()
    client.open(*range(1, 41, 2), end_stream=True)

    for stream_id in range(1, 41, 2):
        assert client.send(ping(), ping()) == []
        client.connection.send_response(stream_id, RESPONSE_HEAD, (b"x",), b"")
        client.output()


def test_ping_policy_counts_strikes_only_for_early_pings():
    policy = PingPolicy(Http2Limits(min_ping_interval_ns=10, max_ping_strikes=1))

    verdicts = [policy.allows(now, 0, is_idle=False) for now in (0, 5, 15, 25, 30)]

    assert verdicts == [True, True, True, True, False]


def test_memory_of_reset_streams_is_bounded():
    client = FrameClient(Http2Limits(max_closed_streams=10))
    for number in range(1000):
        client.open(2 * number + 1)
        client.connection.reset(2 * number + 1)
    client.output()

    assert client.send(data(1999, b"late")) == []
    assert isinstance(client.send(data(1, b"very late"))[-1], ConnectionTerminated)
