# SPDX-License-Identifier: Apache-2.0
"""Which `batch_input` and `batch_output` a configuration may have.

The texts for what Triton refuses, too, are compared in tests/tensor_differential.
"""

from __future__ import annotations

import pytest

from pytriton.base.errors import InvalidArgumentError
from pytriton.serving.engine.config import config_from_text, validate_config

MODEL = (
    'name: "m" backend: "python" max_batch_size: 4 '
    'input { name: "x" data_type: TYPE_FP32 dims: [ -1 ] allow_ragged_batch: true } '
    'output { name: "y" data_type: TYPE_FP32 dims: [ -1 ] } '
)


def check(text: str) -> None:
    validate_config(config_from_text(MODEL + text, "config.pbtxt"))


@pytest.mark.parametrize(
    "kind",
    [
        "ELEMENT_COUNT",
        "ACCUMULATED_ELEMENT_COUNT",
        "ACCUMULATED_ELEMENT_COUNT_WITH_ZERO",
        "MAX_ELEMENT_COUNT_AS_SHAPE",
        "ITEM_SHAPE",
        "ITEM_SHAPE_FLATTEN",
    ],
)
@pytest.mark.parametrize("dtype", ["INT32", "FP32"])
def test_every_kind_of_batch_input_is_accepted(kind, dtype):
    # The check raises for what it refuses.
    check(
        f'batch_input {{ kind: BATCH_{kind} target_name: "n" data_type: TYPE_{dtype} '
        'source_input: "x" }'
    )


def test_batch_output_is_accepted():
    # The check raises for what it refuses.
    check('batch_output { target_name: "y" source_input: "x" }')


@pytest.mark.parametrize(
    "text,expected",
    [
        (
            'batch_input { kind: 77 target_name: "n" data_type: TYPE_INT32 source_input: "x" }',
            "batch input has unknown kind 77 for m",
        ),
        (
            'batch_output { kind: 9 target_name: "y" source_input: "x" }',
            "batch output has unknown kind 9 for m",
        ),
        ('batch_output { source_input: "x" }', "batch output must specify 'target_name' for m"),
    ],
)
def test_what_triton_does_not_survive_or_explain_is_refused(text, expected):
    with pytest.raises(InvalidArgumentError) as caught:
        check(text)

    assert caught.value.message == expected
