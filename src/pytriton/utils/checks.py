# SPDX-License-Identifier: Apache-2.0
"""Checks of users' settings, at the place where they are written."""

from __future__ import annotations

from pytriton.exceptions import PyTritonBadParameterError


def check_type(value: object, what: str, *allowed: type) -> None:
    """Raise PyTritonBadParameterError if a setting has another type than those allowed.

    Args:
        value: The setting.
        what: Its name for the message.
        *allowed: Its types. NoneType is not named in the message.
    """
    if not isinstance(value, allowed):
        names = " or ".join(each.__name__ for each in allowed if each is not type(None))
        raise PyTritonBadParameterError(f"Expected an object of {names} as {what}, got {value!r}.")
