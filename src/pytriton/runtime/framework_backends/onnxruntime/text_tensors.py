# SPDX-License-Identifier: Apache-2.0
"""Makes the strings that ONNX Runtime takes from the bytes that requests have. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pytriton.base.errors import InvalidArgumentError


def decode_strings(array: NDArray[np.object_]) -> tuple[NDArray[np.object_], list[int]]:
    """Decode the elements of a tensor as UTF-8.

    ONNX Runtime would take `bytes` objects for their Python notation (b'...').

    Returns:
        The strings, and the indices of the elements that are not UTF-8, which are empty strings.
    """
    elements: list[Any] = array.ravel().tolist()
    wrong: list[int] = []
    try:
        strings = [element.decode() for element in elements]
    except UnicodeDecodeError:
        wrong = [index for index, element in enumerate(elements) if not _is_utf_8(element)]
        for index in wrong:
            elements[index] = b""
        strings = [element.decode() for element in elements]
    decoded = np.empty(len(strings), object)
    decoded[:] = strings
    return decoded.reshape(array.shape), wrong


def _is_utf_8(element: bytes) -> bool:
    try:
        element.decode()
    except UnicodeDecodeError:
        return False
    return True


def string_failures(
    name: str, wrong: Sequence[int], sizes: Sequence[int]
) -> Iterator[tuple[int, InvalidArgumentError]]:
    """Yields the requests of a batch that `wrong` elements belong to, each with its error.

    Args:
        name: The input.
        wrong: Indices of elements in the whole batch, in ascending order.
        sizes: The number of elements of each request.
    """
    ends = list(accumulate(sizes))
    reported = -1
    for index in wrong:
        position = next(at for at, end in enumerate(ends) if index < end)
        if position != reported:
            reported = position
            element = index - (ends[position] - sizes[position])
            yield (
                position,
                InvalidArgumentError(
                    f"expected UTF-8 in input '{name}', because strings of ONNX Runtime have to be;"
                    f" element {element} is not"
                ),
            )
