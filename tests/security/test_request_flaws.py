# SPDX-License-Identifier: Apache-2.0
"""Flaws of other servers in how they read requests: each request here is sent to a real server."""

from __future__ import annotations

import gzip
import itertools
import json
import random
import socket
import struct
import zlib
from concurrent.futures import ThreadPoolExecutor

import grpc
import h2.connection
import h2.events
import pytest

from tests.e2e.http_client import HEADER_LENGTH, call
from tests.e2e.waiting import DEADLINE_S, eventually
from tests.security.hostile import (
    BODY_LIMIT,
    COUNT,
    MIB,
    POSTS,
    Peak,
    X,
    grpc_error,
    grpc_request,
    head,
    infer,
    infer_text,
    pending_count,
    raw_answer,
    status_of,
)

INFER = "/v2/models/echo/infer"
INVALID = grpc.StatusCode.INVALID_ARGUMENT
REFUSED = {400, 500, 501}  # as Triton: 500 to JSON of a wrong form, 501 if a model cannot do that
ROOM = 32 * MIB  # by which memory may grow while the server says no
CHUNK_LIMIT = 65_536


# Chunks, frames and heads


@pytest.mark.parametrize("path", POSTS)
def test_cve_2025_23310_one_byte_chunks_are_counted(server, path):
    """Also CVE-2025-23311."""
    peak = Peak(server)
    chunks = b"1\r\n \r\n" * 1000
    answer = raw_answer(
        server.http_port,
        head(path, "Transfer-Encoding: chunked"),
        *itertools.repeat(chunks, CHUNK_LIMIT // 1000 + 5),
    )

    assert status_of(answer) in {400, 413}
    assert peak.growth_bytes() < ROOM


@pytest.mark.parametrize("seed", range(4))
def test_cve_2025_23317_damaged_requests_end_neither_the_server_nor_a_connection(server, seed):
    chance = random.Random(seed)
    bodies = [(path, json.dumps(document).encode()) for path, document in POSTS.items()]
    for _ in range(COUNT // 4):
        path, body = chance.choice(bodies)
        request = bytearray(head(path, f"Content-Length: {len(body)}") + body)
        for _ in range(chance.randint(1, 8)):
            at = chance.randrange(len(request))
            if (kind := chance.randrange(3)) == 0:
                request[at] = chance.randrange(256)
            elif kind == 1:
                del request[at : at + chance.randint(1, 20)]
            else:
                request[at:at] = chance.randbytes(chance.randint(1, 20))
            if not request:
                break
        # What is missing of a body would be waited for: a line that is no request follows.
        raw_answer(server.http_port, bytes(request) + b"\r\n" * 40 + b"\0" * 1000)


@pytest.mark.parametrize(
    "lines, status",
    [
        ([f"X-{number}: 1" for number in range(3000)], 431),
        (["X: " + "y" * 70_000], 431),
        (["X" * 70_000 + ": y"], 431),
        ([f"Content-Length: {2**63}"], 400),
        ([f"Content-Length: {2**64}"], 400),
        (["Content-Length: -1"], 400),
        (["Content-Length: 1", "Content-Length: 2"], 400),
        (["Content-Length: 2", "Transfer-Encoding: chunked"], 400),
        (["Transfer-Encoding: chunked, identity"], 400),
    ],
    ids=lambda value: str(value)[:40],
)
def test_cve_2025_33201_heads_have_limits(server, lines, status):
    """Also CVE-2025-33202 and CVE-2025-33211."""
    assert status_of(raw_answer(server.http_port, head(INFER, *lines))) == status


@pytest.mark.parametrize(
    "document",
    [
        {"inputs": [{**X, "name": "n" * 4 * MIB}]},
        {"inputs": [{**X, "datatype": "n" * 4 * MIB}]},
        {"inputs": [{**X, "name": f"X{number}"} for number in range(60_000)]},
        {"inputs": [{**X, "shape": [1] * 500_000}]},
        {"inputs": [X], "id": "i" * 4 * MIB, "outputs": [{"name": "o" * MIB}]},
        {"inputs": [X], "parameters": {f"p{number}": 1 for number in range(300_000)}},
    ],
    ids=["long name", "long datatype", "many inputs", "many dimensions", "long id", "parameters"],
)
def test_cve_2025_33202_parts_of_json_have_limits(server, document):
    answer = server.post(INFER, document)

    assert answer.status in REFUSED
    assert len(answer.body) < 32_768  # what the client sent is not sent back whole


def many(kind, count):
    request = grpc_request()
    for number in range(count):
        if kind == "inputs":
            request.inputs.add(name=f"X{number}", datatype="FP32", shape=[1, 2])
        elif kind == "raw tensors":
            request.raw_input_contents.append(b"")
        elif kind == "parameters":
            request.parameters[f"p{number}"].int64_param = 1
        else:
            request.inputs[0].shape.append(1)
    return request


@pytest.mark.parametrize("kind", ["inputs", "raw tensors", "parameters", "dimensions"])
def test_cve_2025_33211_parts_of_messages_have_limits(grpc_stub, kind):
    error = grpc_error(grpc_stub.ModelInfer, many(kind, 20_000))

    assert error.code() is INVALID
    assert "at most" in error.details()


def test_cve_2025_33211_metadata_has_a_limit(grpc_stub):
    metadata = [(f"key-{number}", "v" * 100) for number in range(1000)]

    error = grpc_error(grpc_stub.ModelInfer, grpc_request(), metadata=metadata)

    assert error.code() is not grpc.StatusCode.UNKNOWN


def test_cve_2026_24146_outputs_are_counted_and_none_is_asked_for_twice(server, grpc_stub):
    outputs = [{"name": f"Y{number}"} for number in range(120_000)]
    too_many = server.post(INFER, {"inputs": [X], "outputs": outputs})
    twice = server.post(INFER, {"inputs": [X], "outputs": [{"name": "Y"}] * 2})
    many_times = server.post(INFER, {"inputs": [X], "outputs": [{"name": "Y"}] * 50_000})
    grpc_many = grpc_error(grpc_stub.ModelInfer, grpc_request(outputs=["Y"] * 20_000))
    grpc_twice = grpc_error(grpc_stub.ModelInfer, grpc_request(outputs=["Y", "Y"]))

    assert (too_many.status, many_times.status, twice.status) == (400, 400, 400)
    assert "at most 100000 objects" in too_many.error
    assert "output 'Y' already exists in request" in twice.error
    assert "output 'Y' already exists in request" in grpc_twice.details()
    assert "at most 4096 outputs" in grpc_many.details()


# Numbers

# The words of Triton for products that its numbers do not hold.
OVERFLOWS = {
    str([2**4, 2**60 + 2]): "causes total element count to exceed maximum size",
    str([2**2, 2**60 + 2]): "byte size overflow",
    str([2**31, 2**31, 2**31]): "causes total element count to exceed maximum size",
}
BAD_SHAPES = [
    [2**4, 2**60 + 2],
    [2**2, 2**60 + 2],
    [2**63],
    [2**64 - 1, 1],
    [2**64],
    [2**31, 2**31, 2**31],
    [-1, 2],
    [1, -(2**63)],
    [1.0, 2],
    [1, 2.5],
    [True, 2],
    ["1", 2],
    [None, 2],
    [1, [2]],
    "12",
    {},
    None,
    2,
]


@pytest.mark.parametrize("name", ["echo", "flat"])
@pytest.mark.parametrize("shape", BAD_SHAPES, ids=str)
def test_cve_2025_23323_shapes_are_checked_before_they_are_multiplied(server, name, shape):
    """Also CVE-2025-23324, CVE-2025-23326, CVE-2025-23327, CVE-2026-24173 and CVE-2026-24210."""
    peak = Peak(server)
    inline = infer(server, name, shape=shape)
    described = {**X, "shape": shape, "parameters": {"binary_data_size": 8}}
    del described["data"]
    text = json.dumps({"inputs": [described]}).encode()
    binary = call(
        server.http_port,
        f"/v2/models/{name}/infer",
        text + bytes(8),
        {HEADER_LENGTH: str(len(text))},
    )

    assert inline.status in REFUSED
    assert binary.status in REFUSED
    assert all(OVERFLOWS.get(str(shape), "") in answer.error for answer in (inline, binary))
    assert peak.growth_bytes() < ROOM


@pytest.mark.parametrize("name", ["echo", "flat"])
@pytest.mark.parametrize(
    "shape",
    [(2**4, 2**60 + 2), (2**2, 2**60 + 2), (2**63 - 1,), (2**62, 2), (-1, 2), (1, -(2**63))],
    ids=str,
)
def test_cve_2025_23323_shapes_are_checked_over_grpc(server, grpc_stub, name, shape):
    peak = Peak(server)
    refused = [
        grpc_error(grpc_stub.ModelInfer, grpc_request(name, shape, data)).code()
        for data in (bytes(8), b"", None)
    ]

    assert refused == [INVALID] * 3
    assert peak.growth_bytes() < ROOM


@pytest.mark.parametrize("shape", [[0, 2], [1, 0], [0, 0], [0], [1, 0, 0], []], ids=str)
@pytest.mark.parametrize("name", ["echo", "flat", "count", "turns"])
def test_cve_2025_23321_zeros_divide_nothing(server, grpc_stub, name, shape):
    with_data = infer(server, name, shape=shape)
    without = infer(server, name, shape=shape, data=[])
    flat = server.post(f"/v2/models/{name}/generate", {"X": []})
    wrong = grpc_error(grpc_stub.ModelInfer, grpc_request(name, shape))

    # A tensor without elements is a tensor; if its model takes the shape, it is answered.
    assert with_data.status in REFUSED
    assert without.status in {200, *REFUSED}
    assert flat.status in {200, *REFUSED}
    assert wrong.code() in {INVALID, grpc.StatusCode.UNIMPLEMENTED}
    assert "division" not in without.body.decode() + flat.body.decode()


@pytest.mark.parametrize(
    "number",
    ["1e400", "-1", "-0.0", "8.0", '"8"', "true", "null", "[8]", str(2**53 + 1), str(2**63),
     str(2**64), "9" * 5000],
)  # fmt: skip
@pytest.mark.parametrize(
    "template",
    [
        '{"inputs":[{"name":"X","shape":[1,%s],"datatype":"FP32","data":[1,2]}]}',
        (
            '{"inputs":[{"name":"X","shape":[1,2],"datatype":"FP32",'
            '"parameters":{"binary_data_size":%s}}]}'
        ),
        (
            '{"inputs":[{"name":"X","shape":[1,2],"datatype":"FP32","parameters":'
            '{"shared_memory_region":"r","shared_memory_byte_size":%s}}]}'
        ),
        (
            '{"inputs":[{"name":"X","shape":[1,2],"datatype":"FP32","data":[1,2]}],'
            '"outputs":[{"name":"Y","parameters":{"classification":%s}}]}'
        ),
    ],
    ids=["shape", "binary_data_size", "shared_memory_byte_size", "classification"],
)
def test_cve_2026_24174_numbers_are_not_converted_to_others(server, template, number):
    answer = infer_text(server, template % number)

    # More classes than there are elements mean all of them.
    is_large = number in {str(2**53 + 1), str(2**63)}
    expected = {"classification": {200}, "shared_memory": {404}} if is_large else {}
    allowed = [statuses for member, statuses in expected.items() if member in template]
    assert answer.status in REFUSED.union(*allowed)


@pytest.mark.parametrize("number", ["1e400", "-1", "1.0", '"1"', "true", str(2**64)])
@pytest.mark.parametrize("name", ["priority", "timeout"])
def test_cve_2026_24174_numbers_of_parameters_are_not_converted(server, name, number):
    text = json.dumps({"inputs": [X], "parameters": {name: "NUMBER"}})

    assert infer_text(server, text.replace('"NUMBER"', number)).status in REFUSED


@pytest.mark.parametrize(
    "name, value",
    [("priority", -1), ("priority", "1"), ("priority", 1.0), ("timeout", "1"), ("timeout", 1.5),
     ("sequence_id", True), ("sequence_id", 1.5), ("sequence_start", 1)],
)  # fmt: skip
def test_cve_2026_24174_values_of_other_types_are_refused_over_grpc(grpc_stub, name, value):
    assert grpc_error(grpc_stub.ModelInfer, grpc_request(**{name: value})).code() is INVALID


@pytest.mark.parametrize("timeout_us", [2**64 - 1, 2**63, 1 << 60])
def test_cve_2026_24174_longest_timeout_waits_and_overflows_nothing(server, timeout_us):
    first = {"sequence_id": 1, "sequence_start": True}
    second = {"sequence_id": 2, "sequence_start": True, "sequence_end": True}
    path = "/v2/models/turns/infer"
    opened = server.post(path, {"inputs": [X], "parameters": first})
    # The model has one place: the second sequence waits in the backlog, with its timeout.
    with ThreadPoolExecutor(1) as threads:
        body = {"inputs": [X], "parameters": {**second, "timeout": timeout_us}}
        waiting = threads.submit(server.post, path, body)
        is_waiting = eventually(lambda: pending_count(server, "turns") == 1)
        last = {"sequence_id": 1, "sequence_end": True}
        ended = server.post(path, {"inputs": [X], "parameters": last})

        assert waiting.result().status == 200
    assert is_waiting
    assert opened.status == ended.status == 200


@pytest.mark.parametrize(
    "value",
    ["99999999999999999999", str(2**63), str(2**31), "-1", "-2147483649", "abc", "", "1e2", "+5",
     "0x10", "5 5", "\xb2", str(10_000), "NaN"],
)  # fmt: skip
def test_server_fix_10f2a691a_length_of_the_json_header_is_checked(server, value):
    body = json.dumps({"inputs": [X]}).encode()

    answer = call(server.http_port, INFER, body, {HEADER_LENGTH: value})

    assert answer.status == 400
    assert "Inference-Header-Content-Length" in answer.error or "header size" in answer.error


# Nesting


@pytest.mark.parametrize("depth", [1_000, 30_000, 1_000_000])
@pytest.mark.parametrize("opening, closing", [("[", "]"), ('{"a":', "}")])
@pytest.mark.parametrize("path", POSTS)
def test_cve_2025_23325_nested_json_takes_no_stack(server, path, opening, closing, depth):
    nested = opening * depth + "1" + closing * depth

    texts = (f'{{"parameters":{{"x":{nested}}}}}', opening * depth)
    answers = [call(server.http_port, path, text.encode()) for text in texts]

    assert {answer.status for answer in answers} <= {200, 400, 404, 413, 422, 500, 501}
    if depth > 1000 and not path.endswith("unregister"):  # which reads no body
        assert 200 not in {answer.status for answer in answers}


@pytest.mark.parametrize("depth, status", [(99, 200), (100, 400), (101, 400), (900, 400)])
def test_cve_2025_23325_tensors_are_nested_at_most_100_deep(server, depth, status):
    data = "[" * depth + "1" + "]" * depth
    text = json.dumps({"inputs": [{**X, "shape": [1, 1]}]}).replace("[1, 2]", data)

    answer = infer_text(server, text)

    assert answer.status == status
    if status == 400:
        assert "JSON nesting depth exceeds maximum allowed limit (100)" in answer.error


@pytest.mark.parametrize("depth", [1_000, 100_000])
def test_cve_2025_23325_nested_configurations_take_no_stack(server, depth):
    as_json = server.load(
        "deep", config='{"parameters":' + '{"a":' * depth + "1" + "}" * depth + "}"
    )
    server.write("deep", {"config.pbtxt": "a { " * depth + "}" * depth, "1/model.py": ""})
    as_text = server.load("deep")
    index = server.post("/v2/repository/index")

    assert as_json.status in REFUSED
    assert as_text.status in REFUSED
    assert index.status == 200


# Sizes that are only said


def bomb(size: int, encoding: str) -> bytes:
    """Zeros in one of the encodings of HTTP, without the end that nobody reaches."""
    packer = zlib.compressobj(9, wbits=31 if encoding == "gzip" else 15)
    start = packer.compress(bytes(16 * MIB)) + packer.flush(zlib.Z_FULL_FLUSH)
    block = packer.compress(bytes(16 * MIB)) + packer.flush(zlib.Z_FULL_FLUSH)
    return start + block * (size // (16 * MIB) - 1)


@pytest.mark.parametrize("path", [INFER, "/v2/models/echo/generate", "/v1/chat/completions",
                                  "/v2/repository/models/echo/load"])  # fmt: skip
@pytest.mark.parametrize("encoding", ["gzip", "deflate"])
def test_cve_2026_24158_body_is_limited_while_it_is_inflated(server, path, encoding):
    """CVE-2026-24158 and CVE-2025-23331."""
    packed = bomb(4096 * MIB, encoding)
    assert len(packed) < BODY_LIMIT
    peak = Peak(server)

    answer = call(server.http_port, path, packed, {"Content-Encoding": encoding})

    assert answer.status in {400, 413, 415}
    assert peak.growth_bytes() < len(packed) + BODY_LIMIT + ROOM


def test_cve_2026_24158_message_is_limited_while_it_is_inflated(server, grpc_stub):
    size = 257 * MIB
    request = grpc_request(shape=(1, size // 4), data=bytes(size))
    peak = Peak(server)

    error = grpc_error(grpc_stub.ModelInfer, request, compression=grpc.Compression.Gzip)

    assert error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert peak.growth_bytes() < 256 * MIB + 2 * ROOM


@pytest.mark.parametrize("announced", [BODY_LIMIT, BODY_LIMIT - 1, MIB])
def test_cve_2025_23331_memory_is_taken_as_a_body_comes(server, announced):
    peak = Peak(server)
    clients = [socket.create_connection(("127.0.0.1", server.http_port)) for _ in range(32)]
    for client in clients:
        client.sendall(head(INFER, f"Content-Length: {announced}", f"{HEADER_LENGTH}: 10") + b"{")
    assert server.infer("echo", 1.0) == [1.0]  # which comes after them
    growth = peak.growth_bytes()
    for client in clients:
        client.close()

    assert growth < ROOM


def test_cve_2025_23331_memory_is_taken_as_a_message_comes(server):
    peak = Peak(server)
    clients = [Http2Client(server.grpc_port) for _ in range(8)]
    for client in clients:
        client.start_call(struct.pack(">BI", 0, 2**31 - 1) + bytes(1000))
        client.ping()
    growth = peak.growth_bytes()
    for client in clients:
        client.close()

    assert growth < ROOM


class Http2Client:
    """A connection to the gRPC port that may send what no client would."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), timeout=DEADLINE_S)
        self._http2 = h2.connection.H2Connection()
        self._http2.initiate_connection()

    def start_call(self, data: bytes) -> None:
        headers = {
            ":method": "POST",
            ":path": "/inference.GRPCInferenceService/ModelInfer",
            ":scheme": "http",
            ":authority": "localhost",
            "te": "trailers",
            "content-type": "application/grpc",
        }
        self._http2.send_headers(1, list(headers.items()))
        self._http2.send_data(1, data)

    def ping(self) -> None:
        """Send what is left, and wait until the server has read it."""
        self._http2.ping(b"12345678")
        while True:
            self._socket.sendall(self._http2.data_to_send())
            received = self._socket.recv(65536)
            assert received
            events = self._http2.receive_data(received)
            if any(isinstance(event, h2.events.PingAckReceived) for event in events):
                return

    def close(self) -> None:
        self._socket.close()


def test_server_fix_669cef083_failed_compressed_bodies_keep_no_memory(server):
    good = gzip.compress(json.dumps({"inputs": [{**X, "data": list(range(50_000))}]}).encode())
    broken = [good[: len(good) // 2], good[:-8] + bytes(8), good + b"x", b"x" * 100_000, b""]

    def send_all():
        for body, encoding in itertools.product(broken, ("gzip", "deflate", "br")):
            answer = call(server.http_port, INFER, body, {"Content-Encoding": encoding})
            assert answer.status in REFUSED

    for _ in range(2):  # what is made once
        send_all()
    peak = Peak(server)
    for _ in range(COUNT // 10):
        send_all()

    assert peak.growth_bytes() < ROOM
