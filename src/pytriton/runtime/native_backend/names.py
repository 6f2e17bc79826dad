# SPDX-License-Identifier: Apache-2.0
"""Names of Triton's enumerations, sizes of datatypes, and the versions of its C APIs."""

from __future__ import annotations

from pytriton.base.dtypes import BY_NAME, BY_NUMBER
from pytriton.runtime.native_backend.exports import export
from pytriton.runtime.native_backend.memory import Kept, decoded, put_half_word

SERVER_API_VERSION = (1, 34)
BACKEND_API_VERSION = (1, 19)
INSTANCE_KINDS = ("AUTO", "CPU", "GPU", "MODEL")
_MEMORY_TYPES = ("CPU", "CPU_PINNED", "GPU")
_PARAMETER_TYPES = ("STRING", "INT", "BOOL", "DOUBLE", "BYTES")
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


class Names:
    """Functions that turn numbers into names; the names live as long as this object."""

    def __init__(self) -> None:
        self._kept = kept = Kept()
        self._invalid = kept.string("<invalid>")
        self._unknown = kept.string("<unknown>")
        self._datatypes = {number: kept.string(each.name) for number, each in BY_NUMBER.items()}
        numbers = range(max(BY_NUMBER) + 1)
        self.datatype_count = len(numbers)
        # Tables by number, of the addresses of names and of sizes.
        self.datatype_names = kept.words(
            *[self._datatypes.get(each, self._invalid) for each in numbers]
        )
        self.datatype_sizes = kept.words(*[self._datatype_size(each) for each in numbers])
        self._kinds = self._table(INSTANCE_KINDS)
        self._memory_types = self._table(_MEMORY_TYPES)
        self._parameter_types = self._table(_PARAMETER_TYPES)
        self._levels = {level: kept.string(name) for level, name in _TRACE_LEVELS.items()}
        self._activities = self._table(_TRACE_ACTIVITIES)

    def _table(self, names: tuple[str, ...]) -> dict[int, int]:
        return {number: self._kept.string(name) for number, name in enumerate(names)}

    @export("TRITONBACKEND_ApiVersion")
    def _backend_version(self, major: int, minor: int) -> None:
        put_half_word(major, BACKEND_API_VERSION[0])
        put_half_word(minor, BACKEND_API_VERSION[1])

    @export("TRITONSERVER_ApiVersion")
    def _server_version(self, major: int, minor: int) -> None:
        put_half_word(major, SERVER_API_VERSION[0])
        put_half_word(minor, SERVER_API_VERSION[1])

    @export("TRITONSERVER_DataTypeString")
    def _datatype_string(self, datatype: int) -> int:
        return self._datatypes.get(datatype, self._invalid)

    @export("TRITONSERVER_StringToDataType")
    def _string_to_datatype(self, name: bytes | None) -> int:
        found = BY_NAME.get(decoded(name))
        return 0 if found is None else found.number

    @export("TRITONSERVER_DataTypeByteSize")
    def _datatype_size(self, datatype: int) -> int:
        found = BY_NUMBER.get(datatype)
        return 0 if found is None else found.itemsize

    @export("TRITONSERVER_InstanceGroupKindString")
    def _kind_string(self, kind: int) -> int:
        return self._kinds.get(kind, self._invalid)

    @export("TRITONSERVER_MemoryTypeString")
    def _memory_type_string(self, memory_type: int) -> int:
        return self._memory_types.get(memory_type, self._invalid)

    @export("TRITONSERVER_ParameterTypeString")
    def _parameter_type_string(self, parameter_type: int) -> int:
        return self._parameter_types.get(parameter_type, self._invalid)

    @export("TRITONSERVER_InferenceTraceLevelString")
    def _level_string(self, level: int) -> int:
        return self._levels.get(level, self._unknown)

    @export("TRITONSERVER_InferenceTraceActivityString")
    def _activity_string(self, activity: int) -> int:
        return self._activities.get(activity, self._unknown)
