# SPDX-License-Identifier: Apache-2.0
"""Small infer requests over HTTP/2 travel as columns, those of one connection together."""

from __future__ import annotations

import pytest

from pytriton.serving.server.http.columns import ColumnExchange
from tests.server.http.test_http_columns import TARGET, Scene
from tests.server.http2_fakes import Fields, Http2Client, head, length
from tests.server.http_fakes import Answer
from tests.wire.http2.frame_client import rst_stream, window_update

GZIP = (b"accept-encoding", b"gzip")


def asking(scene: Scene, value: float, *more: tuple[bytes, bytes], **named) -> tuple[Fields, bytes]:
    body = scene.request(value, **named).partition(b"\r\n\r\n")[2]
    return head(TARGET, length(body), *more, method=b"POST"), body


def send_together(client: Http2Client, requests: list[tuple[Fields, bytes]]) -> list[int]:
    """Let requests arrive in one read; returns their streams."""
    made = [client.request(fields, body) for fields, body in requests]
    client.transport.unread += b"".join(wire for _, wire in made)
    assert client.transport.deliver_some()
    return [stream_id for stream_id, _ in made]


def answers(scene: Scene, client: Http2Client, stream_ids: list[int]) -> list[Answer]:
    scene.loop.run()
    scene.answer()
    return [client.answer(stream_id) for stream_id in stream_ids]


def learn(scene: Scene, client: Http2Client, request: tuple[Fields, bytes]) -> None:
    for count in (*[1] * 17, 2):
        (*_, last) = answers(scene, client, send_together(client, [request] * count))
        assert last.status == 200


def exchanges(client: Http2Client) -> list[object]:
    return [stream._exchange for stream in client.connection._streams.values()]


def test_streams_of_one_connection_are_one_chunk():
    scene = Scene()
    client = Http2Client(scene.service.api)
    learn(scene, client, asking(scene, 1))
    send_together(client, [asking(scene, value) for value in range(9)])
    waiting = exchanges(client)

    assert len(waiting) == 9
    assert {type(each) for each in waiting} == {ColumnExchange}
    assert len({id(each._chunk) for each in waiting}) == 1


def test_streams_of_several_connections_share_a_chunk():
    scene = Scene()
    clients = [Http2Client(scene.service.api) for _ in range(3)]
    learn(scene, clients[0], asking(scene, 1))
    sent = [send_together(client, [asking(scene, 7), asking(scene, 8)]) for client in clients]
    assert len({id(each._chunk) for client in clients for each in exchanges(client)}) == 1
    for client, stream_ids in zip(clients, sent, strict=True):
        bodies = [answer.body for answer in answers(scene, client, stream_ids)]
        assert b"[14,20]" in bodies[0]
        assert b"[16,20]" in bodies[1]


@pytest.mark.parametrize("more", [(), (GZIP,)])
@pytest.mark.parametrize("named", [{}, {"id": "an id"}], ids=str)
@pytest.mark.parametrize("window", [1 << 20, 10])
def test_answers_from_columns_are_the_usual_ones(more, named, window):
    scene = Scene()
    usual = Http2Client(scene.service.api)
    expected = {}
    for value in range(10, 15):
        request = asking(scene, value, *more, **named)
        expected[value] = answers(scene, usual, send_together(usual, [request]))[0]
    learn(scene, usual, asking(scene, 10, *more, **named))
    client = Http2Client(scene.service.api, window=window)
    send_together(client, [asking(scene, 10, *more, **named)])
    requests = [asking(scene, value, *more, **named) for value in range(10, 15)]
    stream_ids = send_together(client, requests)
    columns = sum(isinstance(each, ColumnExchange) for each in exchanges(client))
    scene.loop.run()
    scene.answer()
    if window < 1 << 20:
        client.send(b"".join(window_update(stream_id, 1 << 20) for stream_id in stream_ids))

    assert columns >= 5
    assert [client.answer(each) for each in stream_ids] == list(expected.values())


def test_stream_that_is_reset_leaves_its_chunk_to_the_others():
    scene = Scene()
    client = Http2Client(scene.service.api)
    learn(scene, client, asking(scene, 1))
    stream_ids = send_together(client, [asking(scene, value) for value in range(5)])
    client.send(rst_stream(stream_ids[2]))
    del stream_ids[2]

    bodies = [answer.body for answer in answers(scene, client, stream_ids)]
    assert [
        b"[%d,20]" % (2 * value) in body for value, body in zip((0, 1, 3, 4), bodies, strict=True)
    ] == [True] * 4
    assert client.connection._streams == {}


def test_connection_that_is_lost_leaves_the_chunk_to_the_others():
    scene = Scene()
    client, lost = Http2Client(scene.service.api), Http2Client(scene.service.api)
    learn(scene, client, asking(scene, 1))
    send_together(lost, [asking(scene, 5)] * 3)
    stream_ids = send_together(client, [asking(scene, 6)] * 3)
    lost.transport.lose(ConnectionResetError())

    assert [b"[12,20]" in each.body for each in answers(scene, client, stream_ids)] == [True] * 3
