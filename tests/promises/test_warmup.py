# SPDX-License-Identifier: Apache-2.0
"""Binding configuration: warm-ups run in order, with their data, before the model is ready."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from pytriton.client import ModelClient
from pytriton.decorators import batch
from pytriton.model_config import ModelConfig, Tensor
from pytriton.model_config.common import ModelWarmup, WarmupInput
from pytriton.triton import Triton, TritonConfig
from tests.e2e.http_client import is_ready
from tests.e2e.waiting import DEADLINE_S

pytestmark = pytest.mark.e2e

X = Tensor(name="x", dtype=np.float32, shape=(-1,))


def warmup(source, batch_size=1, count=1, shape=(2,)):
    return ModelWarmup(
        "warm-up", batch_size, {"x": WarmupInput(np.float32, shape, **source)}, count
    )


def test_stages_run_in_order_with_their_data_before_any_request(ports, tmp_path):
    calls = []

    @batch
    def record(x):
        calls.append(x.copy())
        return {"x": x}

    path = tmp_path / "rows.npy"
    np.save(path, np.array([[1, 2], [3, 4]], np.float32))
    stages = [
        warmup({"zero_data": True}, count=2),
        warmup({"random_data": True}, batch_size=4, shape=(3,)),
        warmup({"input_data_file": str(path)}, batch_size=2),
    ]
    triton = Triton(config=TritonConfig(**ports))
    triton.bind("Model", record, [X], [X], config=ModelConfig(model_warmup=stages), strict=True)
    triton.run()
    try:
        zeros, more_zeros, random, from_file = calls
        with ModelClient(f"localhost:{ports['http_port']}", "Model") as client:
            answer = client.infer_sample(np.ones(1, np.float32))
    finally:
        triton.stop()

    assert zeros.tolist() == more_zeros.tolist() == [[0.0, 0.0]]
    assert random.shape == (4, 3)
    assert len(np.unique(random)) > 1
    assert from_file.tolist() == [[1, 2], [3, 4]]
    assert answer["x"].tolist() == [1.0]


def test_model_is_ready_only_after_its_warmup(ports):
    warming, may_end = threading.Event(), threading.Event()

    def infer(requests):
        warming.set()
        may_end.wait(DEADLINE_S)
        return requests

    config = ModelConfig(model_warmup=[warmup({"zero_data": True})])
    with Triton(config=TritonConfig(**ports)) as triton:
        binding = threading.Thread(target=triton.bind, args=("Model", infer, [X], [X], 1, config))
        binding.start()
        assert warming.wait(DEADLINE_S)
        was_ready = is_ready(ports["http_port"], "Model")
        may_end.set()
        binding.join(DEADLINE_S)

        assert not was_ready
        assert is_ready(ports["http_port"], "Model")


def test_byte_strings_and_list_outputs_are_warmed(ports):
    calls = []

    @batch
    def infer(INPUT_1, INPUT_2):  # noqa: N803  the names that the server gives unnamed inputs
        calls.append(INPUT_2.tolist())
        return [INPUT_1]

    inputs = {
        "INPUT_1": WarmupInput(np.float32, (1,), random_data=True),
        "INPUT_2": WarmupInput(np.bytes_, (1,), zero_data=True),
    }
    config = ModelConfig(model_warmup=[ModelWarmup("first-batch", 1, inputs, 1)])
    scalar = Tensor(dtype=np.float32, shape=(1,))
    with Triton(config=TritonConfig(**ports)) as triton:
        text = Tensor(dtype=np.bytes_, shape=(1,))
        triton.bind("Model", infer, [scalar, text], [scalar], config=config, strict=True)

        assert calls == [[[b""]]]
        assert is_ready(ports["http_port"], "Model")
