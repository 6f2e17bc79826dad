# SPDX-License-Identifier: Apache-2.0
"""The records behind handles, and the functions of the C API that only read or write a field.

A handle of a backend, model, instance, request or input is the address of its record: an array of
words. Everything else about an object is in Python. The numbers of words are plain integers, not
enumerations, because computing with members of those takes several times as long.
"""

from __future__ import annotations

from collections.abc import Callable, Container
from typing import Any

from pytriton.base.errors import InvalidArgumentError
from pytriton.runtime.native_backend.memory import (
    field_address,
    half_word,
    put_field,
    put_half_word,
    put_word,
    word,
)

_Function = Callable[..., Any]


class BackendWord:
    """The words of the record of a backend."""

    NAME = 0
    CONFIG = 1
    STATE = 2
    MEMORY_MANAGER = 3
    EXECUTION_POLICY = 4
    FOLDER = 5


class ModelWord:
    """The words of the record of a model."""

    NAME = 0
    VERSION = 1
    FOLDER = 2
    BACKEND = 3
    STATE = 4
    SERVER = 5


class InstanceWord:
    """The words of the record of an instance."""

    NAME = 0
    KIND = 1
    MODEL = 2
    STATE = 3
    HOST_POLICY = 4
    DEVICE_ID = 5


class RequestWord:
    """The words of the record of a request."""

    ID = 0
    FLAGS = 1
    INPUT_COUNT = 2
    OUTPUT_COUNT = 3
    INPUTS = 4  # the address of the records of its inputs, one after the other
    OUTPUT_NAMES = 5  # the address of an array of C strings
    TIMEOUT_US = 6
    PARAMETER_COUNT = 7


class InputWord:
    """The words of the record of an input."""

    NAME = 0
    SHAPE = 1
    SIZE = 2
    BUFFER = 3
    DATATYPE = 4
    DIMS_COUNT = 5
    MEMORY_TYPE = 6  # 0: that of the CPU
    MEMORY_ID = 7


REQUEST_WORDS = 8
INPUT_WORDS = 8

# Function: the word that it reads, and the number of bytes that C expects.
BACKEND_GETTERS = {
    "TRITONBACKEND_BackendName": (BackendWord.NAME, 8),
    "TRITONBACKEND_BackendConfig": (BackendWord.CONFIG, 8),
    "TRITONBACKEND_BackendState": (BackendWord.STATE, 8),
    "TRITONBACKEND_BackendMemoryManager": (BackendWord.MEMORY_MANAGER, 8),
    "TRITONBACKEND_BackendExecutionPolicy": (BackendWord.EXECUTION_POLICY, 4),
}
BACKEND_SETTERS = {
    "TRITONBACKEND_BackendSetState": BackendWord.STATE,
    "TRITONBACKEND_BackendSetExecutionPolicy": BackendWord.EXECUTION_POLICY,
}
MODEL_GETTERS = {
    "TRITONBACKEND_ModelName": (ModelWord.NAME, 8),
    "TRITONBACKEND_ModelVersion": (ModelWord.VERSION, 8),
    "TRITONBACKEND_ModelBackend": (ModelWord.BACKEND, 8),
    "TRITONBACKEND_ModelState": (ModelWord.STATE, 8),
    "TRITONBACKEND_ModelServer": (ModelWord.SERVER, 8),
}
MODEL_SETTERS = {"TRITONBACKEND_ModelSetState": ModelWord.STATE}
INSTANCE_GETTERS = {
    "TRITONBACKEND_ModelInstanceName": (InstanceWord.NAME, 8),
    "TRITONBACKEND_ModelInstanceKind": (InstanceWord.KIND, 4),
    "TRITONBACKEND_ModelInstanceModel": (InstanceWord.MODEL, 8),
    "TRITONBACKEND_ModelInstanceState": (InstanceWord.STATE, 8),
    "TRITONBACKEND_ModelInstanceHostPolicy": (InstanceWord.HOST_POLICY, 8),
    "TRITONBACKEND_ModelInstanceDeviceId": (InstanceWord.DEVICE_ID, 4),
}
INSTANCE_SETTERS = {"TRITONBACKEND_ModelInstanceSetState": InstanceWord.STATE}
REQUEST_GETTERS = {
    "TRITONBACKEND_RequestId": (RequestWord.ID, 8),
    "TRITONBACKEND_RequestFlags": (RequestWord.FLAGS, 4),
    "TRITONBACKEND_RequestInputCount": (RequestWord.INPUT_COUNT, 4),
    "TRITONBACKEND_RequestOutputCount": (RequestWord.OUTPUT_COUNT, 4),
    "TRITONBACKEND_RequestParameterCount": (RequestWord.PARAMETER_COUNT, 4),
    "TRITONBACKEND_InferenceRequestTimeoutMicroseconds": (RequestWord.TIMEOUT_US, 8),
}


def field_functions(
    kind: str,
    known: Container[int],
    getters: dict[str, tuple[Any, int]],
    setters: dict[str, Any] | None = None,
) -> dict[str, _Function]:
    """Returns the functions that read or write a field of a record whose handle is in `known`."""

    def check(handle: int) -> None:
        if handle not in known:
            was = f"{handle:#x}" if handle else "NULL"
            raise InvalidArgumentError(f"expected a handle of {kind}, got {was}")

    functions = {
        name: _getter(index, size, known, check) for name, (index, size) in getters.items()
    }
    for name, index in (setters or {}).items():
        functions[name] = _setter(index, known, check)
    return functions


def _getter(
    index: int, size: int, known: Container[int], check: Callable[[int], None]
) -> _Function:
    def get_word(handle: int, out: int) -> None:
        if handle not in known:
            check(handle)
        put_word(out, word(handle, index))

    def get_half_word(handle: int, out: int) -> None:
        if handle not in known:
            check(handle)
        put_half_word(out, half_word(field_address(handle, index)))

    return get_word if size == 8 else get_half_word


def _setter(index: int, known: Container[int], check: Callable[[int], None]) -> _Function:
    def put(handle: int, value: int) -> None:
        if handle not in known:
            check(handle)
        put_field(handle, index, value)

    return put
