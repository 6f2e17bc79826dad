# SPDX-License-Identifier: Apache-2.0
"""The requested format of outputs: JSON, binary data after the JSON, or a list of classes."""

from __future__ import annotations

from typing import Any, NamedTuple

from pytriton.errors import InvalidArgumentError, NotFoundError
from pytriton.wire.json_members import boolean_member, member_error, text_member, unsigned_member


class OutputChoice(NamedTuple):
    """The format of one output."""

    binary: bool = False
    class_count: int = 0  # the number of classes to return instead of the tensor; 0: the tensor


class OutputFormat(NamedTuple):
    """The format of all outputs."""

    default: OutputChoice  # for outputs that the client does not list
    listed: dict[str, OutputChoice]


AS_JSON = OutputChoice()
AS_BINARY = OutputChoice(binary=True)
ALL_JSON = OutputFormat(AS_JSON, {})
ALL_BINARY = OutputFormat(AS_BINARY, {})


class ListedOutputs(NamedTuple):
    """The outputs that a client lists; validation refuses repeated names later."""

    names: list[str]
    choices: dict[str, OutputChoice]


def read_outputs(entries: list[Any], model_outputs: int) -> ListedOutputs:
    """Read the `outputs` of a request, at most one more than the model has.

    Raises:
        ServerError: An entry is malformed.
    """
    listed = ListedOutputs([], {})
    for entry in entries[: model_outputs + 1]:
        if type(entry) is not dict:
            raise member_error({}, "name", "string")
        name = text_member(entry, "name")
        parameters = entry.get("parameters")
        listed.names.append(name)
        listed.choices[name] = _choice(parameters) if type(parameters) is dict else AS_JSON
    return listed


def _choice(parameters: dict[str, Any]) -> OutputChoice:
    binary = "binary_data" in parameters and boolean_member(parameters, "binary_data")
    class_count = 0
    if "classification" in parameters:
        class_count = unsigned_member(parameters, "classification", action="set")
    if "shared_memory_region" not in parameters:
        return OutputChoice(binary, class_count)
    for key in ("classification", "binary_data"):
        if key in parameters:
            raise InvalidArgumentError(f"Output can't set both 'shared_memory_region' and '{key}'")
    raise unknown_region(text_member(parameters, "shared_memory_region"))


def unknown_region(region: str) -> NotFoundError:
    return NotFoundError(f"Unable to find shared memory region: '{region}'")
