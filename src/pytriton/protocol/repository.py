# SPDX-License-Identifier: Apache-2.0
"""Parses requests of the model_repository extension: JSON bodies and gRPC messages.

`pytriton.serving.engine.client.ModelControl` interprets the names and files in them.
"""

from __future__ import annotations

import base64
import binascii
from typing import TYPE_CHECKING, Any, NamedTuple

from pytriton.base.errors import InternalError, InvalidArgumentError, UnsupportedError
from pytriton.protocol.json_text import access_error, load_members, utf8

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pytriton.base.dtypes import Buffer

_FILE = "file:"
_NON_OBJECT = "attempt to get members for non-object"
_BLANKS = str.maketrans("", "", " \t\r\n")  # some tools wrap long lines of base64


class LoadOverrides(NamedTuple):
    """The configuration and files in a load request, which replace those of the model."""

    config: str | None  # JSON text
    files: dict[str, bytes]  # by path in the model's directory


def check_repository(name: str) -> None:
    """Check that a request names no repository; UnsupportedError if it names one."""
    if name:
        raise UnsupportedError("'repository_name' specification is not supported")


def check_model_name(name: str, *, is_path: bool) -> None:
    """Check the name of a model; with `is_path` it is used as the name of a directory.

    Raises:
        InvalidArgumentError: The name is blank, not UTF-8, or a path out of its repository.
    """
    trimmed = utf8(name, "model name").strip()
    if not trimmed:
        raise InvalidArgumentError(
            "Model name cannot be empty. Please enter a valid name to deploy."
        )
    if is_path and (trimmed in (".", "..") or "/" in name or "\0" in name):
        raise InvalidArgumentError(
            f"invalid model name '{name}', model name must not contain path traversal characters"
        )


# JSON


def read_index(body: Buffer) -> bool:
    """Returns whether the body of an index request asks for ready models only.

    Raises:
        ServerError: The body is malformed.
    """
    ready = _members(load_members(body)).get("ready", False) if body else False
    if type(ready) is not bool:
        raise InvalidArgumentError("Invalid value for 'ready': expected a boolean")
    return ready


def read_load(body: Buffer) -> LoadOverrides:
    """Parse the body of a load request; ServerError if the body is malformed."""
    overrides = LoadOverrides(None, {})
    for key, value in _parameters(body).items():
        if type(value) is not str:
            raise InternalError(access_error("string"))
        if key == "config":
            overrides = overrides._replace(config=utf8(value, key))
        elif key.startswith(_FILE):
            overrides.files[utf8(key, "parameters").removeprefix(_FILE)] = _from_base64(key, value)
        else:
            raise InternalError("unexpected error on creating Triton parameter")
    return overrides


def read_unload(body: Buffer) -> bool:
    """Returns whether the body of an unload request asks to unload dependent models, too.

    Raises:
        ServerError: The body is malformed.
    """
    unload_dependents = _parameters(body).get("unload_dependents", False)
    if type(unload_dependents) is not bool:
        raise InternalError(access_error("boolean"))
    return unload_dependents


def _parameters(body: Buffer) -> dict[str, Any]:
    document = _members(load_members(body)) if body else {}
    return _members(document.get("parameters", {}))


def _members(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise InternalError(_NON_OBJECT)
    return value


def _from_base64(key: str, text: str) -> bytes:
    text = text.translate(_BLANKS)
    padding = "=" * (-len(text) % 4)  # some clients omit it
    try:
        return base64.b64decode(text + padding, validate=True)
    except (binascii.Error, ValueError) as error:
        raise InvalidArgumentError(
            f"expected base64 text for load parameter '{key}', got text that is not: {error}"
        ) from None


# gRPC: maps of ModelRepositoryParameter messages by name


def read_load_parameters(parameters: Mapping[str, Any]) -> LoadOverrides:
    """Read the parameters of a RepositoryModelLoadRequest.

    Raises:
        InvalidArgumentError: A parameter has a wrong type or an unknown name.
    """
    overrides = LoadOverrides(None, {})
    for key, parameter in parameters.items():
        choice = parameter.WhichOneof("parameter_choice")
        if key != "config" and not key.startswith(_FILE):
            raise InvalidArgumentError(f"unrecognized load parameter '{key}'.")
        expected = "string_param" if key == "config" else "bytes_param"
        if choice != expected:
            raise InvalidArgumentError(
                f"invalid value type for load parameter '{key}', expected {expected}."
            )
        if key == "config":
            overrides = overrides._replace(config=parameter.string_param)
        else:
            overrides.files[key.removeprefix(_FILE)] = parameter.bytes_param
    return overrides


def read_unload_parameters(parameters: Mapping[str, Any]) -> bool:
    """Returns whether a RepositoryModelUnloadRequest asks to unload dependent models, too.

    Raises:
        InvalidArgumentError: The parameter has a wrong type.
    """
    if "unload_dependents" not in parameters:
        return False
    parameter = parameters["unload_dependents"]
    if parameter.WhichOneof("parameter_choice") != "bool_param":
        raise InvalidArgumentError(
            "invalid value type for 'unload_dependents' parameter, expected bool_param."
        )
    unload_dependents: bool = parameter.bool_param
    return unload_dependents
