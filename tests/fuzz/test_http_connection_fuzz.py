# SPDX-License-Identifier: Apache-2.0
"""Random HTTP/1.1: heads, bodies in chunks, trailers, and many requests at once.

The reader is fuzzed alone, and the connection with the whole API behind it.
"""

from __future__ import annotations

import random

from pytriton.serving.server.api.origins import OriginPolicy
from pytriton.serving.server.api.request_memory import RequestMemory
from pytriton.serving.server.api.turns import Turn, Turns
from pytriton.serving.server.http.reader import RequestReader
from pytriton.serving.server.http.request import HttpRequest, RequestHead
from pytriton.serving.server.options.server_options import ClientLimits
from tests.cost.counting import FIXED_WORK
from tests.fakes import FakeLoop
from tests.fuzz.fuzzing import (
    Case,
    assert_reveals_nothing,
    assert_work_is_paid,
    fuzz,
    without_logged_errors,
)
from tests.fuzz.http_rig import HttpRig, check_play, whole
from tests.fuzz.mutation import mutate_bytes
from tests.server.http_fakes import Client, get, post
from tests.server.http_models import infer_body

LIMITS = ClientLimits(http_max_header_bytes=2048, http_max_input_bytes=100_000, http_max_chunks=50)
TOKENS = (
    b"\r\n", b"\n", b"\r", b"\0", b" ", b"\t", b":", b",", b";", b"0", b"-1", b"+5", b"0x10",
    b"ffffffffffffffff", b"\r\n\r\n", b"0\r\n\r\n", b"5\r\n", b"HTTP/1.1", b"HTTP/1.0", b"HTTP/2.0",
    b"GET ", b"CONNECT ", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", b"\xff", b"\x80", b"%00", b"%2e%2e/",
    b"Content-Length: 3\r\n", b"Transfer-Encoding: chunked\r\n", b"Connection: close\r\n",
    b"Host: h\r\n", b"Upgrade: h2c\r\nConnection: upgrade\r\n", b"Expect: 100-continue\r\n",
)  # fmt: skip
OTHER_METHODS = (
    b"GET",
    b"POST",
    b"HEAD",
    b"PUT",
    b"DELETE",
    b"OPTIONS",
    b"CONNECT",
    b"M-SEARCH",
    b"get",
)
TARGETS = (
    b"/v2", b"/v2/health/live", b"/v2/health/ready", b"/v2/models/double", b"/v2/models/stats",
    b"/v2/models/double/config", b"/v2/models/double/infer", b"/v2/models/double/versions/1/infer",
    b"/v2/models/stream/generate", b"/v2/models/stream/generate_stream", b"/v2/models/double/ready",
    b"/v2/repository/index", b"/v2/repository/models/m/load", b"/v2/logging", b"/v2/trace/setting",
    b"/v2/systemsharedmemory/status", b"/v2/cudasharedmemory/status", b"/v1/models", b"/", b"*",
    b"/v1/chat/completions", b"//v2", b"/v2?a=b&c", b"/v2/models/%64ouble", b"/v2/models//infer",
    b"http://h/v2", b"/%ff", b"/v2/models/nobody/infer",
    b"/v2/systemsharedmemory/region/r/register", b"/v2/models/double/versions/99999999999/ready",
)  # fmt: skip
HEADERS = (
    b"Accept: */*", b"Accept-Encoding: gzip;q=0.5, deflate, identity", b"Accept-Encoding: ,;q=,",
    b"Content-Type: application/json", b"Connection: keep-alive", b"Expect: 100-continue",
    b"Connection: upgrade", b"Upgrade: h2c", b"Inference-Header-Content-Length: 10",
    b"Authorization: Bearer abc", b"Cookie: " + b"c" * 500, b"X: \x80\xff", b"X:", b"X:  a \t",
    b"traceparent: 00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
)  # fmt: skip
UNUSUAL_HEADERS = (
    b"Connection: close", b"Expect: 200-ok", b"Content-Encoding: gzip",
    b"Content-Encoding: deflate", b"Content-Encoding: br", b"Inference-Header-Content-Length: 0",
    b"Inference-Header-Content-Length: 99999999999999999999",
    b"Inference-Header-Content-Length: -5", b"Inference-Header-Content-Length: x",
    b"Transfer-Encoding: chunked", b"Transfer-Encoding: identity", b"Content-Length: 5",
    b"Transfer-Encoding: gzip, chunked", b"Content-Length: 5, 5", b"Content-Length: -1",
    b"Content-Length: 18446744073709551616", b"Content-Length: 0000000000000000000000005",
    b"Host: other", b"Host: a b", b"Host:", b"Origin: http://evil", b"Sec-Fetch-Site: cross-site",
    b" folded", b"no colon", b"a b: c",
)  # fmt: skip
BINARY = b'{"inputs":[{"name":"x","shape":[1,1],"datatype":"FP32","parameters":%b}]}\0\0\x80?'
BODIES = (
    b"", b"x", b"{}", b"hello", infer_body(1.0), infer_body(1.0, 2.0), b"{" * 100, bytes(3000),
    BINARY % b'{"binary_data_size":4}', b'{"text_input":"a","prompt":"b"}',
)  # fmt: skip


def random_request(source: random.Random) -> bytes:
    """A request that is mostly valid."""
    body = source.choice(BODIES)
    method = source.choice((b"GET", b"POST", b"POST"))
    if source.random() < 0.1:
        method = source.choice(OTHER_METHODS)
    version = b"1.1"
    if source.random() < 0.05:
        version = source.choice((b"1.0", b"1.0", b"2.0", b"0.9"))
    lines = [b"%b %b HTTP/%b" % (method, source.choice(TARGETS), version)]
    if source.random() < 0.98:
        lines.append(b"Host: h")
    lines += source.choices(HEADERS, k=source.choice((0, 0, 0, 1, 2)))
    if source.random() < 0.1:
        lines += source.choices(UNUSUAL_HEADERS, k=source.choice((1, 2, 5)))
    if method == b"GET" and source.random() < 0.8:
        return b"\r\n".join((*lines, b"", b""))
    if source.random() < 0.5:
        size = len(body) + (source.choice((-1, 1)) if source.random() < 0.05 else 0)
        lines.append(b"Content-Length: %d" % size)
        return b"\r\n".join((*lines, b"", body))
    lines.append(b"Transfer-Encoding: chunked")
    return b"\r\n".join((*lines, b"", random_chunks(source, body)))


def random_chunks(source: random.Random, body: bytes) -> bytes:
    """A body in chunks, with extensions, trailers, and sizes that are written in other ways."""
    parts = []
    while body:
        size = source.choice((1, 2, 10, len(body), len(body)))
        chunk, body = body[:size], body[size:]
        form = source.choice((b"%x", b"%X", b"0%x", b"0000000000%x", b"%x;a=b", b'%x;a="b\\"c"'))
        if source.random() < 0.03:
            form = source.choice(
                (b"%xg", b" %x", b"-%x", b"%x;\0", b"%x ;", b"0x%x", b"fffffffff%x")
            )
        end = b"\n" if source.random() < 0.02 else b"\r\n"
        parts.append(form % len(chunk) + end + chunk + end)
    trailers = source.choice(
        (b"", b"", b"", b"A: b\r\n", b"A: b\r\n" * 20, b"Content-Length: 3\r\n")
    )
    return b"".join((*parts, b"0\r\n", trailers, b"\r\n"))


def cut(source: random.Random, text: bytes) -> list[bytes]:
    """The same bytes as some reads."""
    size = source.choice((1, 7, 60, 1000, 1 << 20))
    # Reads of one byte take long to count, and show what reads of a few bytes show.
    if len(text) // size > 200:
        size = len(text) // 100
    reads, at = [], 0
    while at < len(text):
        end = at + source.randint(1, 2 * size)
        reads.append(text[at:end])
        at = end
    return reads


def random_reads(source: random.Random) -> Case:
    requests = [random_request(source) for _ in range(source.choice((1, 1, 2, 3, 8)))]
    if source.random() < 0.2:
        requests *= source.choice((2, 3))
    text = whole(requests)
    for _ in range(source.choice((0, 0, 0, 0, 1, 2, 4))):
        text = mutate_bytes(source, text, TOKENS)
    return cut(source, text)


class RecordingSink:
    """Keeps what the reader reports, and knows that nothing may follow a refusal."""

    def __init__(self) -> None:
        self.seen: list[tuple[object, ...]] = []
        self.is_refused = False

    @property
    def taken(self) -> list[tuple[object, ...]]:
        """What was reported before the refusal."""
        return self.seen[:-1] if self.is_refused else self.seen

    def on_request(self, request: HttpRequest) -> None:
        assert not self.is_refused
        head = request.head
        self.seen.append((head.method, head.target, head.header_list, bytes(request.body)))

    def on_expectation(self) -> None:
        assert not self.is_refused
        self.seen.append(("expectation",))

    def on_refusal(self, status: int, message: str) -> None:
        assert not self.is_refused
        assert status != 500
        self.is_refused = True
        self.seen.append((status, message))

    def on_http2(self, data: bytes) -> None:
        assert not self.seen
        assert not self.is_refused
        self.is_refused = True  # nothing may follow that the reader reports
        self.seen.append((505, "HTTP/2 begins"))

    def body_memory(self, head: RequestHead) -> memoryview:
        assert head.content_length <= LIMITS.http_max_input_bytes
        return memoryview(bytearray(head.content_length))

    def large_body_refusal(self, head: RequestHead) -> None:
        return None

    def end_turn(self) -> None:
        """The test begins the next turn, by its loop."""

    begin_turn = abort = end_turn


def read_all(reads: list[bytes], cache: dict[bytes, RequestHead]) -> RecordingSink:
    sink = RecordingSink()
    loop = FakeLoop()
    turn = Turn(Turns(loop), sink)
    reader = RequestReader(sink, LIMITS, OriginPolicy("0.0.0.0"), cache, RequestMemory(), turn)
    for read in reads:
        data = read
        while data and not reader.is_over:
            if reader.body.memory is None:
                reader.feed(data)
                while reader.has_rest:
                    loop.run()
                    reader.read_rest()
                break
            room = reader.body.rest
            size = min(len(room), len(data))
            room[:size] = data[:size]
            reader.buffer_updated(size)
            data = data[size:]
    return sink


def check_reader(reads: Case) -> None:
    cache: dict[bytes, RequestHead] = {}
    text = whole(reads)
    sinks: list[RecordingSink] = []
    with without_logged_errors():
        assert_work_is_paid(
            lambda: sinks.append(read_all(reads, cache)),
            len(text),
            fixed_work=FIXED_WORK,
            reads=len(reads),
        )
        # With heads that are known now, and however the bytes come.
        sinks += [read_all(reads, cache), read_all([text], {}), read_all([text], cache)]
    for event in sinks[0].seen:
        if isinstance(event[0], int):
            assert_reveals_nothing(str(event[1]), text)

    # A request with several faults may be refused for any of them.
    assert len({sink.is_refused for sink in sinks}) == 1, [sink.seen for sink in sinks]
    assert all(sink.taken == sinks[0].taken for sink in sinks), [sink.seen for sink in sinks]
    assert sum(len(event[3]) for event in sinks[0].seen if len(event) == 4) <= len(text)


def check_connection(reads: Case) -> None:
    check_play(HttpRig(limits=LIMITS), reads)


def valid_requests(source: random.Random) -> Case:
    """Requests that the handler echoes, with what they are answered, and the reads they come in."""
    requests, bodies = [], []
    for number in range(source.choice((1, 2, 5, 20))):
        target = b"/%d" % source.choice((0, number))
        body = source.choice(BODIES)
        kind = source.randrange(3)
        if kind == 0:
            requests.append(get(target))
            bodies.append(b"GET %b " % target)
            continue
        if kind == 1:
            requests.append(post(body, target))
        else:
            head = b"POST %b HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n" % target
            chunks = b""
            for at in range(0, len(body), size := source.choice((50, 700, 4000))):
                part = body[at : at + size]
                chunks += b"%x%b\r\n%b\r\n" % (len(part), source.choice((b"", b";a=b")), part)
            trailers = source.choice((b"", b"A: b\r\n"))
            requests.append(head + chunks + b"0\r\n" + trailers + b"\r\n")
        bodies.append(b"POST %b %b" % (target, body))
    return [(cut(source, whole(requests)), bodies)]


def check_valid(case: Case) -> None:
    for reads, bodies in case:
        client = Client()
        for read in reads:
            client.send(read)

        assert client.bodies() == bodies
        assert not client.saw_end


def test_random_bytes_are_read_the_same_however_they_come():
    fuzz("HTTP reader", 500, random_reads, check_reader)


def test_random_requests_are_answered_or_the_connection_ends():
    fuzz("HTTP connection", 220, random_reads, check_connection)


def test_random_valid_requests_are_answered_in_order():
    fuzz("valid HTTP", 150, valid_requests, check_valid)
