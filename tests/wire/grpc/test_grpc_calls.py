# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import base64

import hpack
import pytest

from pytriton.protocol.grpc import (
    OK_TRAILERS,
    RESPONSE_HEADS,
    GrpcError,
    GrpcStatus,
    encode_http_error,
    encode_trailers,
    encode_trailers_only,
    parse_call,
)
from pytriton.protocol.grpc.calls import parse_metadata, parse_timeout_ns
from pytriton.protocol.grpc.status import percent_decode, percent_encode
from pytriton.protocol.http2 import Http2RequestHead

PATH = "/inference.GRPCInferenceService/ModelInfer"


def head(*fields, method="POST", content_type=b"application/grpc") -> Http2RequestHead:
    return Http2RequestHead(method, PATH, ((b"content-type", content_type), *fields))


def decode(block: bytes) -> list[tuple[str, str]]:
    return [tuple(field) for field in hpack.Decoder().decode(block)]


@pytest.mark.parametrize(
    "field,expected_ns",
    [
        (b"1H", 3_600_000_000_000),
        (b"2M", 120_000_000_000),
        (b"30S", 30_000_000_000),
        (b"250m", 250_000_000),
        (b"7u", 7000),
        (b"0n", 0),
        (b"99999999H", 99_999_999 * 3_600_000_000_000),
    ],
)
def test_timeout_is_read_in_its_unit(field, expected_ns):
    assert parse_timeout_ns(field) == expected_ns


@pytest.mark.parametrize("field", [b"", b"1", b"S", b"-1S", b"1.5S", b"123456789S", b"1s", b"1 S"])
def test_malformed_timeout_is_refused(field):
    with pytest.raises(GrpcError, match="grpc-timeout"):
        parse_timeout_ns(field)


def test_call_has_what_its_head_says():
    call = parse_call(
        head(
            (b"te", b"trailers"),
            (b"grpc-timeout", b"5S"),
            (b"grpc-encoding", b"gzip"),
            (b"grpc-accept-encoding", b"identity, deflate,gzip"),
            (b"user-agent", b"grpc-python/1.0"),
            (b"triton_grpc_error", b"true"),
            (b"trace-bin", b"AAEC"),
        ),
    )

    assert (call.path, call.timeout_ns, call.encoding) == (PATH, 5_000_000_000, "gzip")
    assert call.accepted_encodings == ("identity", "deflate", "gzip")
    assert call.metadata == (
        ("user-agent", "grpc-python/1.0"),
        ("triton_grpc_error", "true"),
        ("trace-bin", b"\0\x01\x02"),
    )
    assert call.http_status is None
    assert call.error is None


def test_call_without_options_has_defaults():
    call = parse_call(head())

    assert (call.timeout_ns, call.encoding, call.accepted_encodings) == (None, "identity", ())
    assert call.metadata == ()


def test_call_is_parsed_once_for_a_head():
    request = head((b"grpc-timeout", b"5S"))

    assert parse_call(request) is parse_call(request)


@pytest.mark.parametrize(
    "content_type", [b"application/grpc", b"application/grpc+proto", b"application/grpc;charset=x"]
)
def test_content_types_of_grpc_are_taken(content_type):
    assert parse_call(head(content_type=content_type)).http_status is None


@pytest.mark.parametrize(
    "request_head,http_status",
    [
        (head(method="GET"), 405),
        (head(content_type=b"application/json"), 415),
        (head(content_type=b"application/grpc-web"), 415),
        (head(content_type=b""), 415),
    ],
)
def test_request_that_is_not_grpc_gets_an_http_status(request_head, http_status):
    assert parse_call(request_head).http_status == http_status
    assert dict(decode(encode_http_error(http_status)))[":status"] == str(http_status)


@pytest.mark.parametrize(
    "field,status",
    [
        ((b"grpc-timeout", b"soon"), GrpcStatus.INTERNAL),
        ((b"grpc-encoding", b"snappy"), GrpcStatus.UNIMPLEMENTED),
        ((b"x-bin", b"!!!"), GrpcStatus.INTERNAL),
    ],
)
def test_call_that_cannot_be_served_carries_its_error(field, status):
    error = parse_call(head(field)).error

    assert error is not None
    assert error.status is status
    assert field[0].decode() in error.message


@pytest.mark.parametrize(
    "field,values",
    [
        (b"AAEC", [b"\0\x01\x02"]),
        (b"AAE=", [b"\0\x01"]),
        (b"AAE", [b"\0\x01"]),
        (b"AAE,AAEC , AA==", [b"\0\x01", b"\0\x01\x02", b"\0"]),
        (b"", [b""]),
    ],
)
def test_binary_metadata_is_base64_with_or_without_padding(field, values):
    assert parse_metadata([(b"x-bin", field)]) == tuple(("x-bin", value) for value in values)


def test_metadata_is_read_in_order():
    metadata = (("x-text", "a b~"), ("x-bytes-bin", bytes(range(256))), ("x-text", "again"))
    encoded = base64.b64encode(bytes(range(256))).rstrip(b"=")
    fields = [(b"x-text", b"a b~"), (b"x-bytes-bin", encoded), (b"x-text", b"again")]

    assert parse_metadata(fields) == metadata


@pytest.mark.parametrize(
    "message,field",
    [
        ("plain text", b"plain text"),
        ("100 %", b"100 %25"),
        ("two\nlines\t", b"two%0Alines%09"),
        ("caf\u00e9", b"caf%C3%A9"),
        ("\x7f", b"%7F"),
        ("", b""),
    ],
)
def test_status_message_is_percent_encoded(message, field):
    assert percent_encode(message) == field
    assert percent_decode(field) == message


def test_status_message_with_invalid_escapes_is_still_read():
    assert percent_decode(b"50% or %ZZ or %41") == "50% or %ZZ or A"
    assert percent_decode(b"%FF") == "\ufffd"
    assert percent_encode("\ud800") == b"?"


@pytest.mark.parametrize("size", range(3, 12))
def test_cut_message_ends_before_an_escape(size):
    cut = percent_encode("ab\n\n\n", size)

    assert len(cut) <= size
    assert b"ab%0A%0A%0A".startswith(cut)
    assert percent_decode(cut) == "ab\n\n\n"[: len(percent_decode(cut))]


def test_ok_is_two_constant_blocks():
    assert decode(RESPONSE_HEADS["identity"]) == [
        (":status", "200"),
        ("content-type", "application/grpc"),
    ]
    assert decode(OK_TRAILERS) == [("grpc-status", "0")]
    assert encode_trailers(GrpcStatus.OK) is OK_TRAILERS


def test_compressed_response_names_its_encoding():
    assert decode(RESPONSE_HEADS["gzip"])[-1] == ("grpc-encoding", "gzip")


def test_error_is_status_and_message():
    block = encode_trailers(GrpcStatus.NOT_FOUND, "no 'm\u00f6del'")

    assert decode(block) == [("grpc-status", "5"), ("grpc-message", "no 'm%C3%B6del'")]


def test_error_without_messages_is_one_block():
    assert decode(encode_trailers_only(GrpcStatus.UNAVAILABLE, "later")) == [
        (":status", "200"),
        ("content-type", "application/grpc"),
        ("grpc-status", "14"),
        ("grpc-message", "later"),
    ]


def test_unimplemented_tells_which_encodings_are():
    fields = dict(decode(encode_trailers_only(GrpcStatus.UNIMPLEMENTED, "grpc-encoding")))

    assert fields["grpc-accept-encoding"] == "identity, gzip, deflate"


def test_very_long_message_is_cut_to_what_clients_accept():
    fields = dict(decode(encode_trailers(GrpcStatus.INTERNAL, "x\n" * 100_000)))

    assert 7000 < len(fields["grpc-message"]) <= 7168


@pytest.mark.parametrize("field", [(b"grpc-timeout", b"soon"), (b"grpc-encoding", b"snappy")])
def test_refused_call_keeps_nothing_alive(field):
    error = parse_call(head(field)).error

    assert error is not None
    assert (error.__traceback__, error.__context__, error.__cause__) == (None, None, None)
