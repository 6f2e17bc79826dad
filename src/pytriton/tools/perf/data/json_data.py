# SPDX-License-Identifier: Apache-2.0
"""Inputs from files of JSON: entries for requests, streams for sequences, expected outputs."""

from __future__ import annotations

import dataclasses
import json
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

from numpy.typing import NDArray

from pytriton.tools.perf.data.json_values import array_of
from pytriton.tools.perf.data.settings import DataSettings
from pytriton.tools.perf.errors import DataError
from pytriton.tools.perf.model_description import MeasuredModel, MeasuredTensor

_TIMESTAMP = "timestamp"
# What entries have for servers of other kinds.
_OTHERS = frozenset({"payload", "session_id", "delay", "message_generator", "TORCHSERVE_INPUT"})


@dataclasses.dataclass(frozen=True, slots=True)
class DataEntry:
    """One entry: the tensors of a request, without a batch axis.

    Attributes:
        expected: The outputs that a right answer has, if the file says so.
        timestamp_ms: When its request begins, if the file says so.
    """

    tensors: Mapping[str, NDArray[Any]]
    expected: Mapping[str, NDArray[Any]] | None = None
    timestamp_ms: float | None = None


def read_streams(
    model: MeasuredModel, path: pathlib.Path, settings: DataSettings
) -> list[list[DataEntry]]:
    """Read a file.

    Returns:
        Streams of entries; one stream if the file has a plain list.

    Raises:
        DataError: The file cannot be read or does not fit the model.
    """
    try:
        document = json.loads(path.read_bytes())
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise DataError(f"{path} is not JSON: {error}") from error
    if not isinstance(document, dict) or not isinstance(document.get("data"), list):
        raise DataError(f'{path}: expected an object with a list "data"')
    data = document["data"]
    if not data:
        raise DataError(f'{path}: expected entries in "data", found none')
    streams, numbered = _streams(data, f"{path}: data")
    checks = _validation(document, data, path)
    return [
        [
            _entry(model, each, check, settings, place)
            for each, check, place in zip(stream, wanted, places, strict=True)
        ]
        for stream, wanted, places in zip(streams, checks, numbered, strict=True)
    ]


def _streams(data: Sequence[Any], place: str) -> tuple[list[list[Any]], list[list[str]]]:
    """The streams of a list, and the place of each entry."""
    if not any(isinstance(each, list) for each in data):
        return [list(data)], [[f"{place}[{index}]" for index in range(len(data))]]
    streams, places = [], []
    for number, stream in enumerate(data):
        if not isinstance(stream, list) or not stream:
            raise DataError(f"{place}[{number}]: expected a list of entries, as the others are")
        streams.append(stream)
        places.append([f"{place}[{number}][{index}]" for index in range(len(stream))])
    return streams, places


def _validation(
    document: Mapping[str, Any], data: Sequence[Any], path: pathlib.Path
) -> list[list[Any]]:
    """The expected outputs of each entry; None where there are none."""
    wanted = document.get("validation_data")
    streams, _ = _streams(data, f"{path}: data")
    if wanted is None:
        return [[None] * len(stream) for stream in streams]
    if not isinstance(wanted, list):
        raise DataError(f'{path}: expected a list as "validation_data"')
    checks, _ = _streams(wanted, f"{path}: validation_data")
    counts = [len(stream) for stream in streams]
    if counts != [len(stream) for stream in checks]:
        raise DataError(
            f'{path}: "validation_data" has {sum(map(len, checks))} entries, expected '
            f'{sum(counts)}: one for each of "data"'
        )
    return checks


def _entry(
    model: MeasuredModel, entry: Any, check: Any, settings: DataSettings, place: str
) -> DataEntry:
    if not isinstance(entry, dict):
        raise DataError(f"{place}: expected an object with inputs, got {type(entry).__name__}")
    for name in _OTHERS & entry.keys():
        raise DataError(
            f"{place}: {name} belongs to other kinds of services; expected inputs of {model.name}"
        )
    inputs = {tensor.name: tensor for tensor in model.inputs}
    values = {name: value for name, value in entry.items() if name != _TIMESTAMP or name in inputs}
    tensors = _arrays(inputs, values, settings, place, "input")
    missing = [
        name for name, tensor in inputs.items() if name not in tensors and not tensor.is_optional
    ]
    if missing:
        raise DataError(f"{place}: expected a value for input {missing[0]}, found none")
    expected = None
    if check is not None:
        if not isinstance(check, dict):
            raise DataError(f"{place}: expected an object with outputs in validation_data")
        outputs = {tensor.name: tensor for tensor in model.outputs}
        where = place.replace(": data", ": validation_data")
        expected = _arrays(outputs, check, settings, where, "output")
    return DataEntry(tensors, expected, _timestamp(entry, inputs, place))


def _arrays(
    known: Mapping[str, MeasuredTensor],
    values: Mapping[str, Any],
    settings: DataSettings,
    place: str,
    kind: str,
) -> dict[str, NDArray[Any]]:
    unknown = sorted(values.keys() - known.keys())
    if unknown:
        raise DataError(
            f"{place}: the model has no {kind} {unknown[0]}, expected one of "
            f"{', '.join(known) or 'none'}"
        )
    return {
        name: array_of(known[name], value, settings.shapes, place) for name, value in values.items()
    }


def _timestamp(
    entry: Mapping[str, Any], inputs: Mapping[str, MeasuredTensor], place: str
) -> float | None:
    if _TIMESTAMP in inputs or _TIMESTAMP not in entry:
        return None
    value = entry[_TIMESTAMP]
    if isinstance(value, list) and len(value) == 1:
        value = value[0]
    if isinstance(value, bool) or not isinstance(value, int | float) or value < 0:
        raise DataError(f"{place}: expected milliseconds as timestamp, got {value!r}")
    return float(value)
