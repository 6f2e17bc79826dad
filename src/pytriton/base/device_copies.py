# SPDX-License-Identifier: Apache-2.0
"""Our own copies between host and GPU: why tensors are copied, and how many bytes that moves.

Whether a value is in GPU memory is found out without importing any library of such arrays. Copies
that a model makes itself are not seen here. A thread adds to counts of its own, so there is
no lock.
"""

from __future__ import annotations

import threading
from typing import Any

NOTHING = (0, 0)
_TO_GPU, _TO_HOST = 0, 1
# By thread: bytes to the GPU and to the host since the process began. A new thread may get the
# number of one that has ended, and goes on with its counts.
_by_thread: dict[int, list[int]] = {}

_CUDA = 2  # DLPack's number


class CopyReason:
    """Why a tensor on a GPU goes through the host from model to model, as labels of a metric."""

    HOST_INPUTS = "host_inputs"  # the model takes its inputs on the host
    SANDBOX = "sandbox"
    OTHER_MACHINE = "other_machine"
    OTHER_DEVICE = "other_device"
    INSTANCE_KIND = "instance_kind"  # a bound function, or a compiled backend
    SEQUENCE = "sequence"
    CACHE = "response_cache"
    ENSEMBLE = "ensemble"
    NO_INSTANCE = "no_instance"  # they have ended, and are being started again
    CANNOT_EXPORT = "cannot_export"  # say, torch's allocator with expandable segments, or a pool
    CANNOT_OPEN = "cannot_open"  # say, another part of a split GPU, or another server of MPS
    CLIENT_REGION = "client_region"  # it is in memory of a client, which may unregister it
    OUT_OF_MEMORY = "out_of_memory"
    DRIVER_ERROR = "driver_error"


COPY_REASONS = frozenset(value for name, value in vars(CopyReason).items() if name.isupper())


def add_to_gpu(size: int) -> None:
    """Count a copy from the host to a GPU."""
    _own()[_TO_GPU] += size


def add_to_host(size: int) -> None:
    """Count a copy from a GPU to the host."""
    _own()[_TO_HOST] += size


def _own() -> list[int]:
    thread = threading.get_ident()
    counts = _by_thread.get(thread)
    if counts is None:
        counts = _by_thread[thread] = [0, 0]
    return counts


class CopyMeter:
    """Tells what was copied since it did so last, by the whole process or by one thread.

    Args:
        thread: The number of that thread; 0 stands for all.
    """

    __slots__ = ("_thread", "_told")

    def __init__(self, thread: int = 0) -> None:
        self._thread = thread
        self._told = self._counts()

    def take(self) -> tuple[int, int]:
        """Returns the bytes to GPUs, and those to the host."""
        if not _by_thread:  # as in all processes without a GPU
            return NOTHING
        counts, told = self._counts(), self._told
        self._told = counts
        return counts[_TO_GPU] - told[_TO_GPU], counts[_TO_HOST] - told[_TO_HOST]

    def _counts(self) -> tuple[int, int]:
        if self._thread:
            to_gpu, to_host = _by_thread.get(self._thread, NOTHING)
            return to_gpu, to_host
        all_counts = list(_by_thread.values())
        return sum([each[_TO_GPU] for each in all_counts]), sum(
            [each[_TO_HOST] for each in all_counts]
        )


def is_on_gpu(value: Any) -> bool:
    """Returns whether a value is an array of torch, cupy, jax or others in memory of a GPU."""
    find_device = getattr(value, "__dlpack_device__", None)
    if find_device is not None and int(find_device()[0]) == _CUDA:
        return True
    # Last: a tensor of torch that needs gradients raises another error than AttributeError here.
    return hasattr(value, "__cuda_array_interface__")
