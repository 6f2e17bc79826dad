# SPDX-License-Identifier: Apache-2.0
"""An output of a whole batch, as the encoders of many responses at once read it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from pytriton.dtypes import DataType


class Column(Protocol):
    """One output of a whole batch."""

    @property
    def name(self) -> str:
        """The name of the output."""

    @property
    def dtype(self) -> DataType:
        """Its datatype."""

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one row; the whole shape if the model has no batch dimension."""

    @property
    def row_bytes(self) -> int:
        """The size of a row."""

    @property
    def data(self) -> memoryview:
        """The bytes of the batch."""
