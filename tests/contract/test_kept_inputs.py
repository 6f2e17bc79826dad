# SPDX-License-Identifier: Apache-2.0
"""A callable may keep its inputs for ever: nothing that happens later changes one bit of them."""

from __future__ import annotations

import functools
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

pytestmark = pytest.mark.e2e

# Inside the message, just in a block of shared memory, and large.


@functools.cache
def waves(size: int) -> np.ndarray:
    return np.arange(size, dtype=np.float32) % 7


def pattern(number: int, size: int) -> np.ndarray:
    return np.full((1, size), number, np.float32) + waves(size)


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
