# SPDX-License-Identifier: Apache-2.0
"""Files in perf_analyzer's formats: the levels as CSV, and every request as JSON for genai-perf."""

from __future__ import annotations

import csv
import io
import json
import pathlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from numpy.typing import NDArray

from pytriton.tools.perf.load.plan import InputSet
from pytriton.tools.perf.load.records import Records
from pytriton.tools.perf.measuring.results import LevelResult, number_text
from pytriton.tools.perf.output.text import ReportSettings
from pytriton.tools.perf.server_state import Counted

_GPU_COLUMNS = {
    "Avg GPU Utilization": "utilization",
    "Avg GPU Power Usage": "power",
    "Max GPU Memory Usage": "memory_used",
    "Total GPU Memory": "memory_total",
}


def csv_text(
    results: Sequence[LevelResult],
    settings: ReportSettings,
    *,
    verbose: bool = False,
    with_gpu: bool = False,
) -> str:
    """The rows of all levels."""
    has_cache = any(_server(result).cache_hits for result in results)
    rows = [
        _row(result, settings, has_cache=has_cache, verbose=verbose, with_gpu=with_gpu)
        for result in sorted(results, key=lambda result: result.summary.throughput)
    ]
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    if rows:
        writer.writerow(rows[0].keys())
    writer.writerows(row.values() for row in rows)
    return out.getvalue()


def composing_texts(results: Sequence[LevelResult], path: pathlib.Path) -> dict[pathlib.Path, str]:
    """A file for each model that an ensemble is composed of, beside its own."""
    names = dict.fromkeys(
        key
        for result in results
        if result.summary.server is not None
        for key in result.summary.server.composing
    )
    texts = {}
    for name, version in names:
        out = io.StringIO()
        writer = csv.writer(out, lineterminator="\n")
        writer.writerow([_load_name(results[0]), "Inferences/Second", *_server_columns(Counted())])
        for result in sorted(results, key=lambda result: result.summary.throughput):
            server = result.summary.server
            if server is None:  # the server did not tell its counters at this level
                continue
            counted = server.composing.get((name, version), Counted())
            rate = counted.inferences / result.summary.duration_s
            row = [number_text(result.value), number_text(rate)]
            writer.writerow([*row, *_server_columns(counted).values()])
        texts[path.with_name(f"{name}_v{version}.{path.name}")] = out.getvalue()
    return texts


def _row(
    result: LevelResult,
    settings: ReportSettings,
    *,
    has_cache: bool,
    verbose: bool,
    with_gpu: bool,
) -> dict[str, str | int]:
    summary = result.summary
    row: dict[str, str | int] = {
        _load_name(result): number_text(result.value),
        "Inferences/Second": number_text(summary.throughput),
    }
    if settings.is_decoupled:
        row["Response Throughput"] = number_text(summary.response_rate)
    row["Client Send"] = 0 if settings.is_decoupled else int(summary.send_us)
    row["Network+Server Send/Recv"] = network_us(result, settings)
    row.update(_server_columns(_effective(result)))
    if has_cache:
        counted = _server(result)
        row["Server Cache Hit"] = _mean_us(counted.cache_hit_ns, counted.cache_hits)
        row["Server Cache Miss"] = _mean_us(counted.cache_miss_ns, counted.cache_misses)
    row["Client Recv"] = 0
    if summary.latency is not None:
        for percentile, value in sorted(summary.latency.percentiles.items()):
            row[f"p{percentile} latency"] = int(value)
        if verbose:
            if settings.percentile is None:
                row["Avg latency"] = int(summary.latency.avg_us)
            row["request/response"] = int(summary.send_us)
            row["response wait"] = int(summary.whole_us) - int(summary.send_us)
    if with_gpu:
        for column, gauge in _GPU_COLUMNS.items():
            values = summary.gpu.get(gauge, {})
            row[column] = "".join(f"{gpu}:{number_text(each)};" for gpu, each in values.items())
    return row


def network_us(result: LevelResult, settings: ReportSettings) -> int:
    """The time of a request that neither the client nor the model has; not below 0."""
    return max(unaccounted_us(result, settings), 0)


def unaccounted_us(result: LevelResult, settings: ReportSettings) -> int:
    """The client's time of a request less what the server has counted; negative if that is more."""
    summary = result.summary
    latency = summary.latency.avg_us if summary.latency is not None else 0.0
    send_us = 0.0 if settings.is_decoupled else summary.send_us
    columns = _server_columns(_effective(result)).values()
    counted = _server(result)
    cached_us = _mean_us(counted.cache_ns, counted.requests)
    return int(latency - send_us) - sum(columns) - cached_us


def _load_name(result: LevelResult) -> str:
    return "Request Rate" if result.mode.is_rate else "Concurrency"


def _server(result: LevelResult) -> Counted:
    return result.summary.server.model if result.summary.server is not None else Counted()


def _effective(result: LevelResult) -> Counted:
    """The counters of a model; for an ensemble, what its steps have spent together."""
    if result.summary.server is None or not result.summary.server.composing:
        return _server(result)
    total = Counted()
    for counted in result.summary.server.composing.values():
        total += counted
    own = result.summary.server.model
    return Counted(
        requests=own.requests,
        queue_ns=total.queue_ns,
        input_count=own.requests,
        input_ns=total.input_ns,
        infer_ns=total.infer_ns,
        output_ns=total.output_ns,
    )


def _server_columns(counted: Counted) -> dict[str, int]:
    ran = counted.input_count
    return {
        "Server Queue": _mean_us(counted.queue_ns, counted.requests),
        "Server Compute Input": _mean_us(counted.input_ns, ran),
        "Server Compute Infer": _mean_us(counted.infer_ns, ran),
        "Server Compute Output": _mean_us(counted.output_ns, ran),
    }


def _mean_us(total_ns: int, count: int) -> int:
    return total_ns // count // 1000 if count else 0


def write_export(
    path: pathlib.Path,
    results: Sequence[LevelResult],
    inputs: Sequence[InputSet],
    version: str,
) -> None:
    """Write all windows of levels; `inputs` are counted through all streams."""
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
