# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import pytest

from pytriton.base import dtypes
from pytriton.tools.perf.errors import PerfError
from pytriton.tools.perf.model_description import describe

METADATA = {
    "name": "M",
    "inputs": [{"name": "a", "datatype": "FP32", "shape": [-1, 3]}],
    "outputs": [{"name": "b", "datatype": "BYTES", "shape": [-1, 1]}],
}
CONFIG = {
    "max_batch_size": 8,
    "input": [{"name": "a", "optional": True}],
    "output": [{"name": "b"}],
}


def test_description_takes_the_first_dimension_for_the_batch():
    model = describe(METADATA, CONFIG)

    assert model.inputs[0].shape == (3,)
    assert model.inputs[0].dtype is dtypes.FP32
    assert model.inputs[0].is_optional
    assert model.outputs[0].dtype is dtypes.BYTES


def test_description_without_a_configuration_has_no_batch():
    model = describe(METADATA, {})

    assert model.max_batch_size == 0
    assert model.inputs[0].shape == (-1, 3)


def test_description_knows_what_changes_a_measurement():
    model = describe(
        METADATA,
        {
            "model_transaction_policy": {"decoupled": True},
            "sequence_batching": {},
            "response_cache": {"enable": True},
            "ensemble_scheduling": {
                "step": [
                    {"model_name": "x", "model_version": "-1"},
                    {"model_name": "y", "model_version": "2"},
                    {"model_name": "x", "model_version": "-1"},
                ]
            },
        },
    )

    assert model.is_decoupled
    assert model.has_sequences
    assert model.has_cache
    assert model.composing == (("x", ""), ("y", "2"))


def test_configured_input_without_metadata_is_refused():
    with pytest.raises(PerfError, match="no metadata found for input tensor c of model M"):
        describe(METADATA, {"input": [{"name": "c"}]})


def test_unknown_datatype_is_refused():
    metadata = {"name": "M", "inputs": [{"name": "a", "datatype": "FP1", "shape": []}]}

    with pytest.raises(PerfError, match="a has the datatype FP1"):
        describe(metadata, {})
