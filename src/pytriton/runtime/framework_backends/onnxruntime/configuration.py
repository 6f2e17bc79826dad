# SPDX-License-Identifier: Apache-2.0
"""Compares an ONNX model with its configuration. Pure.

Reads the model's inputs and outputs in the words of configurations, checks a configuration against
them with Triton's messages, and completes one that has none.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from pytriton.base.errors import InternalError, InvalidArgumentError, UnsupportedError
from pytriton.base.request_words import shape_text
from pytriton.runtime.framework_backends.shared import CONFIG_TYPES, SETTING, tensor_entry

INVALID = "TYPE_INVALID"
# ONNX Runtime's names of element types; those that are missing here (complex numbers, 8-bit floats,
# 4-bit integers) have no datatype in Triton.
_DATA_TYPES = {
    **CONFIG_TYPES,
    "float": "TYPE_FP32",
    "double": "TYPE_FP64",
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


_BOOLEAN_TYPES = (
    ("int32_false_true", "TYPE_INT32"),
    ("fp32_false_true", "TYPE_FP32"),
    ("bool_false_true", "TYPE_BOOL"),
)


def check_config(config: Mapping[str, Any], signature: OnnxSignature) -> None:
    """Check a complete configuration.

    Raises:
        InvalidArgumentError: It does not fit the model.
        InternalError: It names a control input that the model does not have, or a type that the
            backend does not have.
    """
    _check_controls(config, signature)
    _check_count(config, signature)
    _Check(config, signature).run()


def added_input_names(config: Mapping[str, Any]) -> set[str]:
    """Returns the inputs that come from the server, not from clients: controls, states, counts."""
    names = {name for name, _ in _controls(config)}
    names.update(state["input_name"] for state in _states(config))
    names.update(name for name, _ in _batch_inputs(config))
    return names


def state_output_names(config: Mapping[str, Any]) -> list[str]:
    """Returns the outputs that the server keeps as the states of sequences."""
    return [state["output_name"] for state in _states(config)]


def _states(config: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    states: Sequence[Mapping[str, Any]] = (config.get("sequence_batching") or {}).get("state") or ()
    return states


def _batch_inputs(config: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for entry in config.get("batch_input") or ():
        for name in entry["target_name"]:
            yield name, entry["data_type"]


def _controls(config: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yields the name and the type of each control input."""
    for entry in (config.get("sequence_batching") or {}).get("control_input") or ():
        for control in entry.get("control") or ():
            if control.get("kind") == "CONTROL_SEQUENCE_CORRID":
                yield entry["name"], control["data_type"]
            else:
                kinds = (kind for field, kind in _BOOLEAN_TYPES if control.get(field))
                yield entry["name"], next(kinds, "TYPE_INT32")


def _check_controls(config: Mapping[str, Any], signature: OnnxSignature) -> None:
    batches = config.get("max_batch_size", 0) > 0
    for name, data_type in _controls(config):
        info = signature.inputs.get(name)
        if info is None:
            raise InternalError(
                f"configuration specified sequence control '{name}', but model does not provide"
                " that input"
            )
        subject = f"unable to load model '{config['name']}', sequence control '{name}'"
        dims = info.shape[1:] if batches else info.shape
        if dims != (1,):
            raise InvalidArgumentError(
                f"{subject} in model has dims {shape_text(dims)} but dims [1] is expected"
            )
        if info.data_type != data_type:
            raise InvalidArgumentError(
                f"{subject}, the model expects data-type {info.data_type} but the model"
                f" configuration specifies data-type {data_type}"
            )


def _check_count(config: Mapping[str, Any], signature: OnnxSignature) -> None:
    from_clients = sum(not tensor.get("optional") for tensor in config["input"])
    expected = from_clients + len(added_input_names(config))
    if expected != len(signature.inputs):
        raise InvalidArgumentError(
            f"unable to load model '{config['name']}', configuration expects {expected} inputs,"
            f" model provides {len(signature.inputs)}"
        )


class _Check:
    """The checks of single tensors."""

    def __init__(self, config: Mapping[str, Any], signature: OnnxSignature) -> None:
        self._config = config
        self._name = config["name"]
        self._batches = config.get("max_batch_size", 0) > 0
        self._inputs = {**signature.inputs, **signature.initializers}
        self._outputs = signature.outputs

    def run(self) -> None:
        """Check all inputs, then all outputs."""
        for tensor in self._config["input"]:
            self._check_input(tensor)
        for name, data_type in _batch_inputs(self._config):
            self._check_type("input", data_type, self._find("input", name))
        for state in _states(self._config):
            self._check_type("input", state["data_type"], self._find("input", state["input_name"]))
            self._check_type(
                "output", state["data_type"], self._find("output", state["output_name"])
            )
        scattered = {
            name for each in self._config.get("batch_output") or () for name in each["target_name"]
        }
        for tensor in self._config["output"]:
            info = self._find("output", tensor["name"])
            self._check_type("output", tensor["data_type"], info)
            if tensor["name"] not in scattered:
                self._check_shape(tensor, info, must_equal=True)

    def _check_input(self, tensor: Mapping[str, Any]) -> None:
        info = self._find("input", tensor["name"])
        self._check_type("input", tensor["data_type"], info)
        is_optional, is_ragged = tensor.get("optional"), tensor.get("allow_ragged_batch")
        if is_optional and self._batches:
            raise InvalidArgumentError(
                f"optional input '{info.name}' is not supported for models that support batching"
            )
        if not is_ragged or not self._batches:
            self._check_shape(tensor, info, must_equal=False)
        elif info.shape != (-1,):
            raise InvalidArgumentError(
                f"{self._subject(info)}: for the model to support ragged input, the shape expected"
                f" by the model must be [-1]; but it is {shape_text(info.shape)}"
            )

    def _find(self, kind: str, name: str) -> TensorInfo:
        known = self._inputs if kind == "input" else self._outputs
        if name not in known:
            raise InvalidArgumentError(
                f"unexpected inference {kind} '{name}', allowed {kind}s are:"
                f" {', '.join(sorted(known))}"
            )
        return known[name]

    def _check_type(self, kind: str, data_type: str, info: TensorInfo) -> None:
        if data_type not in SERVED_TYPES:
            raise InternalError(
                f"unsupported datatype {data_type} for {kind} '{info.name}' for model"
                f" '{self._name}'"
            )
        if data_type != info.data_type:
            raise InvalidArgumentError(
                f"unable to load model '{self._name}', configuration expects datatype {data_type}"
                f" for {kind} '{info.name}', model provides {info.data_type}"
            )

    def _check_shape(
        self, tensor: Mapping[str, Any], info: TensorInfo, *, must_equal: bool
    ) -> None:
        """Check the dimensions, or those that `reshape` makes of them."""
        reshape = tensor.get("reshape")
        dims = tuple(tensor["dims"] if reshape is None else reshape.get("shape") or ())
        if self._batches:
            if info.shape[:1] != (-1,):
                raise InvalidArgumentError(
                    f"{self._subject(info)}: for the model to support batching the shape should"
                    " have at least 1 dimension and the first dimension must be -1; but shape"
                    f" expected by the model is {shape_text(info.shape)}"
                )
            dims = (-1, *dims)
        elif not info.shape:
            self._check_scalar(info, dims)
            return
        if not _fits(info.shape, dims, must_equal=must_equal):
            raise InvalidArgumentError(self._shape_problem(info, dims))

    def _check_scalar(self, info: TensorInfo, dims: tuple[int, ...]) -> None:
        if any(size != 1 for size in dims):
            raise InvalidArgumentError(
                f"unable to load model '{self._name}', scalar tensor '{info.name}', should only"
                " provide 1 in the model configuration when the model doesn't support batching."
                f" Model configuration provided: {shape_text(dims)}"
            )

    def _shape_problem(self, info: TensorInfo, dims: tuple[int, ...]) -> str:
        complete = f"shape {shape_text(dims)}"
        if self._batches:
            complete = (
                "an initial batch dimension because max_batch_size > 0 followed by the explicit"
                f" tensor shape, making complete {complete}"
            )
        return (
            f"{self._subject(info)}: the model expects {len(info.shape)} dimensions (shape"
            f" {shape_text(info.shape)}) but the model configuration specifies {len(dims)}"
            f" dimensions ({complete})"
        )

    def _subject(self, info: TensorInfo) -> str:
        return f"model '{self._name}', tensor '{info.name}'"


def _fits(shape: tuple[int, ...], dims: tuple[int, ...], *, must_equal: bool) -> bool:
    """Returns whether the configured dimensions are those of the model.

    An input may be narrower than the model declares it; an output may not.
    """
    if must_equal or len(shape) != len(dims):
        return shape == dims
    return all(size in (-1, dim) for size, dim in zip(shape, dims, strict=True))


def is_complete(config: Mapping[str, Any]) -> bool:
    """Returns whether nothing is to be completed: the configuration has inputs and outputs."""
    return bool((config.get("input") or config.get("batch_input")) and config.get("output"))


def complete(
    config: dict[str, Any], signature: OnnxSignature, default_batch_size: int
) -> list[str]:
    """Complete `config`, as Triton does for this backend.

    Lists of inputs and outputs are filled only if they are empty; they are never merged.

    Args:
        config: The configuration, which is changed.
        signature: The tensors of the model.
        default_batch_size: The maximum batch size if the model can batch and the configuration does
            not say one.

    Returns:
        Warnings for the log.

    Raises:
        InvalidArgumentError: The configuration demands batching, which the model does not support.
    """
    warnings = _complete_batching(config, signature, default_batch_size)
    batches = config.get("max_batch_size", 0) > 0
    if not config.get("input") and not config.get("batch_input"):
        # Triton lists the inputs that the server adds, too, and then refuses the configuration.
        added = added_input_names(config)
        infos = [info for name, info in signature.inputs.items() if name not in added]
        config["input"] = _entries(infos, batches=batches)
    if not config.get("output"):
        config["output"] = _entries(signature.outputs.values(), batches=batches)
    return warnings


def _complete_batching(
    config: dict[str, Any], signature: OnnxSignature, default_batch_size: int
) -> list[str]:
    name = config.get("name", "")
    configured = config.get("max_batch_size", 0)
    warnings = []
    if not _can_batch(signature):
        if configured > 0:
            raise InvalidArgumentError(
                f"autofill failed for model '{name}': model does not support batching while"
                " non-zero max_batch_size is specified"
            )
    elif configured <= 0:
        config["max_batch_size"] = default_batch_size
        if default_batch_size:
            warnings.append(
                f"model '{name}' has no max_batch_size and can batch: it is set to"
                f" {default_batch_size}. Set it in the configuration, or the default with"
                f" --backend-config=onnxruntime,{SETTING}=<size>"
            )
    has_scheduler = "sequence_batching" in config or "dynamic_batching" in config
    if config.get("max_batch_size", 0) > 1 and not has_scheduler:
        config["dynamic_batching"] = {}
    return warnings


def _can_batch(signature: OnnxSignature) -> bool:
    infos = (*signature.inputs.values(), *signature.outputs.values())
    return all(info.shape[:1] == (-1,) for info in infos)


def _entries(infos: Iterable[TensorInfo], *, batches: bool) -> list[dict[str, Any]]:
    return [
        tensor_entry(
            info.name,
            info.data_type,
            info.shape[1:] if batches else info.shape,
            is_batching=batches,
        )
        for info in infos
    ]
