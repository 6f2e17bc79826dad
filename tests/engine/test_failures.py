# SPDX-License-Identifier: Apache-2.0
"""Groups of failures: what shares one, what is kept of it, and that all of it is bounded."""

from __future__ import annotations

import pytest

from pytriton.base.dtypes import BYTES, FP32, encode_bytes
from pytriton.base.errors import (
    CancelledError,
    InternalError,
    InvalidArgumentError,
    NotFoundError,
    UnavailableError,
)
from pytriton.base.failure_records import FailureOrigin, origin_of
from pytriton.base.messages import DeviceBytes, InferTensor
from pytriton.runtime.executor.inference import Outcome
from pytriton.serving.engine import failures
from pytriton.serving.engine.engine import Engine, RequestEngine
from pytriton.serving.engine.failures import REFUSED, FailureBook, ModelFailures, normalised
from pytriton.serving.engine.model import Model
from pytriton.serving.engine.stats import FailureReason
from tests.column_rig import ColumnScene
from tests.fakes import FakeClock, FakeInstance, FakeLoop, RecordingSink, inference, model_spec
from tests.fakes import request as make_request

SPEC = model_spec()
NAN = InferTensor("X", FP32, (1, 2), b"\x00\x00\xc0\x7f" * 2)


class Time:
    """A clock that stands still until it is moved."""

    now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock_s():
    return Time()


@pytest.fixture
def book(clock_s):
    return FailureBook(clock_s)


def failing(kind="ValueError", place="model.py:7 execute", message="it failed"):
    error = InternalError(message)
    error.origin = FailureOrigin(kind, place, "Traceback …")
    return error


def fail(book, error, reason="BACKEND", spec=SPEC, **fields):
    book.add(spec, inference(**fields), error, reason)


@pytest.mark.parametrize(
    "message, place",
    [
        ("unexpected input 'Y' for model 'm'", "unexpected input '…' for model '…'"),
        ("got shape [1,2,3] at 17 ms", "got shape […] at … ms"),
        ("no memory for 7f3a-11 of client 10.0.0.1:8000", "no memory for … of client …"),
        ("first line\nsecond line", "first line"),
        ("[request id: mine] no room for 'x'", "no room for '…'"),
        ("", ""),
    ],
)  # fmt: skip
def test_message_loses_what_differs_from_request_to_request(message, place):
    assert normalised(message) == place


def test_origin_has_the_class_and_the_users_frame():
    with pytest.raises(KeyError) as caught:
        {}["missing"]

    origin = origin_of(caught.value)

    assert origin is not None
    assert origin.kind == "KeyError"
    assert origin.place.startswith(f"{__file__}:")
    assert origin.place.endswith(" test_origin_has_the_class_and_the_users_frame")
    assert origin.traceback.endswith("KeyError: 'missing'")


def test_origin_of_our_own_error_is_the_one_that_it_has():
    error = failing()

    assert origin_of(error) is error.origin
    assert origin_of(InternalError("no room")) == FailureOrigin("Internal")


def test_failures_of_one_kind_and_place_share_a_group(book, clock_s):
    fail(book, failing(message="row 1"), id="first")
    clock_s.now_s += 5
    fail(book, failing(message="row 2"), id="second")
    fail(book, failing(kind="KeyError"))
    fail(book, failing(place="model.py:9 execute"))

    newest, _, oldest = book.listed()
    record = oldest.record
    assert (record.model, record.version, record.kind) == ("m", 1, "ValueError")
    assert (record.place, record.reason) == ("model.py:7 execute", "BACKEND")
    assert (record.count, record.first_s, record.last_s) == (2, 1000, 1005)
    assert (record.example.request_id, record.example.message) == ("second", "row 2")
    assert record.example.traceback == "Traceback …"
    assert newest.record.place == "model.py:9 execute"


def test_errors_without_a_place_share_a_group_by_their_words(book):
    for number in range(50):
        fail(book, UnavailableError(f"no memory for {number} bytes of '{number}'"))

    (group,) = book.listed()
    assert (group.record.kind, group.record.count) == ("Unavailable", 50)
    assert group.record.place == "no memory for … bytes of '…'"


def test_example_has_names_types_and_shapes_but_no_contents(book):
    fail(book, failing(), inputs={"X": NAN})

    (group,) = book.listed()
    (described,) = group.record.example.inputs
    assert (described.name, described.datatype, described.shape) == ("X", "FP32", (1, 2))
    assert group.kept is None


def test_examples_are_not_renewed_for_each_of_many_failures(book, clock_s):
    for number in range(3):
        fail(book, failing(), id=str(number))
    before = book.listed()[0].record.example.request_id
    clock_s.now_s += 1
    fail(book, failing(), id="later")

    assert before == "0"
    assert book.listed()[0].record.example.request_id == "later"


def test_examples_of_refusals_are_not_renewed_for_each_of_many(book, clock_s):
    for number in range(3):
        book.add_refusal(SPEC, "m", f"r{number}", NotFoundError(f"no model {number}"))
    (group,) = book.listed()
    first = group.record.example.request_id
    clock_s.now_s += failures.EXAMPLE_EVERY_S
    book.add_refusal(SPEC, "m", "later", NotFoundError("no model 4"))

    assert (first, group.record.count) == ("r0", 4)
    assert group.record.example.request_id == "later"


def test_example_with_a_traceback_is_kept_until_there_is_another_one(book, clock_s):
    fail(book, failing(message="whole"))
    bare = failing(message="bare")
    bare.origin = FailureOrigin("ValueError", "model.py:7 execute")
    clock_s.now_s += 1
    fail(book, bare)

    (group,) = book.listed()
    assert (group.record.count, group.record.example.message) == (2, "whole")


def test_tracebacks_are_not_written_for_each_of_many_failures(monkeypatch):
    now_s = [1000.0]
    monkeypatch.setattr("pytriton.base.failure_records.time.monotonic", lambda: now_s[0])
    errors = []
    for text in ("first", "again", "later"):
        with pytest.raises(ValueError, match=text) as caught:
            raise ValueError(text)
        errors.append(caught.value)

    first, again = origin_of(errors[0]), origin_of(errors[1])
    now_s[0] += 1
    later = origin_of(errors[2])

    assert first is not None
    assert again is not None
    assert later is not None
    assert first.place == again.place == later.place
    assert first.traceback.endswith("ValueError: first")
    assert again.traceback == ""
    assert later.traceback.endswith("ValueError: later")


def test_tracebacks_are_not_written_for_each_of_failures_at_two_places_in_turns(monkeypatch):
    monkeypatch.setattr("pytriton.base.failure_records.time.monotonic", lambda: 1e6)
    monkeypatch.setattr("pytriton.base.failure_records._written_s", {})
    with_traceback = []
    for kind in (ValueError, KeyError) * 3:
        with pytest.raises(kind) as caught:
            raise kind("wrong")
        with_traceback.append(bool(origin_of(caught.value).traceback))

    assert with_traceback == [True, True, False, False, False, False]


def test_inputs_are_kept_of_the_next_failure_only_if_somebody_asks(book):
    fail(book, failing(), inputs={"X": NAN}, id="before")
    (group,) = book.listed()
    book.keep_inputs(group, is_wanted=True)
    words = InferTensor("W", BYTES, (1,), encode_bytes([b"secret"]))

    fail(book, failing(kind="KeyError"), inputs={"X": NAN})
    assert group.kept is None
    fail(book, failing(), inputs={"X": NAN, "W": words}, id="asked")
    fail(book, failing(), inputs={"W": words}, id="after")

    assert group.kept is not None
    assert not group.awaits_inputs
    assert [each.data for each in group.kept.inputs] == [NAN.data, words.data]
    book.keep_inputs(group, is_wanted=False)
    assert group.kept is None


def test_kept_inputs_have_a_limit(book, monkeypatch):
    monkeypatch.setattr(failures, "MAX_KEPT_BYTES", 10)
    fail(book, failing())
    (group,) = book.listed()
    book.keep_inputs(group, is_wanted=True)

    fail(book, failing(), inputs={name: InferTensor(name, FP32, (2,), bytes(8)) for name in "XYZ"})

    assert group.kept is not None
    assert [(len(each.data), each.is_cut) for each in group.kept.inputs] == [
        (8, False), (2, True), (0, True)
    ]  # fmt: skip


def test_kept_input_in_gpu_memory_is_not_shown_as_an_empty_one(book):
    fail(book, failing())
    (group,) = book.listed()
    book.keep_inputs(group, is_wanted=True)

    fail(book, failing(), inputs={"X": InferTensor("X", FP32, (2,), DeviceBytes.of_size(8))})

    assert group.kept is not None
    assert [(each.data, each.is_cut) for each in group.kept.inputs] == [(b"", True)]


def test_only_some_groups_may_keep_inputs(book, monkeypatch):
    monkeypatch.setattr(failures, "MAX_KEPT_GROUPS", 2)
    for number in range(3):
        fail(book, failing(kind=f"Error{number}"))
        book.keep_inputs(book.listed()[0], is_wanted=True)

    assert [group.awaits_inputs for group in book.listed()] == [True, True, False]


def test_group_with_the_oldest_failure_goes_first(book, monkeypatch):
    monkeypatch.setattr(failures, "MAX_GROUPS", 3)
    for kind in "abcadb":
        fail(book, failing(kind=kind))

    assert [group.record.kind for group in book.listed()] == ["b", "d", "a"]


def test_refusals_do_not_drive_out_failures_of_models(book, monkeypatch):
    monkeypatch.setattr(failures, "MAX_REFUSED_GROUPS", 4)
    fail(book, failing())
    for letter in "abcdefghijklmnopqrstuvwxyz":
        book.add_refusal(SPEC, "m", "", InvalidArgumentError(f"no {letter * 3}"))

    kinds = [group.record.kind for group in book.listed()]
    assert kinds == ["Invalid argument"] * 4 + ["ValueError"]


def test_everything_that_a_client_sends_is_cut(book):
    many = {f"X{n}" * 200: InferTensor(f"X{n}" * 200, FP32, (1,) * 500, b"") for n in range(40)}
    fail(book, InvalidArgumentError("long " * 10_000), id="i" * 10_000, inputs=many)
    fail(book, failing(kind="K" * 1000, place="p" * 1000))

    named, plain = book.listed()
    example = plain.record.example
    assert len(plain.record.place) <= 300
    assert len(example.message) < 2100
    assert len(example.request_id) == 200
    assert (len(example.inputs), example.more_inputs) == (16, 24)
    assert len(example.inputs[0].name) == 200
    assert len(example.inputs[0].shape) == 16
    assert (len(named.record.kind), len(named.record.place)) == (200, 300)


def test_names_that_are_no_texts_can_be_sent(book):
    book.add_refusal(None, "m\udcff", "i\udcff", NotFoundError("no model 'm\udcff' \udcff"))

    example = book.listed()[0].record.example
    assert (example.model, example.request_id) == ("m\\udcff", "i\\udcff")
    assert "\udcff" not in book.listed()[0].record.place


def test_cancellation_without_a_message_says_what_it_is(book):
    fail(book, CancelledError(""), "CANCELED")

    assert book.listed()[0].record.place == "the client cancelled the request"


def test_groups_of_another_process_are_added(book, clock_s):
    theirs = FailureBook(clock_s)
    told = []
    theirs.on_added = lambda: told.append(len(theirs))
    book.add_refusal(SPEC, "m", "", InvalidArgumentError("no 'a'"))
    clock_s.now_s += 1
    theirs.add_refusal(SPEC, "m", "theirs", InvalidArgumentError("no 'b'"))
    theirs.add_refusal(None, "x", "", NotFoundError("no 'x'"))

    for group in theirs.take():
        book.merge(group)

    unknown, known = book.listed()
    assert (known.record.count, known.record.example.request_id) == (2, "theirs")
    assert (known.record.first_s, known.record.last_s) == (1000, 1001)
    assert (unknown.record.model, unknown.record.count) == ("", 1)
    assert book.unknown_refusals == 1
    assert (len(theirs), told) == (0, [1, 2])


# In an engine


@pytest.fixture
def served():
    """An engine with a model whose queue has room for one request."""
    engine, loop = Engine(), FakeLoop(FakeClock())
    model = Model(model_spec(batches=False), loop)
    model.add_instance(FakeInstance("i", model))
    engine.add(model)
    engine.set_ready(model)
    return engine, model, model.instances[0], loop


def test_error_of_an_instance_is_noted_with_its_origin(served):
    engine, model, instance, loop = served
    engine.infer(make_request(id="mine"), RecordingSink())
    loop.run()

    instance.report(instance.batches[0], [Outcome(0, None, failing())])

    (group,) = engine.failures.listed()
    assert (group.record.model, group.record.kind, group.record.reason) == (
        "m", "ValueError", "BACKEND",
    )  # fmt: skip
    assert group.record.example.request_id == "mine"
    assert model.statistics.failures[FailureReason.BACKEND] == 1
    assert model.statistics.refused == 0


def test_refused_requests_are_noted_and_counted_where_they_have_a_model(served):
    engine, model, _, _ = served
    known, unknown = RecordingSink(), RecordingSink()

    engine.infer(make_request(inputs={"X": NAN}), known)
    engine.infer(make_request(model_name="other"), unknown)
    engine.report_refusal("m", "", "unread", InvalidArgumentError("no JSON"))

    unread, missing, wrong = engine.failures.listed()
    assert model.statistics.refused == 2
    assert engine.failures.unknown_refusals == 1
    assert (missing.record.model, missing.record.example.model) == ("", "other")
    assert (wrong.record.model, wrong.record.reason) == ("m", REFUSED)
    assert wrong.record.example.inputs[0].name == "X"
    assert unread.record.example.request_id == "unread"


def test_groups_of_front_ends_count_for_their_models(served):
    engine, model, _, _ = served
    front_end = RequestEngine()
    front_end.add(model)
    front_end.report_refusal("m", "", "", InvalidArgumentError("no JSON"))
    front_end.report_refusal("gone", "", "", NotFoundError("no 'gone'"))

    engine.add_refusals(front_end.failures.take())

    assert model.statistics.refused == 1
    assert engine.failures.unknown_refusals == 1
    assert len(engine.failures) == 2


def test_requests_that_succeed_leave_nothing(served):
    engine, model, instance, loop = served
    engine.infer(make_request(), RecordingSink())
    loop.run()
    instance.finish()

    assert model.statistics.success_count == 1
    assert len(engine.failures) == 0


def test_member_of_a_chunk_has_its_own_rows(clock):
    scene = ColumnScene(clock, max_batch_size=8)
    book = FailureBook()
    scene.model.statistics.recent = ModelFailures(book, scene.model.spec)
    scene.submit_chunk([1, 2])
    scene.instance.fail()
    (group,) = book.listed()
    book.keep_inputs(group, is_wanted=True)

    scene.submit_chunk([1, 2])
    scene.instance.fail()

    assert group.record.count == 4
    assert group.kept is not None
    assert [each.described.name for each in group.kept.inputs] == ["x", "y"]
    assert group.kept.inputs[0].described.shape[0] == 1
    assert all(each.data and not each.is_cut for each in group.kept.inputs)
