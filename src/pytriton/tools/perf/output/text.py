# SPDX-License-Identifier: Apache-2.0
"""The report as text, in the lines that people read and parse since perf_analyzer.

Lines that it does not have are added only where it has nothing to say: failed requests, streams,
and a generator that is itself the limit.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

from pytriton.tools.perf.measuring.results import LevelResult, LevelStatus, Live, Mode, number_text
from pytriton.tools.perf.measuring.summary import Distribution, WindowSummary
from pytriton.tools.perf.server_state import Counted, ServerCounts

SMALL_SAMPLE = (
    "Server average accounted time was larger than client average wait time due to small sample "
    "size. Increase the measurement interval with `--measurement-interval`."
)

_SHOWN_ERRORS = 3
_LATE_SHARE = 0.01


@dataclasses.dataclass(frozen=True, slots=True)
class ReportSettings:
    """What was measured, and how.

    Attributes:
        mode: What the load is.
        load_limit: The end of a range; None for a single level.
        latency_limit_ms: The latency that ends the search; 0: none.
        percentile: The latency that counts; None: the mean.
        window_ms: Length of a window; 0 if requests are counted.
        window_requests: Requests of a window; 0 if the time counts.
        request_count: Requests of the whole run; 0: windows.
        verbose: Windows are reported, and times apart.
    """

    mode: Mode = Mode.CONCURRENCY
    is_grpc: bool = False
    is_async: bool = False
    is_decoupled: bool = False
    has_sequences: bool = False
    batch_size: int = 1
    load_limit: float | None = None
    latency_limit_ms: int = 0
    percentile: int | None = None
    is_binary_search: bool = False
    is_poisson: bool = False
    window_ms: int = 5000
    window_requests: int = 0
    request_count: int = 0
    max_trials: int = 10
    verbose: bool = False


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


def settings_text(settings: ReportSettings) -> str:
    """The first part: what is going to be measured."""
    lines = [
        "*** Measurement Settings ***",
        f"  Batch size: {settings.batch_size}",
        "  Service Kind: TRITON",
        *_stabilizing_lines(settings),
    ]
    if settings.load_limit is not None:
        lines.append(f"  Latency limit: {settings.latency_limit_ms} msec")
        lines.append(_limit_line(settings))
    if settings.is_binary_search:
        lines.append("  Using Binary Search algorithm")
    if settings.mode is Mode.RATE:
        distribution = "poisson" if settings.is_poisson else "uniform"
        lines.append(f"  Using {distribution} distribution on request generation")
    calls = "asynchronous" if settings.is_async else "synchronous"
    lines.append(f"  Using {calls} calls for inference")
    if settings.is_decoupled:
        lines.append("  Detected decoupled model, using the first response for measuring latency")
    return "\n".join([*lines, ""])


def _stabilizing_lines(settings: ReportSettings) -> list[str]:
    if settings.request_count:
        return [f"  Sending {settings.request_count} benchmark requests"]
    mode = "count_windows" if settings.window_requests else "time_windows"
    if settings.percentile is not None:
        # perf_analyzer has no space here, and neither have the programs that look for it.
        by = f"p{settings.percentile}latency and throughput"
    else:
        by = "average throughput" if settings.is_async else "average latency and throughput"
    window = (
        f"  Minimum number of samples in each window: {settings.window_requests}"
        if settings.window_requests
        else f"  Measurement window: {settings.window_ms} msec"
    )
    return [f'  Using "{mode}" mode for stabilization', f"  Stabilizing using {by}", window]


def _limit_line(settings: ReportSettings) -> str:
    limit = number_text(settings.load_limit or 0)
    if settings.load_limit == 0:
        limit = "no"
    if settings.mode is Mode.CONCURRENCY:
        return f"  Concurrency limit: {limit} concurrent requests"
    return f"  Request Rate limit: {limit} requests per seconds"


def level_heading(mode: Mode, value: float) -> str | None:
    """The line above a level; None for loads that have none."""
    if mode is Mode.CONCURRENCY:
        return f"Request concurrency: {number_text(value)}"
    if mode is Mode.RATE:
        return f"Request Rate: {number_text(value)} inference requests per seconds"
    return None


def window_text(number: int, summary: WindowSummary, settings: ReportSettings) -> str:
    """The line of a window, in verbose reports."""
    text = f"  Pass [{number}] throughput: {number_text(summary.throughput)} infer/sec. "
    if summary.latency is None:
        return f"{text}No request was answered. "
    if settings.percentile is None:
        latency = summary.latency
        avg, deviation = int(latency.avg_us), int(latency.std_us)
        return f"{text}Avg latency: {avg} usec (std {deviation} usec). "
    wanted = int(summary.latency_us(settings.percentile))
    return f"{text}p{settings.percentile} latency: {wanted} usec. "


def level_text(result: LevelResult, settings: ReportSettings) -> str:
    """The numbers of a level."""
    lines = []
    if result.status is LevelStatus.LATENCY_VARIES:
        what = "the request rate" if result.mode.is_rate else "the concurrency"
        lines.append(f"Warning: Request latency is not stabilizing. Please try lowering {what}.")
    elif result.status is LevelStatus.UNSTABLE:
        lines.append("Warning: these numbers are not stable.")
    elif result.status is LevelStatus.INTERRUPTED:
        lines.append("Warning: interrupted; these are the numbers so far.")
    lines += ["  Client: ", *_client_lines(result, settings)]
    if result.summary.server is not None:
        lines += ["  Server: ", *server_lines(result.summary.server)]
    return "\n".join([*lines, ""])


def _client_lines(result: LevelResult, settings: ReportSettings) -> list[str]:
    summary = result.summary
    lines = [f"    Request count: {summary.requests}"]
    if settings.has_sequences:
        rate = number_text(summary.sequences / summary.duration_s)
        lines.append(f"    Sequence count: {summary.sequences} ({rate} seq/sec)")
    lines.append(f"    Throughput: {number_text(summary.throughput)} infer/sec")
    if settings.is_decoupled:
        rate = number_text(summary.response_rate)
        lines.append(f"    Response Throughput: {rate} infer/sec")
    if settings.verbose:
        overhead = 100 * (1 - summary.generator.waiting_share)
        lines.append(f"    Avg client overhead: {overhead:.2f}%")
    if summary.latency is not None:
        lines += _latency_lines(summary.latency, settings)
        lines += _stream_lines(summary) if settings.is_decoupled else _split(summary, settings)
    return lines + _warnings(result)


def _latency_lines(latency: Distribution, settings: ReportSettings) -> list[str]:
    lines = []
    if settings.percentile is None:
        lines.append(
            f"    Avg latency: {int(latency.avg_us)} usec "
            f"(standard deviation {int(latency.std_us)} usec)"
        )
    lines += [
        f"    p{percentile} latency: {int(value)} usec"
        for percentile, value in sorted(latency.percentiles.items())
    ]
    return lines


def _split(summary: WindowSummary, settings: ReportSettings) -> list[str]:
    """Where the client's time went: sending, and waiting for the answer."""
    whole, send = int(summary.whole_us), int(summary.send_us)
    wait = whole - send
    if settings.is_grpc:
        parts = (
            f"marshal {send} usec + response wait {wait} usec + unmarshal 0 usec"
            if settings.verbose
            else f"(un)marshal request/response {send} usec + response wait {wait} usec"
        )
        return [f"    Avg gRPC time: {whole} usec ({parts})"]
    parts = (
        f"send {send} usec + response wait {wait} usec + receive 0 usec"
        if settings.verbose
        else f"send/recv {send} usec + response wait {wait} usec"
    )
    return [f"    Avg HTTP time: {whole} usec ({parts})"]


def _stream_lines(summary: WindowSummary) -> list[str]:
    mean = summary.responses / summary.requests
    lines = [f"    Avg responses per request: {number_text(round(mean, 2))}"]
    for name, times in (
        ("time to first response", summary.latency),
        ("time between responses", summary.between),
        ("time to last response", summary.whole),
    ):
        if times is not None:
            parts = ", ".join(f"p{p} {int(v)} usec" for p, v in sorted(times.percentiles.items()))
            lines.append(f"    Avg {name}: {int(times.avg_us)} usec ({parts})")
    return lines


def _warnings(result: LevelResult) -> list[str]:
    summary = result.summary
    lines = []
    if summary.failed:
        total = summary.failed + summary.requests
        lines.append(f"    Failed request count: {summary.failed} of {total}")
        for text, count in list(summary.errors.items())[:_SHOWN_ERRORS]:
            lines.append(f"      {count} x {text}")
        if len(summary.errors) > _SHOWN_ERRORS:
            lines.append(f"      and {len(summary.errors) - _SHOWN_ERRORS} other texts")
    if result.mode.is_rate and summary.delayed_share > _LATE_SHARE:
        rate = number_text((summary.requests + summary.failed) / summary.duration_s)
        lines.append(
            f"    [WARNING] {summary.delayed_share:.1%} of the requests began later than they "
            f"should. The rate was {rate} requests per second."
        )
    if summary.generator.is_limit:
        state = summary.generator
        lines.append(
            "    [WARNING] The load generator itself is the limit: it was busy "
            f"{state.cpu_share:.0%} of the time in {state.processes} "
            f"process{'es' if state.processes > 1 else ''}. The server may be quicker; try "
            f"--processes {state.processes + 1} if there are cores."
        )
    return lines


def problem_text(result: LevelResult, settings: ReportSettings) -> str | None:
    """Why a level has no numbers; None if it has."""
    what = "request rate" if result.mode.is_rate else "concurrency"
    if result.status is LevelStatus.UNSTABLE and not result.summary.requests:
        return (
            f"No request was answered within {settings.max_trials} measurement windows for {what} "
            f"{number_text(result.value)}. The server hangs, or the windows are too short for it: "
            "try a longer --measurement-interval."
        )
    if result.status is LevelStatus.UNSTABLE:
        option = "--measurement-request-count" if settings.window_requests else ""
        return (
            f"Failed to obtain stable measurement within {settings.max_trials} measurement windows "
            f"for {what} {number_text(result.value)}. Please try to increase the "
            f"{option or '--measurement-interval'}."
        )
    if result.status is LevelStatus.OVER_LIMIT:
        return f"Measured latency went over the set limit of {settings.latency_limit_ms} msec. "
    if result.status is LevelStatus.FAILED:
        errors = result.summary.errors
        texts = "; ".join(list(errors)[:_SHOWN_ERRORS]) or "no request was answered"
        return f"No request was answered well ({result.summary.failed} failed): {texts}"
    return None


def comparison_lines(results: Sequence[LevelResult], settings: ReportSettings) -> str:
    """The last part: a line for each level."""
    by = "Average" if settings.percentile is None else f"p{settings.percentile}"
    lines = [f"Inferences/Second vs. Client {by} Batch Latency"]
    for result in results:
        name = "Request Rate" if result.mode.is_rate else "Concurrency"
        # perf_analyzer gives the rate of intervals without its fraction.
        value = int(result.value) if result.mode is Mode.INTERVALS else result.value
        lines.append(
            f"{name}: {number_text(value)}, "
            f"throughput: {number_text(result.summary.throughput)} infer/sec, "
            f"latency {int(result.summary.latency_us(settings.percentile))} usec"
        )
    return "\n".join(lines)


class TextWatcher:
    """Prints levels when they end.

    Args:
        settings: What is measured.
        show: Prints a text.
        complain: Prints an error.
        label: The name of the server, if there are several.
        allow_unstable: A level that is not stable is not a problem.
    """

    def __init__(
        self,
        settings: ReportSettings,
        show: Callable[[str], None],
        complain: Callable[[str], None],
        label: str = "",
        *,
        allow_unstable: bool = False,
    ) -> None:
        self._settings = settings
        self._show = show
        self._complain = complain
        self._label = label
        self._allow_unstable = allow_unstable

    def level_begins(self, mode: Mode, value: float) -> None:
        heading = level_heading(mode, value)
        if heading is not None:
            self._show(f"{heading} ({self._label})" if self._label else heading)
        elif self._label:
            self._show(self._label)

    def window_begins(self, number: int) -> None:
        """Nothing to print yet."""

    def ticked(self, live: Live) -> None:
        """Nothing to print: the text has whole windows only."""

    def window_ended(self, number: int, summary: WindowSummary) -> None:
        if self._settings.verbose:
            self._show(window_text(number, summary, self._settings))

    def level_ended(self, result: LevelResult) -> None:
        is_unstable = result.status is LevelStatus.UNSTABLE
        is_kept = is_unstable and self._allow_unstable
        problem = None if is_kept else problem_text(result, self._settings)
        if problem is None or (is_unstable and result.summary.latency is not None):
            self._show(level_text(result, self._settings))
        if problem is not None and result.status is LevelStatus.OVER_LIMIT:
            self._show(problem)
        elif problem is not None:
            self._complain(problem)
