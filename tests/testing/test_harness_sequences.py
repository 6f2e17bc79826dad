# SPDX-License-Identifier: Apache-2.0
"""Sequences in a harness: the model gets its control inputs, and its states are kept."""

from __future__ import annotations

import numpy as np
import pytest
import triton_python_backend_utils as pb_utils

from pytriton.base.errors import InternalError
from pytriton.testing import ModelHarness, Request
from tests.testing.doubling import config

STATE = {"input_name": "SUM", "output_name": "NEXT", "data_type": "TYPE_FP32", "dims": [1]}
TEXT = {"input_name": "TEXT", "output_name": "TEXTS", "data_type": "TYPE_STRING", "dims": [-1]}
START = {"kind": "CONTROL_SEQUENCE_START", "int32_false_true": [0, 1]}


def sequences(*states, **fields):
    controls = [{"name": "START", "control": [START]}]
    return config(sequence_batching={"state": list(states), "control_input": controls}, **fields)


class Accumulating:
    """Answers sums; tells of starts by a negative number."""

    def execute(self, requests):
        return [self.answer(request) for request in requests]

    def answer(self, request):
        x, total, start = (
            pb_utils.get_input_tensor_by_name(request, name).as_numpy()
            for name in ("IN", "SUM", "START")
        )
        total = total + x
        outputs = [
            pb_utils.Tensor("OUT", -total if start.item() else total),
            pb_utils.Tensor("NEXT", total),
        ]
        return pb_utils.InferenceResponse(outputs)


def test_states_are_kept_for_each_sequence():
    with ModelHarness(Accumulating, sequences(STATE)) as model:
        sums = [
            model.execute({"IN": [value]}, correlation_id=number, flags=flags)["OUT"].item()
            for number, value, flags in [(1, 5, 1), (2, 7, 1), (1, 1, 0), (2, 1, 2), (1, 2, 1)]
        ]

    assert sums == [-5, -7, 6, 8, -2]


def test_whole_batches_have_states_too():
    class Backend:
        def execute_batch(self, batch):
            assert batch.output_names == ["OUT", "NEXT"]
            total = batch.inputs["SUM"] + batch.inputs["IN"]
            return {"OUT": total, "NEXT": total}

    with ModelHarness(Backend, sequences(STATE, max_batch_size=4)) as model:
        for _ in range(2):
            batch = [Request({"IN": [[number]]}, correlation_id=number) for number in (1, 2)]
            responses = model.execute_batch(batch)

    assert [response.outputs["OUT"].item() for (response,) in responses] == [2, 4]
    assert list(responses[0][0].outputs) == ["OUT"]


def test_states_are_no_outputs_of_the_response():
    with ModelHarness(Accumulating, sequences(STATE)) as model:
        response = model.execute({"IN": [1]}, correlation_id=1, flags=1)

    assert list(response.outputs) == ["OUT"]


def test_a_batch_has_requests_of_several_sequences():
    with ModelHarness(Accumulating, sequences(STATE)) as model:
        for _ in range(2):
            batch = [Request({"IN": [number]}, correlation_id=number) for number in (1, 2)]
            responses = model.execute_batch(batch)

    assert [response["OUT"].item() for (response,) in responses] == [2, 4]


def test_texts_may_be_states():
    class Remembering:
        def execute(self, requests):
            (request,) = requests
            texts = pb_utils.get_input_tensor_by_name(request, "TEXT").as_numpy()
            texts = np.concatenate([texts, np.array([b"more"], object)])
            size = np.array([len(texts)], np.float32)
            outputs = [pb_utils.Tensor("OUT", size), pb_utils.Tensor("TEXTS", texts)]
            return [pb_utils.InferenceResponse(outputs)]

    with ModelHarness(Remembering, sequences(TEXT)) as model:
        sizes = [model.execute({"IN": [0]}, correlation_id=1)["OUT"].item() for _ in range(3)]

    assert sizes == [2, 3, 4]


def test_a_wrong_state_fails_the_test():
    class Wrong:
        def execute(self, requests):
            outputs = [
                pb_utils.Tensor("OUT", np.zeros(1, np.float32)),
                pb_utils.Tensor("NEXT", np.zeros(2, np.float32)),
            ]
            return [pb_utils.InferenceResponse(outputs) for _ in requests]

    with (
        ModelHarness(Wrong, sequences(STATE)) as model,
        pytest.raises(InternalError, match=r"state 'NEXT' .* has shape \[2\], expected \[1\]"),
    ):
        model.execute({"IN": [1]}, correlation_id=1, flags=1)


def test_initial_states_come_from_the_models_folder(tmp_path):
    initial = {"name": "i", "data_type": "TYPE_FP32", "dims": [1], "data_file": "first"}
    (tmp_path / "initial_state").mkdir()
    (tmp_path / "initial_state" / "first").write_bytes(np.float32(100).tobytes())
    (tmp_path / "model.py").write_text(
        "from tests.testing.test_harness_sequences import Accumulating\n"
        "class TritonPythonModel(Accumulating): pass\n"
    )
    settings = sequences({**STATE, "initial_state": [initial]})
    with ModelHarness(tmp_path / "model.py", settings) as model:
        response = model.execute({"IN": [1]}, correlation_id=1)

    assert response["OUT"].item() == 101
