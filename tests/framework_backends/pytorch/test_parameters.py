# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import pytest

from pytriton.base.errors import InvalidArgumentError
from pytriton.runtime.framework_backends.pytorch.configuration import (
    ModuleParameters,
    ScriptParameters,
    read_module_parameters,
    read_script_parameters,
)


def config(**values):
    return {"parameters": {key: {"string_value": value} for key, value in values.items()}}


def test_defaults_are_tritons():
    unknown = config(ENABLE_NVFUSER="maybe", OTHER="1")

    assert read_script_parameters({}) == ScriptParameters()
    assert read_script_parameters(unknown) == ScriptParameters(inference_mode=True)
    assert read_module_parameters({}) == ModuleParameters(threads=1, inter_op_threads=1)


@pytest.mark.parametrize(
    "key, member",
    [
        ("DISABLE_OPTIMIZED_EXECUTION", "disables_optimized_execution"),
        ("INFERENCE_MODE", "inference_mode"),
        ("DISABLE_CUDNN", "disables_cudnn"),
        ("ENABLE_TENSOR_FUSER", "tensor_fuser"),
        ("ENABLE_JIT_PROFILING", "jit_profiling"),
        ("ENABLE_JIT_EXECUTOR", "jit_executor"),
        ("ENABLE_WEIGHT_SHARING", "shares_weights"),
        ("ENABLE_CACHE_CLEANING", "cleans_cache"),
    ],
)
def test_booleans_are_words_or_digits(key, member):
    for value in ("true", "ON", "1"):
        assert getattr(read_script_parameters(config(**{key: value})), member) is True
    for value in ("False", "off", "0"):
        assert getattr(read_script_parameters(config(**{key: value})), member) is False
    with pytest.raises(InvalidArgumentError, match=f"parameter {key} to a boolean.*got 'yes'"):
        read_script_parameters(config(**{key: "yes"}))


@pytest.mark.parametrize("value, expected", [("3", 3), ("0", 0), ("-2", 0)])
def test_thread_counts_are_numbers(value, expected):
    found = read_script_parameters(config(INTRA_OP_THREAD_COUNT=value, INTER_OP_THREAD_COUNT=value))

    assert (found.intra_op_threads, found.inter_op_threads) == (expected, expected)


def test_thread_counts_of_words_are_refused():
    with pytest.raises(InvalidArgumentError, match="INTRA_OP_THREAD_COUNT to an integer, got 'x'"):
        read_script_parameters(config(INTRA_OP_THREAD_COUNT="x"))
    with pytest.raises(InvalidArgumentError, match="a positive number as parameter NUM_THREADS"):
        read_module_parameters(config(NUM_THREADS="0"))


def test_arguments_of_compile_are_json():
    found = read_module_parameters(
        config(TORCH_COMPILE_OPTIONAL_PARAMETERS='{"disable": true, "mode": "default"}')
    )

    assert found.compile_arguments == {"disable": True, "mode": "default"}


@pytest.mark.parametrize("text", ["{", "[]", '{"model": 1}'])
def test_arguments_of_compile_that_are_none_are_refused(text):
    with pytest.raises(InvalidArgumentError, match="TORCH_COMPILE_OPTIONAL_PARAMETERS"):
        read_module_parameters(config(TORCH_COMPILE_OPTIONAL_PARAMETERS=text))
