# SPDX-License-Identifier: Apache-2.0
"""When a connection is pinged, given up, or old."""

from __future__ import annotations

import pytest

from pytriton.serving.server.grpc.timeouts import Action, Keepalive, ping_intervals_ns, tick_s
from pytriton.serving.server.options.server_options import KeepaliveOptions

MS = 1_000_000
START_NS = 5_000_000 * MS


def keepalive(**options) -> Keepalive:
    return Keepalive(KeepaliveOptions(time_ms=100, timeout_ms=20, **options), START_NS)


def check(watched, after_ms, *, heard_ms=0, sent=0, has_calls=True):
    return watched.check(
        START_NS + after_ms * MS, START_NS + heard_ms * MS, sent, has_calls=has_calls
    )


def test_client_that_was_heard_of_is_left_alone():
    watched = keepalive()

    assert check(watched, 99) is None
    assert check(watched, 150, heard_ms=60) is None


def test_silent_client_is_pinged_and_given_up_when_it_does_not_answer():
    watched = keepalive()

    assert check(watched, 100) is Action.PING
    assert check(watched, 119) is None
    assert check(watched, 120) is Action.ABORT


def test_client_that_answers_is_pinged_again_later():
    watched = keepalive(max_pings_without_data=0)
    check(watched, 100)

    assert check(watched, 120, heard_ms=110) is None
    assert check(watched, 210, heard_ms=110) is Action.PING


def test_client_without_calls_is_pinged_only_where_that_is_permitted():
    assert check(keepalive(), 100, has_calls=False) is None
    assert check(keepalive(permit_without_calls=True), 100, has_calls=False) is Action.PING


def test_pings_without_data_are_few():
    watched = keepalive(max_pings_without_data=2)
    pings = [check(watched, at, heard_ms=at - 100) for at in (100, 200, 300)]

    assert pings == [Action.PING, Action.PING, None]
    assert check(watched, 400, heard_ms=300, sent=1) is Action.PING


def test_old_connection_is_asked_to_go_once_and_closed_after_its_grace():
    watched = keepalive(max_connection_age_ms=1000, max_connection_age_grace_ms=50)

    assert check(watched, 899, heard_ms=899) is None
    assert check(watched, 1101, heard_ms=1101) is Action.GO_AWAY
    assert check(watched, 1150, heard_ms=1150) is None
    assert check(watched, 1151, heard_ms=1151) is Action.CLOSE


def test_old_connection_without_a_grace_may_finish():
    watched = keepalive(max_connection_age_ms=1000)
    check(watched, 1101, heard_ms=1101)

    assert check(watched, 10**6, heard_ms=10**6) is None


@pytest.mark.parametrize(
    "options, seconds",
    [
        ({}, 1.0),
        ({"time_ms": 50}, 0.05),
        ({"timeout_ms": 1}, 0.01),
        ({"max_connection_age_ms": 300}, 0.3),
    ],
)
def test_checks_are_as_frequent_as_the_shortest_span(options, seconds):
    assert tick_s(KeepaliveOptions(**options)) == seconds


def test_clients_pings_may_be_as_frequent_as_the_options_say():
    options = {"min_recv_ping_interval_without_data_ms": 10}

    assert ping_intervals_ns(KeepaliveOptions(**options)) == (10 * MS, 7_200_000 * MS)
    assert ping_intervals_ns(KeepaliveOptions(permit_without_calls=True, **options)) == (
        10 * MS,
        10 * MS,
    )
