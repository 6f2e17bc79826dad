# SPDX-License-Identifier: Apache-2.0
"""A run of `pytriton perf`: servers with the model, levels, watchers, and Ctrl-C.

`pytriton tune` also uses the targets and the interrupts.
"""

from __future__ import annotations

import contextlib
import dataclasses
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from types import FrameType

from rich.console import Console

from pytriton.base.security import TOKEN_VARIABLE, TRITON_ACCESS_HEADER
from pytriton.client.kserve.records import KserveClient
from pytriton.tools.commands.own_server import ask_own_server, own_headers
from pytriton.tools.commands.perf.options import PerfOptions
from pytriton.tools.perf.data.inputs import read_inputs
from pytriton.tools.perf.data.settings import InputData
from pytriton.tools.perf.errors import PerfError
from pytriton.tools.perf.load.plan import (
    Arrivals,
    Compression,
    Concurrency,
    FixedSchedule,
    Intervals,
    Level,
    LoadPlan,
    LoadProtocol,
    PeriodicConcurrency,
    RequestRate,
    Sequences,
    TensorFormat,
    TensorMemory,
)
from pytriton.tools.perf.load.process_load import ProcessLoad
from pytriton.tools.perf.measuring.profiler import (
    LoadRange,
    Profiler,
    ProfileRules,
    binary,
    linear,
    sweep,
)
from pytriton.tools.perf.measuring.results import (
    LevelResult,
    Mode,
    ProfileWatcher,
    StabilityRules,
    Watchers,
)
from pytriton.tools.perf.measuring.source import LoadSource, WindowRules
from pytriton.tools.perf.measuring.summary import SummaryRules
from pytriton.tools.perf.model_description import MeasuredModel, describe
from pytriton.tools.perf.output.progress import ProgressDisplay
from pytriton.tools.perf.output.text import ReportSettings, TextWatcher, settings_text
from pytriton.tools.perf.server_state import (
    GpuGauges,
    QuestionError,
    ServerAddress,
    StatisticsReader,
    fetch,
    questions_of,
)

_BASE_LENGTH = 20  # the default length of sequences

MakeLoad = Callable[[LoadPlan], ProcessLoad]


class Interrupts:
    """Interrupts of a run: the first one asks for what there is, the second one ends it."""

    def __init__(self) -> None:
        self.is_wanted = False
        self.is_second = False
        self.is_deaf = False  # while something is put right that must not be left undone

    def on_signal(self, _number: int, _frame: FrameType | None) -> None:
        """Note the first interrupt; raise KeyboardInterrupt at the second."""
        if self.is_wanted and self.is_deaf:
            return
        if self.is_wanted:
            self.is_second = True
            raise KeyboardInterrupt
        self.is_wanted = True

    @contextlib.contextmanager
    def caught(self) -> Iterator[None]:
        """Take interrupts here, as long as this lasts."""
        if threading.current_thread() is not threading.main_thread():
            yield  # only the main thread can
            return
        before = {
            number: signal.signal(number, self.on_signal)
            for number in (signal.SIGINT, signal.SIGTERM)
        }
        try:
            yield
        finally:
            for number, previous in before.items():
                signal.signal(number, previous)


@dataclasses.dataclass(frozen=True, slots=True)
class PerfTarget:
    """A server with the model that is measured.

    Attributes:
        server: Its name and version.
        statistics: Its counters; None if it has none.
        is_async: Whether calls are asynchronous, which only the report shows.
        note: Why the server gives no counters; empty if it does.
    """

    address: ServerAddress
    questions: KserveClient
    server: str
    model: MeasuredModel
    statistics: StatisticsReader | None
    inputs: InputData
    plan: LoadPlan
    is_async: bool
    note: str = ""


def find_target(options: PerfOptions, address: ServerAddress, model: str) -> PerfTarget:
    """Ask a server about the model, and plan what is sent.

    Raises:
        PerfError: It cannot be asked, or the options do not fit the model.
    """
    address = _with_own_headers(address)
    questions = questions_of(address)
    try:
        return _target(options, address, model, questions)
    except BaseException:
        questions.close()
        raise


def _with_own_headers(server: ServerAddress) -> ServerAddress:
    """Returns an address with what opens it, where it is a server of this user."""
    address = server.parsed()
    given = [name for name, _ in server.headers]
    headers = own_headers(ask_own_server(address), address, given)
    return dataclasses.replace(server, headers=(*server.headers, *headers.items()))


def _target(
    options: PerfOptions, address: ServerAddress, model: str, questions: KserveClient
) -> PerfTarget:
    try:
        metadata = questions.model_metadata(model, options.version)
    except QuestionError as error:
        raise PerfError(f"failed to get model metadata: {error}") from error
    try:
        config = questions.model_config(model, options.version)
    except QuestionError:
        config = {}  # a server without Triton's extension
    description = describe(metadata, config, options.version)
    description = dataclasses.replace(
        description, composing=(*description.composing, *options.composing)
    )
    _check(options, description)
    inputs = read_inputs(description, options.data)
    _check_schedule(options, inputs)
    server, statistics, note = _server(questions, options, description)
    is_streaming = options.given.streaming or description.is_decoupled
    is_async = options.given.is_async or (
        not options.given.sync and (is_streaming or description.has_sequences)
    )
    return PerfTarget(
        address=address,
        questions=questions,
        server=server,
        model=description,
        statistics=statistics,
        inputs=inputs,
        plan=_plan(options, address, description, inputs),
        is_async=is_async,
        note=note,
    )


def _check(options: PerfOptions, model: MeasuredModel) -> None:
    batch = options.data.batch_size
    if batch > 1 and model.max_batch_size == 0:
        raise PerfError("can not specify batch size > 1 as the model does not support batching")
    if batch > max(model.max_batch_size, 1):
        raise PerfError(
            f"-b {batch} is above the max_batch_size of {model.name}, {model.max_batch_size}"
        )
    if batch > 1 and model.has_sequences:
        raise PerfError("can not specify batch size > 1 when using a sequence model")
    if model.is_decoupled and options.given.sync:
        raise PerfError("Decoupled models are measured with streams of responses: leave out --sync")
    if options.load.mode is Mode.PERIODIC and not model.is_decoupled:
        raise PerfError("--periodic-concurrency-range needs a decoupled model")
    if options.measurement.request_count:
        least = int(options.load.loads.start)
        if options.load.mode is Mode.CONCURRENCY and options.measurement.request_count < least:
            raise PerfError(
                f"--request-count {options.measurement.request_count} is below the concurrency "
                f"{least}"
            )


def _check_schedule(options: PerfOptions, inputs: InputData) -> None:
    if options.load.mode is Mode.SCHEDULE and not inputs.timestamps_ms:
        raise PerfError(
            "--fixed-schedule needs --input-data with a timestamp in each entry, in milliseconds"
        )


def _server(
    questions: KserveClient, options: PerfOptions, model: MeasuredModel
) -> tuple[str, StatisticsReader | None, str]:
    """The server's name, and its counters, or why it has none to give."""
    try:
        metadata = questions.server_metadata()
    except QuestionError:
        metadata = {}
    name = f"{metadata.get('name', 'server')} {metadata.get('version', '')}".strip()
    if metadata and "statistics" not in (metadata.get("extensions") or ()):
        return name, None, "it has no extension for statistics"
    reader = StatisticsReader(questions, model.name, options.version, model.composing)
    try:
        reader.ask()
    except QuestionError as error:
        hint = f"; give its token with --token or in {TOKEN_VARIABLE}"
        return name, None, f"{error}{hint if TRITON_ACCESS_HEADER in str(error) else ''}"
    return name, reader, ""


def _plan(
    options: PerfOptions, address: ServerAddress, model: MeasuredModel, inputs: InputData
) -> LoadPlan:
    given = options.given
    memory = TensorMemory(given.shared_memory)
    return LoadPlan(
        url=address.url,
        protocol=LoadProtocol.GRPC if address.is_grpc else LoadProtocol.HTTP,
        model=model.name,
        inputs=inputs.streams,
        # Each output has a region of its own in shared memory, so that their names are needed.
        outputs=() if memory is TensorMemory.NONE else [each.name for each in model.outputs],
        version=options.version,
        streaming=given.streaming or model.is_decoupled,
        decoupled=model.is_decoupled,
        input_format=TensorFormat(given.input_tensor_format),
        output_format=TensorFormat(given.output_tensor_format),
        headers=address.headers,
        parameters=options.parameters,
        sequences=_sequences(options, inputs) if model.has_sequences else None,
        shared_memory=memory,
        output_region_bytes=given.output_shared_memory_size,
        compression=Compression(given.grpc_compression_algorithm),
        tls=address.tls,
        processes=given.processes,
        keep_outputs=bool(given.profile_export_file),
    )


def _sequences(options: PerfOptions, inputs: InputData) -> Sequences:
    given = options.given
    length: int | None = given.sequence_length
    variation = given.sequence_length_variation
    if length is None and not inputs.is_given:
        length = _BASE_LENGTH
    first, last = options.sequence_ids
    return Sequences(
        at_once=given.num_of_sequences,
        length=length,
        length_variation=variation if length is not None else 0.0,
        first_id=first,
        last_id=last,
        seed=given.seed,
    )


@dataclasses.dataclass(frozen=True, slots=True)
class Measured:
    """What a run measured: a list of levels for each server."""

    targets: Sequence[PerfTarget]
    settings: ReportSettings
    results: Sequence[Sequence[LevelResult]]


class PerfSession:
    """Measures the levels of a run, on each of its servers in turn.

    Args:
        options: What to measure.
        make_load: Makes the load generator.
        show: Prints a text.
        complain: Prints an error.
    """

    def __init__(
        self,
        options: PerfOptions,
        make_load: MakeLoad,
        show: Callable[[str], None],
        complain: Callable[[str], None],
    ) -> None:
        self._options = options
        self._make_load = make_load
        self._show = show
        self._complain = complain

    def run(self, interrupts: Interrupts) -> Measured:
        """Measure.

        Raises:
            PerfError: It cannot be done.
            GeneratorError: The load cannot be made.
        """
        options = self._options
        targets: list[PerfTarget] = []
        try:
            targets.append(find_target(options, options.address, options.model))
            if options.against is not None:
                targets.append(find_target(options, options.against, options.against_model))
            return self._measure(targets, interrupts)
        finally:
            for target in targets:
                target.questions.close()

    def _measure(self, targets: Sequence[PerfTarget], interrupts: Interrupts) -> Measured:
        options = self._options
        settings = report_settings(options, targets[0])
        self._set_traces(targets)
        self._show(settings_text(settings))
        for note in {target.note for target in targets if target.note}:
            self._complain(f"Note: there is no Server part, as the server refuses it: {note}")
        display = self._display(len(targets))
        sources = [self._source(target, interrupts) for target in targets]
        watchers = [self._watcher(settings, target, targets, display) for target in targets]
        profilers = [
            Profiler(source, profile_rules(options, target), watcher)
            for source, target, watcher in zip(sources, targets, watchers, strict=True)
        ]
        if display is not None:
            display.start()
        try:
            rows = self._sweep(profilers, sources, targets)
        finally:
            for source in sources:
                source.end(at_once=interrupts.is_second)
            if display is not None:
                display.stop()
        return Measured(targets, settings, [list(each) for each in zip(*rows, strict=True)])

    def _sweep(
        self,
        profilers: Sequence[Profiler],
        sources: Sequence[LoadSource],
        targets: Sequence[PerfTarget],
    ) -> list[list[LevelResult]]:
        load = self._options.load

        def measure(value: float) -> list[LevelResult]:
            found = []
            for profiler, source, target in zip(profilers, sources, targets, strict=True):
                found.append(profiler.measure(load.mode, value, self._level(value, target)))
                if len(sources) > 1:
                    source.end()  # only one server at a time is under load
            return found

        search = binary(load.loads) if load.is_binary else linear(load.loads)
        if load.mode is Mode.SCHEDULE:
            rate = schedule_rate(targets[0].inputs.timestamps_ms)
            search = linear(LoadRange(rate, rate))
        if load.mode is Mode.PERIODIC:
            search = linear(dataclasses.replace(load.loads, start=load.loads.end))
        allow = self._options.measurement.allow_unstable
        return sweep(search, measure, keeps_unstable=allow)

    def _level(self, value: float, target: PerfTarget) -> Level:
        load, seed = self._options.load, self._options.given.seed
        if load.mode is Mode.CONCURRENCY:
            return Concurrency(int(value))
        if load.mode is Mode.RATE:
            kind = Arrivals.POISSON if load.is_poisson else Arrivals.CONSTANT
            return RequestRate(value, kind, seed)
        if load.mode is Mode.INTERVALS:
            return Intervals(load.intervals_us)
        if load.mode is Mode.SCHEDULE:
            return FixedSchedule(target.inputs.timestamps_ms)
        loads = load.loads
        return PeriodicConcurrency(int(loads.start), int(loads.end), int(loads.step), load.period)

    def _source(self, target: PerfTarget, interrupts: Interrupts) -> LoadSource:
        measurement, given = self._options.measurement, self._options.given
        gauges = None
        if given.collect_metrics:
            host = target.address.host_and_port.rpartition(":")[0] or "localhost"
            url = given.metrics_url or f"{host}:8002/metrics"
            gauges = GpuGauges(lambda: fetch(url), given.metrics_interval / 1000)
        return LoadSource(
            lambda: self._make_load(target.plan),
            target.statistics,
            WindowRules(measurement.window_ms / 1000, measurement.window_requests),
            lambda: interrupts.is_wanted,
            gauges,
        )

    def _display(self, servers: int) -> ProgressDisplay | None:
        console = Console(stderr=True)
        if self._options.given.no_progress or not console.is_terminal or not sys.stderr.isatty():
            return None
        measurement, load = self._options.measurement, self._options.load
        is_counted = bool(measurement.window_requests or measurement.request_count)
        count = None if load.is_binary else load.loads.count()
        return ProgressDisplay(
            console,
            0.0 if is_counted else measurement.window_ms / 1000,
            measurement.max_trials,
            None if count is None else count * servers,
        )

    def _watcher(
        self,
        settings: ReportSettings,
        target: PerfTarget,
        targets: Sequence[PerfTarget],
        display: ProgressDisplay | None,
    ) -> ProfileWatcher:
        label = label_of(target, targets) if len(targets) > 1 else ""
        show, complain = self._show, self._complain
        if display is not None:
            show, complain = display.around(show), display.around(complain)
        text = TextWatcher(
            settings,
            show,
            complain,
            label,
            allow_unstable=self._options.measurement.allow_unstable,
        )
        return Watchers([text] if display is None else [display.named(label), text])

    def _set_traces(self, targets: Sequence[PerfTarget]) -> None:
        given = self._options.given
        if not given.trace_level:
            return
        for target in targets:
            target.questions.update_trace(
                {
                    "trace_level": given.trace_level,
                    "trace_rate": [str(given.trace_rate)],
                    "trace_count": [str(given.trace_count)],
                    "log_frequency": [str(given.log_frequency)],
                }
            )


def schedule_rate(timestamps_ms: Sequence[float]) -> float:
    """The mean rate of a schedule, in requests a second."""
    span_ms = timestamps_ms[-1] - timestamps_ms[0]
    return (len(timestamps_ms) - 1) * 1000 / span_ms if span_ms > 0 else float(len(timestamps_ms))


def label_of(target: PerfTarget, targets: Sequence[PerfTarget]) -> str:
    """A name that tells servers, or else their models, apart."""
    urls = {each.address.host_and_port for each in targets}
    address = target.address.host_and_port
    return address if len(urls) == len(targets) else f"{address} {target.model.name}"


def report_settings(options: PerfOptions, target: PerfTarget) -> ReportSettings:
    measurement, load = options.measurement, options.load
    has_limit = load.mode in {Mode.CONCURRENCY, Mode.RATE} and not load.loads.is_single
    return ReportSettings(
        mode=load.mode,
        is_grpc=target.address.is_grpc,
        is_async=target.is_async,
        is_decoupled=target.model.is_decoupled,
        has_sequences=target.model.has_sequences,
        batch_size=options.data.batch_size,
        load_limit=load.loads.end if has_limit else None,
        latency_limit_ms=measurement.latency_limit_ms,
        percentile=measurement.percentile,
        is_binary_search=load.is_binary,
        is_poisson=load.is_poisson,
        window_ms=measurement.window_ms,
        window_requests=measurement.window_requests,
        request_count=measurement.request_count,
        max_trials=measurement.max_trials,
        verbose=options.given.verbose > 0,
    )


def profile_rules(options: PerfOptions, target: PerfTarget) -> ProfileRules:
    measurement = options.measurement
    return ProfileRules(
        stability=StabilityRules(
            percentage=measurement.stability_percentage,
            max_trials=measurement.max_trials,
            is_async=target.is_async,
            limit_us=measurement.latency_limit_ms * 1000.0,
        ),
        summary=SummaryRules(
            options.data.batch_size, measurement.percentile, target.model.is_decoupled
        ),
        request_count=measurement.request_count,
        warmup_count=measurement.warmup_count,
        keeps_windows=bool(options.given.profile_export_file),
        single_window=options.load.mode in {Mode.SCHEDULE, Mode.PERIODIC},
    )
