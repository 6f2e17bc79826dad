# SPDX-License-Identifier: Apache-2.0
"""Runs TorchScript models: `torch.jit.load`, and `forward` by its schema.

Which argument an input is and which result an output is follows the rules of Triton's backend, with
its error texts. Weights can be shared by the processes of a model's instances: archives of torch
have them uncompressed, so a weight can be a private mapping of its part of the file. Its pages are
in memory once, and a process that writes to one gets a copy of its own.
"""

from __future__ import annotations

import enum
import time
import zipfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pytriton.base.errors import InternalError, InvalidArgumentError
from pytriton.runtime.framework_backends.pytorch import library
from pytriton.runtime.framework_backends.pytorch.configuration import (
    ConfiguredTensors,
    ScriptParameters,
    TensorEntry,
)
from pytriton.runtime.framework_backends.pytorch.library import (
    TensorConverter,
    Torch,
    execution_failure,
)
from pytriton.runtime.framework_backends.shared import explain_file
from pytriton.runtime.pb_utils.logger import Logger

_DELIMITER = "__"
_ONE_KIND = (
    "Only a single input of type Dict(str, Tensor) or input(s) of type Tensor are supported."
)


@dataclass(frozen=True, slots=True)
class ForwardArgument:
    """An argument of `forward`, without the module itself."""

    name: str
    kind: str  # torch's name of the kind of type: TensorType
    type_text: str  # the type as torch writes it


class Convention(enum.Enum):
    """What the names of all inputs, or of all outputs, mean."""

    ARGUMENT = "the name of an argument"
    NUMBER = "<name>__<index>"
    ORDER = "nothing: the order of the configuration counts"


@dataclass(frozen=True, slots=True)
class InputBinding:
    """Where each input goes."""

    takes_dictionary: bool  # one argument has all inputs, by their names
    positions: dict[str, int]  # of all inputs, by name; empty for a dictionary
    warning: str = ""


@dataclass(frozen=True, slots=True)
class OutputBinding:
    """Which result each output is."""

    positions: dict[str, int]
    warning: str = ""


def bind_inputs(tensors: ConfiguredTensors, arguments: Sequence[ForwardArgument]) -> InputBinding:
    """Decide which argument each input is.

    Raises:
        InternalError: An argument of `forward` is not supported, or a control has no number.
        InvalidArgumentError: The configuration has another number of inputs, or a number that no
            argument has, or names of a model with states do not follow the convention.
    """
    if len(arguments) == 1 and arguments[0].kind == "DictType":
        return InputBinding(takes_dictionary=True, positions={})
    _check_arguments(arguments)
    expected = len(tensors.all_inputs)
    if expected != len(arguments):
        raise InvalidArgumentError(
            f"unable to load model '{tensors.model}', configuration expects {expected} inputs, "
            f"model provides {len(arguments)}"
        )
    names = [entry.name for entry in (*tensors.inputs, *tensors.batch_inputs)]
    by_argument = {argument.name: index for index, argument in enumerate(arguments)}
    convention, warning = Convention.ARGUMENT, ""
    if any(entry.name not in by_argument for entry in tensors.inputs):
        convention, warning = _convention("input", [entry.name for entry in tensors.inputs])
    if tensors.state_inputs:
        _check_numbered(tensors.model, "input", convention, tensors.state_inputs)
    positions = {}
    for index, name in enumerate(names):
        by_name = by_argument.get(name, index)
        positions[name] = _position(convention, name, index, by_name)
    positions.update(_added_positions(tensors))
    _check_positions(tensors.model, positions, len(arguments))
    return InputBinding(
        takes_dictionary=False,
        positions=positions,
        warning=warning,
    )


def bind_outputs(tensors: ConfiguredTensors) -> OutputBinding:
    """Decide which result each output is; whether the model has it is seen when it runs.

    Raises:
        InvalidArgumentError: Names of a model with states do not follow the convention.
    """
    names = [entry.name for entry in tensors.outputs]
    convention, warning = _convention("output", names)
    if tensors.state_outputs:
        _check_numbered(tensors.model, "output", convention, tensors.state_outputs)
    positions = {
        name: _position(convention, name, index, index) for index, name in enumerate(names)
    }
    for entry in tensors.state_outputs:
        positions[entry.name] = _number_in(entry.name) or 0
    return OutputBinding(positions, warning)


def _check_arguments(arguments: Sequence[ForwardArgument]) -> None:
    if any(argument.kind == "DictType" for argument in arguments[1:]):
        raise InternalError(f"Multiple inputs of kind DictType were detected. {_ONE_KIND}")
    for argument in arguments:
        if argument.kind not in ("TensorType", "ListType"):
            raise InternalError(
                f"An input of type '{argument.type_text}' was detected in the model. {_ONE_KIND}"
            )


def _convention(kind: str, names: Iterable[str]) -> tuple[Convention, str]:
    """Returns what the names mean, and a warning if one looks like a number but has none."""
    for name in names:
        if _DELIMITER not in name:
            return Convention.ORDER, ""
        if _number_in(name) is None:
            return Convention.ORDER, (
                f"{kind} '{name}' has no number after '{_DELIMITER}', so the order of the "
                f"configuration decides which {kind} of the model each one is"
            )
    return Convention.NUMBER, ""


def _number_in(name: str) -> int | None:
    """Returns the number after the first `__`; None if something else is there."""
    _, delimiter, text = name.partition(_DELIMITER)
    if not delimiter or (text and not (text.isascii() and text.isdigit())):
        return None
    return int(text or "0")


def _position(convention: Convention, name: str, in_order: int, by_name: int) -> int:
    if convention is Convention.ARGUMENT:
        return by_name
    if convention is Convention.NUMBER:
        number = _number_in(name)
        return in_order if number is None else number
    return in_order


def _added_positions(tensors: ConfiguredTensors) -> dict[str, int]:
    """Returns those of controls and states, which always are numbers."""
    positions = {}
    for entry in (*tensors.controls, *tensors.state_inputs):
        number = _number_in(entry.name)
        if number is None:
            raise InternalError(
                f"input '{entry.name}' does not follow <name>__<index> naming convention."
            )
        positions[entry.name] = number
    return positions


def _check_numbered(
    model: str, kind: str, convention: Convention, states: Sequence[TensorEntry]
) -> None:
    wrong = [f"state '{state.name}'" for state in states if _number_in(state.name) is None]
    if convention is not Convention.NUMBER:
        wrong.append(f"the {kind}s")
    if wrong:
        raise InvalidArgumentError(
            f"model '{model}' has states, so all names have to follow the <name>__<index> naming "
            f"convention: {' and '.join(wrong)} do not"
        )


def _check_positions(model: str, positions: dict[str, int], count: int) -> None:
    taken: dict[int, str] = {}
    for name, position in positions.items():
        if position >= count:
            raise InvalidArgumentError(
                f"unable to load model '{model}', input '{name}' refers to argument {position}, "
                f"but the model has {count} arguments, counted from 0"
            )
        if position in taken:
            raise InvalidArgumentError(
                f"unable to load model '{model}', inputs '{taken[position]}' and '{name}' both "
                f"refer to argument {position}"
            )
        taken[position] = name


_MIN_BYTES = 64 << 10  # less is not worth a mapping
_LOCAL_HEADER_BYTES = 30  # of a zip file: before a member's name and extra field
_FOLDERS = ("data", "constants")
_PURGE_DELAY_S = 0.15
_PURGE_BYTES = 16 << 20


def share(torch: Torch, module: Any, path: Path, device: Any, model: str) -> int:
    """Replace weights of a TorchScript module on the CPU by mappings of its file.

    Returns:
        The number of bytes that are shared now.
    """
    if device is not None and device.type != "cpu":
        Logger.log_warn(
            f"model '{model}': ENABLE_WEIGHT_SHARING has no effect on {device}, where each "
            "instance has weights of its own"
        )
        return 0
    shared = _replace(torch, module, _parts(path))
    if shared:
        _give_back_memory(torch)
    Logger.log_info(f"model '{model}': {shared} bytes of its weights are shared by its instances")
    return shared


def _replace(torch: Torch, module: Any, parts: dict[int, list[NDArray[np.uint8]]]) -> int:
    """Replace weights by equal parts of the file; returns the number of their bytes."""
    replaced: dict[int, Any] = {}  # storages, by the address of the one that they replace
    shared = 0
    for tensor in _weights(module):
        storage = tensor.untyped_storage()
        address = storage.data_ptr()
        if address not in replaced:
            replaced[address] = _mapped(torch, storage, parts)
            shared += storage.nbytes() if replaced[address] is not None else 0
        if replaced[address] is not None:
            tensor.set_(replaced[address], tensor.storage_offset(), tensor.size(), tensor.stride())
    return shared


def _give_back_memory(torch: Torch) -> None:
    """Let the allocator give back what the weights had.

    The one of torch on ARM does that at a large allocation which comes a tenth of a second later.
    Three instances with 256 MiB of weights kept 768 MiB without this.
    """
    time.sleep(_PURGE_DELAY_S)
    torch.empty(_PURGE_BYTES, dtype=torch.uint8)


def _weights(module: Any) -> Iterator[Any]:
    yield from module.parameters()
    yield from module.buffers()
    # A frozen module has its weights as constants of its code.
    yield from module.code_with_constants[1].const_mapping.values()


def _parts(path: Path) -> dict[int, list[NDArray[np.uint8]]]:
    """Returns the parts of a file that may be weights, as private mappings, by their size."""
    mapping = np.memmap(path, np.uint8, mode="c")
    parts: dict[int, list[NDArray[np.uint8]]] = {}
    with zipfile.ZipFile(path) as archive:
        for member in archive.infolist():
            folders = member.filename.split("/")[:-1]
            if (
                member.compress_type != zipfile.ZIP_STORED
                or member.file_size < _MIN_BYTES
                or not any(folder in _FOLDERS for folder in folders)
            ):
                continue
            header = member.header_offset
            lengths = mapping[header + 26 : header + _LOCAL_HEADER_BYTES].view("<u2")
            start = header + _LOCAL_HEADER_BYTES + int(lengths.sum())
            part = mapping[start : start + member.file_size]
            parts.setdefault(member.file_size, []).append(part)
    return parts


def _mapped(torch: Torch, storage: Any, parts: dict[int, list[NDArray[np.uint8]]]) -> Any:
    """Returns the storage of the part with the same bytes; None if there is none."""
    candidates = parts.get(storage.nbytes(), [])
    if not candidates:
        return None
    content = torch.empty(0, dtype=torch.uint8).set_(storage).numpy()
    for part in candidates:
        if np.array_equal(part, content):
            return torch.from_numpy(part).untyped_storage()
    return None


class TorchScriptModel:
    """A loaded TorchScript model on one device."""

    def __init__(
        self,
        torch: Torch,
        module: Any,
        tensors: ConfiguredTensors,
        converter: TensorConverter,
        parameters: ScriptParameters,
    ) -> None:
        self._torch = torch
        self.converter = converter
        self._parameters = parameters
        self._forward: Any = getattr(module, "forward", None)
        inputs = bind_inputs(tensors, _arguments(self._forward, tensors.model))
        outputs = bind_outputs(tensors)
        for warning in (inputs.warning, outputs.warning):
            if warning:
                Logger.log_warn(f"model '{tensors.model}': {warning}")
        self._takes_dictionary = inputs.takes_dictionary
        self._ordered = sorted(inputs.positions, key=inputs.positions.__getitem__)
        self._positions = outputs.positions
        self._no_gradients = torch.inference_mode if parameters.inference_mode else torch.no_grad

    @classmethod
    def load(
        cls,
        torch: Torch,
        path: Path,
        tensors: ConfiguredTensors,
        device: Any,
        parameters: ScriptParameters,
    ) -> TorchScriptModel:
        """Load a model.

        Raises:
            InternalError: The file is not a TorchScript model, or cannot be served.
            InvalidArgumentError: It does not fit to its configuration.
        """
        library.apply_parameters(torch, parameters)
        with torch.inference_mode(parameters.inference_mode):
            try:
                module = torch.jit.load(str(path), map_location=device)
            except Exception as error:
                explanation = _explain(error) or explain_file(path)
                raise InternalError(
                    f"failed to load model '{tensors.model}': {error}{explanation}"
                ) from error
            if parameters.shares_weights:
                share(torch, module, path, device, tensors.model)
        if getattr(module, "training", False):
            Logger.log_warn(
                f"model '{tensors.model}' was saved in training mode and runs in it: call eval() "
                "before it is saved"
            )
        converter = TensorConverter(torch, device, tensors.all_outputs)
        return cls(torch, module, tensors, converter, parameters)

    def run(
        self, inputs: Mapping[str, NDArray[Any]], wanted: Sequence[str]
    ) -> dict[str, NDArray[Any]]:
        """Returns the wanted outputs of one call.

        Raises:
            InternalError: The model failed.
            InvalidArgumentError: An output contradicts the configuration.
        """
        make = self.converter.tensor
        with self._no_gradients():
            try:
                if self._takes_dictionary:
                    result = self._forward({name: make(array) for name, array in inputs.items()})
                else:
                    result = self._forward(*[make(inputs[name]) for name in self._ordered])
                results = _results(self._torch, result)
            except Exception as error:
                raise execution_failure(error) from error
            arrays = self.converter.outputs(results, self._positions, wanted)
        if self._parameters.cleans_cache:
            self._torch.cuda.empty_cache()
        return arrays


def _explain(error: Exception) -> str:
    """Returns what to do if the file was saved with the other function of torch."""
    if "constants.pkl" not in str(error):
        return ""
    return (
        " (the file is of torch.save, with weights or a pickled module: save TorchScript with"
        ' torch.jit.save, or serve the module with runtime "model.py")'
    )


def _arguments(forward: Any, model: str) -> list[ForwardArgument]:
    """Returns what `forward` takes, without the module itself."""
    if forward is None:
        raise InternalError(f"failed to load model '{model}': it has no method 'forward'")
    arguments = [
        ForwardArgument(each.name, each.type.kind(), each.type.str())
        for each in forward.schema.arguments
    ]
    return arguments[1:] if arguments and arguments[0].kind == "ClassType" else arguments


def _results(torch: Torch, result: Any) -> Sequence[Any]:
    """Returns the results of a call, each a tensor or a list of strings.

    Raises:
        ValueError: It is something else.
    """
    if isinstance(result, torch.Tensor):
        return (result,)
    if isinstance(result, tuple):
        for index, each in enumerate(result):
            _check_result(torch, each, f"output at index {index}")
        return result
    _check_result(torch, result, "output")
    return (result,)


def _check_result(torch: Torch, result: Any, subject: str) -> None:
    if isinstance(result, torch.Tensor):
        return
    if not isinstance(result, list):
        raise ValueError(  # noqa: TRY004  its text is what counts
            f"{subject} must be of type Tensor, List[str] or Tuple containing one of these two "
            f"types. It should not be a List / Dictionary of Tensors or a Scalar, received "
            f"{type(result).__name__}"
        )
    if result and not isinstance(result[0], str):
        raise ValueError(
            f"{subject} must be of type Tensor or List[str], received "
            f"List[{type(result[0]).__name__}]"
        )
