# SPDX-License-Identifier: Apache-2.0
"""Reads infer requests whose structure is known: the same inputs as in a request before, all JSON.

The structure is the type of a JSON decoder, so decoding also checks the names, datatypes, shapes
and numbers. Whatever such a decoder does not accept has to be read by `pytriton.wire.kserve_json`,
which also finds the error.
"""

from __future__ import annotations

import struct
from math import prod
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from pytriton.wire.tensor_json import json_type, struct_code

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pytriton.dtypes import Buffer, DataType
    from pytriton.messages import InferRequest

# What a body of another structure, or with values that do not fit, raises.
_OTHERWISE = (
    msgspec.DecodeError, UnicodeDecodeError, RecursionError, struct.error, OverflowError,
)  # fmt: skip
_literal: Any = Literal  # of values that are known at run time only

# The structure of a request: name, datatype and shape of its inputs in the client's order.
Structure = tuple[tuple[str, "DataType", tuple[int, ...]], ...]


def structure_of(request: InferRequest) -> Structure | None:
    """Returns the structure of a valid request; None if requests like it need to be read fully."""
    if (
        request.id
        or request.outputs is not None
        or request.parameters
        or request.priority
        or request.timeout_us
        or request.flags
        or request.correlation_id
    ):
        return None
    inputs = request.inputs.values()
    for tensor in inputs:
        if json_type(tensor.dtype) is None or not tensor.data:
            return None
    return tuple([(tensor.name, tensor.dtype, tensor.shape) for tensor in inputs])


class RequestPattern:
    """A reader of the requests with one structure. Making it takes 0.4 ms.

    Args:
        structure: The structure of a valid request.
    """

    __slots__ = ("_decode", "_packs")

    def __init__(self, structure: Structure) -> None:
        inputs = []
        self._packs = []
        for name, dtype, shape in structure:
            sizes = tuple([_literal[size] for size in shape])
            fields = [
                ("name", _literal[name]),
                ("datatype", _literal[dtype.name]),
                ("shape", tuple.__class_getitem__(sizes)),
                ("data", list.__class_getitem__(json_type(dtype))),
            ]
            inputs.append(msgspec.defstruct("Input", fields, gc=False, forbid_unknown_fields=True))
            self._packs.append(struct.Struct(f"<{prod(shape)}{struct_code(dtype)}").pack)
        root = msgspec.defstruct(
            "Request",
            [("inputs", tuple.__class_getitem__(tuple(inputs)))],
            gc=False,
            forbid_unknown_fields=True,
        )
        self._decode: Any = msgspec.json.Decoder(root).decode

    def read(self, body: Buffer) -> Sequence[bytes] | None:
        """Returns the bytes of each input, in the order of the structure.

        None if the body has another structure or is not valid.
        """
        try:
            inputs = self._decode(body).inputs
            read = []  # filled by a loop, because a comprehension takes 0.2 us more here
            for pack, tensor in zip(self._packs, inputs, strict=True):
                read.append(pack(*tensor.data))
            return read  # noqa: TRY300
        except _OTHERWISE:
            return None
