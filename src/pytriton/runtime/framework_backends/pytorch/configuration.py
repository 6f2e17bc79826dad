# SPDX-License-Identifier: Apache-2.0
"""The tensors of a model's configuration as this backend needs them, and the checks at load.

Error texts are those of Triton's PyTorch backend where it has one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pytriton.base.errors import InternalError, InvalidArgumentError

STRING = "TYPE_STRING"
# The names of torch's types. Triton's own backend has neither the wider unsigned ones nor bfloat16.
TORCH_NAMES = {
    "TYPE_BOOL": "bool",
    "TYPE_UINT8": "uint8",
    "TYPE_UINT16": "uint16",
    "TYPE_UINT32": "uint32",
    "TYPE_UINT64": "uint64",
    "TYPE_INT8": "int8",
    "TYPE_INT16": "int16",
    "TYPE_INT32": "int32",
    "TYPE_INT64": "int64",
    "TYPE_FP16": "float16",
    "TYPE_FP32": "float32",
    "TYPE_FP64": "float64",
    "TYPE_BF16": "bfloat16",
}
_CONTROL_TYPES = {
    "int32_false_true": "TYPE_INT32",
    "fp32_false_true": "TYPE_FP32",
    "bool_false_true": "TYPE_BOOL",
}


@dataclass(frozen=True, slots=True)
class TensorEntry:
    """A tensor of the configuration."""

    name: str
    data_type: str  # as in the configuration: TYPE_FP32
    rank: int | None = None  # as the model sees it, with the batch dimension; None: not known


@dataclass(frozen=True, slots=True)
class ConfiguredTensors:
    """What a model gets and returns, in the order of its configuration."""

    model: str
    inputs: tuple[TensorEntry, ...]
    batch_inputs: tuple[TensorEntry, ...]
    controls: tuple[TensorEntry, ...]
    state_inputs: tuple[TensorEntry, ...]
    outputs: tuple[TensorEntry, ...]
    state_outputs: tuple[TensorEntry, ...]

    @property
    def all_inputs(self) -> tuple[TensorEntry, ...]:
        """Everything that the model gets."""
        return (*self.inputs, *self.batch_inputs, *self.controls, *self.state_inputs)

    @property
    def all_outputs(self) -> tuple[TensorEntry, ...]:
        """Everything that the model returns; a state may also be an output."""
        names = {entry.name for entry in self.outputs}
        return (
            *self.outputs,
            *(entry for entry in self.state_outputs if entry.name not in names),
        )


def read_tensors(config: Mapping[str, Any]) -> ConfiguredTensors:
    """Returns the tensors of a configuration.

    Raises:
        InternalError: There are no inputs, or no outputs.
        InvalidArgumentError: An input is optional.
    """
    batch_rank = 1 if config.get("max_batch_size", 0) > 0 else 0
    for kind in ("input", "output"):
        if not config.get(kind):
            raise InternalError(
                f"model configuration must contain at least one {kind}, none were specified."
            )
    for entry in config["input"]:
        if entry.get("optional"):
            raise InvalidArgumentError(
                f"'optional' is set to true for input '{entry['name']}' while the backend model "
                "doesn't support optional input"
            )
    sequences = config.get("sequence_batching") or {}
    states = sequences.get("state") or ()
    return ConfiguredTensors(
        model=config.get("name", ""),
        inputs=tuple(_entry(each, batch_rank) for each in config["input"]),
        batch_inputs=tuple(
            TensorEntry(name, each["data_type"])
            for each in config.get("batch_input") or ()
            for name in each["target_name"]
        ),
        controls=tuple(_control(each) for each in sequences.get("control_input") or ()),
        state_inputs=tuple(_state(each, "input_name", batch_rank) for each in states),
        outputs=tuple(_entry(each, batch_rank) for each in config["output"]),
        state_outputs=tuple(_state(each, "output_name", batch_rank) for each in states),
    )


def check_types(tensors: ConfiguredTensors, *, takes_strings: bool) -> None:
    """Check that torch has the types of all tensors.

    Args:
        tensors: The model's tensors.
        takes_strings: Whether the model may have lists of strings.

    Raises:
        InternalError: It does not have one of them.
    """
    _check_kind(tensors.model, "input", (*tensors.inputs, *tensors.state_inputs), takes_strings)
    _check_kind(tensors.model, "output", tensors.all_outputs, takes_strings)
    for control in tensors.controls:
        if control.data_type not in TORCH_NAMES:
            raise InternalError(
                f"input '{control.name}' type '{control.data_type}' is not supported by PyTorch."
            )


def _check_kind(model: str, kind: str, entries: Iterable[TensorEntry], takes_strings: bool) -> None:
    for entry in entries:
        if entry.data_type == STRING and takes_strings:
            if entry.rank != 1:
                raise InternalError(
                    f"Triton only supports 1 dimensional List of String as {kind} for "
                    f"'{entry.name}' for model '{model}'"
                )
        elif entry.data_type not in TORCH_NAMES:
            raise InternalError(
                f"unsupported datatype {entry.data_type} for {kind} '{entry.name}' for model "
                f"'{model}'"
            )


def _entry(entry: Mapping[str, Any], batch_rank: int) -> TensorEntry:
    reshape = entry.get("reshape")
    dims: Sequence[int] = entry.get("dims", ()) if reshape is None else reshape.get("shape", ())
    return TensorEntry(entry["name"], entry["data_type"], len(dims) + batch_rank)


def _state(entry: Mapping[str, Any], member: str, batch_rank: int) -> TensorEntry:
    return TensorEntry(entry[member], entry["data_type"], len(entry.get("dims", ())) + batch_rank)


def _control(entry: Mapping[str, Any]) -> TensorEntry:
    for control in entry.get("control", ()):
        for member, data_type in _CONTROL_TYPES.items():
            if control.get(member):
                return TensorEntry(entry["name"], data_type)
        if control.get("data_type", "TYPE_INVALID") != "TYPE_INVALID":
            return TensorEntry(entry["name"], control["data_type"])
    return TensorEntry(entry["name"], "TYPE_INVALID")
