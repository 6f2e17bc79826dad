# SPDX-License-Identifier: Apache-2.0
"""The handshake of a worker on another machine, without sockets."""

from __future__ import annotations

import contextlib
import struct

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytriton.runtime.transport.handshake import (
    MAX_HANDSHAKE_BYTES,
    PROTOCOL,
    ClientHandshake,
    HandshakeError,
    Hello,
    ServerHandshake,
    WorkerRefusedError,
    pytriton_version,
)

TOKEN = "the token of this start"
WHO = {"start": "AddSub_0_1-0123abcd", "node_id": "a1b2", "pid": 4321, "rank": 0}


def worker(token: str = TOKEN, **changes: object) -> ClientHandshake:
    return ClientHandshake(token, **{**WHO, **changes})


def say_hello(server: ServerHandshake, client: ClientHandshake) -> Hello:
    hello = server.feed(client.feed(server.greeting()))
    assert hello is not None
    return hello


def framed(data: bytes) -> bytes:
    return struct.pack("<I", len(data)) + data


def test_worker_and_server_with_the_same_token_accept_each_other():
    server, client = ServerHandshake(), worker()
    hello = say_hello(server, client)
    is_proved = server.is_proved(TOKEN)
    client.feed(server.welcome(TOKEN))

    assert is_proved
    assert client.is_welcome
    assert (hello.start, hello.node_id, hello.pid, hello.rank) == tuple(WHO.values())
    assert (hello.version, hello.protocol) == (pytriton_version(), PROTOCOL)


@given(sizes=st.lists(st.integers(1, 40), min_size=1, max_size=30))
def test_messages_may_arrive_in_any_pieces(sizes):
    server, client = ServerHandshake(), worker()

    def in_pieces(data, feed):
        rest, results, turn = data, [], 0
        while rest:
            size = sizes[turn % len(sizes)]
            results.append(feed(rest[:size]))
            rest, turn = rest[size:], turn + 1
        return results

    sent = b"".join(in_pieces(server.greeting(), client.feed))
    hellos = in_pieces(sent, server.feed)
    in_pieces(server.welcome(TOKEN), client.feed)

    assert hellos[:-1] == [None] * (len(hellos) - 1)
    assert hellos[-1].pid == WHO["pid"]
    assert client.is_welcome


def test_wanted_bytes_never_reach_into_what_follows():
    server, client = ServerHandshake(), worker()
    stream = server.greeting()
    while (wanted := client.wanted_bytes) <= len(stream) and stream:
        sent, stream = client.feed(stream[:wanted]), stream[wanted:]
    while server.wanted_bytes:
        size = server.wanted_bytes
        hello, sent = server.feed(sent[:size]), sent[size:]
    stream = server.welcome(TOKEN) + b"the first frame"
    while client.wanted_bytes:
        wanted = client.wanted_bytes
        client.feed(stream[:wanted])
        stream = stream[wanted:]

    assert hello.start == WHO["start"]
    assert sent == b""
    assert stream == b"the first frame"


@pytest.mark.parametrize("token", ["", "another", TOKEN + " "])
def test_worker_with_another_token_is_not_proved(token):
    server = ServerHandshake()
    say_hello(server, worker("another token"))

    assert not server.is_proved(token)


def test_nothing_is_proved_before_the_hello():
    assert not ServerHandshake().is_proved(TOKEN)


def test_worker_without_a_token_is_a_mistake_of_its_starter():
    with pytest.raises(ValueError, match="expected the token"):
        worker("")


def test_server_that_does_not_know_the_token_is_left():
    server, client = ServerHandshake(), worker()
    say_hello(server, client)

    with pytest.raises(HandshakeError, match="does not know the token"):
        client.feed(server.welcome("a guess"))
    assert not client.is_welcome


def test_worker_is_not_fooled_by_its_own_proof():
    server, client = ServerHandshake(), worker()
    sent = client.feed(server.greeting())
    proof = msgspec.msgpack.decode(sent[4:])[2]

    with pytest.raises(HandshakeError, match="does not know the token"):
        client.feed(framed(msgspec.msgpack.encode(["welcome", proof])))


def test_hello_of_another_connection_proves_nothing():
    first, client = ServerHandshake(), worker()
    recorded = client.feed(first.greeting())
    second = ServerHandshake()
    hello = second.feed(recorded)

    assert hello.start == WHO["start"]
    assert not second.is_proved(TOKEN)


def test_welcome_of_another_connection_is_not_accepted():
    server, client = ServerHandshake(), worker()
    say_hello(server, client)
    recorded = server.welcome(TOKEN)
    again = worker()
    again.feed(server.greeting())

    with pytest.raises(HandshakeError, match="does not know the token"):
        again.feed(recorded)


@pytest.mark.parametrize(
    "field, value", [(0, "Other_0_0-00"), (1, "ffff"), (2, 1), (3, 1), (4, "9"), (5, 9)]
)
def test_hello_that_was_changed_on_its_way_is_not_proved(field, value):
    server = ServerHandshake()
    tag, record, proof = msgspec.msgpack.decode(worker().feed(server.greeting())[4:])
    fields = msgspec.msgpack.decode(record)
    fields[field] = value
    changed = msgspec.msgpack.encode([tag, msgspec.msgpack.encode(fields), proof])

    assert server.feed(framed(changed)) is not None
    assert not server.is_proved(TOKEN)


def test_fields_of_later_versions_are_ignored_and_proved():
    server, client = ServerHandshake(), worker()
    client.feed(server.greeting())
    fields = [*WHO.values(), "99.0", PROTOCOL + 1, b"nonce", "a new field"]
    later = worker()
    later._hello = msgspec.msgpack.encode(fields)
    hello = server.feed(later.feed(server.greeting()))

    assert server.is_proved(TOKEN)
    assert hello.version == "99.0"


def test_other_version_is_explained_with_both_versions_and_the_node():
    server = ServerHandshake(version="1.2.0", protocol=1)
    same = say_hello(server, worker(version="1.2.0", protocol=1))
    server_again = ServerHandshake(version="1.2.0", protocol=1)
    other = say_hello(server_again, worker(version="1.1.9", protocol=1))

    assert server.version_problem(same, "node-3") == ""
    problem = server_again.version_problem(other, "node-3")
    assert "node node-3 has pytriton 1.1.9" in problem
    assert "the server has pytriton 1.2.0" in problem


@pytest.mark.parametrize("reason", ["this start was revoked", "x" * 10_000, "\udcff" * 10_000])
def test_refusal_brings_its_reason(reason):
    server, client = ServerHandshake(), worker()
    say_hello(server, client)
    refusal = server.refusal(reason)

    with pytest.raises(WorkerRefusedError) as caught:
        client.feed(refusal)
    assert str(caught.value)[:6] == reason.encode("utf-8", "backslashreplace").decode()[:6]
    assert len(refusal) <= MAX_HANDSHAKE_BYTES


@pytest.mark.parametrize(
    "data",
    [
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"\xff\xff\xff\xff",
        struct.pack("<I", MAX_HANDSHAKE_BYTES - 3),
        framed(b""),
        framed(b"\xc1"),
        framed(msgspec.msgpack.encode(["welcome", b"proof"])),
        framed(msgspec.msgpack.encode(["hello", "text", b""])),
        framed(msgspec.msgpack.encode(["hello", b"\xc1", b""])),
        framed(msgspec.msgpack.encode(["hello", b"\x97" + b"\xa2\xff\xff" * 7, b""])),
        framed(b"\x93\xa5hello\xc4\x00" + b"\x91" * 3000),
    ],
)
def test_bytes_that_are_no_hello_are_refused(data):
    with pytest.raises(HandshakeError, match=r"expected"):
        ServerHandshake().feed(data)


@given(st.binary(max_size=200))
def test_random_bytes_raise_nothing_else(data):
    # Any other exception fails the test.
    for side in (ServerHandshake(), worker()):
        for fed in (data, framed(data)):
            with contextlib.suppress(HandshakeError):
                side.feed(fed)


def test_worker_that_does_not_wait_for_the_welcome_is_refused():
    server, client = ServerHandshake(), worker()
    sent = client.feed(server.greeting())

    with pytest.raises(HandshakeError, match="got 5 bytes after"):
        server.feed(sent + b"frame")


def test_greeting_in_place_of_a_welcome_is_refused():
    server, client = ServerHandshake(), worker()
    say_hello(server, client)

    with pytest.raises(HandshakeError, match="expected a server's answer"):
        client.feed(server.greeting())


def test_nothing_may_be_fed_after_the_welcome():
    server, client = ServerHandshake(), worker()
    say_hello(server, client)
    client.feed(server.welcome(TOKEN))

    with pytest.raises(HandshakeError, match="is over"):
        client.feed(b"x")
