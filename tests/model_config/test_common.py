# SPDX-License-Identifier: Apache-2.0
import numpy as np
import pytest

from pytriton.exceptions import PyTritonBadParameterError
from pytriton.model_config import ModelConfig
from pytriton.model_config.common import (
    DynamicBatcher,
    ModelWarmup,
    QueuePolicy,
    TimeoutAction,
    WarmupInput,
    generate_warmup_data,
    generate_warmup_requests,
)
from pytriton.model_config.triton_model_config import TensorSpec


def test_model_config_batches_by_default():
    config = ModelConfig()

    assert (config.batching, config.max_batch_size) == (True, 4)
    assert config.batcher == DynamicBatcher()
    assert (config.response_cache, config.decoupled, config.model_warmup) == (False, False, None)


def test_model_configs_do_not_share_their_batcher():
    assert ModelConfig().batcher is not ModelConfig().batcher


def test_queue_policy_rejects_by_default():
    assert QueuePolicy() == QueuePolicy(TimeoutAction.REJECT, 0, False, 0)


def test_batcher_defaults_wait_for_nothing():
    assert DynamicBatcher() == DynamicBatcher(0, None, False, 0, 0, None, None)


@pytest.mark.parametrize("dtype", [np.float32, np.int64, np.bool_, "bfloat16"])
def test_zero_data_are_zeros_of_the_type(dtype):
    data = generate_warmup_data(WarmupInput(dtype, (3,), zero_data=True), batch_size=2)

    assert data.shape == (2, 3)
    assert not data.any()


@pytest.mark.parametrize("dtype", [np.bytes_, object])
def test_zero_data_of_byte_strings_are_empty_objects(dtype):
    data = generate_warmup_data(WarmupInput(dtype, (1,), zero_data=True), batch_size=2)

    assert data.dtype == object
    assert data.tolist() == [[b""], [b""]]


@pytest.mark.parametrize(
    "dtype, low, high",
    [
        (np.int8, -128, 127),
        (np.uint16, 0, 65535),
        (np.int32, 0, 99),
        (np.uint64, 0, 99),
        (np.float16, 0, 1),
        (np.float64, 0, 1),
        (np.bool_, 0, 1),
    ],
)
def test_random_data_keep_to_the_range_of_the_type(dtype, low, high):
    data = generate_warmup_data(WarmupInput(dtype, (100,), random_data=True), batch_size=4)

    assert data.dtype == dtype
    assert data.shape == (4, 100)
    assert low <= data.min() < data.max() <= high


def test_random_byte_strings_are_short_words():
    data = generate_warmup_data(WarmupInput(bytes, (50,), random_data=True), batch_size=1)

    assert all(8 <= len(word) <= 32 and word.isalnum() for word in data.ravel())


@pytest.mark.parametrize("dtype", [np.float32, bytes])
def test_random_data_are_the_same_in_every_run(dtype):
    source = WarmupInput(dtype, (5,), random_data=True)

    assert np.array_equal(generate_warmup_data(source, 2), generate_warmup_data(source, 2))


def test_batch_size_zero_leaves_the_batch_dimension_out():
    data = generate_warmup_data(WarmupInput(np.float32, (3,), zero_data=True), batch_size=0)

    assert data.shape == (3,)


def test_input_without_source_is_refused():
    with pytest.raises(PyTritonBadParameterError, match="must be provided for warmup input"):
        generate_warmup_data(WarmupInput(np.float32, (3,)), batch_size=1)


@pytest.mark.parametrize(
    "stored, expected",
    [
        ([[1, 2], [3, 4], [5, 6]], [[1, 2], [3, 4], [5, 6]]),
        ([1, 2], [[1, 2], [1, 2], [1, 2]]),
        ([[1, 2], [3, 4]], [[1, 2], [3, 4], [1, 2]]),
        ([[1, 2], [3, 4], [5, 6], [7, 8]], [[1, 2], [3, 4], [5, 6]]),
    ],
)
def test_file_data_are_repeated_or_cut_to_the_batch(tmp_path, stored, expected):
    path = tmp_path / "data.npy"
    np.save(path, np.array(stored, dtype=np.int64))
    source = WarmupInput(np.float32, (2,), random_data=True, input_data_file=str(path))

    data = generate_warmup_data(source, batch_size=3)

    assert data.dtype == np.float32
    assert data.tolist() == expected


def test_file_of_text_gives_byte_strings(tmp_path):
    path = tmp_path / "data.npy"
    np.save(path, np.array([["ä"], ["b"]]))

    data = generate_warmup_data(WarmupInput(bytes, (1,), input_data_file=str(path)), batch_size=2)

    assert data.dtype == object
    assert data.tolist() == [["ä".encode()], [b"b"]]


def test_file_of_another_shape_is_refused(tmp_path):
    path = tmp_path / "data.npy"
    np.save(path, np.zeros((2, 3)))

    with pytest.raises(PyTritonBadParameterError, match=r"\(4, 2\) or \(2,\) in .*got \(2, 3\)"):
        generate_warmup_data(WarmupInput(np.float32, (2,), input_data_file=str(path)), 4)


def _warmup(name="x", count=2):
    source = WarmupInput(np.float32, (1,), random_data=True)
    return ModelWarmup(name="w", batch_size=1, inputs={name: source}, count=count)


def test_requests_come_in_order_and_number():
    requests = generate_warmup_requests([_warmup("x", 2), _warmup("y", 1)])

    assert [list(request) for request in requests] == [["x"], ["x"], ["y"]]
    assert not np.array_equal(requests[0]["x"], requests[1]["x"])


def test_requests_name_inputs_of_the_model_only():
    specs = [TensorSpec("a", (1,), np.float32), TensorSpec("b", (1,), np.float32)]

    with pytest.raises(PyTritonBadParameterError, match=r"model \(a, b\), got x"):
        generate_warmup_requests([_warmup("x")], specs, [])
