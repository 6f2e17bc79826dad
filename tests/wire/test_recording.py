# SPDX-License-Identifier: Apache-2.0
"""The format of recordings: what is written is read again, also if the file was cut or damaged."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytriton.protocol.recording import (
    MAGIC,
    VERSION,
    Exchange,
    RecordedResponse,
    RecordedTensor,
    RecordingEnd,
    RecordingError,
    RecordingHead,
    RecordReader,
    encode_record,
    redact,
)

NAMES = st.text(max_size=8)
PARAMETERS = st.dictionaries(
    NAMES, st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.text(max_size=8), max_size=3
)
TENSORS = st.builds(
    RecordedTensor,
    NAMES,
    st.sampled_from(["FP32", "BYTES", "INT8"]),
    st.lists(st.integers(0, 5), max_size=3).map(tuple),
    st.binary(max_size=50),
    st.booleans(),
)
RESPONSES = st.builds(
    RecordedResponse,
    st.integers(0, 2**40),
    st.lists(TENSORS, max_size=2),
    PARAMETERS,
    st.none() | NAMES,
    st.integers(0, 7),
)
EXCHANGES = st.builds(
    Exchange,
    number=st.integers(0, 2**32),
    arrived_ns=st.integers(0, 2**62),
    model=NAMES,
    version=NAMES,
    id=NAMES,
    parameters=PARAMETERS,
    priority=st.integers(0, 2**31),
    timeout_us=st.integers(0, 2**62),
    correlation_id=st.integers(0, 2**64 - 1) | NAMES,
    flags=st.integers(0, 3),
    inputs=st.lists(TENSORS, max_size=3),
    outputs=st.none() | st.lists(NAMES, max_size=3),
    is_decoupled=st.booleans(),
    responses=st.lists(RESPONSES, max_size=3),
    ended_ns=st.integers(0, 2**40),
)
RECORDS = st.lists(EXCHANGES, max_size=4).map(
    lambda exchanges: [RecordingHead(server="s"), *exchanges, RecordingEnd(reason="time")]
)


def file_of(records):
    return MAGIC + b"".join([encode_record(record) for record in records])


def exchange(**changes):
    inputs = [RecordedTensor("A", "FP32", (2,), bytes(range(8)))]
    outputs = [RecordedTensor("B", "BYTES", (2,), b"\x03\0\0\0abc\x01\0\0\0d")]
    return Exchange(
        **{
            "arrived_ns": 1,
            "model": "m",
            "inputs": inputs,
            "responses": [RecordedResponse(5, outputs)],
            **changes,
        }
    )


@given(records=RECORDS, size=st.integers(1, 200))
def test_records_are_read_from_pieces_of_any_size(records, size):
    data = file_of(records)
    reader = RecordReader()
    read = [each for at in range(0, len(data), size) for each in reader.feed(data[at : at + size])]

    assert read == records
    assert reader.position == len(data)
    assert reader.rest_bytes == 0


@given(records=RECORDS, data=st.data())
def test_cut_file_is_read_up_to_the_last_whole_record(records, data):
    ends = [len(file_of(records[:count])) for count in range(len(records) + 1)]
    cut = data.draw(st.integers(len(MAGIC), ends[-1]))
    reader = RecordReader()
    read = list(reader.feed(file_of(records)[:cut]))

    whole = max(count for count, end in enumerate(ends) if end <= cut)
    assert read == records[:whole]
    assert reader.position == ends[whole]


@given(data=st.data())
def test_changed_byte_is_found(data):
    whole = file_of([RecordingHead(), exchange(), RecordingEnd(reason="r")])
    place = data.draw(st.integers(0, len(whole) - 1))
    damaged = bytearray(whole)
    damaged[place] ^= data.draw(st.integers(1, 255))
    reader = RecordReader()
    read = []
    try:
        read += reader.feed(damaged)
    except RecordingError:
        found = True
    else:
        found = len(read) < 3  # a length that became larger makes a file that was cut

    assert found


@given(garbage=st.binary(max_size=300))
def test_garbage_is_refused_or_incomplete(garbage):
    reader = RecordReader()
    try:
        read = list(reader.feed(MAGIC + garbage))
    except RecordingError:
        read = []

    assert read == []


def test_file_that_is_no_recording_is_refused():
    with pytest.raises(RecordingError, match="expected a recording"):
        list(RecordReader().feed(b"{"))


def test_later_format_is_refused():
    with pytest.raises(RecordingError, match=f"format {VERSION} or before"):
        list(RecordReader().feed(file_of([RecordingHead(format=VERSION + 1)])))


def test_members_that_a_later_server_adds_are_ignored():
    head = msgspec.msgpack.decode(encode_record(RecordingHead(server="s"))[16:])
    later = msgspec.defstruct(
        "Later", [(name, type(value)) for name, value in head.items() if name != "type"] + [
            ("added", int)
        ], tag="recording",
    )  # fmt: skip
    record = later(**{name: value for name, value in head.items() if name != "type"}, added=1)
    (read,) = RecordReader().feed(MAGIC + encode_record(record))

    assert read == RecordingHead(server="s")


def test_redacted_tensors_have_zeros_of_the_same_size_and_empty_strings():
    secret = exchange(parameters={"B": "secret", "kept": 1})
    bare = redact(secret, {"A", "B"})

    assert bare.inputs == [RecordedTensor("A", "FP32", (2,), bytes(8), is_redacted=True)]
    assert bare.responses[0].outputs == [
        RecordedTensor("B", "BYTES", (2,), bytes(8), is_redacted=True)
    ]
    assert bare.parameters == {"B": "", "kept": 1}
    assert bare.is_redacted
    assert secret.inputs[0].data == bytes(range(8))


def test_nothing_is_redacted_without_names():
    assert redact(exchange(), ()) == exchange()
    assert not redact(exchange(), {"other"}).is_redacted
