# SPDX-License-Identifier: Apache-2.0
"""Every request in perf_analyzer's JSON, which tools such as genai-perf read."""

from __future__ import annotations

import json
import pathlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from numpy.typing import NDArray

from pytriton.tools.perf.load.plan import InputSet
from pytriton.tools.perf.load.records import Records
from pytriton.tools.perf.measuring.results import LevelResult, Mode


def write_export(
    path: pathlib.Path,
    results: Sequence[LevelResult],
    inputs: Sequence[InputSet],
    version: str,
) -> None:
    """Write the file.

    Args:
        path: Its place.
        results: Levels with all of their windows.
        inputs: The input sets, counted through all streams.
        version: The version of this program.
    """
    shown = [_tensors(each.tensors) for each in inputs]
    with path.open("w", encoding="utf-8") as file:
        file.write('{"experiments":[')
        for index, result in enumerate(results):
            file.write("," if index else "")
            _write_experiment(file, result, shown)
        ending = {"version": version, "service_kind": "triton", "endpoint": ""}
        file.write(f"],{json.dumps(ending)[1:]}\n")


def _write_experiment(file: Any, result: LevelResult, inputs: Sequence[Any]) -> None:
    mode = "request_rate" if result.mode.is_rate else "concurrency"
    value: float = result.value if result.mode.is_rate else int(result.value)
    if result.mode is Mode.PERIODIC:
        value = int(result.value)
    file.write(f'{{"experiment":{json.dumps({"mode": mode, "value": value})},"requests":[')
    is_first = True
    boundaries: list[int] = []
    for window in result.windows:
        boundaries += [
            window.begin_ns + result.wall_offset_ns,
            window.end_ns + result.wall_offset_ns,
        ]
        for request in _requests(window.records, inputs, result.wall_offset_ns):
            file.write(("" if is_first else ",") + json.dumps(request, separators=(",", ":")))
            is_first = False
    file.write(f'],"window_boundaries":{json.dumps(sorted(set(boundaries)))}}}')


def _requests(
    records: Records, inputs: Sequence[Any], offset_ns: int
) -> Iterator[Mapping[str, Any]]:
    at = 0
    streams = len(records.response_ns) > 0
    for row in range(len(records)):
        count = int(records.responses[row])
        if streams:
            times = (records.response_ns[at : at + count] + offset_ns).tolist()
            at += count
        else:
            times = [int(records.last_ns[row]) + offset_ns]
        if not records.ok[row]:
            continue
        request: dict[str, Any] = {"timestamp": int(records.begin_ns[row]) + offset_ns}
        if records.sequence_id[row]:
            request["sequence_id"] = int(records.sequence_id[row])
        request["request_inputs"] = inputs[int(records.input_index[row])] if inputs else {}
        request["response_timestamps"] = times
        outputs = records.outputs[row] if records.outputs is not None else [{}] * len(times)
        request["response_outputs"] = [_tensors(each) for each in outputs]
        yield request


def _tensors(tensors: Mapping[str, NDArray[Any]]) -> dict[str, Any]:
    return {name: _values(array) for name, array in tensors.items()}


def _values(array: NDArray[Any]) -> Any:
    """A value if there is one, else a flat list."""
    values = [
        each.decode(errors="replace") if isinstance(each, bytes) else each
        for each in array.ravel().tolist()
    ]
    return values[0] if len(values) == 1 else values
