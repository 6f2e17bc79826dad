# SPDX-License-Identifier: Apache-2.0
"""Makes C functions of methods: `export` marks the methods, `Callbacks` guards each call.

A group is an object with methods that are marked with `export`. They get pointers as integers and C
strings as bytes, and raise a `ServerError` to return an error to C. A group may also have a method
`functions`, which returns functions that were made from a table, by their names.

ctypes returns something undefined to C for a function that raises, and C would take that for a
pointer. The guard turns every exception into an error object.
"""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from pytriton.base.errors import InternalError, ServerError, UnsupportedError
from pytriton.runtime.native_backend.api_table import FUNCTIONS, prototype, returns_error

if TYPE_CHECKING:
    from pytriton.runtime.native_backend.server_objects import Errors

_Function = Callable[..., Any]
_Failed = Callable[[BaseException], int]


class Callbacks:
    """C functions for the API. They live as long as the process: C may call them at any time.

    Args:
        functions: Implementations by name, see `exported`. A function without one returns
            an error that says so.
        errors: Makes the errors that are returned to C.
        report: Gets the name of a function that failed with an unexpected exception, and it.
    """

    def __init__(
        self,
        functions: Mapping[str, _Function],
        errors: Errors,
        report: Callable[[str, BaseException], None],
    ) -> None:
        self._functions = functions
        self._errors = errors
        self._report = report
        self._made: dict[str, Any] = {}

    def address(self, name: str) -> int:
        """Returns the address of a C function. A name that is not in the table is unsupported."""
        callback = self._made.get(name)
        if callback is None:
            callback = self._made[name] = prototype(FUNCTIONS.get(name, "e:"))(self.guarded(name))
        return ctypes.cast(callback, ctypes.c_void_p).value or 0

    def guarded(self, name: str) -> _Function:
        """Returns the Python function that C calls; it never raises."""
        function = self._functions.get(name) or _unsupported(name)

        def failed(error: BaseException) -> int:
            return self._failed(name, error)

        if not returns_error(name):
            return _guard_value(function, failed)
        count = len(FUNCTIONS.get(name, "e:")) - 2
        guard = _GUARDS.get(count, _guard_any)
        return guard(function, failed)

    def _failed(self, name: str, error: BaseException) -> int:
        """Returns the error for C, or 0 for a function that returns no error."""
        if not isinstance(error, ServerError):
            with contextlib.suppress(BaseException):  # the server may have ended
                self._report(name, error)
        if not returns_error(name):
            return 0
        try:
            if isinstance(error, ServerError):
                return self._errors.new(int(error.triton_code), error.message)
            text = f"{name} failed: {type(error).__name__}: {error}"
            return self._errors.new(int(InternalError.code), text)
        except BaseException:  # noqa: BLE001  there is no memory, and nothing may reach ctypes
            return 0


def _unsupported(name: str) -> _Function:
    def refuse(*_: object) -> None:
        raise UnsupportedError(f"{name} is not supported")

    return refuse


def _guard_value(function: _Function, failed: _Failed) -> _Function:
    def call(*arguments: Any) -> Any:
        try:
            return function(*arguments)
        except BaseException as error:  # noqa: BLE001  see the top of this file
            return failed(error)

    return call


def _guard_any(function: _Function, failed: _Failed) -> _Function:
    def call(*arguments: Any) -> int:
        try:
            function(*arguments)
        except BaseException as error:  # noqa: BLE001
            return failed(error)
        return 0

    return call


# The usual numbers of arguments have a guard each: without packing and unpacking them, a call takes
# a sixth less.
def _guard_1(function: _Function, failed: _Failed) -> _Function:
    def call(first: Any) -> int:
        try:
            function(first)
        except BaseException as error:  # noqa: BLE001
            return failed(error)
        return 0

    return call


def _guard_2(function: _Function, failed: _Failed) -> _Function:
    def call(first: Any, second: Any) -> int:
        try:
            function(first, second)
        except BaseException as error:  # noqa: BLE001
            return failed(error)
        return 0

    return call


def _guard_3(function: _Function, failed: _Failed) -> _Function:
    def call(first: Any, second: Any, third: Any) -> int:
        try:
            function(first, second, third)
        except BaseException as error:  # noqa: BLE001
            return failed(error)
        return 0

    return call


_GUARDS = {1: _guard_1, 2: _guard_2, 3: _guard_3}


_Method = TypeVar("_Method", bound=Callable[..., Any])
_MARK = "api_function_names"


def export(*names: str) -> Callable[[_Method], _Method]:
    """Mark a method as the implementation of functions of the C API."""

    def mark(method: _Method) -> _Method:
        setattr(method, _MARK, names)
        return method

    return mark


def accessors(
    prefix: str,
    fields: Mapping[str, tuple[str, Callable[[int, int], None]]],
    read: Callable[[int], Any],
    write: Callable[[int], Any] | None = None,
) -> dict[str, _Function]:
    """Returns functions that get and set single attributes of objects.

    Args:
        prefix: The start of their names.
        fields: The end of a name: the attribute, and the function that writes it to an address.
        read: Finds an object by its handle.
        write: Finds one that may be changed; None: there are no setters.
    """
    functions: dict[str, _Function] = {}
    for name, (attribute, put) in fields.items():
        functions[f"{prefix}{name}"] = _getter(attribute, put, read)
        if write is not None:
            functions[f"{prefix}Set{name}"] = _setter(attribute, write)
    return functions


def _getter(
    attribute: str, put: Callable[[int, int], None], find: Callable[[int], Any]
) -> _Function:
    return lambda handle, place: put(place, getattr(find(handle), attribute))


def _setter(attribute: str, find: Callable[[int], Any]) -> _Function:
    return lambda handle, value: setattr(find(handle), attribute, value)


def exported(*groups: object) -> dict[str, Callable[..., Any]]:
    """Returns the functions that groups implement, by their names in the C API."""
    functions: dict[str, Callable[..., Any]] = {}
    for group in groups:
        for attribute in dir(type(group)):
            method = getattr(type(group), attribute)
            for name in getattr(method, _MARK, ()):
                functions[name] = getattr(group, attribute)
        functions.update(getattr(group, "functions", dict)())
    return functions
