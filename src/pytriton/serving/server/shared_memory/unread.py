# SPDX-License-Identifier: Apache-2.0
"""What is known of inputs in shared memory before they are read.

A client can make an object of any size that takes no memory, but what the server reads of it does.
So nothing is read for a request that would be refused, and not more than there is room for.
"""

from __future__ import annotations

import contextlib
import os
from math import prod
from typing import TYPE_CHECKING, Any, NamedTuple

from pytriton.base import dtypes
from pytriton.base.dtypes import BytesWalk
from pytriton.base.errors import UnavailableError
from pytriton.serving.engine.validation import UncountedStringsError, validate

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pytriton.base.messages import InferRequest, InferTensor
    from pytriton.base.model_spec import ModelSpec
    from pytriton.serving.server.shared_memory.regions import RegionSlice

_SHARE = 2  # inputs in shared memory may take one part of this many of the machine's memory


class UnreadInput(NamedTuple):
    """An input that has to be read, and from where."""

    tensor: InferTensor
    place: RegionSlice


class _Unread:
    """Stands for the data of an input; only its size is known."""

    __slots__ = ("_size",)

    def __init__(self, size: int) -> None:
        self._size = size

    def __len__(self) -> int:
        return self._size


def check_unread(request: InferRequest, sources: Iterable[UnreadInput], spec: ModelSpec) -> None:
    """Check a request before its inputs are read; the strings in them are not counted here.

    Raises:
        InvalidArgumentError: It does not fit its model, whatever its inputs are.
    """
    strings: list[InferTensor] = []
    for tensor, place in sources:
        unread: Any = _Unread(place.byte_size)
        tensor.data = unread
        if tensor.dtype is dtypes.BYTES:
            tensor.strings = BytesWalk(prod(tensor.shape), 0, place.byte_size)
            strings.append(tensor)
    with contextlib.suppress(UncountedStringsError):  # of another input; the engine counts them
        validate(request, spec)
    for tensor in strings:
        tensor.strings = None


class ReadBudget:
    """The memory for inputs of requests that have not ended.

    Args:
        limit_bytes: How much they may take.
    """

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._used_bytes = 0

    def take(self, size: int) -> None:
        """Count the inputs of a request.

        Raises:
            UnavailableError: There is no room for them.
        """
        if size > self._limit_bytes - self._used_bytes:
            raise UnavailableError(
                f"inputs in shared memory may take {self._limit_bytes} bytes at a time, of which "
                f"{self._used_bytes} are in use: there is no room for {size}"
            )
        self._used_bytes += size

    def give_back(self, size: int) -> None:
        self._used_bytes -= size


def machine_budget(process_count: int) -> ReadBudget:
    """Returns the budget of one of several processes that read inputs."""
    total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return ReadBudget(total // _SHARE // max(1, process_count))
