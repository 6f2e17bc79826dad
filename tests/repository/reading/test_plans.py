# SPDX-License-Identifier: Apache-2.0
"""Versions by policy, instances by group, and warm-up samples: what a plan is made of."""

from __future__ import annotations

import numpy as np
import pytest

from pytriton.base import dtypes
from pytriton.base.errors import InvalidArgumentError, ServerError, UnsupportedError
from pytriton.serving.engine.config import config_from_text, normalise_config
from pytriton.serving.engine.rate_limiter import InstanceLimits, ResourceNeed
from pytriton.serving.repository.loading.warmup import build_warmup
from pytriton.serving.repository.reading.instances import plan_instances
from pytriton.serving.repository.reading.layout import ModelPlace, missing_versions, select_versions
from tests.repository.scene import write_model


def config_of(text: str, gpu_ids=()):
    return normalise_config(
        config_from_text(f'name: "m" backend: "python" {text}', "config.pbtxt"), gpu_ids
    )


@pytest.mark.parametrize(
    "policy, expected",
    [
        ("", [10]),
        ("latest { }", []),
        ("latest { num_versions: 1 }", [10]),
        ("latest { num_versions: 2 }", [2, 10]),
        ("latest { num_versions: 9 }", [1, 2, 10]),
        ("all { }", [1, 2, 10]),
        ("specific { versions: [ 10, 1, 7 ] }", [1, 10]),
        ("specific { versions: [ 7 ] }", []),
    ],
)
def test_policy_selects_versions(policy, expected):
    config = config_of(f"version_policy {{ {policy} }}")

    assert select_versions(config.version_policy, [10, 1, 2]) == expected


def test_policy_names_versions_that_are_not_there():
    policy = config_of("version_policy { specific { versions: [ 8, 1, 7 ] } }").version_policy

    assert missing_versions(policy, [1, 2]) == [8, 7]


# Instances


def instances(text: str, gpu_ids=(), visible=None):
    plans = plan_instances(config_of(text, gpu_ids), visible)
    return [(plan.name, plan.kind, plan.device_id, plan.environment) for plan in plans]


def test_plan_has_the_limits_of_its_group_and_device():
    text = """
    instance_group [
      { kind: KIND_GPU gpus: [ 1 ] rate_limiter {
        resources [ { name: "R" count: 4 }, { name: "S" global: true count: 2 } ] priority: 3 } },
      { kind: KIND_CPU passive: true }
    ]
    """
    first, second = plan_instances(config_of(text, (0, 1)))

    assert first.limits == InstanceLimits(
        resources=(ResourceNeed("R", 4), ResourceNeed("S", 2, is_global=True)),
        priority=3,
        device_id=1,
    )
    assert first.limits.needs() == {("R", 1): 4, ("S", None): 2}
    assert not first.is_passive
    assert second.limits.needs() == {}
    assert second.is_passive


@pytest.mark.parametrize(
    "text, gpu_ids, expected",
    [
        ("", (), [("m_0", "CPU", 0, {})]),
        ("instance_group [ { } ]", (), [("m_0_0", "CPU", 0, {})]),
        (
            'instance_group [ { count: 2 }, { name: "big" kind: KIND_MODEL } ]',
            (),
            [("m_0_0", "CPU", 0, {}), ("m_0_1", "CPU", 0, {}), ("big_0", "MODEL", 0, {})],
        ),
        ("", (0, 1), [("m_0", "GPU", 0, {}), ("m_0", "GPU", 1, {})]),
        (
            "instance_group [ { count: 2 kind: KIND_GPU gpus: [ 3, 1 ] } ]",
            (0, 1, 2, 3),
            [
                ("m_0_0", "GPU", 3, {}),
                ("m_0_0", "GPU", 1, {}),
                ("m_0_1", "GPU", 3, {}),
                ("m_0_1", "GPU", 1, {}),
            ],
        ),
    ],
)
def test_groups_become_instances(text, gpu_ids, expected):
    assert instances(text, gpu_ids) == expected


OWN = 'parameters { key: "VISIBLE_GPUS" value { string_value: "own" } }'


@pytest.mark.parametrize(
    "visible, devices", [(None, ["0", "2"]), ("", ["0", "2"]), ("4, 5,GPU-x", ["4", "GPU-x"])]
)
def test_instance_may_see_its_own_device_only(visible, devices):
    found = instances(
        f"{OWN} instance_group [ {{ kind: KIND_GPU gpus: [ 0, 2 ] }}, {{ kind: KIND_CPU }} ]",
        (0, 1, 2),
        visible,
    )

    assert found == [
        ("m_0_0", "GPU", 0, {"CUDA_VISIBLE_DEVICES": devices[0]}),
        ("m_0_0", "GPU", 0, {"CUDA_VISIBLE_DEVICES": devices[1]}),
        ("m_1_0", "CPU", 0, {}),
    ]


# Warm-up


@pytest.fixture
def place(repository):
    directory = write_model(repository)
    (directory / "warmup").mkdir()
    return ModelPlace(repository, directory)


def sample(inputs: str, settings: str = "batch_size: 1"):
    return config_of(f'model_warmup [ {{ name: "s" {settings} {inputs} }} ]')


def one_input(value: str) -> str:
    return f'inputs {{ key: "x" value {{ {value} }} }}'


def tensor_of(place, value: str):
    ((tensor,),) = [each.inputs for each in build_warmup(place, sample(one_input(value)))]
    return tensor


def test_sample_says_how_often_it_runs(place):
    inputs = one_input("data_type: TYPE_FP32 dims: [ 2 ] zero_data: true")

    (once,) = build_warmup(place, sample(inputs, "batch_size: 3"))
    (often,) = build_warmup(place, sample(inputs, "batch_size: 1 count: 5"))

    assert (once.name, once.request_count, once.execution_count) == ("s", 3, 1)
    assert often.execution_count == 5
    assert build_warmup(place, sample(inputs, "")) == ()


def test_batching_model_gets_one_row(place):
    inputs = one_input("data_type: TYPE_FP32 dims: [ 2 ] zero_data: true")

    (found,) = build_warmup(place, sample(inputs))

    assert found.request_inputs(batching=True)["x"].shape == (1, 2)
    assert found.request_inputs(batching=False)["x"].shape == (2,)


@pytest.mark.parametrize("dtype", dtypes.BY_CONFIG_NAME.values(), ids=lambda dtype: dtype.name)
def test_zero_data_is_zero_in_every_datatype(place, dtype):
    tensor = tensor_of(place, f"data_type: {dtype.config_name} dims: [ 2, 3 ] zero_data: true")

    assert (tensor.dtype, tensor.shape) == (dtype, (2, 3))
    if dtype is dtypes.BYTES:
        assert dtypes.decode_bytes(tensor.data) == [b""] * 6
    else:
        assert tensor.data == bytes(6 * dtype.itemsize)


@pytest.mark.parametrize("dtype", dtypes.BY_CONFIG_NAME.values(), ids=lambda dtype: dtype.name)
def test_random_data_are_numbers_of_the_datatype(place, dtype):
    tensor = tensor_of(place, f"data_type: {dtype.config_name} dims: [ 64 ] random_data: true")

    if dtype is dtypes.BYTES:
        assert dtypes.decode_bytes(tensor.data) == [b""] * 64
        return
    array = np.frombuffer(tensor.data, dtype.numpy)
    assert array.shape == (64,)
    assert len(set(array.tolist())) > 1
    assert np.isfinite(array.astype(np.float64)).all()
    if dtype is dtypes.BOOL:
        assert set(tensor.data) <= {0, 1}


def test_file_data_are_the_first_bytes_of_the_file(place):
    (place.directory / "warmup" / "x.bin").write_bytes(bytes(range(12)))

    tensor = tensor_of(place, 'data_type: TYPE_FP32 dims: [ 2 ] input_data_file: "x.bin"')

    assert tensor.data == bytes(range(8))


def test_file_data_of_strings_are_elements(place):
    data = dtypes.encode_bytes([b"a", b"", b"long"])
    (place.directory / "warmup" / "x.bin").write_bytes(data)

    value = 'data_type: TYPE_STRING dims: [ {} ] input_data_file: "x.bin"'

    assert tensor_of(place, value.format(3)).data == data
    with pytest.raises(InvalidArgumentError, match="warmup setting expects 2 elements"):
        tensor_of(place, value.format(2))
    (place.directory / "warmup" / "x.bin").write_bytes(data[:-1])
    with pytest.raises(InvalidArgumentError, match="expects elements with lengths in x"):
        tensor_of(place, value.format(3))


@pytest.mark.parametrize(
    "value, text",
    [
        (
            "data_type: TYPE_FP32 dims: [ -1 ] zero_data: true",
            "warmup setting expects all variable-size dimensions are specified for input 'x'",
        ),
        ("dims: [ 1 ] zero_data: true", "warmup setting expects a data type for input 'x'"),
        (
            "data_type: TYPE_FP32 dims: [ 1 ]",
            "warmup setting expects zero_data, random_data or input_data_file for input 'x'",
        ),
        (
            'data_type: TYPE_FP32 dims: [ 9 ] input_data_file: "short"',
            "warmup setting expects 36 bytes, but the data provided from short only has 4 bytes",
        ),
        (
            "data_type: TYPE_FP32 dims: [ 1048576, 1048576 ] zero_data: true",
            (
                "warmup setting expects at most 2147483647 bytes for input 'x', "
                "got shape [1048576, 1048576]"
            ),
        ),
    ],
)
def test_sample_that_cannot_be_made_is_refused(place, value, text):
    (place.directory / "warmup" / "short").write_bytes(b"1234")

    with pytest.raises(ServerError) as caught:
        tensor_of(place, value)

    assert caught.value.message == text


@pytest.mark.parametrize("name", ["../../secret", "/etc/passwd", "link"])
def test_file_data_never_come_from_elsewhere(place, name):
    (place.repository.parent / "secret").write_bytes(b"1234")
    (place.directory / "warmup" / "link").symlink_to(place.repository.parent / "secret")

    with pytest.raises(UnsupportedError, match="is outside model directory"):
        tensor_of(place, f'data_type: TYPE_FP32 dims: [ 1 ] input_data_file: "{name}"')
