# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import random

import hpack
import pytest

from pytriton.protocol.grpc import parse_call
from pytriton.protocol.http2 import Http2Limits, encode_header_block
from pytriton.protocol.http2.frames import ConnectionViolation, Http2ErrorCode
from pytriton.protocol.http2.headers import HeaderDecoder, parse_request, trailers_violation
from tests.wire.http2.frame_client import GRPC_HEADERS

GRPC_FIELDS = [(name.encode(), value.encode()) for name, value in GRPC_HEADERS]
PSEUDO = GRPC_FIELDS[:4]


def decoder(**limits) -> HeaderDecoder:
    return HeaderDecoder(Http2Limits(**limits))


def random_fields(source: random.Random) -> list[tuple[str, str]]:
    names = [
        "content-type",
        "x-a",
        "x-long-name-of-a-field",
        "grpc-timeout",
        "user-agent",
        "cookie",
    ]
    return [
        (
            source.choice(names),
            "".join(source.choices("abcXYZ019 %~\u00e9", k=source.randrange(40))),
        )
        for _ in range(source.randrange(12))
    ]


def test_decoder_agrees_with_hpack_on_blocks_of_its_encoder():
    source = random.Random(7541)
    encoder, ours, theirs = hpack.Encoder(), decoder(), hpack.Decoder()
    for _ in range(300):
        if source.random() < 0.1:
            encoder.header_table_size = source.choice([0, 64, 512, 4096])
        block = encoder.encode(random_fields(source), huffman=source.random() < 0.7)
        assert ours.decode(block) == theirs.decode(block, raw=True)


def test_decoder_agrees_with_hpack_on_damaged_blocks():
    source = random.Random(9113)
    encoder = hpack.Encoder()
    outcomes = set()
    for _ in range(2000):
        block = bytearray(encoder.encode(random_fields(source)))
        for _ in range(source.randrange(4)):
            if block:
                block[source.randrange(len(block))] = source.randrange(256)
        block = bytes(block[: source.randrange(len(block) + 1)])
        try:
            expected = hpack.Decoder().decode(block, raw=True)
        except hpack.HPACKError:
            expected = None
        try:
            decoded = decoder().decode(block)
        except ConnectionViolation:
            decoded = None
        assert decoded == expected
        outcomes.add(decoded is None)
    assert outcomes == {True, False}


def test_equal_blocks_share_one_head():
    encoder, subject = hpack.Encoder(), decoder()
    subject.decode_request(encoder.encode(GRPC_HEADERS))
    block = encoder.encode(GRPC_HEADERS)

    first = subject.decode_request(block)

    assert subject.decode_request(block) is first
    assert list(first.fields) == GRPC_FIELDS[4:]


@pytest.mark.parametrize("seed", range(20))
def test_heads_are_those_of_all_their_fields(seed):
    source = random.Random(seed)
    encoder, known = hpack.Encoder(), decoder()
    usual = [*GRPC_HEADERS, ("content-length", "5")]
    extra = [
        *random_fields(source),
        ("te", "trailers"),
        ("te", "no"),
        ("connection", "close"),
        (":path", "/late"),
        ("X", "upper"),
        ("content-length", "6"),
        ("traceparent", " 00-1 "),
    ]
    for _ in range(200):
        fields = usual[source.choice([0, 0, 0, 1]) :] + source.sample(
            extra, source.choice([0, 1, 2])
        )
        marked = [(*field, source.random() < 0.7) for field in fields]
        expected = parse_request([(name.encode(), text.encode()) for name, text in fields])

        head = known.decode_request(encoder.encode(marked))

        for member in ("method", "path", "authority", "fields", "content_length", "violation"):
            assert getattr(head, member) == getattr(expected, member)
        # A call is the same whether it was derived from the head before its metadata or not.
        assert repr(parse_call(head)) == repr(parse_call(expected))


def test_peeked_block_is_decoded_once():
    encoder, known = hpack.Encoder(), decoder()
    block = encoder.encode([*GRPC_HEADERS, ("x-a", "1")])
    again = encoder.encode([*GRPC_HEADERS, ("x-a", "1")])

    head = known.peek_request(block)

    assert known.decode_request(block) is head
    assert known.decode_request(again).fields == head.fields


def test_cached_block_is_decoded_anew_once_the_table_has_changed():
    encoder, subject = hpack.Encoder(), decoder()
    subject.decode_request(encoder.encode([*GRPC_HEADERS, ("x-model", "first")]))
    block = encoder.encode([("x-model", "first")])
    assert subject.decode_request(block).fields == ((b"x-model", b"first"),)

    subject.decode(encoder.encode([("x-model", "second")]))

    assert subject.decode_request(block).fields == ((b"x-model", b"second"),)


def test_cache_is_bounded():
    subject = decoder(cached_header_blocks=4)
    blocks = [encode_header_block([*GRPC_FIELDS, (b"x", b"%d" % number)]) for number in range(50)]
    heads = [subject.decode_request(block) for block in blocks]

    again = [subject.decode_request(block) for block in blocks]

    assert sum(old is new for old, new in zip(heads, again, strict=True)) <= 4


def test_header_list_is_bounded_as_it_grows():
    subject = decoder(max_header_list_bytes=10_000)
    subject.decode(b"\x40\x01x\x7f\xa1\x1e" + b"v" * 4000)  # one large entry of the table ...

    with pytest.raises(ConnectionViolation, match="10000") as caught:
        subject.decode(b"\xbe" * 1000)  # ... named a thousand times

    assert caught.value.code is Http2ErrorCode.ENHANCE_YOUR_CALM


def test_block_may_begin_with_two_table_sizes():
    assert decoder().decode(b"\x20\x3f\xe1\x1f\x88") == [(b":status", b"200")]


@pytest.mark.parametrize(
    "block",
    [
        b"\xff\xff\xff\xff\xff\xff\x01",  # an integer without end
        b"\x80",  # index 0
        b"\xbe",  # an entry of the empty dynamic table
        b"\x3f\xe2\x1f",  # a table larger than allowed
        b"\x88\x20",  # a table size after a field
        b"\x20\x21\x22\x88",  # a third table size
        b"\x00\x85abc",  # a string cut short
        b"\x40",
        b"\x00\x81\x00\x00",  # no Huffman code
    ],
)
def test_undecodable_block_is_a_compression_error(block):
    with pytest.raises(ConnectionViolation) as caught:
        decoder().decode(block)

    assert caught.value.code is Http2ErrorCode.COMPRESSION_ERROR


@pytest.mark.parametrize(
    "fields",
    [
        GRPC_FIELDS,
        [(b":status", b"200"), (b"content-type", b"application/grpc")],
        [(b"grpc-status", b"0"), (b"grpc-message", b"x" * 5000), (b"empty", b"")],
        [(b":path", b"/index.html"), (b"x" * 200, b"\xff\xfe")],
    ],
)
def test_encoded_block_decodes_to_its_fields_and_touches_no_table(fields):
    peer = hpack.Decoder()

    assert peer.decode(encode_header_block(fields), raw=True) == fields
    assert not peer.header_table.dynamic_entries


def test_request_head_has_what_the_fields_say():
    head = parse_request([*GRPC_FIELDS, (b"content-length", b"12")])

    assert head.violation is None
    assert (head.method, head.authority) == ("POST", "localhost:8001")
    assert head.path == "/inference.GRPCInferenceService/ModelInfer"
    assert head.content_length == 12


@pytest.mark.parametrize(
    "fields,reason",
    [
        ([], ":method"),
        (PSEUDO[1:], ":method"),
        ([PSEUDO[0], *PSEUDO[2:]], ":scheme"),
        ([*PSEUDO[:2], PSEUDO[3]], ":path"),
        ([*PSEUDO[:2], (b":path", b"")], ":path"),
        ([*PSEUDO[:2], (b":path", b"v2/health")], ":path"),
        ([*PSEUDO, (b":method", b"POST")], "twice"),
        ([*PSEUDO, (b":status", b"200")], "does not exist"),
        ([*PSEUDO[:3], (b"te", b"trailers"), PSEUDO[3]], "after a regular"),
        ([*PSEUDO[:3], (b":authority", b"a\r\nb")], "forbidden"),
        ([*PSEUDO, (b"Content-Type", b"x")], "lower case"),
        ([*PSEUDO, (b"", b"x")], "lower case"),
        ([*PSEUDO, (b"a b", b"x")], "lower case"),
        ([*PSEUDO, (b"x", b"a\nb")], "forbidden"),
        ([*PSEUDO, (b"x", b"a\0b")], "forbidden"),
        ([*PSEUDO, (b"connection", b"close")], "does not exist in HTTP/2"),
        ([*PSEUDO, (b"transfer-encoding", b"chunked")], "does not exist in HTTP/2"),
        ([*PSEUDO, (b"upgrade", b"h2c")], "does not exist in HTTP/2"),
        ([*PSEUDO, (b":protocol", b"websocket")], "does not exist"),
        ([*PSEUDO[:2], (b":path", b"http://h/v2")], ":path"),
        ([*PSEUDO, (b"te", b"gzip")], "trailers"),
        ([*PSEUDO, (b"content-length", b"1"), (b"content-length", b"2")], "content-length"),
        ([*PSEUDO, (b"content-length", b"-1")], "content-length"),
        ([(b":method", b"CONNECT"), PSEUDO[1], PSEUDO[3]], "CONNECT"),
    ],
)
def test_malformed_request_says_why(fields, reason):
    assert reason in (parse_request(fields).violation or "")


@pytest.mark.parametrize(
    "fields",
    [
        [*PSEUDO, (b"x", b"")],
        [*PSEUDO, (b"x", b"inner space\tand \xc3\xa9")],
        [(b":method", b"CONNECT"), PSEUDO[3]],
        [(b":method", b"OPTIONS"), PSEUDO[1], (b":path", b"*")],
        [*PSEUDO, (b"content-length", b"7"), (b"content-length", b"7")],
    ],
)
def test_unusual_request_is_well_formed(fields):
    assert parse_request(fields).violation is None


def test_blanks_around_a_value_are_stripped():
    head = parse_request([*PSEUDO, (b"x", b" padded\t")])

    assert (head.violation, head.fields) == (None, ((b"x", b"padded"),))
    assert trailers_violation([(b"x", b" padded ")]) is None


def test_trailers_have_no_pseudo_headers():
    assert trailers_violation([(b"x", b"1")]) is None
    assert "':path'" in (trailers_violation([(b"x", b"1"), (b":path", b"/")]) or "")
