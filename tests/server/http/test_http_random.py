# SPDX-License-Identifier: Apache-2.0
"""Random mutations of valid requests: always an answer or the end, never a mistake of ours."""

from __future__ import annotations

import random

import pytest

from pytriton.serving.server.options.server_options import ClientLimits
from tests.fake_network import random_sizes
from tests.server.http_fakes import Client, FakeLoop, ScriptedHandler, chunked, get, post

SEEDS = [
    get(b"/a"),
    get(b"/later"),
    post(b"hello"),
    post(bytes(70_000)),
    chunked(b"he", b"llo", trailers=b"X: y\r\n"),
    get(b"/", b"Connection: close"),
    get(b"/", b"Connection: upgrade", b"Upgrade: h2c"),
    post(b"x", b"/", b"Expect: 100-continue"),
    b"GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n",
]
TOKENS = [
    *(b"\r\n", b"\n", b"\r", b"\0", b" ", b":", b",", b"\t", b"0", b"-1", b"ffffffffffffffff"),
    *(b"Content-Length: 3\r\n", b"Transfer-Encoding: chunked\r\n", b"Connection: close\r\n"),
    *(b"HTTP/1.1", b"HTTP/1.0", b"HTTP/2.0", b"GET ", b"CONNECT ", b"\xff", b"Upgrade: x\r\n"),
]


def mutated(source: random.Random) -> bytes:
    text = bytearray(b"".join(source.choices(SEEDS, k=source.randint(1, 4))))
    for _ in range(source.choice([0, 1, 1, 2, 5])):
        # Most of what matters happens in a head, and bodies are long.
        at = source.randint(0, min(len(text), 200))
        kind = source.randrange(4)
        if kind == 0:
            text[at:at] = source.choice(TOKENS)
        elif kind == 1:
            del text[at : at + source.randint(1, 20)]
        elif kind == 2:
            text[at : at + 1] = bytes([source.randrange(256)])
        else:
            text[at:at] = text[at : at + source.randint(1, 60)]
    return bytes(text)


@pytest.mark.parametrize("seed", range(20))
def test_random_client_gets_answers_or_the_end(seed):
    source = random.Random(seed)
    loop = FakeLoop()
    handler = ScriptedHandler(ClientLimits(http_max_header_bytes=4096), loop)
    for _ in range(50):
        client = Client(handler)
        client.transport.peer_reads = source.random() < 0.9
        text = mutated(source)
        client.send(text, random_sizes(source.randrange(1000), source.choice([20, 200, 100_000])))
        while any(later.connection is client.connection for later in handler.later):
            for later in handler.later:
                later.answer()
            handler.later.clear()
            client.deliver()
        loop.advance(400)

        # Either all was answered, or the client heard what is wrong with it, or it was cut off.
        answers = client.answers() if client.transport.peer_reads else []
        assert all(answer.status < 500 or answer.status in {501, 505} for answer in answers)
        assert answers or client.saw_end or not client.transport.peer_reads or not text.strip()
        assert client.unread_bytes == 0 or client.saw_end
        client.reset()
    assert not handler.connections
    assert len(handler.watch) == 0
    assert loop.timer_count <= 1


@pytest.mark.parametrize("seed", range(20))
def test_random_text_is_understood_the_same_however_it_arrives(seed):
    source = random.Random(seed)
    for _ in range(20):
        text = mutated(source)
        at_once, in_pieces = Client(), Client()
        at_once.send(text)
        in_pieces.send(text, random_sizes(seed, 50))
        for client in (at_once, in_pieces):
            while client.handler.later:
                client.handler.later.pop(0).answer()
                client.deliver()

        assert at_once.received == in_pieces.received
        assert at_once.saw_end == in_pieces.saw_end
        assert [bytes(it.body) for it in at_once.handler.requests] == [
            bytes(it.body) for it in in_pieces.handler.requests
        ]
