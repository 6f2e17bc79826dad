# SPDX-License-Identifier: Apache-2.0
"""Serves models with OpenVINO: its own format (`model.xml` and `model.bin`) and ONNX files."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import triton_python_backend_utils as pb_utils
from numpy.typing import NDArray

from pytriton.base.errors import InternalError, InvalidArgumentError
from pytriton.runtime.framework_backends.shared import (
    default_max_batch_size,
    explain_file,
    find_file,
    import_wheel,
    read_parameters,
    refuse_optional_inputs,
    tensor_entry,
)

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


_FILES = ("model.xml", "model.onnx")


class TritonPythonModel:
    """An instance of a model."""

    @staticmethod
    def auto_complete_config(auto_complete_model_config: Any) -> Any:
        """Fill in what the model's file says: inputs, outputs, and whether it can batch."""
        config = auto_complete_model_config.as_dict()
        if config.get("input") and config.get("output"):
            return auto_complete_model_config
        network = _load(config)
        if network.can_batch and config.get("max_batch_size", 0) <= 0:
            size = default_max_batch_size(pb_utils.get_backend_config())
            config["max_batch_size"] = size
            if size > 1 and "sequence_batching" not in config:
                config.setdefault("dynamic_batching", {})
        is_batching = config.get("max_batch_size", 0) > 0
        for kind, ports in (("input", network.inputs), ("output", network.outputs)):
            config[kind] = config.get(kind) or [
                tensor_entry(
                    port.name,
                    port.data_type,
                    port.dims[1:] if is_batching else port.dims,
                    is_batching=is_batching,
                )
                for port in ports
            ]
        return auto_complete_model_config

    def initialize(self, args: dict[str, str]) -> None:
        """Compile the model, and check that the configuration fits it."""
        config = json.loads(args["model_config"])
        # For an input that is missing, OpenVINO would take the one of an earlier request.
        refuse_optional_inputs(config)
        self._network = network = _load(config)
        _check(config, "input", network.inputs)
        _check(config, "output", network.outputs)
        # A tensor of a configuration has at least one dimension; a scalar of the model has none.
        self._scalar_inputs = {port.name for port in network.inputs if not port.dims}
        scalars = {port.name for port in network.outputs if not port.dims}
        self._scalar_dims = {
            entry["name"]: tuple(entry["dims"])
            for entry in config["output"]
            if entry["name"] in scalars
        }
        if network.ignored_settings:
            pb_utils.Logger.log_warn(
                f"model '{config['name']}': OpenVINO's CPU device does not have the parameters"
                f" {', '.join(network.ignored_settings)}"
            )

    def execute_batch(self, batch: Any) -> dict[str, Any]:
        """Run the model once for all requests."""
        inputs = dict(batch.inputs)
        for name in self._scalar_inputs:
            inputs[name] = inputs[name].reshape(())
        outputs = self._network.run(inputs, batch.output_names)
        for name in outputs.keys() & self._scalar_dims.keys():
            outputs[name] = outputs[name].reshape(self._scalar_dims[name])
        return outputs


def _load(config: dict[str, Any]) -> Network:
    openvino = import_wheel("openvino", "openvino", "openvino")
    # The server fills in the first name, so that one may not be the user's choice.
    is_usual = config.get("default_model_filename") in ("", _FILES[0])
    file_config = {**config, "default_model_filename": ""} if is_usual else config
    path = find_file(file_config, pb_utils.get_model_dir(), _FILES)
    return Network(openvino, path, read_parameters(config))


def _check(config: dict[str, Any], kind: str, ports: list[Port]) -> None:
    """Check the names, types and shapes of a configuration.

    Raises:
        InvalidArgumentError: They are not those of the model.
    """
    name, known = config["name"], {port.name: port for port in ports}
    configured = {entry["name"]: entry for entry in config.get(kind) or ()}
    missing = [] if kind == "output" else sorted(known.keys() - configured.keys())
    if missing:
        raise InvalidArgumentError(
            f"unable to load model '{name}', configuration has no {kind} {missing}, which the model"
            " needs"
        )
    batch = [-1] if config.get("max_batch_size", 0) > 0 else []
    for tensor, entry in configured.items():
        port = known.get(tensor)
        if port is None:
            raise InvalidArgumentError(
                f"unexpected inference {kind} '{tensor}', allowed {kind}s are: {', '.join(known)}"
            )
        if entry["data_type"] != port.data_type:
            raise InvalidArgumentError(
                f"unable to load model '{name}', configuration expects datatype"
                f" {entry['data_type']} for {kind} '{tensor}', model provides {port.data_type}"
            )
        dims = [*batch, *(int(each) for each in entry["dims"])]
        if "reshape" not in entry and not _fits(dims, port.dims):
            raise InvalidArgumentError(
                f"model '{name}', tensor '{tensor}': the model expects {len(port.dims)} dimensions"
                f" (shape {port.dims}) but the model configuration specifies {len(dims)} dimensions"
                f" (shape {dims})"
            )


def _fits(configured: list[int], expected: list[int]) -> bool:
    """Returns whether a model that takes `expected` can take, or return, what is configured."""
    if not expected:  # a scalar
        return all(size == 1 for size in configured)
    return len(configured) == len(expected) and all(
        wanted in (-1, given) for given, wanted in zip(configured, expected, strict=True)
    )
