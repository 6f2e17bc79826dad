# SPDX-License-Identifier: Apache-2.0
"""What `execute` gets, and what becomes of what it returns or raises."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from pytriton.runtime.transport.frames import (
    BatchResult,
    RequestDetails,
    ResponsesFrame,
)

X = np.array([[1.0, 2.0]], np.float32)
PREFIX = "Failed to process the request(s) for model 'm_0_0', message: "
LOGGED = "model 'm': "

DOUBLE = """
class TritonPythonModel:
    def execute(self, requests):
        return [
            pb_utils.InferenceResponse(
                [pb_utils.Tensor("y", pb_utils.get_input_tensor_by_name(each, "x").as_numpy() * 2)]
            )
            for each in requests
        ]
"""
IDENTITY = """
class TritonPythonModel:
    def execute(self, requests):
        return [
            pb_utils.InferenceResponse([pb_utils.Tensor("y", each.inputs()[0].as_numpy())])
            for each in requests
        ]
"""


def returning(expression):
    """A model whose `execute` returns something."""
    return f"""
class TritonPythonModel:
    def execute(self, requests):
        y = pb_utils.Tensor("y", np.ones((1, 1), np.float32))
        z = pb_utils.Tensor("z", np.zeros(3, np.int8))
        Response = pb_utils.InferenceResponse
        return {expression}
"""


def test_batch_is_answered_in_one_piece(worker):
    rig = worker(DOUBLE)

    first, second = rig.run({"x": X}, {"x": X * 10})
    assert first["y"].tolist() == [[2, 4]]
    assert second["y"].tolist() == [[20, 40]]

    rig.execute({"x": X}, {"x": X})
    assert isinstance(rig.hear().frame, BatchResult)


@pytest.mark.parametrize(
    "array",
    [
        np.array([[b"a", b"bcd"]], object),
        np.array([[True, False]]),
        np.array([[1, 2]], np.uint64),
        np.array([[1, 2]], np.float16),
        np.array([[1, 2]], ml_dtypes.bfloat16),
        np.ones((1, 40_000), np.float32),
        np.ones((1, 0), np.float32),
    ],
    ids=["bytes", "bool", "uint64", "fp16", "bf16", "large", "empty"],
)
def test_tensors_of_all_kinds_go_both_ways(worker, array):
    rig = worker(IDENTITY)

    for outputs in (*rig.run({"x": array}), *rig.run({"x": array}, {"x": array})):
        assert outputs["y"].dtype == array.dtype
        assert outputs["y"].tolist() == array.tolist()


def test_request_tells_what_its_client_said(worker):
    rig = worker(
        """
class TritonPythonModel:
    def execute(self, requests):
        facts = [
            [
                each.request_id(), each.correlation_id(), each.flags(), each.timeout(),
                each.parameters(), sorted(each.requested_output_names()),
            ]
            for each in requests
        ]
        return [
            pb_utils.InferenceResponse([pb_utils.Tensor("y", np.array([[str(f)]], object))])
            for f in facts
        ]
""",
        output_names=["y", "z"],
    )
    first, second = rig.run(
        {"x": X},
        {"x": X},
        ids={1: "id"},
        details={1: RequestDetails("sequence", 3, 500)},
        parameters={1: {"a": 1}},
        outputs={1: ["y"]},
    )
    assert first["y"].item() == str(["", 0, 0, 0, "{}", ["y", "z"]]).encode()
    expected = ["id", "sequence", 3, 500, '{"a":1}', ["y"]]
    assert second["y"].item().replace(b" ", b"") == str(expected).replace(" ", "").encode()


def test_outputs_that_nobody_asked_for_are_dropped(worker):
    rig = worker(returning("[Response([z, y, pb_utils.Tensor('unknown', z.as_numpy())])]"))
    (outputs,) = rig.run({"x": X})
    assert list(outputs) == ["y"]

    rig = worker(returning("[Response([z, y])]"), output_names=["y", "z"])
    (outputs,) = rig.run({"x": X})
    assert list(outputs) == ["z", "y"]
    (outputs,) = rig.run({"x": X}, outputs={0: ["z"]})
    assert list(outputs) == ["z"]


def test_clients_may_want_different_outputs(worker):
    rig = worker(returning("[Response([z, y]), Response([z, y])]"), output_names=["y", "z"])
    first, second = rig.run({"x": X}, {"x": X}, outputs={0: ["z"]})
    assert list(first) == ["z"]
    assert list(second) == ["z", "y"]


@pytest.mark.parametrize(
    "expression",
    [
        "[Response([y]), Response([pb_utils.Tensor('y', np.ones((2, 1), np.float32))])]",
        "[Response([y]), Response([pb_utils.Tensor('y', np.ones((1, 1), np.int8))])]",
        "[Response([y]), Response([])]",
        "[Response([y]), Response([y], parameters={'a': 1})]",
        "[Response([pb_utils.Tensor('y', np.array(1.0))]) for each in requests]",
    ],
    ids=["rows", "dtype", "missing", "parameters", "scalar"],
)
def test_responses_that_differ_travel_one_by_one(worker, expression):
    rig = worker(returning(expression))
    batch = rig.execute({"x": X}, {"x": X})

    frame = rig.hear(ResponsesFrame).frame
    assert [item.position for item in frame.items] == [0, 1]
    assert frame.returned_batch == batch
    assert all(item.is_final for item in frame.items)


def test_response_carries_parameters(worker):
    rig = worker(returning("[Response([y], parameters={'a': 1, 'b': 'c'})]"))
    rig.execute({"x": X})
    (item,) = rig.hear(ResponsesFrame).frame.items
    assert item.parameters == {"a": 1, "b": "c"}


def test_error_fails_only_its_own_request(worker):
    rig = worker(
        returning(
            "[Response([y], pb_utils.TritonError('no', pb_utils.TritonError.NOT_FOUND)),"
            " Response([y])]"
        )
    )
    rig.execute({"x": X}, {"x": X})

    failed, answered = rig.hear(ResponsesFrame).frame.items
    assert (failed.error, failed.error_code, failed.outputs) == ("no", 2, None)
    assert (answered.error, len(answered.outputs)) == (None, 1)


@pytest.mark.parametrize(
    "expression, text",
    [
        (
            "(Response([y]),)",
            "Expected a list in the execute return, found type '<class 'tuple'>'.",
        ),
        (
            "(response for response in [Response([y])])",
            "Expected a list in the execute return, found type '<class 'generator'>'.",
        ),
        (
            "[Response([y])] * 2",
            (
                "Number of InferenceResponse objects do not match the number of InferenceRequest"
                " objects. InferenceRequest(s) size is:1, and InferenceResponse(s) size is:2\n"
            ),
        ),
        (
            "[5]",
            (
                "Expected an 'InferenceResponse' object in the execute function return list,"
                " found type '<class 'int'>'."
            ),
        ),
        (
            "[requests[0].set_release_flags(2) or Response([y])]",
            (
                "Expected a None object in the execute function return list for reschduled request,"
                " found type '<class 'triton_python_backend_utils.InferenceResponse'>'."
            ),
        ),
    ],
)
def test_wrong_return_value_fails_the_batch(worker, expression, text):
    rig = worker(returning(expression))

    (error,) = rig.run({"x": X})
    assert error.startswith(PREFIX + text.partition("<class 'triton")[0])
    assert LOGGED + text.partition("<class 'triton")[0] in rig.log()


def test_exception_fails_the_batch_and_says_where(worker):
    rig = worker(
        """
def inner():
    raise ValueError("no such thing")

class TritonPythonModel:
    def execute(self, requests):
        inner()
"""
    )
    errors = rig.run({"x": X}, {"x": X})

    path = rig.path
    places = f"\n\nAt:\n  {path}(7): inner\n  {path}(11): execute\n"
    assert errors == [f"{PREFIX}ValueError: no such thing{places}"] * 2
    (line,) = rig.lines
    assert (line.level, line.file, line.line) == ("ERROR", str(path), 7)
    place = f"at {path.name}:7 in inner"
    assert line.message.startswith(f"{LOGGED}ValueError: no such thing {place}\nTraceback")
    assert "pytriton" not in line.message.replace(str(path), "")
    assert "python_backend" not in line.message


@pytest.mark.parametrize("raised", ["SystemExit(3)", "KeyboardInterrupt()", "OSError('disk')"])
def test_worker_goes_on_whatever_is_raised(worker, raised):
    rig = worker(
        f"""
class TritonPythonModel:
    calls = 0
    def execute(self, requests):
        self.calls += 1
        if self.calls == 1:
            raise {raised}
        return [pb_utils.InferenceResponse([requests[0].inputs()[0]])]
"""
    )
    (error,) = rig.run({"y": X})
    assert error.startswith(PREFIX + raised.partition("(")[0])
    (outputs,) = rig.run({"y": X})
    assert outputs["y"].tolist() == X.tolist()


def test_prints_are_seen_at_once(worker, tmp_path):
    rig = worker(
        """
class TritonPythonModel:
    def initialize(self, args):
        target = os.path.join(args["model_repository"], "out")
        os.dup2(os.open(target, os.O_CREAT | os.O_WRONLY), 1)
    def execute(self, requests):
        print("seen")
        return [pb_utils.InferenceResponse([]) for each in requests]
"""
    )
    rig.run({"x": X})
    assert (rig.model_directory / "out").read_text() == "seen\n"
