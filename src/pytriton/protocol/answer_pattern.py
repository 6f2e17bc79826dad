# SPDX-License-Identifier: Apache-2.0
"""Encodes the JSON of many infer responses of one structure at once, from the columns of a batch.

The text is the same as that of `protocol.kserve_response` for each response. For what is not
usual (other datatypes, many elements, NaN) that module has to be used.
"""

from __future__ import annotations

import struct
from math import prod
from typing import TYPE_CHECKING, Any

import orjson

from pytriton.base.dtypes import FP32, FP64
from pytriton.protocol.columns import structure_of
from pytriton.protocol.tensor_json import SMALL_ELEMENTS, struct_code

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from pytriton.base.messages import ParameterValue
    from pytriton.protocol.columns import BatchColumn

_dumps = orjson.dumps


class JsonResponsePattern:
    """The text of responses with the same outputs, with gaps for their elements.

    Args:
        model_name: The name of the model.
        model_version: Its version.
        rows: The batch dimension of each response; None if the model has none.
        columns: The outputs of a batch.
        parameters: The parameters of each response.
    """

    __slots__ = ("_is_usual", "_kinds", "_rows", "_template", "structure")

    def __init__(
        self,
        model_name: str,
        model_version: str,
        rows: int | None,
        columns: Sequence[BatchColumn],
        parameters: Mapping[str, ParameterValue] | None = None,
    ) -> None:
        self.structure = structure_of(columns)
        self._rows = rows or 1
        self._kinds: list[tuple[str, int, bool]] = []  # code, elements of a response, is a float
        self._is_usual = bool(columns)
        document: dict[str, Any] = {"model_name": model_name, "model_version": model_version}
        if parameters:
            document["parameters"] = parameters
        outputs = []
        for column in columns:
            dtype, row_elements = column.dtype, prod(column.shape)
            code, elements = struct_code(dtype), row_elements * self._rows
            self._kinds.append((code, elements, dtype is FP32 or dtype is FP64))
            if not (
                code
                and 0 < elements <= SMALL_ELEMENTS
                and column.row_bytes == row_elements * dtype.itemsize
            ):
                self._is_usual = False
            shape = column.shape if rows is None else (rows, *column.shape)
            output = {"name": column.name, "datatype": dtype.name, "shape": shape}
            outputs.append(_open(output) + b',"data":[%b]}')
        self._template = _open(document) + b',"outputs":[' + b",".join(outputs) + b"]}"

    def encode(
        self, columns: Sequence[BatchColumn], row: int, count: int
    ) -> Iterable[bytes] | None:
        """Returns the bodies of `count` responses whose rows begin at `row`.

        None if they have to be encoded one by one.
        """
        if not self._is_usual:
            return None
        texts = []
        end = row + count * self._rows
        for column, (code, elements, is_float) in zip(columns, self._kinds, strict=True):
            row_bytes = column.row_bytes
            data = column.data[row * row_bytes : end * row_bytes]
            text = _dumps(struct.unpack(f"<{count * elements}{code}", data))[1:-1]
            if is_float and b"n" in text:  # JSON has no NaN and no infinities: they became null
                return None
            texts.append((text,) if count == 1 else _split(text, elements))
        template = self._template
        return [template % parts for parts in zip(*texts, strict=True)]


def _open(document: dict[str, Any]) -> bytes:
    """Returns the text of an object without its end, for a template."""
    return _dumps(document)[:-1].replace(b"%", b"%%")


def _split(text: bytes, elements: int) -> list[bytes]:
    """Split the numbers of a batch into those of each response."""
    numbers = text.split(b",")
    if elements == 1:
        return numbers
    return [
        b",".join(numbers[first : first + elements]) for first in range(0, len(numbers), elements)
    ]
