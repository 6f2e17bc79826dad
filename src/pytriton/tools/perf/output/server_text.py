# SPDX-License-Identifier: Apache-2.0
"""The server's part of the text: what it counted, and where a request's time went."""

from __future__ import annotations

from pytriton.tools.perf.server.statistics import Counted, ServerCounts

SMALL_SAMPLE = (
    "Server average accounted time was larger than client average wait time due to small sample "
    "size. Increase the measurement interval with `--measurement-interval`."
)


def server_lines(counts: ServerCounts) -> list[str]:
    """The lines of the model, and of those that it is composed of."""
    if not counts.composing:
        return _model_lines(counts.model, "    ")
    lines = _ensemble_lines(counts)
    lines += ["", "  Composing models: "]
    for index, ((name, version), counted) in enumerate(counts.composing.items()):
        if index:
            lines.append("")
        lines.append(f"  {name}, version: {version}")
        lines += _model_lines(counted, "      ")
    return lines


def _counts(counted: Counted, indent: str) -> list[str]:
    lines = [
        f"{indent}Inference count: {counted.inferences}",
        f"{indent}Execution count: {counted.executions}",
    ]
    if counted.cache_hits or counted.cache_misses:
        lines += [
            f"{indent}Cache hit count: {counted.cache_hits}",
            f"{indent}Cache miss count: {counted.cache_misses}",
        ]
    return [*lines, f"{indent}Successful request count: {counted.requests}"]


def _model_lines(counted: Counted, indent: str) -> list[str]:
    lines = _counts(counted, indent)
    if not counted.requests:
        return lines
    if counted.cache_hits or counted.cache_misses:
        return lines + _cache_lines(counted, indent)
    average = _Averages(counted.requests)
    overhead = average.us(counted.request_ns - counted.queue_ns - counted.compute_ns)
    return [
        *lines,
        (
            f"{indent}Avg request latency: {average.us(counted.request_ns)} usec "
            f"(overhead {overhead} usec + queue {average.us(counted.queue_ns)} usec + "
            f"compute input {average.us(counted.input_ns)} usec + "
            f"compute infer {average.us(counted.infer_ns)} usec + "
            f"compute output {average.us(counted.output_ns)} usec)"
        ),
    ]


def _cache_lines(counted: Counted, indent: str) -> list[str]:
    average = _Averages(counted.requests)
    cached = counted.cache_ns + counted.compute_ns
    overhead = average.us(counted.request_ns - counted.queue_ns - cached)
    hit = _Averages(counted.cache_hits)
    miss = _Averages(counted.cache_misses)
    ran = _Averages(counted.input_count)
    missed = (
        miss.us(counted.cache_miss_ns)
        + ran.us(counted.input_ns)
        + ran.us(counted.infer_ns)
        + ran.us(counted.output_ns)
    )
    return [
        (
            f"{indent}Avg request latency: {average.us(counted.request_ns)} usec "
            f"(overhead {overhead} usec + queue {average.us(counted.queue_ns)} usec + "
            f"cache hit/miss {average.us(cached)} usec)"
        ),
        f"{indent}  Average Cache Hit Latency: {hit.us(counted.cache_hit_ns)} usec",
        (
            f"{indent}  Average Cache Miss Latency: {missed} usec "
            f"(cache lookup/insertion {miss.us(counted.cache_miss_ns)} usec + "
            f"compute input {ran.us(counted.input_ns)} usec + "
            f"compute infer {ran.us(counted.infer_ns)} usec + "
            f"compute output {ran.us(counted.output_ns)} usec)"
        ),
    ]


def _ensemble_lines(counts: ServerCounts) -> list[str]:
    lines = _counts(counts.model, "    ")
    if not counts.model.requests:
        return lines
    average = _Averages(counts.model.requests)
    queue_ns = sum(each.queue_ns for each in counts.composing.values())
    compute_ns = sum(each.compute_ns for each in counts.composing.values())
    overhead = average.us(counts.model.request_ns - queue_ns - compute_ns)
    return [
        *lines,
        (
            f"    Avg request latency: {average.us(counts.model.request_ns)} usec "
            f"(overhead {overhead} usec + queue {average.us(queue_ns)} usec + "
            f"compute {average.us(compute_ns)} usec)"
        ),
    ]


class _Averages:
    def __init__(self, count: int) -> None:
        self._count = count

    def us(self, total_ns: int) -> int:
        """The mean of a sum, in microseconds, and not below 0."""
        return max(total_ns, 0) // self._count // 1000 if self._count else 0
