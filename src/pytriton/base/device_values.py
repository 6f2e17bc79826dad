# SPDX-License-Identifier: Apache-2.0
"""Finds out whether a value is an array in GPU memory, without importing any library of such."""

from __future__ import annotations

from typing import Any

_CUDA = 2  # DLPack's number


def is_on_gpu(value: Any) -> bool:
    """Returns whether a value is an array of torch, cupy, jax or others in memory of a GPU."""
    find_device = getattr(value, "__dlpack_device__", None)
    if find_device is not None and int(find_device()[0]) == _CUDA:
        return True
    # Last: a tensor of torch that needs gradients raises another error than AttributeError here.
    return hasattr(value, "__cuda_array_interface__")
