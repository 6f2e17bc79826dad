# SPDX-License-Identifier: Apache-2.0
"""Reads the configuration of a PyTorch model: its tensors, its parameters, its form and file.

It needs no torch, which takes seconds to import. Error texts are those of Triton's PyTorch backend
where it has one. Unknown parameters are ignored.
"""

from __future__ import annotations

import enum
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pytriton.base.errors import InternalError, InvalidArgumentError, UnavailableError
from pytriton.runtime.framework_backends.shared import (
    CONFIG_TYPES,
    read_parameters,
    refuse_optional_inputs,
)

STRING = "TYPE_STRING"
# The names of torch's types. Triton's own backend has neither the wider unsigned ones nor bfloat16.
TORCH_NAMES = {config_name: name for name, config_name in CONFIG_TYPES.items()}
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
    refuse_optional_inputs(config)
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


COMPILE_PARAMETER = "TORCH_COMPILE_OPTIONAL_PARAMETERS"
_TRUE = ("true", "on", "1")
_FALSE = ("false", "off", "0")


@dataclass(frozen=True, slots=True)
class ScriptParameters:
    """Those of TorchScript models and packages; None leaves torch's own setting."""

    disables_optimized_execution: bool = False
    inference_mode: bool = True
    disables_cudnn: bool = False
    tensor_fuser: bool | None = None
    jit_profiling: bool | None = None
    jit_executor: bool | None = None
    shares_weights: bool = False
    cleans_cache: bool = False
    intra_op_threads: int = 0  # 0: torch decides
    inter_op_threads: int = 0


@dataclass(frozen=True, slots=True)
class ModuleParameters:
    """Those of modules in Python."""

    threads: int = 1
    inter_op_threads: int = 1
    shares_weights: bool = False
    compile_arguments: dict[str, Any] = field(default_factory=dict)


def read_script_parameters(config: Mapping[str, Any]) -> ScriptParameters:
    """Returns the parameters of a TorchScript model or a package.

    Raises:
        InvalidArgumentError: A value does not fit its parameter.
    """
    values = read_parameters(config)
    return ScriptParameters(
        disables_optimized_execution=_flag(values, "DISABLE_OPTIMIZED_EXECUTION"),
        inference_mode=_flag(values, "INFERENCE_MODE", default=True),
        disables_cudnn=_flag(values, "DISABLE_CUDNN"),
        tensor_fuser=_given_flag(values, "ENABLE_TENSOR_FUSER"),
        jit_profiling=_given_flag(values, "ENABLE_JIT_PROFILING"),
        jit_executor=_given_flag(values, "ENABLE_JIT_EXECUTOR"),
        shares_weights=_flag(values, "ENABLE_WEIGHT_SHARING"),
        cleans_cache=_flag(values, "ENABLE_CACHE_CLEANING"),
        intra_op_threads=max(0, _number(values, "INTRA_OP_THREAD_COUNT", 0)),
        inter_op_threads=max(0, _number(values, "INTER_OP_THREAD_COUNT", 0)),
    )


def read_module_parameters(config: Mapping[str, Any]) -> ModuleParameters:
    """Returns the parameters of a module in Python.

    Raises:
        InvalidArgumentError: A value does not fit its parameter.
    """
    values = read_parameters(config)
    return ModuleParameters(
        threads=_positive(values, "NUM_THREADS"),
        inter_op_threads=_positive(values, "NUM_INTEROP_THREADS"),
        shares_weights=_flag(values, "ENABLE_WEIGHT_SHARING"),
        compile_arguments=_compile_arguments(values),
    )


def _given_flag(values: Mapping[str, str], key: str) -> bool | None:
    if key not in values:
        return None
    value = values[key].lower()
    if value not in (*_TRUE, *_FALSE):
        raise InvalidArgumentError(
            f"failed to convert parameter {key} to a boolean: expected one of "
            f"{', '.join((*_TRUE, *_FALSE))}, got '{values[key]}'"
        )
    return value in _TRUE


def _flag(values: Mapping[str, str], key: str, *, default: bool = False) -> bool:
    given = _given_flag(values, key)
    return default if given is None else given


def _number(values: Mapping[str, str], key: str, default: int) -> int:
    if key not in values:
        return default
    try:
        return int(values[key])
    except ValueError:
        raise InvalidArgumentError(
            f"failed to convert parameter {key} to an integer, got '{values[key]}'"
        ) from None


def _positive(values: Mapping[str, str], key: str) -> int:
    number = _number(values, key, 1)
    if number < 1:
        raise InvalidArgumentError(f"expected a positive number as parameter {key}, got {number}")
    return number


def _compile_arguments(values: Mapping[str, str]) -> dict[str, Any]:
    text = values.get(COMPILE_PARAMETER, "")
    if not text:
        return {}
    try:
        arguments = json.loads(text)
    except ValueError as error:
        raise InvalidArgumentError(
            f"failed to parse parameter {COMPILE_PARAMETER} as JSON: {error}"
        ) from None
    if not isinstance(arguments, dict) or "model" in arguments:
        raise InvalidArgumentError(
            f"expected a JSON object without the key 'model' as parameter {COMPILE_PARAMETER}, "
            f"got {text}"
        )
    return arguments


PYTHON_RUNTIME = "model.py"
AOTI_PLATFORM = "torch_aoti"
_PACKAGE_SUFFIX = ".pt2"


class ModelForm(enum.Enum):
    """What a model of this backend is."""

    TORCHSCRIPT = "TorchScript"
    PACKAGE = "a .pt2 file"
    MODULE = "a torch.nn.Module in Python"


class PackageKind(enum.Enum):
    """What a `.pt2` file has inside."""

    COMPILED = "code that was compiled by AOTInductor"
    EXPORTED = "a program that was saved by torch.export"


def form_of(config: Mapping[str, Any]) -> ModelForm:
    """Returns the form in which a configuration says that its model is."""
    if config.get("runtime") == PYTHON_RUNTIME:
        return ModelForm.MODULE
    name = config.get("default_model_filename") or ""
    if config.get("platform") == AOTI_PLATFORM or name.endswith(_PACKAGE_SUFFIX):
        return ModelForm.PACKAGE
    return ModelForm.TORCHSCRIPT


def model_file(
    config: Mapping[str, Any],
    directory: Path,
    is_file: Callable[[Path], bool],
    capability: str = "",
) -> Path:
    """Returns the path of a TorchScript model or a package.

    Args:
        config: The model's configuration.
        directory: The folder of its version.
        is_file: Whether a path is a file.
        capability: The compute capability of the instance's GPU, as "8.0"; "" without one.

    Raises:
        UnavailableError: There is no such file.
    """
    form = form_of(config)
    default = "model.pt2" if form is ModelForm.PACKAGE else "model.pt"
    by_capability = config.get("cc_model_filenames") or {}
    name = by_capability.get(capability) or config.get("default_model_filename") or default
    path = directory / name
    if not is_file(path):
        raise UnavailableError(
            f'PyTorch inductor model file "{path}" is unreachable or inaccessible.'
            if form is ModelForm.PACKAGE
            else f"unable to find '{path}' for model instance '{config.get('name', '')}'"
        )
    return path


def module_file(
    config: Mapping[str, Any], directory: Path, is_file: Callable[[Path], bool]
) -> Path:
    """Returns the path of a module in Python, or of a TorchScript model that is run like one.

    Raises:
        InternalError: The version has none.
    """
    names = [config.get("default_model_filename") or "", "model.py", "model.pt"]
    names = [name for name in dict.fromkeys(names) if name]
    for name in names:
        if is_file(directory / name):
            return directory / name
    raise InternalError(f"No model found in {directory}/{names}")


def package_kind(members: Sequence[str]) -> PackageKind | None:
    """Returns what a `.pt2` file is; None for neither.

    Args:
        members: The paths in the archive.
    """
    # The first folder of newer archives is the name of the file.
    paths = [*members, *(member.partition("/")[2] for member in members)]
    if any(path.startswith("data/aotinductor/") for path in paths):
        return PackageKind.COMPILED
    if any(
        path == "serialized_exported_program.json"
        or (path.startswith("models/") and path.endswith(".json"))
        for path in paths
    ):
        return PackageKind.EXPORTED
    return None
