# SPDX-License-Identifier: Apache-2.0
"""Objects of the C API that both backends and applications use.

They are errors, JSON messages, parameters, attributes of buffers, and names of enumerations.
"""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import enum
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from pytriton.base.dtypes import BY_NAME, BY_NUMBER
from pytriton.base.errors import InvalidArgumentError, ServerError, error_from_code
from pytriton.runtime.native_backend.callbacks import accessors, export
from pytriton.runtime.native_backend.memory import (
    Handles,
    KeptRecords,
    content,
    decoded,
    put_half_word,
    put_word,
    required_text,
    view,
    word,
)

_CODE_STRINGS = (
    "Unknown",
    "Internal",
    "Not found",
    "Invalid argument",
    "Unavailable",
    "Unsupported",
    "Already exists",
    "Cancelled",
)


@dataclass(slots=True)
class _Error:
    code: int
    message: str
    message_address: int
    kept: KeptRecords


class Errors:
    """The errors that exist. One belongs to whoever got it: a backend deletes those it gets."""

    def __init__(self) -> None:
        self._errors: Handles[_Error] = Handles("an error")
        self._kept = KeptRecords()
        self._code_strings = [self._kept.string(each) for each in _CODE_STRINGS]
        self._invalid_code = self._kept.string("<invalid code>")

    def __len__(self) -> int:
        return len(self._errors)

    def new(self, code: int, message: str | bytes) -> int:
        """Returns the handle of a new error."""
        kept = KeptRecords()
        text = message if isinstance(message, str) else decoded(message)
        # An error must not get lost because its text is not valid UTF-8.
        address = kept.string(text.encode("utf-8", "backslashreplace"))
        return self._errors.add(_Error(code, text, address, kept))

    def read(self, handle: int) -> ServerError:
        """Returns an error that stays with its owner."""
        error = self._errors.get(handle)
        with contextlib.suppress(ValueError):  # a code that Triton does not have
            return error_from_code(error.code, error.message)
        return ServerError(error.message)

    def take(self, handle: int) -> ServerError:
        """Returns an error that C has passed to us, and deletes it."""
        error = self.read(handle)
        self._errors.discard(handle)
        return error

    def raise_for(self, handle: int) -> None:
        """Raise the error that a function of C returned, if it did."""
        if handle:
            raise self.take(handle)

    @export("TRITONSERVER_ErrorNew")
    def _new(self, code: int, message: bytes | None) -> int:
        return self.new(code, message or b"")

    @export("TRITONSERVER_ErrorDelete")
    def _delete(self, error: int) -> None:
        self._errors.discard(error)

    @export("TRITONSERVER_ErrorCode")
    def _code(self, error: int) -> int:
        return self._errors.get(error).code

    @export("TRITONSERVER_ErrorCodeString")
    def _code_string(self, error: int) -> int:
        code = self._errors.get(error).code
        is_known = 0 <= code < len(self._code_strings)
        return self._code_strings[code] if is_known else self._invalid_code

    @export("TRITONSERVER_ErrorMessage")
    def _message(self, error: int) -> int:
        return self._errors.get(error).message_address


@dataclass(slots=True)
class _Document:
    data: bytes
    address: int
    kept: KeptRecords


class Documents:
    """The documents that exist."""

    def __init__(self) -> None:
        self._documents: Handles[_Document] = Handles("a message")

    def __len__(self) -> int:
        return len(self._documents)

    def new(self, value: Any) -> int:
        """Returns the handle of a new document."""
        return self.new_from_text(json.dumps(value, separators=(",", ":")).encode())

    def new_from_text(self, data: bytes) -> int:
        """Returns the handle of a new document whose JSON text is known."""
        kept = KeptRecords()
        return self._documents.add(_Document(data, kept.string(data), kept))

    def read(self, message: int) -> Any:
        """Returns the value of a document; InvalidArgumentError if its text is not JSON."""
        data = self._documents.get(message).data
        try:
            return json.loads(data)
        except ValueError as error:
            raise InvalidArgumentError(
                f"failed to parse the request JSON buffer: {error}"
            ) from None

    @export("TRITONSERVER_MessageNewFromSerializedJson")
    def _new(self, message: int, base: int, size: int) -> None:
        # As in Triton, the text is not read before it is needed.
        put_word(message, self.new_from_text(content(base, size)))

    @export("TRITONSERVER_MessageSerializeToJson")
    def _serialize(self, message: int, base: int, size: int) -> None:
        document = self._documents.get(message)
        put_word(base, document.address)
        put_word(size, len(document.data))

    @export("TRITONSERVER_MessageDelete")
    def _delete(self, message: int) -> None:
        self._documents.pop(message)


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

    def read_load(self, address: int, count: int) -> tuple[str | None, dict[str, bytes]]:
        """Returns the configuration and the files in the parameters of a load."""
        config, files = None, {}
        for each in self.read(address, count):
            if each.name == "config" and isinstance(each.value, str):
                config = each.value
            elif each.name.startswith("file:") and isinstance(each.value, memoryview):
                files[each.name.removeprefix("file:")] = bytes(each.value)
            else:
                raise InvalidArgumentError(
                    "expected the parameters 'config' of type STRING and 'file:<path>' of type "
                    f"BYTES, got '{each.name}' of type {each.kind.name}"
                )
        return config, files

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


def stored_parameter(kept: KeptRecords, value: Any) -> tuple[ParameterType, int]:
    """Returns the type of a parameter's value, and the address of the value."""
    if isinstance(value, str):
        return ParameterType.STRING, kept.string(value)
    if isinstance(value, bool):
        return ParameterType.BOOL, kept.words(int(value))
    if isinstance(value, int):
        return ParameterType.INT, kept.words(value)
    bits = ctypes.c_uint64.from_buffer(ctypes.c_double(value)).value
    return ParameterType.DOUBLE, kept.words(bits)


@dataclasses.dataclass(slots=True)
class Attributes:
    """The attributes of one buffer."""

    memory_type: int = 0
    memory_type_id: int = 0
    byte_size: int = 0
    cuda_ipc_handle: int = 0  # an address of the caller


# The end of a function's name: the attribute, and the width in which C reads it.
_FIELDS: dict[str, tuple[str, Callable[[int, int], None]]] = {
    "MemoryType": ("memory_type", put_half_word),
    "MemoryTypeId": ("memory_type_id", put_word),
    "ByteSize": ("byte_size", put_word),
    "CudaIpcHandle": ("cuda_ipc_handle", put_word),
}


class BufferAttributes:
    """The attributes that exist."""

    def __init__(self) -> None:
        self.handles: Handles[Attributes] = Handles("attributes of a buffer")

    @export("TRITONSERVER_BufferAttributesNew")
    def _new(self, place: int) -> None:
        put_word(place, self.handles.add(Attributes()))

    @export("TRITONSERVER_BufferAttributesDelete")
    def _delete(self, handle: int) -> None:
        self.handles.pop(handle)

    def functions(self) -> dict[str, Callable[..., Any]]:
        """Returns the functions that get or set one attribute."""
        get = self.handles.get
        return accessors("TRITONSERVER_BufferAttributes", _FIELDS, get, get)


_UNKNOWN_BATCHING, _FIRST_DIM = 1, 2  # of TRITONSERVER_ModelBatchFlag
_ONE_TO_ONE, _DECOUPLED = 1, 2  # of TRITONSERVER_ModelTxnPropertyFlag
_CONFIG_VERSION = 1
SERVER_API_VERSION = (1, 34)
BACKEND_API_VERSION = (1, 19)
INSTANCE_KINDS = ("AUTO", "CPU", "GPU", "MODEL")
_TRACE_LEVELS = {0: "DISABLED", 1: "MIN", 2: "MAX", 4: "TIMESTAMPS", 8: "TENSORS"}
_TRACE_ACTIVITIES = (
    "REQUEST_START",
    "QUEUE_START",
    "COMPUTE_START",
    "COMPUTE_INPUT_END",
    "COMPUTE_OUTPUT_START",
    "COMPUTE_END",
    "REQUEST_END",
    "TENSOR_QUEUE_INPUT",
    "TENSOR_BACKEND_INPUT",
    "TENSOR_BACKEND_OUTPUT",
    "CUSTOM_ACTIVITY",
)


# The functions that return the name of a number, with the names and the one for other numbers.
_NAMES: dict[str, tuple[dict[int, str], str]] = {
    "InstanceGroupKind": (dict(enumerate(INSTANCE_KINDS)), "<invalid>"),
    "MemoryType": (dict(enumerate(("CPU", "CPU_PINNED", "GPU"))), "<invalid>"),
    "ParameterType": (dict(enumerate(("STRING", "INT", "BOOL", "DOUBLE", "BYTES"))), "<invalid>"),
    "InferenceTraceLevel": (_TRACE_LEVELS, "<unknown>"),
    "InferenceTraceActivity": (dict(enumerate(_TRACE_ACTIVITIES)), "<unknown>"),
    "DataType": ({number: each.name for number, each in BY_NUMBER.items()}, "<invalid>"),
}


class Names:
    """Functions that turn numbers into names; the names live as long as this object."""

    def __init__(self) -> None:
        self._kept = kept = KeptRecords()
        self._functions = {
            f"TRITONSERVER_{kind}String": self._name_function(names, other)
            for kind, (names, other) in _NAMES.items()
        }
        numbers = range(max(BY_NUMBER) + 1)
        self.datatype_count = len(numbers)
        # Tables by number, of the addresses of names and of sizes.
        datatype_name = self._functions["TRITONSERVER_DataTypeString"]
        self.datatype_names = kept.words(*map(datatype_name, numbers))
        self.datatype_sizes = kept.words(*map(self._datatype_size, numbers))

    def _name_function(self, names: dict[int, str], other: str) -> Callable[[int], int]:
        addresses = {number: self._kept.string(name) for number, name in names.items()}
        unknown = self._kept.string(other)
        return lambda number: addresses.get(number, unknown)

    def functions(self) -> dict[str, Callable[[int], int]]:
        """Returns the functions that turn a number into a name."""
        return self._functions

    @export("TRITONBACKEND_ApiVersion")
    def _backend_version(self, major: int, minor: int) -> None:
        put_half_word(major, BACKEND_API_VERSION[0])
        put_half_word(minor, BACKEND_API_VERSION[1])

    @export("TRITONSERVER_ApiVersion")
    def _server_version(self, major: int, minor: int) -> None:
        put_half_word(major, SERVER_API_VERSION[0])
        put_half_word(minor, SERVER_API_VERSION[1])

    @export("TRITONSERVER_StringToDataType")
    def _string_to_datatype(self, name: bytes | None) -> int:
        found = BY_NAME.get(decoded(name))
        return 0 if found is None else found.number

    @export("TRITONSERVER_DataTypeByteSize")
    def _datatype_size(self, datatype: int) -> int:
        found = BY_NUMBER.get(datatype)
        return 0 if found is None else found.itemsize


class ModelProperties:
    """The functions that return flags of a model.

    Args:
        describe: Returns the `max_batch_size` of a model, and whether it is decoupled; gets the
            handle of the server, the name and the version, and raises ServerError.
    """

    def __init__(self, describe: Callable[[int, str, int], tuple[int, bool]]) -> None:
        self._describe = describe

    @export("TRITONSERVER_ServerModelBatchProperties")
    def _batching(
        self, server: int, name: bytes | None, version: int, flags: int, data: int
    ) -> None:
        if data:  # for flags that do not exist yet
            put_word(data, 0)
        max_batch_size, _ = self._describe(server, required_text(name), version)
        put_half_word(flags, _FIRST_DIM if max_batch_size else _UNKNOWN_BATCHING)

    @export("TRITONSERVER_ServerModelTransactionProperties")
    def _transactions(
        self, server: int, name: bytes | None, version: int, flags: int, data: int
    ) -> None:
        if data:
            put_word(data, 0)
        put_half_word(flags, 0)
        _, is_decoupled = self._describe(server, required_text(name), version)
        put_half_word(flags, _DECOUPLED if is_decoupled else _ONE_TO_ONE)


def check_config_version(version: int) -> None:
    """Raise InvalidArgumentError unless this is the version of configurations."""
    if version != _CONFIG_VERSION:
        raise InvalidArgumentError(
            f"model configuration version {version} not supported, supported versions are: "
            f"{_CONFIG_VERSION}"
        )
