# SPDX-License-Identifier: Apache-2.0
"""Decides which argument of a TorchScript `forward` an input is, and which result an output is.

The rules and the error texts are those of Triton's backend. It is pure: what `forward` takes is
given as records.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from pytriton.base.errors import InternalError, InvalidArgumentError
from pytriton.runtime.framework_backends.pytorch.configuration import ConfiguredTensors, TensorEntry

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
        InternalError: `forward` takes what is not supported, or a control has no number.
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
