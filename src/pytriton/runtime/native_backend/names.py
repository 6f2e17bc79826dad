# SPDX-License-Identifier: Apache-2.0
"""Names of Triton's enumerations, sizes of datatypes, and the versions of its C APIs."""

from __future__ import annotations

from collections.abc import Callable

from pytriton.base.dtypes import BY_NAME, BY_NUMBER
from pytriton.runtime.native_backend.callbacks import export
from pytriton.runtime.native_backend.memory import Kept, decoded, put_half_word

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
        self._kept = kept = Kept()
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
