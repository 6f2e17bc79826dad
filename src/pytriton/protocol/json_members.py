# SPDX-License-Identifier: Apache-2.0
"""Typed access to the members of a JSON object, with the error texts of Triton.

As in Triton, a member that is missing or has another type is an INTERNAL error: status 500.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pytriton.base.errors import InternalError, InvalidArgumentError
from pytriton.protocol.json_text import is_utf8

if TYPE_CHECKING:
    from pytriton.base.messages import ParameterValue

_MAX_UNSIGNED = 2**64 - 1


def access_error(kind: str) -> str:
    """Returns Triton's text for a value that is not a `kind`."""
    if kind == "number":
        return "attempt to access JSON non-number as double"
    return f"attempt to access JSON non-{kind} as {kind}"


def member_error(
    container: dict[str, Any], key: str, kind: str, action: str = "parse"
) -> InternalError:
    """Returns the error for `container[key]` if it is missing or not a `kind`."""
    if key in container:
        return InternalError(f"Unable to {action} '{key}': {access_error(kind)}")
    return InternalError(
        f"Unable to {action} '{key}': attempt to access non-existing object member '{key}'"
    )


def unsigned_member(container: dict[str, Any], key: str, action: str = "parse") -> int:
    value = container.get(key)
    if type(value) is not int or not 0 <= value <= _MAX_UNSIGNED:
        raise member_error(container, key, "unsigned-integer", action)
    return value


def boolean_member(container: dict[str, Any], key: str) -> bool:
    value = container.get(key)
    if type(value) is not bool:
        raise member_error(container, key, "boolean")
    return value


def text_member(container: dict[str, Any], key: str) -> str:
    value = container.get(key)
    if type(value) is not str:
        raise member_error(container, key, "string")
    return utf8(value, key)


def utf8(text: str, key: str) -> str:
    """Returns `text`, which may be logged and sent; InvalidArgumentError if it is not UTF-8."""
    if not is_utf8(text):
        raise InvalidArgumentError(f"expected UTF-8 text for '{key}', got {text!a}")
    return text


def parameter_value(key: str, value: Any) -> ParameterValue:
    """Returns a request parameter for models; an integer beyond 64 signed bits becomes a double."""
    utf8(key, "parameters")
    kind = type(value)
    if kind is str:
        return utf8(value, key)
    if kind is int and not -(2**63) <= value < 2**63:
        return _double(key, value)
    if kind is int or kind is bool or kind is float:
        return value  # type: ignore[no-any-return]  # its type was just checked
    raise InvalidArgumentError(
        f"parameter '{key}' has invalid type. It should be either 'int', 'bool', or 'string'."
    )


def _double(key: str, value: int) -> float:
    try:
        return float(value)
    except OverflowError:
        raise InvalidArgumentError(
            f"parameter '{key}' is too big to be stored in double."
        ) from None


def refuse_reserved(key: str) -> None:
    if key.startswith("triton_"):
        raise InvalidArgumentError(
            "parameter keys starting with 'triton_' are reserved for Triton usage "
            "and should not be specified."
        )
