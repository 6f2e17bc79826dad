# SPDX-License-Identifier: Apache-2.0
"""The inputs and outputs of an ONNX model, in the words of Triton's configurations. Pure."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Mapping
from typing import Any

from pytriton.base.errors import UnsupportedError

INVALID = "TYPE_INVALID"
# ONNX Runtime's names of element types; those that are missing here (complex numbers, 8-bit floats,
# 4-bit integers) have no datatype in Triton.
_DATA_TYPES = {
    "bool": "TYPE_BOOL",
    "uint8": "TYPE_UINT8",
    "uint16": "TYPE_UINT16",
    "uint32": "TYPE_UINT32",
    "uint64": "TYPE_UINT64",
    "int8": "TYPE_INT8",
    "int16": "TYPE_INT16",
    "int32": "TYPE_INT32",
    "int64": "TYPE_INT64",
    "float16": "TYPE_FP16",
    "float": "TYPE_FP32",
    "double": "TYPE_FP64",
    "bfloat16": "TYPE_BF16",
    "string": "TYPE_STRING",
}
SERVED_TYPES = frozenset(_DATA_TYPES.values())
_OTHER_KINDS = {
    "seq": "ONNX_TYPE_SEQUENCE",
    "map": "ONNX_TYPE_MAP",
    "optional": "ONNX_TYPE_OPTIONAL",
    "sparse_tensor": "ONNX_TYPE_SPARSETENSOR",
}
_TYPE = re.compile(r"(\w+)\((.*)\)")


@dataclasses.dataclass(frozen=True, slots=True)
class TensorInfo:
    """A tensor as the model declares it.

    Attributes:
        name: Its name.
        data_type: Its type in a configuration; TYPE_INVALID if Triton has no such type.
        shape: Its shape; -1 for a dimension that may vary, empty for a scalar.
    """

    name: str
    data_type: str
    shape: tuple[int, ...]


@dataclasses.dataclass(frozen=True, slots=True)
class OnnxSignature:
    """All tensors of a model, by name.

    Attributes:
        inputs: The inputs that every run needs.
        initializers: Inputs that have a value in the model, which a run may replace.
        outputs: The outputs.
    """

    inputs: Mapping[str, TensorInfo]
    initializers: Mapping[str, TensorInfo]
    outputs: Mapping[str, TensorInfo]

    @property
    def data_types(self) -> set[str]:
        """The types of all tensors."""
        groups = (self.inputs, self.initializers, self.outputs)
        return {info.data_type for group in groups for info in group.values()}

    @property
    def takes_strings(self) -> bool:
        """Whether an input has strings."""
        groups = (self.inputs, self.initializers)
        return any(info.data_type == "TYPE_STRING" for group in groups for info in group.values())


def read_signature(
    inputs: Iterable[Any], initializers: Iterable[Any], outputs: Iterable[Any]
) -> OnnxSignature:
    """Read the signature from ONNX Runtime's descriptions of tensors.

    Args:
        inputs: Objects with `name`, `type` and `shape`, as the session returns them.
        initializers: The same for overridable initializers.
        outputs: The same for outputs.

    Raises:
        UnsupportedError: One of them is not a tensor.
    """
    return OnnxSignature(
        *({each.name: _info(each) for each in group} for group in (inputs, initializers, outputs))
    )


def _info(node: Any) -> TensorInfo:
    match = _TYPE.fullmatch(node.type)
    kind, element = match.groups() if match is not None else (node.type, "")
    if kind != "tensor":
        raise UnsupportedError(
            f"Unsupported ONNX Type '{_OTHER_KINDS.get(kind, 'ONNX_TYPE_UNKNOWN')}' for I/O"
            f" '{node.name}', expected 'ONNX_TYPE_TENSOR'."
        )
    # A dimension is a number, the name of a symbol, or None.
    shape = tuple(size if isinstance(size, int) else -1 for size in node.shape or ())
    return TensorInfo(node.name, _DATA_TYPES.get(element, INVALID), shape)
