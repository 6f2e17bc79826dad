# SPDX-License-Identifier: Apache-2.0
"""Answers of an instance that concern several batches: what happens to one harms no other."""

from __future__ import annotations

import contextlib
import time
import types

import pytest

from pytriton.base.dtypes import BYTES, FP32, UINT8
from pytriton.base.errors import UNEXPECTED, InternalError
from pytriton.base.messages import (
    DeviceBytes,
    DeviceExport,
    DevicePlace,
    DeviceUse,
    DeviceWish,
    InferTensor,
)
from pytriton.base.model_spec import Reshape
from pytriton.runtime.executor import (
    batch_frames,
    batch_tensors,
    batch_tracker,
    device_regions,
)
from pytriton.runtime.executor.batch_tracker import BatchTracker
from pytriton.runtime.executor.columns import ChunkSignature, make_members, shared_request
from pytriton.runtime.executor.inference import ModelLabels, burst_outcomes
from pytriton.runtime.transport.frames import (
    BatchFailure,
    BatchResult,
    BurstRef,
    ResponseItem,
    ResponseRows,
    ResponsesFrame,
)
from pytriton.runtime.transport.payload import Payload, Received
from pytriton.runtime.transport.peer_account import ProtocolError
from pytriton.runtime.transport.refs import TensorRef
from pytriton.serving.engine.costs import ModelCosts
from tests.chunks import PiecesChunk
from tests.fakes import inference

NUMBERS = TensorRef("y", UINT8.number, (1,), 0, 4)
RESULT = TensorRef("y", FP32.number, (1, 1), 0, 4)
IN_A_BLOCK = TensorRef("y", FP32.number, (1, 1), 0, 4, block=7)


class Rig:
    """A tracker whose owner may stop the instance when it hears of outcomes."""

    def __init__(self) -> None:
        self.costs: ModelCosts | None = ModelCosts()
        self.tracker = BatchTracker(self, ModelLabels("m", "1", [], batching=True), self)
        self.name = "m_0_0"
        self.ends: dict[int, list[str]] = {}  # by batch
        self.values: dict[int, list[int]] = {}  # by batch, of rows
        self.sizes: dict[int, list[int]] = {}
        self.stops = False
        self.charged: dict[int, tuple[int, int]] = {}  # by batch
        self.times_ns: list[tuple[int, int]] = []

    def begin(self, count: int = 1) -> None:
        for _ in range(count):
            self.tracker.begin([inference()], 0, Payload(None))

    def on_outcomes(self, instance, batch, outcomes, times_ns):
        self.times_ns.append(times_ns)
        self.charged[batch.id] = (batch.processor_ns, batch.bytes_out)
        for outcome in outcomes:
            end = "answer" if outcome.error is None else outcome.error.message
            self.ends.setdefault(batch.id, []).append(end)
        if self.stops:
            self.stops = False
            self.tracker.fail_all(InternalError("stopped"))

    def on_burst(self, instance, batch, position, burst, times_ns):
        self.values.setdefault(batch.id, []).extend(burst.outputs[0].data)
        self.sizes.setdefault(batch.id, []).extend(burst.sizes())
        self.on_outcomes(instance, batch, burst_outcomes(position, burst), times_ns)

    def hear(self, frame) -> None:
        assert self.tracker.handle(Received(frame, bytearray(range(64)), 0, {}))


@pytest.fixture
def rig():
    return Rig()


def test_answers_that_came_with_the_one_that_stops_the_instance_are_passed_on(rig):
    rig.begin(3)
    rig.stops = True
    rig.hear(ResponsesFrame(0, 0, [ResponseItem(1, 0, [RESULT]), ResponseItem(2, 0, [RESULT])]))

    assert rig.ends == {1: ["answer"], 2: ["answer"], 3: ["stopped"]}
    assert not rig.tracker.has_requests


def test_stream_that_goes_on_when_the_instance_is_stopped_ends_once(rig):
    rig.begin(2)
    rig.stops = True
    items = [ResponseItem(1, 0, [RESULT]), ResponseItem(2, 0, [RESULT], is_final=False)]
    rig.hear(ResponsesFrame(0, 0, items))

    assert rig.ends[1] == ["answer"]
    assert rig.ends[2].count("stopped") == 1


@pytest.fixture
def first_output_fails(monkeypatch):
    """The server makes a mistake while it reads the first output."""
    calls = []

    def make(received, refs):
        calls.append(refs)
        if len(calls) == 1:
            raise RuntimeError
        return batch_tensors.make_outputs(received, refs)

    monkeypatch.setattr(batch_frames, "make_outputs", make)


@pytest.mark.usefixtures("first_output_fails")
def test_response_that_the_server_fails_to_read_is_an_error_and_others_are_passed_on(rig, caplog):
    rig.begin(2)
    rig.hear(ResponsesFrame(0, 0, [ResponseItem(1, 0, [RESULT]), ResponseItem(2, 0, [RESULT])]))

    assert rig.ends == {1: [UNEXPECTED], 2: ["answer"]}
    (record,) = caplog.records
    assert record.exc_info[0] is RuntimeError
    assert not rig.tracker.has_requests


@pytest.mark.usefixtures("first_output_fails")
def test_result_that_the_server_fails_to_read_fails_its_batch(rig, caplog):
    rig.begin(2)
    rig.hear(BatchResult(1, 0, 0, [RESULT]))
    rig.hear(BatchResult(2, 0, 0, [RESULT]))

    assert rig.ends == {1: [UNEXPECTED], 2: ["answer"]}
    assert [record.exc_info[0] for record in caplog.records] == [RuntimeError]


def test_answers_before_one_that_breaks_a_rule_are_passed_on(rig):
    rig.begin(3)
    items = [ResponseItem(1, 0, [RESULT]), ResponseItem(2, 0, [IN_A_BLOCK]), ResponseItem(3, 0)]
    with pytest.raises(ProtocolError, match="expected a block of this message"):
        rig.hear(ResponsesFrame(0, 0, items))
    assert rig.ends == {1: ["answer"]}
    rig.tracker.fail_all(InternalError("ended"))

    assert rig.ends == {1: ["answer"], 2: ["ended"], 3: ["ended"]}


WRONG_OUTPUTS = {
    "in no block": IN_A_BLOCK,
    "beyond the message": TensorRef("y", FP32.number, (1, 1), 62, 4),
    "shorter than its shape": TensorRef("y", FP32.number, (1, 2), 0, 4),
    "longer than its shape": TensorRef("y", FP32.number, (1, 0), 0, 4),
    "of a huge shape": TensorRef("y", FP32.number, (1 << 40, 1 << 40), 0, 4),
    "texts without their lengths": TensorRef("y", BYTES.number, (1, 3), 0, 8),
}


@pytest.mark.parametrize("output", WRONG_OUTPUTS.values(), ids=WRONG_OUTPUTS)
@pytest.mark.parametrize("count", [1, 2])
def test_output_whose_bytes_are_not_there_ends_the_instance_with_its_batch(rig, output, count):
    rig.tracker.begin([inference() for _ in range(count)], 0, Payload(None))
    with pytest.raises(ProtocolError, match="expected"):
        rig.hear(BatchResult(1, 0, 0, [output]))
    assert not rig.ends
    rig.tracker.fail_all(InternalError("ended"))

    assert rig.ends == {1: ["ended"] * count}


@pytest.mark.parametrize(
    "output",
    [
        TensorRef("y", FP32.number, (3, 1), 0, 12),
        TensorRef("y", FP32.number, (), 0, 4),
        TensorRef("y", BYTES.number, (2, 1), 0, 10),
        TensorRef("y", BYTES.number, (2, 1), 0, 10, pieces=[5, 6]),
        TensorRef("y", BYTES.number, (2, 1), 0, 10, pieces=[10]),
    ],
)
def test_output_that_cannot_be_cut_by_requests_ends_the_instance(rig, output):
    rig.tracker.begin([inference(), inference()], 0, Payload(None))
    with pytest.raises(ProtocolError, match="expected"):
        rig.hear(BatchResult(1, 0, 0, [output]))
    assert rig.tracker.has_requests


def test_outputs_that_name_the_same_bytes_over_and_over_end_the_instance(rig):
    rig.begin(2)
    outputs = [TensorRef(f"y{number}", FP32.number, (1, 8), 0, 32) for number in range(100)]
    with pytest.raises(ProtocolError, match="expected outputs of at most 64 bytes together"):
        rig.hear(BatchResult(1, 0, 0, outputs))
    with pytest.raises(ProtocolError, match="expected outputs of at most 64 bytes together"):
        rig.hear(ResponsesFrame(0, 0, [ResponseItem(2, 0, outputs)]))


LATE_NS = 1 << 61


@pytest.mark.parametrize("times_ns", [(1, LATE_NS), (LATE_NS, LATE_NS), (2, 1)])
@pytest.mark.parametrize(
    "make",
    [
        lambda *times: BatchResult(1, *times, [RESULT]),
        lambda *times: ResponsesFrame(*times, [ResponseItem(1, 0, [RESULT])]),
        lambda *times: BatchFailure(1, *times, "no", 1),
    ],
)
def test_answer_of_another_time_ends_the_instance(rig, make, times_ns):
    rig.begin()
    with pytest.raises(ProtocolError, match="expected times in their order that are not after"):
        rig.hear(make(*times_ns))
    assert rig.tracker.has_requests


@pytest.mark.parametrize(
    "frame",
    [
        BatchResult(1, 5, 5, [RESULT]),
        ResponsesFrame(5, 5, [ResponseItem(1, 0, [RESULT])]),
        ResponsesFrame(5, 5, [], rows=ResponseRows([BurstRef(1, 0, 4)], [NUMBERS])),
        BatchFailure(1, 5, 5, "no", 1),
    ],
)
def test_answer_does_not_begin_before_its_batch(rig, frame):
    rig.tracker.begin([inference()], 1000, Payload(None))
    rig.hear(frame)

    assert rig.times_ns == [(1000, 1000)]


def test_times_of_another_machine_are_those_of_its_clock(rig):
    rig.node = "node-7"
    rig.begin()
    rig.hear(BatchResult(1, LATE_NS, LATE_NS + 500, [RESULT]))
    ((started_ns, finished_ns),) = rig.times_ns

    assert finished_ns - started_ns == 500
    assert finished_ns <= time.monotonic_ns()


def test_more_small_responses_than_a_message_has_end_the_instance(rig):
    rig.begin()
    empty = TensorRef("y", FP32.number, (0,), 0, 0)
    bursts = [BurstRef(1, 0, batch_tensors.MAX_BURST), BurstRef(1, 0, 1)]
    with pytest.raises(ProtocolError, match="expected at most 65536 responses in a message"):
        rig.hear(rows_frame(*bursts, output=empty))


@pytest.mark.parametrize(
    "output",
    [
        IN_A_BLOCK,
        TensorRef("y", FP32.number, (1,), 0, 4),
        TensorRef("y", BYTES.number, (1,), 0, 9),
        TensorRef("y", BYTES.number, (1,), 0, 10, pieces=[5, 6]),
        TensorRef("y", BYTES.number, (1,), 0, 10, pieces=[10]),
    ],
)
def test_rows_that_are_not_there_end_the_instance(rig, output):
    rig.begin()
    with pytest.raises(ProtocolError, match="expected"):
        rig.hear(rows_frame(BurstRef(1, 0, 2), output=output))
    assert not rig.ends


def test_response_that_is_to_be_executed_again_and_goes_on_ends_the_instance(rig):
    rig.begin()
    with pytest.raises(ProtocolError, match="expected that a request ends"):
        rig.hear(ResponsesFrame(0, 0, [ResponseItem(1, 0, None, False, is_rescheduled=True)]))


def test_failure_with_an_unknown_code_fails_its_batch(rig):
    rig.begin()
    rig.hear(BatchFailure(1, 0, 0, "no", 99))

    assert rig.ends == {1: [UNEXPECTED]}


def test_answer_to_a_batch_that_never_was_contradicts_the_protocol(rig):
    with pytest.raises(ProtocolError, match="got one to batch 5"):
        rig.hear(BatchResult(5, 0, 0, []))


def test_return_from_an_instance_that_reports_none_contradicts_the_protocol(rig):
    rig.begin()
    with pytest.raises(ProtocolError, match="got its return"):
        rig.hear(ResponsesFrame(0, 0, [], returned_batch=1))

    assert rig.tracker.has_requests


def rows_frame(*bursts, items=(), output=NUMBERS):
    return ResponsesFrame(0, 0, list(items), rows=ResponseRows(list(bursts), [output]))


def test_rows_are_reported_before_the_items_of_their_message(rig):
    rig.begin(2)
    ends = [ResponseItem(batch, 0) for batch in (1, 2)]
    rig.hear(rows_frame(BurstRef(1, 0, 3), BurstRef(2, 0, 1), items=ends))

    assert rig.ends == {1: ["answer"] * 4, 2: ["answer"] * 2}
    assert rig.values == {1: [0, 1, 2], 2: [3]}
    assert not rig.tracker.running


def test_rows_of_requests_that_have_ended_are_dropped(rig):
    rig.begin(2)
    rig.hear(ResponsesFrame(0, 0, [ResponseItem(1, 0)]))
    rig.hear(rows_frame(BurstRef(1, 0, 2), BurstRef(2, 0, 1), BurstRef(2, 5, 1)))

    assert rig.values == {2: [2]}


def test_rows_of_different_sizes_are_split_by_them(rig):
    rig.begin(2)
    sizes = [5, 4, 6, 5]
    texts = TensorRef("y", BYTES.number, (1,), 0, 20, pieces=sizes)
    rig.hear(rows_frame(BurstRef(1, 0, 3), BurstRef(2, 0, 1), output=texts))

    assert rig.sizes == {1: [5, 4, 6], 2: [5]}


def test_rows_that_cannot_be_read_are_errors_that_end_nothing(rig, caplog, monkeypatch):
    rig.begin()
    with monkeypatch.context() as patch:
        patch.setattr(batch_tracker, "split_rows", None)
        rig.hear(rows_frame(BurstRef(1, 0, 2)))
    rig.hear(ResponsesFrame(0, 0, [ResponseItem(1, 0)]))

    assert rig.ends == {1: [UNEXPECTED, UNEXPECTED, "answer"]}


def test_instance_may_be_stopped_between_two_bursts_of_a_message(rig):
    rig.begin(2)
    rig.stops = True
    rig.hear(rows_frame(BurstRef(1, 0, 2), BurstRef(2, 0, 2)))

    assert rig.ends == {1: ["answer", "answer", "stopped"], 2: ["stopped"]}


@pytest.mark.parametrize(
    "wanted, told",
    [
        (None, {}),
        (("y", "z"), {}),
        (("z", "y"), {0: ["z", "y"]}),  # a compiled backend sees the order
        (("z",), {0: ["z"]}),
    ],
)
def test_instance_is_told_which_outputs_are_wanted_if_these_are_not_all(wanted, told):
    labels = ModelLabels("m", "1", [], batching=True, output_names=("y", "z"))
    tracker = BatchTracker(None, labels, Rig())
    signature = ChunkSignature((), wanted)
    chunk = PiecesChunk.of(signature, None, (), range(2))
    members = make_members(chunk, None, shared_request("m", signature, 0))

    alone = tracker.begin([inference(outputs=wanted)], 0, Payload(None))
    as_member = tracker.begin(members, 0, Payload(None))

    assert alone.outputs == as_member.outputs == told


def test_instance_with_states_is_told_all_outputs_that_it_returns():
    labels = ModelLabels("m", "1", [], batching=True, output_names=("y",), state_outputs=("state",))
    tracker = BatchTracker(None, labels, Rig())

    assert tracker.begin([inference(outputs=("y",))], 0, Payload(None)).outputs == {
        0: ["y", "state"]
    }
    assert tracker.begin([inference()], 0, Payload(None)).outputs == {}


def test_processor_time_and_bytes_of_all_answers_are_added_up(rig):
    rig.begin(4)
    rig.hear(BatchResult(1, 0, 0, [RESULT, RESULT], processor_ns=100))
    items = [ResponseItem(2, 0, [RESULT]), ResponseItem(3, 0)]
    rig.hear(
        ResponsesFrame(
            0, 0, items, rows=ResponseRows([BurstRef(2, 0, 4)], [NUMBERS]), processor_ns=20
        )
    )
    rig.hear(BatchFailure(4, 0, 0, "no", 13, processor_ns=3))

    assert (rig.costs.worker_ns, rig.costs.bytes_out) == (123, 8 + 4 + 4)


def test_inputs_in_gpu_memory_are_no_bytes_that_the_server_passes_on():
    inputs = [RESULT, TensorRef("x", FP32.number, (1, 2), 0, 8)]
    use = types.SimpleNamespace(inputs={"x": None})
    frames = [types.SimpleNamespace(inputs=inputs, devices=devices) for devices in ([], [use])]

    assert [batch_tracker._size_of_inputs(frame) for frame in frames] == [12, 4]


def test_copies_between_host_and_gpu_of_all_answers_are_added_up(rig):
    rig.begin(3)
    rig.hear(BatchResult(1, 0, 0, [], copied=(1, 20)))
    rig.hear(ResponsesFrame(0, 0, [ResponseItem(2, 0)], copied=(2, 30)))
    rig.hear(BatchFailure(3, 0, 0, "no", 13, copied=(4, 50)))

    assert (rig.costs.to_gpu_bytes, rig.costs.to_host_bytes) == (7, 100)


class Ledger:
    """Notes which tensors in GPU memory were released without being taken, and which were taken."""

    def __init__(self):
        self.dropped, self.taken = [], []
        self.refusal = ""

    def drop(self, exports):
        self.dropped += [export.block for export in exports]

    def take_all(self, exports):
        self.taken += [export.block for export in exports.values()]
        return {name: DeviceBytes.of_size(each.size) for name, each in exports.items()}


def on_gpu(batch, position=0, ref=RESULT):
    return ResponseItem(batch, position, [ref], device={ref.name: DeviceExport(5, 4, 0)})


def wishing_rig(**labels):
    rig = Rig()
    rig.device_ledger = Ledger()
    rig.tracker = BatchTracker(rig, ModelLabels("m", "1", [], batching=True, **labels), rig)
    request = inference()
    request.request.device_wish = DeviceWish()
    rig.tracker.begin([request], 0, Payload(None))
    return rig


@pytest.mark.parametrize("refusal, positions", [("", [0]), ("sandbox", [])])
def test_instance_that_shares_no_memory_is_asked_for_outputs_on_the_host(refusal, positions):
    rig = wishing_rig()
    rig.device_ledger.refusal = refusal
    request = inference()
    request.request.device_wish = DeviceWish()
    frame = rig.tracker.begin([request], 0, Payload(None))

    assert list(frame.device_wishes) == positions


def test_output_in_gpu_memory_is_taken():
    rig = wishing_rig()
    rig.hear(ResponsesFrame(0, 0, [on_gpu(1)]))

    assert rig.ends == {1: ["answer"]}
    assert (rig.device_ledger.taken, rig.device_ledger.dropped) == ([5], [])


def test_output_in_gpu_memory_of_a_request_that_has_ended_is_released():
    rig = wishing_rig()
    rig.hear(ResponsesFrame(0, 0, [on_gpu(1), on_gpu(1), on_gpu(9)]))

    assert (rig.device_ledger.taken, rig.device_ledger.dropped) == ([5], [5, 5])


def test_output_in_gpu_memory_with_a_wrong_shape_is_taken_and_let_go():
    rig = wishing_rig(output_reshapes={"y": Reshape((2, 2), (4,))})
    rig.hear(ResponsesFrame(0, 0, [on_gpu(1, ref=TensorRef("y", FP32.number, (1, 5), 0, 20))]))

    assert rig.ends[1] != ["answer"]
    assert rig.device_ledger.taken == [5]


def placing_rig(size):
    rig = Rig()
    rig.takes_device_memory = True
    rig.tracker = BatchTracker(rig, ModelLabels("m", "1", [], batching=True), rig)
    place = DevicePlace("r", device_regions.add_region(), bytes(64), 0, size, 0, size)
    request = inference(device=DeviceUse({}, {"y": place}))
    rig.tracker.begin([request], 0, Payload(None))
    return rig


@pytest.mark.parametrize("is_whole_batch", [True, False])
@pytest.mark.parametrize(
    "dtype, shape, size, fits",
    [(FP32, (1, 2), 8, True), (FP32, (1, 2), 7, False), (BYTES, (1, 2), 8, True)],
)
def test_output_in_memory_of_the_client_has_no_bytes_and_fits(
    dtype, shape, size, fits, is_whole_batch
):
    rig = placing_rig(size)
    ref = TensorRef("y", dtype.number, shape, 0, 0)
    answer = ResponsesFrame(0, 0, [ResponseItem(1, 0, [ref])])
    if is_whole_batch:
        answer = BatchResult(1, 0, 0, [ref])

    with contextlib.nullcontext() if fits else pytest.raises(ProtocolError, match="fits into 7"):
        rig.hear(answer)

    assert (rig.ends == {1: ["answer"]}) is fits


def test_bytes_of_inputs_are_added_up():
    rig = Rig()
    rig.tracker = BatchTracker(rig, ModelLabels("m", "1", ["x", "y"], batching=True), rig)
    tensors = {name: InferTensor(name, FP32, (1, 2), bytes(8)) for name in ("x", "y")}
    for _ in range(3):
        rig.tracker.begin([inference(inputs=tensors)], 0, Payload(None))

    assert rig.costs.bytes_in == 3 * 16


def test_only_traced_batches_know_what_they_cost(rig):
    rig.begin()
    trace = types.SimpleNamespace(contexts=lambda *_, is_model_file: ())
    for _ in range(2):
        traced = inference()
        traced.trace = trace
        rig.tracker.begin([traced], 0, Payload(None))
    items = [ResponseItem(batch, 0, [RESULT], is_final=False) for batch in (1, 2)]
    rig.hear(ResponsesFrame(0, 0, items, processor_ns=60))
    rig.hear(ResponsesFrame(0, 0, [ResponseItem(2, 0, [RESULT])], processor_ns=5))
    rig.hear(BatchResult(3, 0, 0, [RESULT], processor_ns=7))

    assert rig.charged == {1: (0, 0), 2: (35, 8), 3: (7, 4)}
    assert rig.costs.worker_ns == 72


def test_costs_that_nobody_wants_are_not_counted(rig):
    rig.costs = None
    rig.begin(2)
    rig.hear(BatchResult(1, 0, 0, [RESULT], processor_ns=100))
    rig.hear(ResponsesFrame(0, 0, [ResponseItem(2, 0, [RESULT])], processor_ns=100))

    assert rig.charged == {1: (0, 0), 2: (0, 0)}


def test_bytes_of_inputs_in_gpu_memory_are_not_counted_as_nobody_passes_them_on():
    rig = Rig()
    rig.takes_device_memory = True
    rig.tracker = BatchTracker(rig, ModelLabels("m", "1", ["x", "y"], batching=True), rig)
    tensors = {
        "x": InferTensor("x", FP32, (1, 2), bytes(8)),
        "y": InferTensor("y", FP32, (1, 1 << 20), DeviceBytes.of_size(4 << 20)),
    }
    place = DevicePlace("r", device_regions.add_region(), bytes(64), 0, 4 << 20, 0, 4 << 20)
    request = inference(inputs=tensors, device=DeviceUse({"y": place}, {}))
    frame = rig.tracker.begin([request], 0, Payload(None))

    assert [ref.size for ref in frame.inputs] == [8, 4 << 20]
    assert rig.costs.bytes_in == 8
