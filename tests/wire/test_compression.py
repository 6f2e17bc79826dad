# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import gzip
import random
import tracemalloc
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytriton.base.errors import InvalidArgumentError, UnsupportedError
from pytriton.protocol.compression import (
    choose_encoding,
    compress,
    decompress,
    decompress_small,
)

LIMIT = 1 << 20


@pytest.mark.parametrize("encoding", ["gzip", "deflate"])
@given(parts=st.lists(st.binary()))
def test_body_survives_the_way_out_and_in(encoding, parts):
    body = b"".join(parts)

    assert decompress(b"".join(compress(parts, encoding)), encoding, LIMIT) == body


def test_compressed_body_is_what_other_programs_read():
    assert gzip.decompress(b"".join(compress([b"a", memoryview(b"bc")], "gzip"))) == b"abc"
    assert zlib.decompress(b"".join(compress([b"a", bytearray(b"bc")], "deflate"))) == b"abc"


def test_identity_is_the_body_itself():
    body = bytearray(b"x")

    assert decompress(body, "identity", 0) is body


@pytest.mark.parametrize("encoding", ["br", "", "GZIP", "gzip, deflate", "x-gzip"])
def test_unknown_encoding_is_refused(encoding):
    with pytest.raises(UnsupportedError, match="Unsupported compression type"):
        decompress(b"x", encoding, LIMIT)


def test_empty_body_is_refused():
    with pytest.raises(InvalidArgumentError, match="nothing to be decompressed"):
        decompress(b"", "gzip", LIMIT)


@pytest.mark.parametrize(
    "body",
    [
        b"plain text",
        gzip.compress(b"x" * 100, mtime=0)[:-10],
        gzip.compress(b"x", mtime=0)[:5],
        b"\x1f\x8b",
        b"\0",
    ],
)
def test_damaged_body_is_refused(body):
    with pytest.raises(InvalidArgumentError, match="expected a request body in gzip format"):
        decompress(body, "gzip", LIMIT)


@pytest.mark.parametrize("size", [LIMIT, LIMIT - 1])
def test_body_up_to_the_limit_passes(size):
    assert len(decompress(gzip.compress(bytes(size)), "gzip", LIMIT)) == size


def test_body_beyond_the_limit_is_refused():
    with pytest.raises(InvalidArgumentError, match=f"maximum allowed value of {LIMIT} bytes"):
        decompress(gzip.compress(bytes(LIMIT + 1)), "gzip", LIMIT)


def test_bomb_costs_no_more_than_the_limit():
    bomb = zlib.compress(bytes(256 << 20), 9)
    tracemalloc.start()
    try:
        with pytest.raises(InvalidArgumentError, match="Decompressed data size exceeds"):
            decompress(bomb, "deflate", LIMIT)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert peak < 8 * LIMIT


def test_large_body_in_many_pieces_survives_the_way_out_and_in():
    body = random.Random(1).randbytes(3 << 20) + bytes(3 << 20)  # hardly and well compressed

    packed = b"".join(compress([memoryview(body)], "gzip")) + b"what follows is ignored"

    assert decompress(packed, "gzip", len(body)) == body


def test_small_body_is_told_from_a_larger_one():
    body = gzip.compress(bytes(1000))

    assert decompress_small(body, "gzip", LIMIT, 1000) == bytes(1000)
    assert decompress_small(body, "gzip", LIMIT, 999) is None


def test_input_is_taken_in_pieces(monkeypatch):
    inputs = []

    class Inflater:
        eof, unconsumed_tail = False, b""

        def decompress(self, data, most):
            inputs.append(len(data))
            self.eof = sum(inputs) == 3 << 20
            return b""

    monkeypatch.setattr(zlib, "decompressobj", lambda wrapper: Inflater())

    assert decompress(bytes(3 << 20), "gzip", LIMIT) == b""
    assert max(inputs) <= 1 << 20


@pytest.mark.parametrize(
    "accepted,chosen",
    [
        ("", "identity"),
        ("gzip", "gzip"),
        ("deflate, gzip", "deflate"),
        ("gzip, deflate", "gzip"),
        ("gzip;q=0.5, deflate;q=0.6", "deflate"),
        ("gzip ; q=0.5 , deflate", "deflate"),
        ("gzip;q=0", "identity"),
        ("gzip;q=", "identity"),
        ("gzip;q=nan", "identity"),
        ("gzip;level=9", "identity"),
        ("br, *", "identity"),
        ("identity, gzip", "identity"),
        ("identity;q=0.1, gzip;q=0.9", "gzip"),
        (",;,;q", "identity"),
    ],
)
def test_highest_weight_wins(accepted, chosen):
    assert choose_encoding(accepted) == chosen
