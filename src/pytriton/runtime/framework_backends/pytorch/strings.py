# SPDX-License-Identifier: Apache-2.0
"""Refuses strings that are not UTF-8: torch could not return them, so a whole batch would fail."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import Any

import numpy as np
from numpy.typing import NDArray


def find_invalid(array: NDArray[Any], rows: Sequence[int]) -> list[tuple[int, int]]:
    """Returns the strings that are not UTF-8: the position of the request, and the element.

    Args:
        array: The strings of all requests, in one dimension.
        rows: The number of strings of each request; a single request has all of them.
    """
    elements = array.tolist()
    if b"".join(elements).isascii():  # most are, and it takes a tenth of the time
        return []
    invalid = [index for index, element in enumerate(elements) if not _is_utf8(element)]
    if len(rows) == 1:
        return [(0, index) for index in invalid]
    ends = list(accumulate(rows))
    return [(int(np.searchsorted(ends, index, "right")), index) for index in invalid]


def _is_utf8(element: bytes) -> bool:
    try:
        element.decode()
    except UnicodeDecodeError:
        return False
    return True
