# SPDX-License-Identifier: Apache-2.0
"""Ensembles whose own tensors have another shape for clients than for the steps."""

from __future__ import annotations

import pytest

from pytriton.base import dtypes
from pytriton.base.messages import InferTensor
from tests.engine.ensemble.ensemble_configs import ensemble_config, model_config, step
from tests.engine.ensemble.ensemble_rig import EnsembleRig, tensor


@pytest.fixture
def rig() -> EnsembleRig:
    """Clients of the ensemble see [4], its step sees [2, 2]."""
    config = ensemble_config(step("a", {"IN": "X"}, {"OUT": "Y"}))
    for each in (*config.input, *config.output):
        each.reshape.shape.extend([2, 2])
    return EnsembleRig(model_config("a", dims=(2, 2)), config)


def squares(rows: int, *dims: int) -> InferTensor:
    size = 4 * rows
    for dim in dims:
        size *= dim
    return InferTensor("OUT", dtypes.FP32, (rows, *dims), bytes(size))


def test_tensors_of_an_ensemble_are_reshaped(rig: EnsembleRig) -> None:
    _, sink = rig.infer("e", tensor("X", bytes(range(32)), rows=2))
    first = rig.request("a").inputs["IN"]
    rig.answer("a", squares(2, 2, 2))

    (response,) = sink.responses
    assert (first.shape, first.data) == ((2, 2, 2), bytes(range(32)))
    assert response is not None
    assert response.outputs[0].shape == (2, 4)


def test_output_of_another_size_is_an_error_that_ends_the_request(rig: EnsembleRig) -> None:
    _, sink = rig.infer("e", tensor("X"))
    rig.answer("a", squares(1, 3))

    assert sink.responses == []
    assert [error.message for error in sink.errors] == [
        "in ensemble 'e', output tensor shape does not match size of output for 'Y'"
    ]
    assert sink.final_count == 1
    assert not rig.ensembles["e"].is_busy


def test_ensemble_that_reshapes_takes_no_columns(rig: EnsembleRig) -> None:
    rig.add(ensemble_config(step("a", {"IN": "X"}, {"OUT": "Y"}), name="plain", dims=(2, 2)))

    assert rig.ensembles["plain"].takes_columns
    assert not rig.ensembles["e"].takes_columns
