# SPDX-License-Identifier: Apache-2.0
"""Weights of TorchScript models that are pages of the model's file."""

from __future__ import annotations

import pathlib

import numpy as np
import pytest

from tests.framework_backends.pytorch.torch_models import config, loaded, parameters, script

torch = pytest.importorskip("torch")

SIZE = 256  # a weight of 256 KiB
SHARED = config(["X"], ["Y"], parameters(ENABLE_WEIGHT_SHARING="true"))
ROW = np.arange(SIZE, dtype=np.float32)[None, :]


def mapped_bytes(path):
    """How much of a file this process has mapped."""
    size = 0
    for line in pathlib.Path("/proc/self/maps").read_text().splitlines():
        fields = line.split()
        if fields[-1] == str(path):
            start, end = (int(part, 16) for part in fields[0].split("-"))
            size += end - start
    return size


def module_with(weight, **settings):
    return script("x", "return x @ self.w", w=weight, **settings)


@pytest.mark.skipif(not pathlib.Path("/proc/self/maps").exists(), reason="needs Linux")
@pytest.mark.parametrize("freezes", [False, True])
def test_shared_weights_are_mapped_from_the_file(tmp_path, freezes):
    weight = torch.rand(SIZE, SIZE)
    content = module_with(weight, freezes=freezes)

    with loaded(tmp_path, content, SHARED) as model:
        answer = model.execute({"X": ROW})
        mapped = mapped_bytes(tmp_path / "m" / "1" / "model.pt")
        lines = [line.message for line in model.logs]

    assert mapped >= weight.nbytes
    assert np.allclose(answer["Y"], ROW @ weight.numpy(), rtol=1e-4)
    assert f"model 'm': {weight.nbytes} bytes of its weights are shared by its instances" in lines


def test_two_weights_of_equal_size_stay_themselves(tmp_path):
    first, second = torch.rand(SIZE, SIZE), torch.rand(SIZE, SIZE)
    content = script("x", "return x @ self.a @ self.b.t()", a=first, b=second)

    with loaded(tmp_path, content, SHARED) as model:
        answer = model.execute({"X": ROW})

    assert np.allclose(answer["Y"], ROW @ first.numpy() @ second.numpy().T, rtol=1e-3)


def test_a_model_that_writes_to_a_weight_does_not_change_the_file(tmp_path):
    content = script("x", "return x @ self.w.add_(1)", w=torch.zeros(SIZE, SIZE))
    path = tmp_path / "m" / "1" / "model.pt"

    with loaded(tmp_path, content, SHARED) as model:
        answers = [model.execute({"X": ROW})["Y"][0, 0] for _ in range(2)]

    assert answers == [ROW.sum(), 2 * ROW.sum()]
    assert path.read_bytes() == content


def test_small_weights_and_others_are_left_alone(tmp_path):
    content = script("x", "return x + self.w", w=torch.ones(1))

    with loaded(tmp_path, content, SHARED) as model:
        answer = model.execute({"X": ROW})

    assert np.array_equal(answer["Y"], ROW + 1)
