# SPDX-License-Identifier: Apache-2.0
"""Marks the methods that implement functions of Triton's C API.

A group is an object with methods that are marked with `export`. They get pointers as integers and C
strings as bytes, and raise a `ServerError` to return an error to C. A group may also have a method
`functions`, which returns functions that differ only in what they read or write, by their names.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

_Method = TypeVar("_Method", bound=Callable[..., Any])
_MARK = "api_function_names"


def export(*names: str) -> Callable[[_Method], _Method]:
    """Mark a method as the implementation of functions of the C API."""

    def mark(method: _Method) -> _Method:
        setattr(method, _MARK, names)
        return method

    return mark


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
