# SPDX-License-Identifier: Apache-2.0
"""What `execute_batch` of a backend gets: all requests of a batch at once, an array for each input.

Triton has nothing like it. A backend that is also to run there has `execute` beside it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from pytriton.base.errors import ErrorCode, ServerError
from pytriton.runtime.pb_utils.failures import TritonError

# Returns this many bytes of memory that can be sent without a copy; None if there is none.
Allocate = Callable[[int], "NDArray[np.uint8] | None"]


class Batch:
    """The requests of one batch.

    Attributes:
        inputs: The inputs by name. An array holds the rows of all requests, one after the other,
            and is a view of the received memory. BYTES are object arrays of bytes.
        rows: The number of rows of each request; `[1]` if the model has no batch dimension.
        output_names: The outputs that at least one request wants, and the states that the model
            has to return.
        shapes: The shape of each request's part, for inputs with `allow_ragged_batch` whose shapes
            differ. The array of such an input is flat.
        ids: The requests' ids, by position, of those that have one.
        parameters: Their parameters, by position, of those that have any.
    """

    __slots__ = (
        "_allocate",
        "failures",
        "ids",
        "inputs",
        "output_names",
        "parameters",
        "rows",
        "shapes",
    )

    def __init__(
        self,
        inputs: dict[str, NDArray[Any]],
        rows: Sequence[int],
        output_names: Sequence[str],
        *,
        shapes: Mapping[str, Sequence[tuple[int, ...]]] | None = None,
        ids: Mapping[int, str] | None = None,
        parameters: Mapping[int, Mapping[str, Any]] | None = None,
        allocate: Allocate | None = None,
    ) -> None:
        self.inputs: dict[str, NDArray[Any]] = inputs
        self.rows: Sequence[int] = rows
        self.output_names: Sequence[str] = output_names
        self.shapes: Mapping[str, Sequence[tuple[int, ...]]] = shapes or {}
        self.ids: Mapping[int, str] = ids or {}
        self.parameters: Mapping[int, Mapping[str, Any]] = parameters or {}
        self.failures: dict[int, tuple[str, ErrorCode]] = {}
        self._allocate = allocate

    def __len__(self) -> int:
        """Returns the number of requests."""
        return len(self.rows)

    def fail(self, position: int, error: ServerError | TritonError) -> None:
        """Answer one request with an error; its rows in the outputs are ignored then.

        Args:
            position: the request's index in `rows`.
            error: its text and its code are what the client gets.

        Raises:
            IndexError: there is no such request.
        """
        if not 0 <= position < len(self.rows):
            raise IndexError(f"expected a position below {len(self.rows)}, got {position}")
        if isinstance(error, TritonError):
            self.failures[position] = (error.message(), error.code())
        else:
            self.failures[position] = (error.message, error.code)

    def allocate(self, shape: Sequence[int], dtype: DTypeLike) -> NDArray[Any]:
        """Returns an uninitialised array for an output, as `numpy.empty` does.

        A large one is in shared memory. If it is returned and nothing else refers to it then, it is
        sent without a copy. It is not for strings.
        """
        kind = np.dtype(dtype)
        if kind.hasobject:
            raise TypeError(f"expected a type of numbers or booleans, got {kind}")
        size = math.prod(shape) * kind.itemsize
        memory = None if self._allocate is None else self._allocate(size)
        if memory is None:
            return np.empty(shape, kind)
        return memory[:size].view(kind).reshape(shape)
