# SPDX-License-Identifier: Apache-2.0
"""Random calls of the C API: wrong handles and NULL are refused, and objects can be deleted.

The headers say which arguments are handles, and which are places for results. A place or an array
is always memory that is there, as no function can check that.
"""

from __future__ import annotations

import contextlib
import ctypes
import random
import re
from ctypes import addressof
from typing import Any

import pytest

from pytriton.base.dtypes import FP32
from pytriton.base.errors import ServerError
from pytriton.base.messages import InferTensor
from pytriton.base.package import PACKAGE_FOLDER
from pytriton.inprocess.c_library.servers import ProcessMetrics
from pytriton.runtime.native_backend.api_table import _COMMENT, _ENUMERATION, _FUNCTION, FUNCTIONS
from pytriton.runtime.native_backend.callbacks import exported
from pytriton.runtime.native_backend.metrics import MetricFunctions
from pytriton.runtime.native_backend.server_objects import Documents, Names
from tests.c_library.test_caller_objects import Caller, _response
from tests.fuzz.fuzzing import Case, assert_reveals_nothing, assert_work_is_paid, fuzz

_HANDLE = re.compile(r"^\s*(?:const\s+)?(?:struct\s+)?(TRITONSERVER_\w+)\s*\*\s*\w+\s*$")
_SIZES = (0, 1, 2, 8)
_SCRATCH_BYTES = 512
_STRINGS = (b"x", b"model", b"", b"\xff", None, b"y" * 200, b'{"a":1}')
_NUMBERS = {
    "i": (0, 1, 2, 5, 7, 99, -1, 2**31 - 1, -(2**31)),
    "q": (0, 1, -1, 2**63 - 1, -(2**63)),
    "I": (0, 1, 2, 2**32 - 1),
    "Q": (0, 1, 2, 2**64 - 1),
    "b": (True, False),
    "d": (0.0, 1.5, -1.0, float("nan"), float("inf")),
}
# The creating function of each kind of object, with the name of the kind in the headers.
MAKERS = {
    "TRITONSERVER_InferenceRequestNew": "TRITONSERVER_InferenceRequest",
    "TRITONSERVER_ResponseAllocatorNew": "TRITONSERVER_ResponseAllocator",
    "TRITONSERVER_BufferAttributesNew": "TRITONSERVER_BufferAttributes",
    "TRITONSERVER_MessageNewFromSerializedJson": "TRITONSERVER_Message",
    "TRITONSERVER_MetricFamilyNew": "TRITONSERVER_MetricFamily",
    "TRITONSERVER_MetricNew": "TRITONSERVER_Metric",
    "TRITONSERVER_MetricNewWithArgs": "TRITONSERVER_Metric",
    "TRITONSERVER_MetricArgsNew": "TRITONSERVER_MetricArgs",
}


_HEADER = PACKAGE_FOLDER / "include" / "triton" / "core" / "tritonserver.h"
_TEXT = _COMMENT.sub("", _HEADER.read_text())
# The arguments of all functions, as the header has them.
ARGUMENTS = {name: arguments.split(",") for _, name, arguments in _FUNCTION.findall(_TEXT)}
_ENUMERATIONS = set(_ENUMERATION.findall(_TEXT))


def handle_kind(declared: str) -> str | None:
    """The kind of object that an argument is a handle of; None if it is something else."""
    found = _HANDLE.match(declared)
    return found[1] if found and found[1] not in _ENUMERATIONS else None


class ApiRig(Caller):
    """All objects that an application can make without a server, and those that it has made."""

    def __init__(self) -> None:
        super().__init__()
        perform = ProcessMetrics().perform
        documents = Documents()
        self.metrics = MetricFunctions(perform, perform, self.parameters)
        self.documents = documents
        self.functions |= exported(documents, Names(), self.metrics)
        self.scratch = ctypes.create_string_buffer(_SCRATCH_BYTES)
        self.data = ctypes.create_string_buffer(b'{"a": 1}' + bytes(56))
        self.made_handles: dict[str, list[int]] = {}
        tensor = InferTensor("y", FP32, (1, 2), bytes(8))
        response = self.responses.handles.add(_response(self, tensor))
        self.made_handles["TRITONSERVER_InferenceResponse"] = [response]

    def run(self, name: str, arguments: list[Any]) -> None:
        """Call a function; what it makes is kept, and what it refuses has to have a reason."""
        ctypes.memset(self.scratch, 0, _SCRATCH_BYTES)
        values = [self._value(each) for each in arguments]
        try:
            result = self.functions[name](*values)
        except ServerError as error:
            given = " ".join(f"{each:#x}" for each in values if type(each) is int)
            assert_reveals_nothing(error.message, given.encode())
            return
        kind = MAKERS.get(name)
        if kind is not None:
            handle = int.from_bytes(self.scratch[:8], "little")
            assert handle, name
            self.made_handles.setdefault(kind, []).append(handle)
        elif name == "TRITONSERVER_ErrorNew":
            self.made_handles.setdefault("TRITONSERVER_Error", []).append(result)
        elif name.startswith("TRITONSERVER_Parameter") and name.endswith("New"):
            self.made_handles.setdefault("TRITONSERVER_Parameter", []).append(result)

    def _value(self, argument: Any) -> Any:
        match argument:
            case ("handle", kind, index):
                made = self.made_handles.get(kind, [])
                return made[index % len(made)] if made else 0
            case ("place", offset):
                return addressof(self.scratch) + offset
            case ("callback", index):
                return ctypes.cast(self._callbacks[index], ctypes.c_void_p).value
            case ("data",):
                return addressof(self.data)
            case _:
                return argument

    def end(self) -> None:
        """Delete everything, and assert that nothing is left."""
        for kind, handles in self.made_handles.items():
            for handle in reversed(handles):
                with contextlib.suppress(ServerError):  # the case has deleted it
                    self.functions[f"{kind}Delete"](handle)
        for handles in (
            self.requests.handles, self.responses.handles, self.attributes.handles, self.errors,
            self.documents, self.metrics._metrics, self.metrics._buckets,
        ):  # fmt: skip
            assert len(handles) == 0, handles


def random_argument(  # noqa: PLR0911  one for each kind of argument
    source: random.Random, name: str, index: int, letter: str
) -> Any:
    """A value for an argument: mostly one that fits, at times another that C could pass."""
    declared = ARGUMENTS[name][index]
    fitting = handle_kind(declared)
    if letter == "p" and fitting:
        kinds = [*MAKERS.values(), "TRITONSERVER_Error", "TRITONSERVER_InferenceResponse"]
        kind = fitting if source.random() < 0.85 else source.choice(kinds)
        if source.random() < 0.1:
            return source.choice((0, 77, 2**64 - 1))
        return "handle", kind, source.randrange(4)
    if letter == "p" and "Fn_t" in declared:
        is_new = name == "TRITONSERVER_ResponseAllocatorNew" and source.random() < 0.9
        return ("callback", index - 1) if is_new else 0
    if letter == "p" and "userp" in declared and "**" not in declared:
        return 0
    if letter == "p" and "const void* base" in declared:
        return source.choice((("data",), ("data",), 0))
    if letter == "p":
        return "place", 8 * index
    if letter == "s":
        return source.choice(_STRINGS)
    if letter == "Q" and ("count" in declared or "size" in declared):
        return source.choice(_SIZES)
    return source.choice(_NUMBERS[letter])


def known_functions() -> list[str]:
    return sorted(set(ApiRig().functions) & set(ARGUMENTS))


NAMES = known_functions()


def random_calls(source: random.Random) -> Case:
    """Some objects, then calls with these and others."""
    calls = []
    names = [*source.choices(list(MAKERS), k=source.choice((2, 6)))]
    names += source.choices(NAMES, k=source.choice((1, 5, 20)))
    for name in names:
        letters = FUNCTIONS[name].partition(":")[2]
        arguments = [random_argument(source, name, at, each) for at, each in enumerate(letters)]
        if name == "TRITONSERVER_InferenceRequestNew" and source.random() < 0.9:
            arguments[2] = b"model"
        if name in ("TRITONSERVER_MetricNew", "TRITONSERVER_MetricNewWithArgs"):
            arguments[2:4] = [0, 0]  # without labels, which are handles in an array
        calls.append((name, arguments))
    return calls


def check_calls(calls: Case) -> None:
    rig = ApiRig()

    def run() -> None:
        for name, arguments in calls:
            rig.run(name, arguments)

    assert_work_is_paid(run, 0, fixed_work=2000 + 1000 * len(calls))
    rig.end()


def test_random_calls_are_done_or_refused():
    fuzz("C API", 200, random_calls, check_calls)


@pytest.mark.parametrize("name", [each for each in NAMES if handle_kind(ARGUMENTS[each][0])])
def test_wrong_handle_is_refused_or_ignored(name):
    rig = ApiRig()
    source = random.Random(name)
    letters = FUNCTIONS[name].partition(":")[2]
    others = [random_argument(source, name, at, each) for at, each in enumerate(letters)][1:]
    for handle in (0, 77, 2**64 - 1):
        rig.run(name, [handle, *others])

    rig.end()
