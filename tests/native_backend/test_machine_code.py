# SPDX-License-Identifier: Apache-2.0
"""Functions in machine code do what those in Python do, and leave to them what is not simple."""

from __future__ import annotations

import ctypes
import itertools
import os
import sys

import pytest

from pytriton.runtime.native_backend import machine_code
from pytriton.runtime.native_backend.api_table import FUNCTIONS, prototype
from pytriton.runtime.native_backend.machine_code import ProcessAddresses
from pytriton.runtime.native_backend.memory import KeptRecords, field_address, put_field, text, word
from pytriton.runtime.native_backend.records import (
    BACKEND_GETTERS,
    INPUT_WORDS,
    INSTANCE_GETTERS,
    MODEL_GETTERS,
    REQUEST_GETTERS,
    REQUEST_WORDS,
    InputWord,
    RequestWord,
)
from pytriton.runtime.native_backend.server_objects import Names
from pytriton.runtime.native_backend.stub import MACHINES, stub_library

ON_LINUX = sys.platform == "linux" and os.uname().machine in MACHINES
pytestmark = pytest.mark.skipif(not ON_LINUX, reason="compiled backends run on Linux only")
PYTHON = 4711  # what functions return that the code has left to Python
NAMES = ["one", "oneandmore", "", "two"]
GETTERS = {**BACKEND_GETTERS, **MODEL_GETTERS, **INSTANCE_GETTERS, **REQUEST_GETTERS}


class Rig:
    """A stub library with machine code whose slots lead to a function that says so."""

    def __init__(self, folder):
        self.kept = KeptRecords()
        names = Names()
        self.is_verbose = self.kept.words(0)
        self.computed_ns = self.kept.words(0, 0)
        self.names = names
        code = machine_code.machine_code(
            os.uname().machine,
            ProcessAddresses(
                is_verbose=self.is_verbose,
                computed_ns=self.computed_ns,
                datatype_names=names.datatype_names,
                datatype_sizes=names.datatype_sizes,
                datatype_count=names.datatype_count,
            ),
        )
        functions = sorted(code)
        path = folder / "stub.so"
        path.write_bytes(stub_library("libx.so", functions, MACHINES[os.uname().machine], code))
        self._library = ctypes.CDLL(str(path))
        self._python = []
        slots = (ctypes.c_uint64 * len(functions)).in_dll(self._library, "pytriton_slots")
        self.arguments = None
        for index, name in enumerate(functions):
            callback = prototype(FUNCTIONS[name])(self._on_python)
            self._python.append(callback)
            slots[index] = ctypes.cast(callback, ctypes.c_void_p).value

    def _on_python(self, *arguments):
        self.arguments = arguments
        return PYTHON

    def call(self, name, *arguments):
        return prototype(FUNCTIONS[name])((name, self._library))(*arguments)

    def request(self, names=NAMES):
        """A request with inputs of these names and as many requested outputs."""
        kept = self.kept
        words = [0] * (REQUEST_WORDS + INPUT_WORDS * len(names))
        handle = kept.words(*words)
        put_field(handle, RequestWord.INPUT_COUNT, len(names))
        put_field(handle, RequestWord.INPUTS, field_address(handle, REQUEST_WORDS))
        put_field(handle, RequestWord.OUTPUT_COUNT, len(names))
        put_field(handle, RequestWord.OUTPUT_NAMES, kept.strings(names))
        for index, name in enumerate(names):
            at = field_address(handle, REQUEST_WORDS + INPUT_WORDS * index)
            put_field(at, InputWord.NAME, kept.string(name))
            for offset, value in enumerate((11, 22, 33, 8, 2), InputWord.SHAPE):
                put_field(at, offset, 100 * index + value)
        return handle

    def input(self, request, index):
        return field_address(request, REQUEST_WORDS + INPUT_WORDS * index)

    def outs(self, count):
        """Addresses to write to, and what is there before."""
        return [self.kept.words(0xAAAAAAAABBBBBBBB) for _ in range(count)]


@pytest.fixture(scope="module")
def rig(tmp_path_factory):
    return Rig(tmp_path_factory.mktemp("code"))


@pytest.mark.parametrize("name", sorted(GETTERS))
def test_getter_writes_its_field_and_no_more(rig, name):
    index, size = GETTERS[name]
    record = rig.kept.words(*[0x5000000060000000 + k for k in range(8)])
    (out,) = rig.outs(1)
    result = rig.call(name, record, out)

    assert result == 0
    value = 0x5000000060000000 + index
    expected = value if size == 8 else 0xAAAAAAAA << 32 | value & 0xFFFFFFFF
    assert word(out) == expected


@pytest.mark.parametrize(
    "name", sorted(machine_code.machine_code("x86_64", ProcessAddresses(0, 0, 0, 0, 15)))
)
def test_null_is_left_to_python(rig, name):
    if name.startswith("TRITONSERVER") or "Report" in name:
        pytest.skip("it takes no handle")
    count = len(FUNCTIONS[name]) - 2
    arguments = [b"x" if letter == "s" else 0 for letter in FUNCTIONS[name][2:]]

    assert rig.call(name, *arguments) == PYTHON
    assert len(rig.arguments) == count


@pytest.mark.parametrize("with_policy", [False, True])
@pytest.mark.parametrize("wanted", list(itertools.product([False, True], repeat=6)))
def test_properties_are_written_where_they_are_wanted(rig, wanted, with_policy):
    name = "TRITONBACKEND_InputProperties" + ("ForHostPolicy" if with_policy else "")
    each = rig.input(rig.request(), 1)
    outs = rig.outs(6)
    passed = [out if is_wanted else 0 for out, is_wanted in zip(outs, wanted, strict=True)]
    result = rig.call(name, each, *([b"cpu"] if with_policy else []), *passed)
    low = 0xAAAAAAAA << 32
    values = [word(each), low | 108, 111, low | 102, 122, low | 1]
    untouched = 0xAAAAAAAABBBBBBBB

    assert result == 0
    assert [word(out) for out in outs] == [
        value if is_wanted else untouched for value, is_wanted in zip(values, wanted, strict=True)
    ]


@pytest.mark.parametrize("with_policy", [False, True])
def test_buffer_of_an_input_is_its_only_one(rig, with_policy):
    name = "TRITONBACKEND_InputBuffer" + ("ForHostPolicy" if with_policy else "")
    policy = [b"cpu"] if with_policy else []
    each = rig.input(rig.request(), 2)
    outs = rig.outs(4)

    assert rig.call(name, each, *policy, 0, *outs) == 0
    assert [word(out) for out in outs] == [233, 222, 0xAAAAAAAA << 32, 0]
    assert rig.call(name, each, *policy, 1, *outs) == PYTHON
    assert rig.arguments == (each, *policy, 1, *outs)


@pytest.mark.parametrize("name", ["RequestInputByIndex", "RequestInputName", "RequestOutputName"])
def test_item_of_a_request_is_found_by_its_index(rig, name):
    name = f"TRITONBACKEND_{name}"
    request = rig.request()
    found = []
    for index in range(len(NAMES)):
        (out,) = rig.outs(1)
        assert rig.call(name, request, index, out) == 0
        found.append(word(out))

    if name.endswith("ByIndex"):
        assert found == [rig.input(request, index) for index in range(len(NAMES))]
    else:
        assert [text(address) for address in found] == NAMES
    for index in (len(NAMES), 2**31, 2**32 - 1):
        assert rig.call(name, request, index, out) == PYTHON
        assert rig.arguments == (request, index, out)


def test_input_is_found_by_its_name(rig):
    request = rig.request()
    for index, name in enumerate(NAMES):
        (out,) = rig.outs(1)
        assert rig.call("TRITONBACKEND_RequestInput", request, name.encode(), out) == 0
        assert word(out) == rig.input(request, index)


@pytest.mark.parametrize("name", [b"on", b"onea", b"oneandmoreover", b"x", b"\xff"])
def test_unknown_name_is_left_to_python(rig, name):
    for request in (rig.request(), rig.request([])):
        assert rig.call("TRITONBACKEND_RequestInput", request, name, 77) == PYTHON
        assert rig.arguments == (request, name, 77)


def test_verbose_lines_are_dropped_unless_they_are_wanted(rig):
    line = (b"file.cc", 12, b"text")
    assert rig.call("TRITONSERVER_LogMessage", 3, *line) == 0
    assert not rig.call("TRITONSERVER_LogIsEnabled", 3)
    assert rig.call("TRITONSERVER_LogMessage", 2, *line) == PYTHON
    put_field(rig.is_verbose, 0, 1)
    try:
        assert rig.call("TRITONSERVER_LogMessage", 3, *line) == PYTHON
        assert rig.arguments == (3, *line)
        assert rig.call("TRITONSERVER_LogIsEnabled", 3)
    finally:
        put_field(rig.is_verbose, 0, 0)


def test_reported_times_are_those_of_the_computation(rig):
    computed = (rig.computed_ns, 0), (rig.computed_ns, 1)
    rig.call("TRITONBACKEND_ModelInstanceReportStatistics", 1, 2, True, 10, 20, 30, 2**63)
    of_request = [word(*each) for each in computed]
    rig.call("TRITONBACKEND_ModelInstanceReportBatchStatistics", 1, 2, 11, 2**62, 31, 41)
    of_batch = [word(*each) for each in computed]

    assert of_request == [20, 30]
    assert of_batch == [2**62, 31]


def test_datatypes_have_names_and_sizes(rig):
    functions = ("TRITONSERVER_DataTypeString", "TRITONSERVER_DataTypeByteSize")
    names = [text(rig.call(functions[0], number)) for number in range(15)]
    sizes = [rig.call(functions[1], number) for number in range(15)]

    assert names[0] == "<invalid>"
    assert (names[11], names[13], names[14]) == ("FP32", "BYTES", "BF16")
    assert sizes == [0, 1, 1, 2, 4, 8, 1, 2, 4, 8, 2, 4, 8, 0, 2]
    for function in functions:
        for number in (15, -1, 2**31 - 1):
            assert rig.call(function, number) == PYTHON
