# SPDX-License-Identifier: Apache-2.0
"""What `execute_batch` gets, and what becomes of what it returns or raises."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from pytriton.base.errors import ErrorCode
from pytriton.runtime.transport.frames import BatchFailure, BatchResult, ResponsesFrame
from tests.python_backend.worker_rig import arrays_of, place_all

X = np.array([[1.0, 2.0]], np.float32)
LARGE = np.ones((1, 40_000), np.float32)
PREFIX = "Failed to process the request(s) for model 'm_0_0', message: "


def backend(*lines):
    """A backend that runs these lines for a batch."""
    body = "\n".join(f"        {line}" for line in lines)
    return f"""
from pytriton.base import errors

class TritonPythonModel:
    def execute_batch(self, batch):
{body}
"""


IDENTITY = backend("return {'y': batch.inputs['x']}")


def test_batch_is_one_array_and_its_answer_one_message(worker):
    rig = worker(backend("return {'y': np.repeat(batch.inputs['x'][:1], sum(batch.rows), 0)}"))
    rig.execute({"x": X}, {"x": np.concatenate([X, X])})

    received = rig.hear(BatchResult)
    (ref,) = received.frame.outputs
    assert (ref.name, ref.shape) == ("y", (3, 2))


def test_backend_sees_rows_ids_parameters_and_wanted_outputs(worker):
    facts = "[batch.rows, batch.ids, batch.parameters, list(batch.output_names), len(batch)]"
    rig = worker(
        backend(f"raise errors.UnsupportedError(str({facts}))"), output_names=["y", "z", "w"]
    )
    rig.execute(
        {"x": X},
        {"x": np.concatenate([X, X])},
        ids={1: "b"},
        parameters={0: {"n": 1}},
        outputs={0: ["w"], 1: ["y"]},
    )

    frame = rig.hear(BatchFailure).frame
    assert frame.error == "[[1, 2], {1: 'b'}, {0: {'n': 1}}, ['y', 'w'], 2]"
    assert frame.error_code == ErrorCode.UNSUPPORTED


@pytest.mark.parametrize(
    "array",
    [
        np.array([[b"a", b"bcd"]], object),
        np.array([[True, False]]),
        np.array([[1, 2]], np.float16),
        np.array([[1, 2]], ml_dtypes.bfloat16),
        LARGE,
        np.ones((1, 0), np.float32),
    ],
    ids=["bytes", "bool", "fp16", "bf16", "large", "empty"],
)
def test_tensors_of_all_kinds_go_both_ways(worker, array):
    rig = worker(IDENTITY)

    for outputs in (*rig.run({"x": array}), *rig.run({"x": array}, {"x": array})):
        assert outputs["y"].dtype == array.dtype
        assert outputs["y"].tolist() == array.tolist()


def test_texts_of_a_batch_say_how_they_are_cut(worker):
    rig = worker(backend("return {'y': np.array([['a'], ['bcd'], [b'e']], object)}"))
    rig.execute({"x": X}, {"x": np.concatenate([X, X])})

    received = rig.hear(BatchResult)
    (ref,) = received.frame.outputs
    assert ref.pieces == [5, 12]
    assert received.array(ref).tolist() == [[b"a"], [b"bcd"], [b"e"]]


@pytest.mark.parametrize(
    "lines, is_copied",
    [
        (["return {'y': batch.inputs['x']}"], False),
        (["self.kept = batch.inputs['x']", "return {'y': self.kept}"], True),
        (["self.kept = {'y': batch.inputs['x']}", "return self.kept"], True),
    ],
    ids=["returned", "kept", "dict kept"],
)
def test_input_that_is_returned_is_copied_only_if_the_backend_keeps_it(worker, lines, is_copied):
    rig = worker(backend(*lines))
    rig.execute({"x": LARGE})

    (ref,) = rig.hear(BatchResult).frame.outputs
    assert (ref.block > 0) is is_copied


@pytest.mark.parametrize("keep", ["pass", "self.kept = y", "self.kept = y[:, :1]"])
def test_allocated_output_is_copied_only_if_the_backend_keeps_it(worker, keep):
    rig = worker(
        backend(
            "y = batch.allocate((1, 40_000), np.float32)",
            "y[:] = batch.inputs['x'] * 3",
            keep,
            "return {'y': y}",
        )
    )
    rig.execute({"x": LARGE})

    received = rig.hear(BatchResult)
    (ref,), (block,) = received.frame.outputs, received.frame.memory.blocks
    assert received.array(ref).tolist() == (LARGE * 3).tolist()
    # The arena was empty, so what was allocated begins at 0, and a copy lies behind it.
    assert (block.offset > 0) is (keep != "pass")


def test_memory_of_allocated_outputs_is_used_again(worker):
    rig = worker(
        backend(
            "y = batch.allocate((1, 1 << 20), np.float32)",
            "y[:] = batch.inputs['x'][0, 0]",
            "return {'y': y}",
        )
    )
    offsets = set()
    for number in range(30):
        rig.execute({"x": X * number})
        received = rig.hear(BatchResult)
        offsets.add(received.frame.memory.blocks[0].offset)
        assert received.array(received.frame.outputs[0])[0, -1] == number
        del received

    assert len(offsets) <= 3


def test_small_allocated_output_goes_inside_the_message(worker):
    rig = worker(
        backend("y = batch.allocate((1, 2), 'f4')", "y[:] = batch.inputs['x']", "return {'y': y}")
    )
    rig.execute({"x": X})

    received = rig.hear(BatchResult)
    (ref,) = received.frame.outputs
    assert (ref.block, received.array(ref).tolist()) == (0, X.tolist())


def test_request_can_fail_alone(worker):
    rig = worker(
        backend(
            "batch.fail(0, errors.NotFoundError('no such row'))",
            "batch.fail(2, pb_utils.TritonError('nor this', pb_utils.TritonError.CANCELLED))",
            "return {'y': batch.inputs['x']}",
        )
    )
    rig.execute({"x": X}, {"x": np.concatenate([X, X * 2])}, {"x": X})

    received = rig.hear(ResponsesFrame)
    first, second, third = received.frame.items
    assert received.frame.returned_batch == 1
    assert (first.error, first.error_code) == ("no such row", ErrorCode.NOT_FOUND)
    assert arrays_of(received, second.outputs)["y"].tolist() == [[1, 2], [2, 4]]
    assert (third.error, third.error_code) == ("nor this", ErrorCode.CANCELLED)


def test_nothing_is_returned_if_all_requests_failed(worker):
    rig = worker(backend("batch.fail(0, errors.NotFoundError('none'))"))

    assert rig.run({"x": X}) == ["none"]


def test_output_may_have_another_shape_for_each_request(worker):
    rig = worker(
        backend("return {'y': [np.ones((1, n + 1), np.int8) for n in range(len(batch))]}"),
    )
    first, second = rig.run({"x": X}, {"x": X})

    assert first["y"].tolist() == [[1]]
    assert second["y"].tolist() == [[1, 1]]


def test_request_gets_only_the_outputs_that_it_wants(worker):
    rig = worker(
        backend("return {'y': [batch.inputs['x']], 'z': [batch.inputs['x']]}"),
        output_names=["y", "z"],
    )
    rig.execute({"x": X}, outputs={0: ["z"]})

    received = rig.hear(ResponsesFrame)
    assert list(arrays_of(received, received.frame.items[0].outputs)) == ["z"]


def test_ragged_input_is_flat_and_has_the_shapes_of_requests(worker):
    rig = worker(backend("assert batch.shapes == {'x': [(1, 2), (1, 1)]}", "return {'y': [*'ab']}"))
    payload = rig.channel.payload()
    (ref,) = place_all(payload, {"x": np.array([1, 2, 3], np.float32)})
    ref.shapes = [(1, 2), (1, 1)]
    rig.execute_refs([1, 1], [ref], payload)

    assert "found type '<class 'str'>'" in rig.hear(BatchFailure).frame.error


def test_output_without_batch_dimension_may_have_any_shape(worker):
    rig = worker(backend("return {'y': np.ones((2, 3), '>f4')}"), is_batching=False)

    (outputs,) = rig.run({"x": X})
    assert outputs["y"].tolist() == [[1, 1, 1]] * 2


CONFIG = '{"name": "m", "output": [{"name": "y", "data_type": "TYPE_FP32"}]}'


@pytest.mark.parametrize(
    "returned, expected",
    [
        ("None", "Expected a dict of arrays from execute_batch, found type '<class 'NoneType'>'."),
        (
            "{'Y': batch.inputs['x']}",
            "Unexpected output 'Y' from execute_batch, the model's outputs are ['y'].",
        ),
        (
            "{'y': batch.inputs['x'][0]}",
            (
                "Expected 1 rows in output 'y' of execute_batch, one for each row of the batch,"
                " found shape (2,)."
            ),
        ),
        (
            "{'y': np.ones((1, 2))}",
            "Expected TYPE_FP32 in output 'y' of execute_batch, found an array of float64.",
        ),
        (
            "{'y': [1, 2]}",
            "Expected 1 arrays in output 'y' of execute_batch, one for each request, found 2.",
        ),
        (
            "{'y': 1.5}",
            "Expected a numpy array as output 'y' of execute_batch, found type '<class 'float'>'.",
        ),
        (
            "{'z': np.array([['a', 1]], object)}",
            (
                "Expected bytes or str in output 'z' of execute_batch, found an element of type"
                " '<class 'int'>'."
            ),
        ),
        (
            "{'z': np.ones((1, 2), complex)}",
            (
                "Expected one of Triton's datatypes in output 'z' of execute_batch, found an array"
                " of complex128."
            ),
        ),
    ],
    ids=["none", "name", "rows", "datatype", "list", "number", "number in texts", "no datatype"],
)
def test_wrong_results_fail_the_batch_in_words(worker, returned, expected):
    options = {"output_names": ["z"]} if "'z'" in returned else {}  # which is not declared
    rig = worker(backend(f"return {returned}"), arguments={"model_config": CONFIG}, **options)

    assert rig.run({"x": X}) == [PREFIX + expected]


def test_exception_fails_the_batch_and_is_logged_with_its_place(worker):
    rig = worker(backend("raise ValueError('no')"))

    (error,) = rig.run({"x": X})
    assert error.startswith(PREFIX + "ValueError: no\n\nAt:\n")
    assert "ValueError: no" in rig.log()
    assert rig.run({"x": X}) == [error]


def test_server_error_is_sent_with_its_own_text_and_code(worker):
    rig = worker(backend("raise errors.InvalidArgumentError('onnx runtime error 2: no')"))
    rig.execute({"x": X})

    frame = rig.hear(BatchFailure).frame
    assert (frame.error, frame.error_code) == ("onnx runtime error 2: no", ErrorCode.INVALID_ARG)


BOTH = """
class TritonPythonModel:
    def execute_batch(self, batch):
        return {"y": batch.inputs["x"] * 0}

    def execute(self, requests):
        return [
            pb_utils.InferenceResponse([pb_utils.Tensor("y", each.inputs()[0].as_numpy())])
            for each in requests
        ]
"""


@pytest.mark.parametrize(
    "package, expected", [("", [[0, 0]]), ("1", [[1, 2]])], ids=["backend", "model"]
)
def test_function_beside_execute_counts_only_in_a_backend(worker, package, expected):
    rig = worker(BOTH, package=package)

    (outputs,) = rig.run({"x": X})
    assert outputs["y"].tolist() == expected


def test_coroutine_function_is_refused_when_it_is_loaded(start_worker):
    rig = start_worker(IDENTITY.replace("def execute", "async def execute"))

    assert rig.initialized().error == (
        "execute_batch must not be a coroutine function: use `async def execute`."
    )


def test_decoupled_model_needs_execute(start_worker):
    rig = start_worker(IDENTITY, is_decoupled=True)

    report = rig.initialized()
    assert report.error_code == ErrorCode.INVALID_ARG
    assert report.error == (
        "the model is decoupled, but its backend sends one response for each request: it has"
        " `execute_batch` and no `execute`"
    )
