# SPDX-License-Identifier: Apache-2.0
"""A model in OpenVINO: its tensors as a configuration has them, and how it is run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from pytriton.base.errors import InternalError, InvalidArgumentError
from pytriton.runtime.framework_backends.shared import explain_file

_DEVICE = "CPU"
_DATATYPES = {
    "boolean": "TYPE_BOOL",
    "u8": "TYPE_UINT8",
    "u16": "TYPE_UINT16",
    "u32": "TYPE_UINT32",
    "u64": "TYPE_UINT64",
    "i8": "TYPE_INT8",
    "i16": "TYPE_INT16",
    "i32": "TYPE_INT32",
    "i64": "TYPE_INT64",
    "f16": "TYPE_FP16",
    "f32": "TYPE_FP32",
    "f64": "TYPE_FP64",
}


@dataclass
class Port:
    """An input or output of a model; -1 in `dims` is a variable dimension."""

    name: str
    data_type: str
    dims: list[int]


class Network:
    """A model that was compiled for the CPU.

    Args:
        openvino: The package.
        path: The file of the model.
        settings: Properties of the CPU, by the names that OpenVINO gives them.

    Raises:
        InternalError: OpenVINO could not load the file.
        InvalidArgumentError: A tensor has no name, or a type that there is not in a configuration.
    """

    def __init__(self, openvino: Any, path: Path, settings: Mapping[str, str]) -> None:
        core = openvino.Core()
        try:
            model = core.read_model(path)
            known = core.get_property(_DEVICE, "SUPPORTED_PROPERTIES")
            used = {name: value for name, value in settings.items() if name in known}
            self._request = core.compile_model(model, _DEVICE, used).create_infer_request()
        except RuntimeError as error:
            reason = str(error).strip().rpartition("\n")[2]
            raise InternalError(
                f"openvino could not load '{path}': {reason}{explain_file(path)}"
            ) from error
        self.ignored_settings = sorted(settings.keys() - used.keys())
        self.inputs = [_make_port(each) for each in model.inputs]
        self.outputs = [_make_port(each) for each in model.outputs]
        self._indices = {port.name: index for index, port in enumerate(self.outputs)}

    @property
    def can_batch(self) -> bool:
        """Whether the first dimension of all tensors is variable."""
        return all(port.dims[:1] == [-1] for port in (*self.inputs, *self.outputs))

    def run(self, inputs: Mapping[str, NDArray[Any]], names: list[str]) -> dict[str, NDArray[Any]]:
        """Run the model; the outputs are valid until the next run."""
        results = self._request.infer(inputs, share_inputs=True, share_outputs=True)
        return {name: results[self._indices[name]] for name in names}


def _make_port(port: Any) -> Port:
    names = port.get_names()
    if not names:
        raise InvalidArgumentError("expected a name for each tensor of the model, got one without")
    name = port.get_any_name()
    kind = port.get_element_type().get_type_name()
    if kind not in _DATATYPES:
        raise InvalidArgumentError(
            f"tensor '{name}' of the model has the type {kind}, expected one of"
            f" {', '.join(_DATATYPES)}"
        )
    shape = port.get_partial_shape()
    if shape.rank.is_dynamic:
        raise InvalidArgumentError(f"tensor '{name}' has any number of dimensions, expected one")
    dims = [-1 if each.is_dynamic else each.get_length() for each in shape]
    return Port(name, _DATATYPES[kind], dims)
