# SPDX-License-Identifier: Apache-2.0
"""Parameters of requests and responses: checks those of models, and converts them to JSON."""

from __future__ import annotations

from typing import Any

import msgspec

from pytriton.base.messages import ParameterValue
from pytriton.runtime.pb_utils.arguments import text
from pytriton.runtime.pb_utils.failures import TritonModelException

_INT64 = range(-(1 << 63), 1 << 63)


def checked_parameters(parameters: Any) -> dict[str, ParameterValue] | None:
    """Returns a model's parameters as a dict that can be sent; None if there are none.

    Raises:
        TritonModelException: They are not a dict, or a key or value has the wrong type.
    """
    if parameters is None:
        return None
    if not isinstance(parameters, dict):
        raise TritonModelException(
            f"Expect parameters to be None or a dict of str to bool/int/str, got {type(parameters)}"
        )
    checked: dict[str, ParameterValue] = {}
    for key, value in parameters.items():
        if not isinstance(key, str):
            raise TritonModelException(
                f"Expect parameters keys to have type str, found type {type(key)}"
            )
        checked[_text(key, "keys")] = _checked_value(key, value)
    return checked or None


def _checked_value(key: str, value: Any) -> ParameterValue:
    if isinstance(value, bool):
        return value
    if isinstance(value, str):
        return _text(value, "values")
    if not isinstance(value, int):
        raise TritonModelException(
            f"Expect parameters values to have type bool/int/str, found type {type(value)}"
        )
    if value not in _INT64:
        raise TritonModelException(
            f"Unsupported value type on parameters: '{key}' must fit in 64 bits, got {value}"
        )
    return int.__index__(value)  # converts subclasses to int, which alone can be sent


def _text(value: str, what: str) -> str:
    try:
        return text(value, what)
    except TypeError:
        raise TritonModelException(
            f"Expect parameters {what} to be text that UTF-8 can express, got {value!r}"
        ) from None


def as_json(parameters: dict[str, ParameterValue] | None) -> str:
    """Returns parameters as JSON text, the form in which models get them."""
    return msgspec.json.encode(parameters).decode() if parameters else "{}"
