# SPDX-License-Identifier: Apache-2.0
"""The table of the C API, guards around its functions, and errors as C sees them."""

from __future__ import annotations

import ctypes

import pytest

from pytriton.base.errors import ErrorCode, InvalidArgumentError, NotFoundError, ServerError
from pytriton.runtime.native_backend.api_table import (
    ENTRY_POINTS,
    FUNCTIONS,
    prototype,
    returns_error,
)
from pytriton.runtime.native_backend.callbacks import Callbacks, export, exported
from pytriton.runtime.native_backend.memory import Handles, put_word, text
from pytriton.runtime.native_backend.server_objects import Errors


class Group:
    """Functions of the API that do what a test needs."""

    def __init__(self, act):
        self._act = act

    @export("TRITONBACKEND_ModelName", "TRITONBACKEND_ModelVersion")
    def _act_on(self, model, out):
        return self._act(model, out)

    @export("TRITONSERVER_DataTypeByteSize")
    def _size(self, datatype):
        return self._act(datatype, 0)


class Rig:
    """Functions as C calls them."""

    def __init__(self, act=lambda *_: None):
        self.errors = Errors()
        self.reports = []
        functions = exported(Group(act), self.errors)
        self._callbacks = Callbacks(
            functions, self.errors, lambda *report: self.reports.append(report)
        )

    def call(self, name, *arguments):
        signature = FUNCTIONS.get(name, "e:")
        return prototype(signature)(self._callbacks.address(name))(*arguments)


def test_table_has_every_function_of_the_four_headers():
    assert len(FUNCTIONS) == 281
    assert not ENTRY_POINTS.keys() & FUNCTIONS.keys()


@pytest.mark.parametrize("signature", sorted({*FUNCTIONS.values(), *ENTRY_POINTS.values()}))
def test_every_signature_is_a_type_of_functions(signature):
    result, arguments = signature.split(":")

    assert len(prototype(signature)._argtypes_) == len(arguments)
    assert (prototype(signature)._restype_ is None) == (result == "v")


def test_method_is_exported_under_all_its_names():
    group = Group(lambda *_: None)

    assert set(exported(group)) == {
        "TRITONBACKEND_ModelName", "TRITONBACKEND_ModelVersion", "TRITONSERVER_DataTypeByteSize"
    }  # fmt: skip


def test_function_that_succeeds_returns_null():
    rig = Rig(lambda model, out: put_word(out, model))
    written = ctypes.c_uint64()

    assert rig.call("TRITONBACKEND_ModelName", 77, ctypes.addressof(written)) == 0
    assert written.value == 77


def test_error_of_ours_becomes_one_of_c():
    def refuse(*_):
        raise NotFoundError("no such thing: ä")

    rig = Rig(refuse)
    error = rig.call("TRITONBACKEND_ModelName", 0, 0)

    assert rig.call("TRITONSERVER_ErrorCode", error) == ErrorCode.NOT_FOUND
    assert text(rig.call("TRITONSERVER_ErrorCodeString", error)) == "Not found"
    assert text(rig.call("TRITONSERVER_ErrorMessage", error)) == "no such thing: ä"
    assert rig.reports == []
    rig.call("TRITONSERVER_ErrorDelete", error)
    assert len(rig.errors) == 0


@pytest.mark.parametrize("raised", [ValueError("bad"), KeyboardInterrupt(), SystemExit(3)])
def test_exception_in_a_callback_becomes_an_error(raised):
    def fail(*_):
        raise raised

    rig = Rig(fail)
    error = rig.errors.take(rig.call("TRITONBACKEND_ModelName", 0, 0))

    assert error.code is ErrorCode.INTERNAL
    assert error.message.startswith(f"TRITONBACKEND_ModelName failed: {type(raised).__name__}")
    assert rig.reports == [("TRITONBACKEND_ModelName", raised)]


def test_exception_in_a_function_that_returns_no_error_becomes_zero():
    rig = Rig(lambda *_: 1 // 0)

    assert rig.call("TRITONSERVER_DataTypeByteSize", 3) == 0


@pytest.mark.parametrize("name", ["TRITONSERVER_ServerNew", "TRITONBACKEND_OfNextYear"])
def test_function_without_implementation_says_that_it_is_unsupported(name):
    rig = Rig()
    count = len(FUNCTIONS.get(name, "e:")) - 2
    error = rig.errors.take(rig.call(name, *[0] * count))

    assert error.code is ErrorCode.UNSUPPORTED
    assert error.message == f"{name} is not supported"


def test_unknown_functions_count_as_returning_errors():
    assert returns_error("TRITONBACKEND_OfNextYear")
    assert returns_error("TRITONBACKEND_ModelName")
    assert not returns_error("TRITONSERVER_ErrorNew")


def test_error_of_c_becomes_one_of_ours():
    rig = Rig()
    handle = rig.call("TRITONSERVER_ErrorNew", 3, b"bad \xff")
    error = rig.errors.read(handle)

    assert isinstance(error, InvalidArgumentError)
    assert error.message == "bad \\xff"
    assert len(rig.errors) == 1


def test_error_with_a_code_that_nobody_knows_is_kept():
    rig = Rig()
    handle = rig.call("TRITONSERVER_ErrorNew", 99, None)

    assert type(rig.errors.read(handle)) is ServerError
    assert text(rig.call("TRITONSERVER_ErrorCodeString", handle)) == "<invalid code>"


@pytest.mark.parametrize("handle, words", [(0, "NULL"), (0x123, "0x123")])
def test_handle_that_does_not_exist_is_named(handle, words):
    table = Handles("a response")
    table.add("x")

    with pytest.raises(InvalidArgumentError, match=f"expected a handle of a response, got {words}"):
        table.get(handle)
    with pytest.raises(InvalidArgumentError):
        table.pop(handle)


def test_handle_is_valid_in_one_table_only():
    requests, responses = Handles("a request"), Handles("a response")
    handle = requests.add("x")

    assert handle in requests
    assert handle not in responses
    responses.add("y")
    with pytest.raises(InvalidArgumentError):
        responses.get(handle)
