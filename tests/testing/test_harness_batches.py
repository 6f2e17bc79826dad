# SPDX-License-Identifier: Apache-2.0
"""How a harness runs a backend that has `execute_batch`, and the folder of its model."""

from __future__ import annotations

import numpy as np
import pytest

from pytriton.base.errors import NotFoundError, UnsupportedError
from pytriton.testing import ModelHarness, Request, RuleError
from tests.testing.doubling import config


class Backend:
    """Doubles rows, but not zeros."""

    def execute_batch(self, batch):
        self.seen = batch
        x = batch.inputs["IN"]
        at = 0
        for position, rows in enumerate(batch.rows):
            if not x[at : at + rows].all():
                batch.fail(position, NotFoundError("a zero"))
            at += rows
        y = batch.allocate(x.shape, x.dtype)
        np.multiply(x, 2, out=y)
        return {"OUT": y}


def test_requests_are_one_batch_and_each_gets_its_rows():
    with ModelHarness(Backend, config(max_batch_size=8)) as harness:
        first, second, third = harness.execute_batch(
            [
                Request({"IN": [[1], [2]]}, id="a"),
                Request({"IN": [[0]]}),
                Request({"IN": [[3]]}, parameters={"k": 1}),
            ]
        )
        seen = harness.model.seen

    assert first[0].outputs["OUT"].tolist() == [[2], [4]]
    assert second[0].error.message() == "a zero"
    assert third[0].outputs["OUT"].tolist() == [[6]]
    assert (seen.rows, seen.ids, seen.parameters) == ([2, 1, 1], {0: "a"}, {2: {"k": 1}})


def test_exception_of_a_backend_comes_unchanged():
    class Refusing:
        def execute_batch(self, batch):
            raise UnsupportedError(f"not {batch.output_names}")

    with (
        ModelHarness(Refusing, config(max_batch_size=8)) as harness,
        pytest.raises(UnsupportedError, match=r"not \['OUT'\]"),
    ):
        harness.execute({"IN": [[1]]})


def test_result_is_checked_as_in_a_server():
    class Wrong:
        def execute_batch(self, batch):
            return {"OUT": batch.inputs["IN"][:0]}

    with (
        ModelHarness(Wrong, config(max_batch_size=8)) as harness,
        pytest.raises(RuleError, match="Expected 1 rows in output 'OUT'"),
    ):
        harness.execute({"IN": [[1]]})


def test_requests_of_different_shapes_are_batched_only_if_ragged():
    class Shapes:
        def execute_batch(self, batch):
            self.shapes = batch.shapes
            return {"OUT": [np.zeros((1, 1), np.float32)] * len(batch)}

    requests = [Request({"IN": [[1]]}), Request({"IN": [[1, 2]]})]
    ragged = config(max_batch_size=8)
    ragged["input"][0] |= {"dims": [-1], "allow_ragged_batch": True}
    with ModelHarness(Shapes, ragged) as harness:
        harness.execute_batch(requests)
        assert harness.model.shapes == {"IN": [(1, 1), (1, 2)]}

    ragged["input"][0]["allow_ragged_batch"] = False
    with ModelHarness(Shapes, ragged) as harness, pytest.raises(RuleError, match="ragged"):
        harness.execute_batch(requests)


def test_file_of_a_backend_runs_with_the_folder_of_a_model(tmp_path):
    code = tmp_path / "backends" / "adder" / "model.py"
    code.parent.mkdir(parents=True)
    code.write_text(
        """
from pathlib import Path
class TritonPythonModel:
    def initialize(self, args):
        folder = Path(args["model_repository"], args["model_version"])
        self.number = int((folder / "number.txt").read_text())
    def execute_batch(self, batch):
        return {"y": batch.inputs["x"] + self.number}
    def execute(self, requests):
        raise AssertionError("for Triton only")
"""
    )
    for version, number in (("2", "5"), ("10", "7")):
        folder = tmp_path / "models" / "seven" / version
        folder.mkdir(parents=True)
        (folder / "number.txt").write_text(number)
    (tmp_path / "models" / "seven" / "config.pbtxt").write_text(
        'backend: "adder" max_batch_size: 4'
        ' input { name: "x" data_type: TYPE_INT32 dims: 1 }'
        ' output { name: "y" data_type: TYPE_INT32 dims: 1 }'
    )

    with ModelHarness(code, model_directory=tmp_path / "models" / "seven") as harness:
        response = harness.execute({"x": [[1]]})
        name = harness.config["name"]

    assert response.outputs["y"].tolist() == [[8]]
    assert name == "seven"


def test_what_follows_from_the_backend_is_filled_in(tmp_path):
    (tmp_path / "1").mkdir()
    (tmp_path / "config.pbtxt").write_text(
        'backend: "onnxruntime" max_batch_size: 4'
        ' input { name: "IN" data_type: TYPE_INT32 dims: 1 }'
        ' output { name: "OUT" data_type: TYPE_INT32 dims: 1 }'
    )

    with ModelHarness(Backend, model_directory=tmp_path) as harness:
        assert harness.config["platform"] == "onnxruntime_onnx"
        assert harness.config["default_model_filename"] == "model.onnx"
