# SPDX-License-Identifier: Apache-2.0
"""Batches that the C part executes, those that Python adopts from it, and that both are equal."""

from __future__ import annotations

import ctypes
import random
import re
import struct

import pytest

from pytriton.base.dtypes import BYTES, FP32, INT32
from pytriton.base.errors import InternalError
from pytriton.runtime.native_backend.memory import text
from pytriton.runtime.native_backend.outputs import NOT_ANSWERED
from pytriton.runtime.transport.frames import (
    BatchFailure,
    BatchResult,
    RequestDetails,
    ResponsesFrame,
)
from pytriton.runtime.transport.payload import INLINE_TENSOR_BYTES
from tests.native_backend import building
from tests.native_backend.plain_rig import FINAL, OUTPUTS, PlainRig, facts, read_inputs

pytestmark = pytest.mark.skipif(bool(building.missing()), reason=building.missing())

RESCHEDULE = 2


def numbers(*values):
    return struct.pack(f"<{len(values)}i", *values)


def column(*values):
    """An input x with a row for each value."""
    return {"x": (INT32, (len(values), 1), numbers(*values))}


def identity(rig, handles):
    for handle in handles:
        _, shape, data = facts(handle)["x"]
        rig.answer(handle, INT32, shape, data)


def tensors(sent):
    """The outputs of the only frame, a BatchResult: name, shape and bytes."""
    ((frame, message),) = sent
    assert isinstance(frame, BatchResult), frame
    return [
        (ref.name, ref.shape, message[ref.offset : ref.offset + ref.size]) for ref in frame.outputs
    ]


# Plain batches


@pytest.mark.parametrize("rows", [[1], [3], [1, 1, 1], [2, 1, 4]])
def test_plain_batch_is_answered_without_a_call_of_python(rows):
    rig = PlainRig(identity)
    for first in (0, 100):
        values = range(first, first + sum(rows))
        sent = rig.run(rows, column(*values))

        assert tensors(sent) == [("y", (sum(rows), 1), numbers(*values))]
    assert rig.python_calls == {}
    assert not rig.open


def test_model_without_batches_has_one_request_with_its_whole_tensor():
    rig = PlainRig(identity, is_batching=False)
    sent = rig.run([1], {"x": (INT32, (2, 2), numbers(1, 2, 3, 4))})

    assert tensors(sent) == [("y", (2, 2), numbers(1, 2, 3, 4))]
    assert rig.python_calls == {}


def test_requests_have_their_part_of_strings():
    seen = []
    parts = [b"\1\0\0\0a\0\0\0\0", b"\3\0\0\0bcd\0\0\0\0"]

    def execute(rig, handles):
        seen.extend(facts(handle)["x"] for handle in handles)
        for handle in handles:
            rig.answer(handle, INT32, (1, 1), numbers(0))

    rig = PlainRig(execute)
    rig.run([1, 1], {"x": (BYTES, (2, 2), b"".join(parts))})

    assert seen == [("BYTES", (1, 2), part) for part in parts]
    assert rig.python_calls == {}


def test_strings_that_are_longer_than_their_tensor_are_refused():
    rig = PlainRig(lambda rig, handles: pytest.fail("it must not be called"))
    ((frame, _),) = rig.run([1, 1], {"x": (BYTES, (2, 1), struct.pack("<II", 0, 9))})

    assert isinstance(frame, BatchFailure)
    assert "expected elements within 8 bytes" in frame.error


def test_strings_of_an_answer_are_cut_by_their_sizes():
    def execute(rig, handles):
        for handle in handles:
            letters = b"a" * read_inputs(handle)[0]
            rig.answer(handle, BYTES, (1, 1), struct.pack("<I", len(letters)) + letters)

    rig = PlainRig(execute)
    ((frame, message),) = rig.run([1, 1, 1], column(2, 0, 1))

    assert frame.outputs[0].pieces == [6, 4, 5]
    assert message[:15] == b"\2\0\0\0aa\0\0\0\0\1\0\0\0a"
    assert rig.python_calls == {}


def test_descriptions_of_requests_are_in_their_records():
    seen = []

    def execute(rig, handles):
        seen.extend(facts(handle) for handle in handles)
        identity(rig, handles)

    rig = PlainRig(execute)
    details = {1: RequestDetails(flags=1, timeout_us=7)}
    for outputs in ({2: ["z"]}, {0: ["z", "y"], 1: ["z", "y"], 2: ["z", "y"]}):
        rig.run([1, 1, 1], column(1, 2, 3), ids={0: "first"}, details=details, outputs=outputs)
    rig.run([1], column(1))

    every, swapped = list(OUTPUTS), ["z", "y"]
    assert [each["outputs"] for each in seen] == [every, every, ["z"], *[swapped] * 3, every]
    assert [each["id"] for each in seen] == ["first", "", ""] * 2 + [""]
    assert [(each["flags"], each["timeout"]) for each in seen[:3]] == [(0, 0), (1, 7), (0, 0)]
    assert rig.python_calls == {}


def test_functions_that_only_read_a_request_leave_its_batch_plain():
    notes = []

    def execute(rig, handles):
        place = (ctypes.c_uint64 * 3)()
        first = ctypes.addressof(place)
        for handle in handles:
            for name, *arguments in (
                ("RequestInput", b"missing", first),
                ("RequestCorrelationId", first),
                ("RequestTrace", first),
                ("RequestParameter", 0, first, first + 8, first + 16),
            ):
                notes.append(rig.call(name, handle, *arguments))
            notes.append(text(place[0]))
        identity(rig, handles)

    rig = PlainRig(execute)
    parameters = {0: {"color": 1}, 1: {"taste": "sour"}}
    details = {1: RequestDetails(correlation_id="seven")}
    tensors(rig.run([1, 1], column(1, 2), parameters=parameters, details=details, ids={1: "b"}))

    assert notes == [
        "Invalid argument: [request id: <id_unknown>] unknown request input name missing",
        *[None] * 3,
        "color",
        "Invalid argument: [request id: b] unknown request input name missing",
        "Invalid argument: [request id: b] correlation ID in request is not an unsigned int",
        *[None] * 2,
        "taste",
    ]
    assert not [name for name in rig.python_calls if "Response" in name or "Release" in name]


def test_large_outputs_are_written_to_memory_of_python():
    size = INLINE_TENSOR_BYTES // 4

    def execute(rig, handles):
        for number, handle in enumerate(handles):
            rig.answer(handle, INT32, (1, size), numbers(number) * size)

    rig = PlainRig(execute)
    sent = rig.run([1, 1], column(1, 2))

    assert tensors(sent) == [("y", (2, size), numbers(0) * size + numbers(1) * size)]
    assert rig.python_calls == {}


def test_lack_of_memory_is_the_error_of_the_function():
    texts = []

    def execute(rig, handles):
        output = rig.add_output(rig.new_response(handles[0]), "y", INT32, (1, 1))
        rig.outbox.lacks_memory = True
        texts.append(rig.write(output, bytes(INLINE_TENSOR_BYTES + 4)))
        rig.faults.clear()

    PlainRig(execute).run([1], column(1))

    (words,) = texts
    assert "TRITONBACKEND_OutputBuffer failed: MemoryError: no memory for 32772 bytes" in words


def test_memory_of_outputs_does_not_show_what_was_there_before():
    written = [numbers(7, 7), b""]

    def execute(rig, handles):
        response = rig.new_response(handles[0])
        output = rig.add_output(response, "y", INT32, (1, 2))
        place = (ctypes.c_uint64 * 3)()
        first = ctypes.addressof(place)
        rig.call("OutputBuffer", output, first, 8, first + 8, first + 16)
        ctypes.memmove(place[0], written[0], len(written.pop(0)))
        rig.send(response)
        rig.release(handles[0])

    rig = PlainRig(execute)
    rig.run([1], column(1))

    assert tensors(rig.run([1], column(1))) == [("y", (1, 2), bytes(8))]


# Batches that Python adopts


def items(sent):
    ((frame, _),) = sent
    assert isinstance(frame, ResponsesFrame), frame
    return [(item.position, item.error) for item in frame.items]


def test_response_with_a_parameter_is_adopted_with_its_outputs():
    def execute(rig, handles):
        responses = [rig.new_response(handle) for handle in handles]
        for number, response in enumerate(responses):
            assert rig.write(rig.add_output(response, "y", INT32, (1, 1)), numbers(number)) is None
        assert rig.send(responses[0]) is None
        assert rig.call("ResponseSetIntParameter", responses[1], b"p", 5) is None
        assert rig.send(responses[1]) is None
        for handle in handles:
            assert rig.release(handle) is None

    rig = PlainRig(execute)
    ((frame, message),) = rig.run([1, 1], column(1, 2))

    assert [item.parameters for item in frame.items] == [None, {"p": 5}]
    assert [message[ref.offset :][: ref.size] for item in frame.items for ref in item.outputs] == [
        numbers(0),
        numbers(1),
    ]
    assert not rig.open
    assert not len(rig.requests.live)


def test_thread_of_the_backend_answers_after_the_function_has_returned():
    rig = PlainRig(lambda rig, handles: kept.extend(handles))
    kept: list[int] = []
    ((frame, _),) = rig.run([1, 1], column(1, 2))
    assert frame.items == []
    for number, handle in enumerate(kept):
        assert read_inputs(handle) == numbers(number + 1)
        rig.answer(handle, INT32, (1, 1), numbers(number))

    assert [each.position for each, _ in rig.outbox.sent[1:]] == [0, 1]
    assert not rig.open


def test_memory_of_an_adopted_batch_is_used_again_when_its_last_request_has_ended():
    kept: list[int] = []

    def execute(rig, handles):
        seen.append(handles[0])
        if len(seen) == 1:
            kept.extend(handles)
        else:
            identity(rig, handles)

    seen: list[int] = []
    rig = PlainRig(execute)
    rig.run([1, 1], column(1, 2))
    rig.run([1, 1], column(3, 4))
    identity(rig, kept[:1])
    rig.run([1, 1], column(5, 6))
    assert read_inputs(kept[1]) == numbers(2)
    identity(rig, kept[1:])
    rig.run([1, 1], column(7, 8))

    assert seen[1] == seen[2] != seen[0]
    assert seen[3] == seen[0]


def test_error_of_the_function_answers_the_batch():
    def execute(rig, handles):
        rig.release(handles[0])
        return rig.errors.new(3, "no")

    rig = PlainRig(execute)
    ((frame, _),) = rig.run([1, 1], column(1, 2))

    assert (frame.error, frame.error_code) == ("no", 3)
    assert not len(rig.requests.live)
    assert not rig.open


def test_request_without_a_response_fails():
    def execute(rig, handles):
        identity(rig, handles[:1])
        rig.release(handles[1])

    assert items(PlainRig(execute).run([1, 1], column(1, 2))) == [(0, None), (1, NOT_ANSWERED)]


def test_handles_of_an_earlier_batch_are_refused():
    texts = []
    old: list[int] = []

    def execute(rig, handles):
        for handle in old:
            texts.append(rig.send(handle))
            texts.append(rig.write(handle + 1, numbers(1)))
        response = rig.new_response(handles[0])
        old.append(response)
        output = rig.add_output(response, "y", INT32, (1, 1))
        assert rig.write(output, numbers(5)) is None
        assert rig.send(response) is None
        assert rig.release(handles[0]) is None

    rig = PlainRig(execute)
    rig.run([1], column(1))
    sent = rig.run([1], column(1))

    assert [re.sub("0x[0-9a-f]+", "0x", each) for each in texts] == [
        "Invalid argument: expected a handle of a response, got 0x",
        "Invalid argument: expected a handle of an output, got 0x",
    ]
    assert tensors(sent) == [("y", (1, 1), numbers(5))]


# Both ways do the same: random backends, whose steps are drawn from a seed


class RandomBackend:
    """Does the same with each rig, and notes what it got."""

    def __init__(self, seed):
        self._random = random.Random(seed)
        self.notes = []
        self._late = []
        self._released = set()

    def execute(self, rig, handles):
        self._rig = rig
        self._released -= set(handles)
        self.notes.append([facts(handle) for handle in handles])
        self._responses: list[tuple[int, int, list[int]]] = []  # with its request and outputs
        self._wildness = self._random.choice([0, 0, 0.02, 0.1, 0.4])
        for handle in handles:
            self._answer(handle)
            for _ in range(3):
                if self._draws():
                    self._do_something(handles)
        late = [handle for handle in handles if self._draws(0.5)]
        for handle in handles:
            if handle not in late:
                self._call("RequestRelease", handle, RESCHEDULE if self._draws() else 1)
        if self._draws(0.3):
            return rig.errors.new(2, "failed")
        self._late += late
        return 0

    def finish(self):
        """End the requests that were kept and not released, whose records are used again."""
        for handle in self._late:
            if handle in self._released:
                continue
            self._answer(handle)
            self._call("RequestRelease", handle, 1)

    def _draws(self, factor=1.0):
        return self._random.random() < self._wildness * factor

    def _note(self, words):
        self.notes.append(words and re.sub("0x[0-9a-f]+", "0x", words))

    def _call(self, name, *arguments):
        call = self._rig.call_in_thread if self._draws(0.2) else self._rig.call
        words = call(name, *arguments)
        self._note(words)
        if name == "RequestRelease" and words is None:
            self._released.add(arguments[0])
        return words is None

    def _answer(self, handle):
        place = ctypes.c_uint64()
        if not self._call("ResponseNew", ctypes.addressof(place), handle):
            return
        response = place.value
        entry = (handle, response, [])
        self._responses.append(entry)
        for name in OUTPUTS if not self._draws() else self._random.choices([*OUTPUTS, "q"], k=2):
            self._add_output(entry, name)
        if not self._draws(0.3):
            error = self._rig.errors.new(1, "bad") if self._draws(0.3) else 0
            self._call("ResponseSend", response, 0 if self._draws(0.3) else FINAL, error)

    def _add_output(self, entry, name):
        handle, response, outputs = entry
        dtype, shape, data = facts(handle)["x"]
        number = {"INT32": INT32, "FP32": FP32, "BYTES": BYTES}[dtype].number
        if self._draws(0.3):
            shape = (*shape, self._random.choice([0, 1, 2, -1]))
        if self._draws(0.2):
            number = self._random.choice([0, -1, 15, 99, 11])
        if self._draws(0.3):
            data = data[: self._random.randrange(len(data) + 1)]
        if self._draws(0.2):
            data *= INLINE_TENSOR_BYTES // max(1, len(data))
        place, extents = ctypes.c_uint64(), (ctypes.c_int64 * max(1, len(shape)))(*shape)
        arguments = (name.encode(), number, ctypes.addressof(extents), len(shape))
        if not self._call("ResponseOutput", response, ctypes.addressof(place), *arguments):
            return
        outputs.append(place.value)
        for _ in range(2 if self._draws(0.2) else 1):
            if not self._draws(0.2):
                self._write(place.value, data)

    def _write(self, output, data):
        place = (ctypes.c_uint64 * 3)()
        first = ctypes.addressof(place)
        if self._call("OutputBuffer", output, first, len(data), first + 8, first + 16):
            ctypes.memmove(place[0], data, len(data))

    def _do_something(self, handles):
        handle = self._random.choice(handles)
        _, response, outputs = self._random.choice(self._responses or [(0, 0, [])])
        place = (ctypes.c_uint64 * 3)()
        first = ctypes.addressof(place)
        name, *arguments = self._random.choice(
            [
                ("ResponseSetIntParameter", response, b"p", 1),
                ("ResponseDelete", response),
                ("ResponseSend", response, FINAL, 0),
                ("ResponseSend", 0, FINAL, 0),
                ("RequestRelease", handle, self._random.choice([0, 1, 2])),
                ("RequestRelease", handle + 8, 1),
                ("ResponseNew", first, handle),
                ("ResponseNew", first, self._random.choice([0, handle + 64, 1 << 62])),
                ("RequestCorrelationId", handle, first),
                ("RequestInput", handle, b"missing", first),
                ("RequestParameter", handle, 0, first, first + 8, first + 16),
                ("RequestInputCount", handle, first),
                ("RequestOutputCount", handle, first),
                (
                    "OutputBuffer",
                    self._random.choice([0, *outputs]),
                    first,
                    4,
                    first + 8,
                    first + 16,
                ),
            ]
        )
        self._call(name, *arguments)


def random_batch(seed):
    source = random.Random(seed)
    rows = [source.choice([1, 1, 1, 2, 3]) for _ in range(source.choice([1, 1, 2, 5]))]
    if source.random() < 0.3:
        strings = [source.randbytes(source.randrange(4)) for _ in range(sum(rows))]
        data = b"".join(struct.pack("<I", len(each)) + each for each in strings)
        inputs = {"x": (BYTES, (sum(rows), 1), data)}
    else:
        inputs = {"x": (FP32, (sum(rows), 2), source.randbytes(8 * sum(rows)))}
    positions = range(len(rows))
    fields = {}
    if source.random() < 0.3:
        fields["ids"] = {each: f"id{each}" for each in positions if source.random() < 0.7}
    if source.random() < 0.2:
        fields["outputs"] = {each: source.choices(["y", "z", "s"], k=2) for each in positions}
    if source.random() < 0.1:
        fields["parameters"] = {each: {"a": 1} for each in positions}
    if source.random() < 0.1:
        fields["details"] = {0: RequestDetails(flags=3, correlation_id=9)}
    return rows, inputs, fields


def described(sent):
    """What was sent, without the times."""
    found = []
    for frame, message in sent:
        if isinstance(frame, BatchResult):
            found.append(("result", refs(frame.outputs, message)))
        elif isinstance(frame, ResponsesFrame):
            listed = [item_facts(item, message) for item in frame.items]
            found.append(("responses", frame.returned_batch, listed))
        elif isinstance(frame, BatchFailure):
            found.append(("failure", frame.error, frame.error_code))
        else:
            found.append(("late", item_facts(frame, message)))
    return found


def refs(outputs, message):
    return [
        (ref.name, ref.dtype, ref.shape, ref.pieces, message[ref.offset : ref.offset + ref.size])
        for ref in outputs or ()
    ]


def item_facts(item, message):
    tensors = refs(item.outputs, message)
    return item.position, tensors, item.is_final, item.error, item.parameters, item.is_rescheduled


def outcome(seed, *, is_plain):
    """What a random backend got and sent, in a few batches; how often Python was called."""
    found = []
    backend = RandomBackend(seed)
    rig = PlainRig(backend.execute, is_plain=is_plain)
    for number in range(3):
        rows, inputs, fields = random_batch(seed * 10 + number)
        found.append(described(rig.run(rows, inputs, **fields)))
    backend.finish()
    found.append(described(rig.outbox.sent))
    assert len(rig.requests.live) == 0
    return found, backend.notes, sum(rig.python_calls.values())


def test_backends_get_and_send_the_same_in_both_ways():
    plain_calls = usual_calls = 0
    for seed in range(150):
        *usual, usual_count = outcome(seed, is_plain=False)
        *plain, plain_count = outcome(seed, is_plain=True)

        assert plain == usual, f"seed {seed}"
        plain_calls += plain_count
        usual_calls += usual_count
    assert 0 < plain_calls < usual_calls / 2


def test_exception_in_python_is_an_error_of_the_function():
    def execute(rig, handles):
        response = rig.new_response(handles[0])
        assert rig.send(response, error=12345) is not None  # it is no error
        rig.faults.clear()
        rig.release(handles[0])

    ((frame, _),) = PlainRig(execute).run([1], column(1))

    assert [item.error for item in frame.items] == [InternalError(NOT_ANSWERED).message]
