# SPDX-License-Identifier: Apache-2.0
"""How inputs are chosen, and what comes of it: streams of input sets."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from pytriton.tools.perf.errors import DataError
from pytriton.tools.perf.load.plan import InputSet
from pytriton.tools.perf.model_description import MeasuredTensor

RANDOM = "random"
ZERO = "zero"


@dataclasses.dataclass(frozen=True, slots=True)
class DataSettings:
    """How inputs are chosen.

    Attributes:
        sources: `random`, `zero`, a directory, or files of JSON.
        shapes: The shapes of inputs that vary, without the axis of the batch.
        batch_size: How often the tensors of a set are repeated along the axis of the batch.
        string_length: The length of random strings.
        string_data: The text of all strings; None: random ones.
        seed: Makes the random values; the same seed makes the same values.
    """

    sources: tuple[str, ...] = (RANDOM,)
    shapes: Mapping[str, tuple[int, ...]] = dataclasses.field(default_factory=dict)
    batch_size: int = 1
    string_length: int = 128
    string_data: str | None = None
    seed: int = 0


@dataclasses.dataclass(frozen=True, slots=True)
class InputData:
    """What requests send.

    Attributes:
        streams: Streams of input sets; without sequences, requests take all sets in turns.
        timestamps_ms: When each request begins, if the data says so.
        is_given: Whether a person wrote the data; it then has the lengths of sequences, too.
    """

    streams: tuple[tuple[InputSet, ...], ...]
    timestamps_ms: tuple[float, ...] = ()
    is_given: bool = False


def fixed_shape(tensor: MeasuredTensor, shapes: Mapping[str, tuple[int, ...]]) -> tuple[int, ...]:
    """The shape of a tensor whose values are made up.

    Raises:
        DataError: It varies, and no shape is given for it.
    """
    if -1 not in tensor.shape:
        return tensor.shape
    if tensor.name not in shapes:
        raise DataError(
            f"input {tensor.name} contains dynamic shape {list(tensor.shape)}, provide shapes to "
            f"send along with the request: --shape {tensor.name}:"
            f"{','.join('8' if size < 0 else str(size) for size in tensor.shape)}"
        )
    shape = shapes[tensor.name]
    if not fits(shape, tensor.shape):
        raise DataError(
            f"--shape of input {tensor.name} is {list(shape)}, expected one that fits "
            f"{list(tensor.shape)}"
        )
    return shape


def fits(shape: tuple[int, ...], pattern: tuple[int, ...]) -> bool:
    """Whether a shape has the dimensions of a pattern, in which -1 is any."""
    return len(shape) == len(pattern) and all(
        size >= 0 and wanted in {-1, size} for size, wanted in zip(shape, pattern, strict=True)
    )
