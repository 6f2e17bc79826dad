# SPDX-License-Identifier: Apache-2.0
"""The KServe client of the tools: what it sends, and its errors in the words of commands."""

from __future__ import annotations

import pytest

from pytriton.client.kserve.address import parse_address
from pytriton.client.kserve.errors import UnansweredError
from pytriton.client.kserve.http_client import kserve_client
from pytriton.client.kserve.metrics import series
from pytriton.tools.perf.errors import GeneratorError
from pytriton.tools.perf.server_state import QuestionError, ServerAddress, questions_of
from tests.client.scripted_server import ScriptedServer
from tests.free_ports import free_ports


def http(body: bytes, status: str = "200 OK") -> bytes:
    return b"HTTP/1.1 %s\r\nContent-Length: %d\r\n\r\n%s" % (status.encode(), len(body), body)


@pytest.mark.parametrize(
    "answer, expected",
    [
        (http(b'{"error": "no such model"}', "404 Not Found"), "no such model"),
        (http(b"{}", "500 Oh"), "the server answered with status 500"),
        (
            b"\x00\x00\x06\x04\x00\x00\x00\x00\x00\r\n",
            "{} does not speak HTTP; is it the port for gRPC? That needs -i grpc",
        ),
    ],
)
def test_question_of_a_load_test_that_fails_says_why(answer, expected):
    with ScriptedServer([answer], [answer]) as server:
        name = server.url.removeprefix("http://")
        questions = questions_of(ServerAddress(server.url))
        with pytest.raises(QuestionError) as raised:
            questions.model_metadata("m")
        questions.close()

    assert str(raised.value) == expected.format(name)


def test_server_that_is_gone_is_named_as_it_was_typed():
    (port,) = free_ports(1)
    with pytest.raises(QuestionError, match=f"the server at 127.0.0.1:{port} cannot be reached: "):
        questions_of(ServerAddress(f"127.0.0.1:{port}")).model_metadata("m")
    with pytest.raises(UnansweredError, match=f"No server answers at http://127.0.0.1:{port}: "):
        kserve_client(parse_address(f"127.0.0.1:{port}"), {}, 5.0).model_metadata("m")


def test_address_of_a_load_test_that_means_nothing_is_refused():
    with pytest.raises(GeneratorError, match="expected an address such as"):
        questions_of(ServerAddress("ftp://host"))


def test_calls_have_the_paths_of_the_protocol():
    answers = [http(b"{}"), *[http(b"")] * 4, http(b'{"model_stats": [{"name": "m"}]}')]
    with ScriptedServer(answers) as server:
        client = kserve_client(parse_address(server.url), {"X-Mine": "1"}, 5.0)
        client.model_config("a/b", "2")
        client.load("m", '{"max_batch_size": 2}')
        client.register_memory("region", "/key", 8)
        client.register_device_memory("device", bytes(64), 1, 8)
        client.unregister_device_memory("device")
        found = client.statistics("m")
        client.close()

    lines = [request.split(b" HTTP")[0] for request in server.requests[0]]
    assert lines == [
        b"GET /v2/models/a%2Fb/versions/2/config",
        b"POST /v2/repository/models/m/load",
        b"POST /v2/systemsharedmemory/region/region/register",
        b"POST /v2/cudasharedmemory/region/device/register",
        b"POST /v2/cudasharedmemory/region/device/unregister",
        b"GET /v2/models/m/stats",
    ]
    assert all(b"X-Mine: 1" in request for request in server.requests[0])
    assert found == [{"name": "m"}]


def test_metrics_are_read_with_escaped_labels_and_without_comments():
    text = '# HELP a b\na{x="1\\n\\"2\\"",y="z"} 3\nb 4.5\nbroken\nc{} word\n'

    assert list(series(text)) == [("a", {"x": '1\n"2"', "y": "z"}, 3.0), ("b", {}, 4.5)]
