# SPDX-License-Identifier: Apache-2.0
"""Checks that a configuration fits the tensors that a model declares, with Triton's messages. Pure.

Configurations are dictionaries, as models of the Python backend get them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pytriton.base.errors import InternalError, InvalidArgumentError
from pytriton.runtime.framework_backends.onnxruntime.signature import (
    SERVED_TYPES,
    OnnxSignature,
    TensorInfo,
)

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


def shape_text(shape: Sequence[int]) -> str:
    """Returns a shape as Triton's messages have it."""
    return f"[{','.join(map(str, shape))}]"
