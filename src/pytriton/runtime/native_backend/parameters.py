# SPDX-License-Identifier: Apache-2.0
"""TRITONSERVER_Parameter: a name with a value, as the caller of the C API passes them."""

from __future__ import annotations

import ctypes
import dataclasses
import enum
from collections.abc import Sequence

from pytriton.base.errors import InvalidArgumentError
from pytriton.runtime.native_backend.callbacks import export
from pytriton.runtime.native_backend.memory import Handles, required_text, view, word


class ParameterType(enum.IntEnum):
    """The types of parameters."""

    STRING = 0
    INT = 1
    BOOL = 2
    DOUBLE = 3
    BYTES = 4


@dataclasses.dataclass(slots=True)
class CallerParameter:
    """A name with a value; bytes stay where the caller has them."""

    name: str
    kind: ParameterType
    value: str | int | bool | float | memoryview


class Parameters:
    """The parameters that exist."""

    def __init__(self) -> None:
        self._parameters: Handles[CallerParameter] = Handles("a parameter")

    def read(self, address: int, count: int) -> Sequence[CallerParameter]:
        """Returns those that an array refers to."""
        return [self._parameters.get(word(address, index)) for index in range(count)]

    def read_labels(self, address: int, count: int) -> dict[str, str]:
        """Returns the labels of a metric, which are an array of parameters."""
        labels = {}
        for each in self.read(address, count):
            if each.kind is not ParameterType.STRING:
                raise InvalidArgumentError(
                    f"Parameter [{each.name}] must have a type of TRITONSERVER_PARAMETER_STRING to "
                    "be added as a label."
                )
            labels[each.name] = str(each.value)
        return labels

    @export("TRITONSERVER_ParameterNew")
    def _new(self, name: bytes | None, number: int, value: int) -> int:
        if not value or not ParameterType.STRING <= number <= ParameterType.DOUBLE:
            return 0
        kind = ParameterType(number)
        return self._parameters.add(CallerParameter(required_text(name), kind, _value(kind, value)))

    @export("TRITONSERVER_ParameterBytesNew")
    def _new_bytes(self, name: bytes | None, base: int, size: int) -> int:
        data = view(base, size)
        return self._parameters.add(CallerParameter(required_text(name), ParameterType.BYTES, data))

    @export("TRITONSERVER_ParameterDelete")
    def _delete(self, parameter: int) -> None:
        self._parameters.pop(parameter)


def _value(kind: ParameterType, address: int) -> str | int | bool | float:
    if kind is ParameterType.STRING:
        return required_text(ctypes.string_at(address))
    if kind is ParameterType.INT:
        return ctypes.c_int64.from_address(address).value
    if kind is ParameterType.BOOL:
        return ctypes.c_bool.from_address(address).value
    return ctypes.c_double.from_address(address).value
