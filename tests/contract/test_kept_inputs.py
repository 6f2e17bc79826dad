# SPDX-License-Identifier: Apache-2.0
"""A callable may keep its inputs for ever: nothing that happens later changes one bit of them."""

from __future__ import annotations

import functools
import gc
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from pytriton.decorators import batch

pytestmark = pytest.mark.e2e

# Inside the message, just in a block of shared memory, and large.
SIZES = [8, 9_000, 100_000]
REQUESTS = 64


@functools.cache
def waves(size: int) -> np.ndarray:
    return np.arange(size, dtype=np.float32) % 7


def pattern(number: int, size: int) -> np.ndarray:
    return np.full((1, size), number, np.float32) + waves(size)


KEPT = {
    "array": lambda array: array,
    "view": lambda array: array[:, ::2],
    "transpose": lambda array: array.T,
    "flat view of other type": lambda array: array.reshape(-1).view(np.int32),
    "memoryview": memoryview,
    "asarray of memoryview": lambda array: np.asarray(memoryview(array)),
}


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("how", KEPT)
def test_kept_inputs_never_change(host, how, size):
    kept = []

    @batch
    def keep(x):
        for row in range(len(x)):
            number = int(x[row, 0])
            kept.append((number, KEPT[how](x[row : row + 1])))
        return {"y": x[:, :1]}

    model = host.bind(keep, max_batch_size=8)
    count = REQUESTS if size < 100_000 else REQUESTS // 4
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda number: host.infer(model, x=pattern(number, size)), range(count)))
    gc.collect()
    # What comes after must not be written over what is kept.
    for number in range(20):
        host.infer(model, x=pattern(1000 + number, size))

    first = sorted(number for number, _ in kept if number < 1000)
    assert first == list(range(count))
    for number, view in kept:
        assert np.array_equal(np.asarray(view), np.asarray(KEPT[how](pattern(number, size)))), (
            number
        )


def test_kept_inputs_outlive_their_model_and_its_memory(host):
    kept = []

    def keep(requests):
        kept.extend(request["x"] for request in requests)
        return [{"y": request["x"][:, :1]} for request in requests]

    model = host.bind(keep)
    for number in range(5):
        host.infer(model, x=pattern(number, 100_000))
    host.unbind_all()
    other = host.bind(keep)
    for number in range(5, 10):
        host.infer(other, x=pattern(number, 100_000))

    for number, array in enumerate(kept):
        assert np.array_equal(array, pattern(number, 100_000)), number


def test_written_input_is_nobody_elses(host):
    kept = []

    def scribble(requests):
        for request in requests:
            kept.append(request["x"].copy())
            request["x"][:] = -1
        return [{"y": request["x"]} for request in requests]

    model = host.bind(scribble, max_batch_size=8)
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda number: host.infer(model, x=pattern(number, 9_000)), range(64)))

    assert sorted(int(array[0, 0]) for array in kept) == list(range(64))
    for array in kept:
        assert np.array_equal(array, pattern(int(array[0, 0]), 9_000))
