# SPDX-License-Identifier: Apache-2.0
"""What a model configuration may not say; every text was compared with Triton's own answer."""

from __future__ import annotations

import pytest

from pytriton.base.errors import InvalidArgumentError
from pytriton.serving.engine.config import config_from_text, normalise_config, validate_config
from pytriton.serving.engine.config_rules import validate_model

INPUT = 'input [ { name: "x" data_type: TYPE_FP32 dims: [ -1 ] } ]'
OUTPUT = 'output [ { name: "y" data_type: TYPE_FP32 dims: [ -1 ] } ]'
PYTHON = 'name: "m" backend: "python"'


def normal(text: str, gpu_ids: tuple[int, ...] = ()):
    return normalise_config(config_from_text(text, "config.pbtxt"), gpu_ids)


def refusal(text: str, gpu_ids: tuple[int, ...] = ()) -> str:
    with pytest.raises(InvalidArgumentError) as caught:
        validate_config(normal(text, gpu_ids), gpu_ids)
    return caught.value.message


@pytest.mark.parametrize(
    "text,expected",
    [
        ('backend: "python"', "model configuration must specify 'name'"),
        ('name: "m"', "unexpected platform type '' for m"),
        ('name: "m" platform: "strange"', "unexpected platform type 'strange' for m"),
        (
            'name: "m" platform: "tensorrt_plan" backend: "onnxruntime"',
            "unexpected 'platform' and 'backend' pair, got:tensorrt_plan, onnxruntime",
        ),
        (
            'name: "m" platform: "ensemble" backend: "python"',
            "Ensemble model 'm' must have platform type 'ensemble' and empty backend type",
        ),
        (
            'name: "m" platform: "ensemble"',
            "ensemble scheduling must be set for ensemble m whose platform is ensemble",
        ),
        (
            PYTHON + " ensemble_scheduling { }",
            "ensemble scheduling cannot be set for model 'm' whose platform is not ensemble",
        ),
        (PYTHON + " max_batch_size: -1", "'max_batch_size' must be non-negative value for m"),
    ],
)
def test_validation_refuses_an_identity(text, expected):
    assert refusal(text) == expected


def test_tensors_that_the_model_may_complete_are_checked_apart():
    validate_model(normal(PYTHON + ' input [ { name: "x" } ]'))

    assert refusal(PYTHON + ' input [ { name: "x" } ]') == (
        "model input 'x' must specify 'data_type' for m"
    )


@pytest.mark.parametrize("platform", ["", "strange", "onnxruntime_onnx"])
def test_python_backend_accepts_any_platform(platform):
    # The check raises for what it refuses.
    validate_config(normal(f'{PYTHON} platform: "{platform}"'))


@pytest.mark.parametrize(
    "tensor,expected",
    [
        ("data_type: TYPE_FP32 dims: [1]", "model {kind} must specify 'name' for m"),
        ('name: "t" dims: [1]', "model {kind} 't' must specify 'data_type' for m"),
        ('name: "t" data_type: TYPE_FP32', "model {kind} 't' must specify 'dims' for m"),
        *(
            (
                f'name: "t" data_type: TYPE_FP32 dims: [{dim}]',
                (
                    "model {kind} 't' dimension must be integer >= 1, or -1 to indicate a "
                    "variable-size dimension for m"
                ),
            )
            for dim in (0, -2)
        ),
        (
            'name: "t" data_type: TYPE_FP32 dims: [1] reshape { shape: [] }',
            (
                "model {kind} 't' cannot have empty reshape for non-batching model as scalar "
                "tensors are not supported for m"
            ),
        ),
        (
            'name: "t" data_type: TYPE_FP32 dims: [2] reshape { shape: [0] }',
            (
                "model {kind} 't' reshape dimensions must be integer >= 1, or -1 to indicate a "
                "variable-size dimension for m"
            ),
        ),
        *(
            (
                f'name: "t" data_type: TYPE_FP32 dims: {dims} reshape {{ shape: {shape} }}',
                "model {kind} 't' has different size for dims and reshape for m",
            )
            for dims, shape in (
                ([2], [3]),
                ([-1], [2]),
                ([-1, 2, -1], [-1, 3, -1]),
                ([-1, 2, -1, 3], [2, -1, -1, 3]),
            )
        ),
        (
            'name: "t" data_type: TYPE_FP32 dims: [-1, -1] reshape { shape: [-1] }',
            (
                "model {kind} 't' has different number of variable-size dimensions for dims and "
                "reshape for m"
            ),
        ),
        (
            'name: "t" data_type: TYPE_FP32 dims: [2] is_shape_tensor: true',
            "shape tensors are only supported for TensorRT platform for m",
        ),
        (
            'name: "t" data_type: TYPE_FP32 dims: [2] is_non_linear_format_io: true',
            "Non-linear IO format is only supported for the TensorRT platform for m",
        ),
    ],
)
@pytest.mark.parametrize("kind", ["input", "output"])
def test_validation_refuses_a_tensor(kind, tensor, expected):
    assert refusal(f"{PYTHON} {kind} [ {{ {tensor} }} ]") == expected.format(kind=kind)


def test_validation_refuses_image_formats_without_three_dims():
    text = f'{PYTHON} input [ {{ name: "x" data_type: TYPE_FP32 dims: [2] format: FORMAT_NHWC }} ]'

    assert refusal(text) == "model input NHWC/NCHW require 3 dims for m"


@pytest.mark.parametrize("kind,tensors", [("input", INPUT), ("output", OUTPUT)])
def test_validation_refuses_a_name_twice(kind, tensors):
    name = "x" if kind == "input" else "y"

    assert refusal(f"{PYTHON} {tensors} {tensors}") == (
        f"model {kind} '{name}' is specified more than once for m"
    )


def test_input_and_output_may_share_a_name():
    # The check raises for what it refuses.
    validate_config(normal(f"{PYTHON} {INPUT} {INPUT.replace('input', 'output')}"))


DELAY = "timeout_action: DELAY default_timeout_microseconds: 5"


@pytest.mark.parametrize(
    "batching,expected",
    [
        ("preferred_batch_size: [0]", "dynamic batching preferred size must be positive for m"),
        (
            "preferred_batch_size: [4, 5]",
            "dynamic batching preferred size must be <= max batch size for m",
        ),
        ("priority_levels: 2", "default priority level must be in range [1, 2] for m"),
        (
            "priority_levels: 2 default_priority_level: 3",
            "default priority level must be in range [1, 2] for m",
        ),
        (
            (
                "priority_levels: 2 default_priority_level: 1 "
                "priority_queue_policy { key: 3 value { } }"
            ),
            "priority queue policy must have priority level in range [1, 2] for m",
        ),
        (
            "priority_levels: 2 default_priority_level: 1 preserve_ordering: true",
            "Only one priority level is allowed when 'preserve_ordering' is true for m",
        ),
        *(
            (
                f"preserve_ordering: true {policy}",
                (
                    "Queue policy can not have DELAY as timeout action when 'preserve_ordering' is "
                    "true for m"
                ),
            )
            for policy in (
                f"default_queue_policy {{ {DELAY} }}",
                f"priority_queue_policy {{ key: 1 value {{ {DELAY} }} }}",
            )
        ),
    ],
)
def test_validation_refuses_dynamic_batching(batching, expected):
    text = f"{PYTHON} max_batch_size: 4 dynamic_batching {{ {batching} }}"

    assert refusal(text) == expected


@pytest.mark.parametrize(
    "batching",
    [
        "preserve_ordering: true default_queue_policy { timeout_action: DELAY }",
        "priority_queue_policy { key: 7 value { max_queue_size: 1 } }",
    ],
)
def test_validation_accepts_dynamic_batching_that_triton_accepts(batching):
    # The check raises for what it refuses.
    validate_config(normal(f"{PYTHON} max_batch_size: 4 dynamic_batching {{ {batching} }}"))


@pytest.mark.parametrize(
    "scheduling,obstacle",
    [
        ("sequence_batching { }", "sequence batching scheduler"),
        ("model_transaction_policy { decoupled: true }", "'decoupled' transaction policy"),
    ],
)
def test_response_cache_is_for_coupled_models_without_sequences(scheduling, obstacle):
    text = f"{PYTHON} max_batch_size: 4 response_cache {{ enable: true }} {scheduling}"

    assert refusal(text) == (
        f"Response Cache does not currently support model m with {obstacle}. "
        "Please disable the response cache."
    )


@pytest.mark.parametrize(
    "group,gpu_ids,expected",
    [
        ("kind: KIND_CPU gpus: [0]", (), "has kind KIND_CPU but specifies one or more GPUs"),
        ("gpus: [0]", (), "has kind KIND_CPU but specifies one or more GPUs"),
        ("kind: KIND_GPU", (), "has kind KIND_GPU but no GPUs are available"),
        (
            "kind: KIND_GPU gpus: [2]",
            (0, 1),
            "specifies invalid or unsupported gpu id 2. The available GPUs are: 0, 1",
        ),
        (
            'profile: "p"',
            (),
            "and platform specifies profile field which is only supported for TensorRT models",
        ),
    ],
)
def test_validation_refuses_an_instance_group(group, gpu_ids, expected):
    text = f"{PYTHON} instance_group [ {{ {group} }} ]"

    assert refusal(text, gpu_ids) == f"instance group m_0 of model m {expected}"


@pytest.mark.parametrize(
    "text,expected",
    [
        ("instance_group [ { kind: 99 } ]", "instance group m_0 of model m has unknown kind 99"),
        (
            "max_batch_size: 4 dynamic_batching { default_queue_policy { timeout_action: 99 } }",
            "queue policy has unknown timeout action 99 for m",
        ),
        (
            'input [ { name: "x" data_type: 99 dims: [1] } ]',
            "model input 'x' must specify 'data_type' for m",
        ),
    ],
)
def test_validation_refuses_numbers_that_are_no_value_of_an_enum(text, expected):
    assert refusal(f"{PYTHON} {text}") == expected
