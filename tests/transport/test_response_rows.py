# SPDX-License-Identifier: Apache-2.0
"""Small responses in one message: rows for those that are alike, and the order of each request."""

from __future__ import annotations

import random

import pytest

from pytriton.base.dtypes import BYTES, UINT8
from pytriton.base.errors import UnavailableError
from pytriton.runtime.transport.frames import ResponseItem
from pytriton.runtime.transport.response_outbox import MAX_HELD
from pytriton.runtime.transport.response_rows import HeldRows
from tests.response_rows import with_items_only

NUMBER = (("y", UINT8.number, (1,)),)
TEXT = (("y", BYTES.number, (1,)),)
PAIR = (("y", UINT8.number, (1,)), ("z", BYTES.number, (2,)))


def add(outbox, request, structure, *data):
    outbox.add_small(request, structure, list(data), sum(map(len, data)), 1)


def contents(received):
    """What the message says, by request: the bytes of outputs, or None for an end."""
    items = with_items_only(received).frame.items
    said = {}
    for item in items:
        values = [bytes(received.buffer(ref)) for ref in item.outputs or ()]
        said.setdefault((item.batch, item.position), []).append(None if item.is_final else values)
    return said


def test_responses_that_are_alike_are_rows_of_one_record(far):
    for number in range(3):
        add(far.outbox, (1, 0), NUMBER, bytes([number]))
        add(far.outbox, (2, 1), NUMBER, bytes([10 + number]))
    far.outbox.flush()
    received = far.receive()

    assert received.frame.items == []
    assert [burst.count for burst in received.frame.rows.bursts] == [3, 3]
    assert [ref.pieces for ref in received.frame.rows.outputs] == [[]]
    assert contents(received) == {
        (1, 0): [[b"\0"], [b"\1"], [b"\2"]],
        (2, 1): [[b"\12"], [b"\13"], [b"\14"]],
    }


def test_rows_may_differ_in_size(far):
    for text in (b"a", b"", b"long"):
        add(far.outbox, (1, 0), PAIR, b"\7", text)
    far.outbox.flush()
    received = far.receive()

    assert [ref.pieces for ref in received.frame.rows.outputs] == [[], [1, 0, 4]]
    assert contents(received) == {(1, 0): [[b"\7", b"a"], [b"\7", b""], [b"\7", b"long"]]}


def test_responses_without_outputs_are_counted(far):
    for _ in range(3):
        add(far.outbox, (1, 0), ())
    far.outbox.flush()

    assert contents(far.receive()) == {(1, 0): [[], [], []]}


def test_end_follows_the_rows_of_its_request(far):
    add(far.outbox, (1, 0), NUMBER, b"a")
    far.outbox.add(lambda payload: [ResponseItem(1, 0)], 1)
    add(far.outbox, (2, 0), NUMBER, b"b")
    far.outbox.flush()

    assert contents(far.receive()) == {(1, 0): [[b"a"], None], (2, 0): [[b"b"]]}


def test_message_is_sent_when_it_has_enough_responses(far):
    for _ in range(MAX_HELD - 1):
        add(far.outbox, (1, 0), NUMBER, b"a")
        assert not far.outbox.is_full
    far.outbox.respond_small((1, 0), NUMBER, [b"b"], 1, 1, at_once=False)

    (values,) = contents(far.receive()).values()
    assert values == [[b"a"]] * (MAX_HELD - 1) + [[b"b"]]
    assert len(far.outbox) == 0


def test_message_is_sent_when_it_has_enough_bytes(far):
    add(far.outbox, (1, 0), NUMBER, bytes(31 << 10))
    assert not far.outbox.is_full
    add(far.outbox, (1, 0), NUMBER, bytes(2 << 10))

    assert far.outbox.is_full


def test_rows_are_sent_on_their_own_if_they_cannot_be_together(far, monkeypatch):
    def record(self, payload):
        raise UnavailableError("no room")

    monkeypatch.setattr(HeldRows, "record", record)
    for number in range(3):
        add(far.outbox, (1, 0), NUMBER, bytes([number]))
    far.outbox.add(lambda payload: [ResponseItem(1, 0)], 1)
    far.outbox.flush()

    said = [contents(far.receive())[1, 0] for _ in range(4)]
    assert said == [[[b"\0"]], [[b"\1"]], [[b"\2"]], [None]]


@pytest.mark.parametrize("seed", range(50))
def test_each_request_keeps_its_order_whatever_its_responses_are(far, seed):
    source = random.Random(seed)
    expected: dict[tuple[int, int], list] = {}
    got: dict[tuple[int, int], list] = {}
    requests = [(1, 0), (1, 1), (2, 0)]
    sent = 0

    def receive():
        for request, values in contents(far.receive()).items():
            got.setdefault(request, []).extend(values)

    for _ in range(60):
        request = source.choice(requests)
        structure = source.choice([NUMBER, NUMBER, NUMBER, TEXT, PAIR])
        data = [source.randbytes(source.randint(0, 3)) for _ in structure]
        add(far.outbox, request, structure, *data)
        expected.setdefault(request, []).append(data)
        sent += 1
        if source.random() < 0.1:
            far.outbox.flush()
            receive()
    far.outbox.flush()
    while sum(map(len, got.values())) < sent:
        receive()

    assert got == expected
