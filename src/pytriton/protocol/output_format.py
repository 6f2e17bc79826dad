# SPDX-License-Identifier: Apache-2.0
"""The requested format of outputs: JSON, binary data, a list of classes, or shared memory."""

from __future__ import annotations

from typing import Any, NamedTuple

from pytriton.base.errors import InvalidArgumentError
from pytriton.protocol.json_members import (
    boolean_member,
    member_error,
    text_member,
    unsigned_member,
)
from pytriton.protocol.shared_memory import REGION, RegionPlace, place_from_json


class OutputChoice(NamedTuple):
    """The format of one output."""

    binary: bool = False
    class_count: int = 0  # the number of classes to return instead of the tensor; 0: the tensor
    place: RegionPlace | None = None  # in the client's shared memory; the response has no data then


class OutputFormat(NamedTuple):
    """The format of all outputs."""

    default: OutputChoice  # for outputs that the client does not list
    listed: dict[str, OutputChoice]

    def places(self) -> dict[str, RegionPlace]:
        """Returns the places of outputs that go to the client's shared memory."""
        return {name: each.place for name, each in self.listed.items() if each.place is not None}


AS_JSON = OutputChoice()
AS_BINARY = OutputChoice(binary=True)
ALL_JSON = OutputFormat(AS_JSON, {})
ALL_BINARY = OutputFormat(AS_BINARY, {})


class ListedOutputs(NamedTuple):
    """The outputs that a client lists; validation refuses repeated names later."""

    names: list[str]
    choices: dict[str, OutputChoice]
    uses_regions: bool


def read_outputs(entries: list[Any], model_outputs: int) -> ListedOutputs:
    """Read the `outputs` of a request, at most one more than the model has.

    Raises:
        ServerError: An entry is malformed.
    """
    names: list[str] = []
    choices: dict[str, OutputChoice] = {}
    uses_regions = False
    for entry in entries[: model_outputs + 1]:
        if type(entry) is not dict:
            raise member_error({}, "name", "string")
        name = text_member(entry, "name")
        parameters = entry.get("parameters")
        names.append(name)
        choice = _choice(parameters) if type(parameters) is dict else AS_JSON
        choices[name] = choice
        if choice.place is not None:
            uses_regions = True
    return ListedOutputs(names, choices, uses_regions)


def _choice(parameters: dict[str, Any]) -> OutputChoice:
    binary = "binary_data" in parameters and boolean_member(parameters, "binary_data")
    class_count = 0
    if "classification" in parameters:
        class_count = unsigned_member(parameters, "classification", action="set")
    if REGION not in parameters:
        return OutputChoice(binary, class_count)
    for key, is_set in (("classification", class_count), ("binary_data", binary)):
        if is_set:
            raise InvalidArgumentError(f"Output can't set both 'shared_memory_region' and '{key}'")
    return OutputChoice(place=place_from_json(parameters))
