# SPDX-License-Identifier: Apache-2.0
"""The options of `pytriton perf` as records: reads their values, and checks values and pairs."""

from __future__ import annotations

import argparse
import dataclasses
import os
import pathlib
from collections.abc import Mapping, Sequence

from pytriton.base.security import API_KEY_HEADER, API_KEY_VARIABLE, TOKEN_VARIABLE
from pytriton.client.auth import create_auth_headers
from pytriton.client.kserve.address import Tls
from pytriton.tools.commands.perf.arguments import REFUSED, REFUSED_FLAGS
from pytriton.tools.perf.data.settings import RANDOM, ZERO, DataSettings
from pytriton.tools.perf.errors import OptionError
from pytriton.tools.perf.load.plan import ParameterValue
from pytriton.tools.perf.measuring.profiler import LoadRange
from pytriton.tools.perf.measuring.results import Mode
from pytriton.tools.perf.server_state import ServerAddress

_DEFAULT_WINDOW_MS, _QUICK_WINDOW_MS = 5000, 500
_DEFAULT_STABILITY, _QUICK_STABILITY = 10.0, 25.0
_DEFAULT_TRIALS, _QUICK_TRIALS = 10, 5
_MODES = {
    "concurrency_range": Mode.CONCURRENCY,
    "periodic_concurrency_range": Mode.PERIODIC,
    "request_rate_range": Mode.RATE,
    "request_intervals": Mode.INTERVALS,
    "fixed_schedule": Mode.SCHEDULE,
}


def parse_range(option: str, text: str, *, whole: bool) -> LoadRange:
    """`start[:end[:step]]`; the end is the start if it is left out."""
    parts = text.split(":")
    if not 1 <= len(parts) <= 3:
        raise OptionError(f"{option}: expected START:END:STEP, got {text}")
    try:
        numbers = [float(int(part)) if whole else float(part) for part in parts]
    except ValueError:
        kind = "whole numbers" if whole else "numbers"
        raise OptionError(f"{option}: expected {kind} as START:END:STEP, got {text}") from None
    start = numbers[0]
    end = numbers[1] if len(numbers) > 1 else start
    step = numbers[2] if len(numbers) > 2 else 1.0
    if start <= 0 or step <= 0 or end < 0 or 0 < end < start:
        raise OptionError(
            f"{option}: expected a start and a step above 0 and an end that is not below the "
            f"start, got {text}"
        )
    return LoadRange(start, end, step)


def parse_shapes(texts: Sequence[str]) -> dict[str, tuple[int, ...]]:
    """`name:d,d,d`; a name may have colons."""
    shapes = {}
    for text in texts:
        name, _, sizes = text.rpartition(":")
        try:
            shape = tuple(int(size) for size in sizes.split(",")) if sizes else ()
        except ValueError:
            shape = (-1,)
        if not name or any(size < 0 for size in shape):
            raise OptionError(f"--shape: expected NAME:D,D,…, got {text}")
        shapes[name] = shape
    return shapes


def parse_headers(texts: Sequence[str]) -> list[tuple[str, str]]:
    headers = []
    for text in texts:
        name, colon, value = text.partition(":")
        if not colon or not name.strip():
            raise OptionError(f"-H: expected NAME:VALUE, got {text}")
        headers.append((name.strip(), value.strip()))
    return headers


def parse_parameters(texts: Sequence[str]) -> dict[str, ParameterValue]:
    """`name:value:type`; a value may have colons."""
    parameters: dict[str, ParameterValue] = {}
    for text in texts:
        name, _, rest = text.partition(":")
        value, _, kind = rest.rpartition(":")
        try:
            parameters[name] = _parameter(value, kind)
        except ValueError:
            raise OptionError(
                f"--request-parameter: expected NAME:VALUE:TYPE with the type bool, int or string, "
                f"got {text}"
            ) from None
    return parameters


def _parameter(value: str, kind: str) -> ParameterValue:
    if kind == "int":
        return int(value)
    if kind == "string":
        return value
    if kind == "bool" and value.lower() in {"true", "false"}:
        return value.lower() == "true"
    raise ValueError(kind)


def parse_composing(text: str) -> tuple[tuple[str, str], ...]:
    """`model:version,model`."""
    found = []
    for part in filter(None, text.split(",")):
        name, _, version = part.strip().partition(":")
        found.append((name, version))
    return tuple(found)


def parse_ids(text: str | None) -> tuple[int, int | None]:
    """`start[:end]`, the end excluded."""
    if text is None:
        return 1, None
    start, _, end = text.partition(":")
    try:
        first, after = int(start), int(end) if end else None
    except ValueError:
        raise OptionError(f"--sequence-id-range: expected START:END, got {text}") from None
    if first <= 0 or (after is not None and after <= first):
        raise OptionError(
            f"--sequence-id-range: expected a start above 0 and an end above it, got {text}"
        )
    return first, None if after is None else after - 1


def parse_intervals(path: pathlib.Path) -> tuple[int, ...]:
    """A file with microseconds, a line each."""
    try:
        lines = path.read_text().split()
        intervals = tuple(int(line) for line in lines)
    except OSError as error:
        raise OptionError(f"--request-intervals: {path} cannot be read: {error.strerror}") from None
    except ValueError as error:
        raise OptionError(
            f"--request-intervals: expected microseconds in {path}, a line each: {error}"
        ) from None
    if not intervals or min(intervals) < 0 or sum(intervals) == 0:
        raise OptionError(f"--request-intervals: expected at least one number above 0 in {path}")
    return intervals


@dataclasses.dataclass(frozen=True, slots=True)
class LoadOptions:
    """Which load is made."""

    mode: Mode
    loads: LoadRange
    is_binary: bool = False
    is_poisson: bool = False
    intervals_us: tuple[int, ...] = ()
    period: int = 10


@dataclasses.dataclass(frozen=True, slots=True)
class MeasurementOptions:
    """How long and how exactly levels are measured."""

    window_ms: int = 5000
    window_requests: int = 0
    stability_percentage: float = 10.0
    max_trials: int = 10
    percentile: int | None = None
    latency_limit_ms: int = 0
    request_count: int = 0
    warmup_count: int = 0
    allow_unstable: bool = False


@dataclasses.dataclass(frozen=True, slots=True)
class PerfOptions:
    """A run as its command line describes it.

    Attributes:
        given: Everything else as it was given, for the parts that need it.
    """

    model: str
    version: str
    address: ServerAddress
    against: ServerAddress | None
    against_model: str
    load: LoadOptions
    measurement: MeasurementOptions
    data: DataSettings
    parameters: Mapping[str, ParameterValue]
    composing: tuple[tuple[str, str], ...]
    sequence_ids: tuple[int, int | None]
    given: argparse.Namespace


def options_of(given: argparse.Namespace) -> PerfOptions:
    """Check what was given.

    Raises:
        OptionError: A value or a pair of options makes no sense.
    """
    _check_refused(given)
    if given.model and given.model_option:
        raise OptionError(f"expected one model, got {given.model} and -m {given.model_option}")
    model = given.model or given.model_option
    if not model:
        raise OptionError("expected a model: pytriton perf MODEL")
    load, measurement = _load(given), _measurement(given)
    _check_pairs(given, load, measurement)
    address = _address(given, given.url)
    return PerfOptions(
        model=model,
        version=given.version,
        address=address,
        against=_address(given, given.against) if given.against else None,
        against_model=given.against_model or model,
        load=load,
        measurement=measurement,
        data=_data(given),
        parameters=parse_parameters(given.request_parameter),
        composing=parse_composing(given.bls_composing_models),
        sequence_ids=parse_ids(given.sequence_id_range),
        given=given,
    )


def _check_refused(given: argparse.Namespace) -> None:
    for name, reason in {**REFUSED, **REFUSED_FLAGS}.items():
        if getattr(given, f"refused_{name.strip('-')}"):
            raise OptionError(f"{name} is not supported: {reason}")
    if given.service_kind != "triton":
        raise OptionError(
            f"--service-kind {given.service_kind} is not supported, expected triton: servers with "
            "the KServe v2 protocol"
        )
    if given.protocol not in {"http", "grpc"}:
        raise OptionError(f"expected -i http or -i grpc, got -i {given.protocol}")


def _load(given: argparse.Namespace) -> LoadOptions:
    if given.concurrency is not None or given.max_concurrency is not None or given.is_search:
        if given.concurrency_range:
            raise OptionError(
                "-t, -c and -d are the old form of --concurrency-range: expected one of them"
            )
        given.concurrency_range = _old_range(given)
    modes = {mode: getattr(given, name) for name, mode in _MODES.items() if getattr(given, name)}
    if len(modes) > 1:
        raise OptionError(
            "Cannot specify more than one inference load mode. Please choose only one of the "
            "following modes: --concurrency-range, --periodic-concurrency-range, "
            "--request-rate-range, --request-intervals, or --fixed-schedule."
        )
    mode, text = next(iter(modes.items()), (Mode.CONCURRENCY, "1"))
    intervals: tuple[int, ...] = ()
    if mode is Mode.INTERVALS:
        intervals = parse_intervals(pathlib.Path(text))
        rate = 1e6 * len(intervals) / sum(intervals)
        loads = LoadRange(rate, rate)
    elif mode is Mode.SCHEDULE:
        loads = LoadRange(1, 1)
    else:
        option = {Mode.RATE: "--request-rate-range", Mode.PERIODIC: "--periodic-concurrency-range"}
        loads = parse_range(
            option.get(mode, "--concurrency-range"), text, whole=mode is not Mode.RATE
        )
    return LoadOptions(
        mode=mode,
        loads=loads,
        is_binary=given.binary_search,
        is_poisson=given.request_distribution == "poisson",
        intervals_us=intervals,
        period=given.request_period,
    )


def _old_range(given: argparse.Namespace) -> str:
    """The range that -t, -c and -d mean; as in perf_analyzer, -c needs -d to have an effect."""
    start = 1 if given.concurrency is None else given.concurrency
    return f"{start}:{given.max_concurrency or 0}" if given.is_search else str(start)


def _measurement(given: argparse.Namespace) -> MeasurementOptions:
    window_ms, stability, trials = _DEFAULT_WINDOW_MS, _DEFAULT_STABILITY, _DEFAULT_TRIALS
    if given.quick:
        window_ms, stability, trials = _QUICK_WINDOW_MS, _QUICK_STABILITY, _QUICK_TRIALS
    if given.measurement_interval is not None:
        window_ms = given.measurement_interval
    if given.stability_percentage is not None:
        stability = given.stability_percentage
    if given.max_trials is not None:
        trials = given.max_trials
    _expect("--measurement-interval", window_ms, window_ms > 0, "a number above 0")
    _expect("--stability-percentage", stability, stability > 0, "a number above 0")
    _expect("--max-trials", trials, trials > 0, "a number above 0")
    _expect("--percentile", given.percentile, given.percentile == -1 or 0 < given.percentile < 100,
            "1 to 99, or -1 for the mean")  # fmt: skip
    count = given.measurement_request_count
    _expect("--measurement-request-count", count, count > 0, "a number above 0")
    for name in ("request_count", "warmup_request_count", "latency_threshold", "processes"):
        value = getattr(given, name)
        _expect("--" + name.replace("_", "-"), value, value >= 0, "0 or more")
    return MeasurementOptions(
        window_ms=window_ms,
        window_requests=count if given.measurement_mode == "count_windows" else 0,
        stability_percentage=stability,
        max_trials=trials,
        percentile=None if given.percentile == -1 else given.percentile,
        latency_limit_ms=given.latency_threshold,
        request_count=given.request_count,
        warmup_count=given.warmup_request_count,
        allow_unstable=given.allow_unstable or given.quick,
    )


def _expect(option: str, value: object, is_right: bool, expected: str) -> None:
    if not is_right:
        raise OptionError(f"{option}: expected {expected}, got {value}")


def _check_pairs(
    given: argparse.Namespace, load: LoadOptions, measurement: MeasurementOptions
) -> None:
    if given.is_async and given.sync:
        raise OptionError("Cannot specify --async and --sync simultaneously.")
    has_count = measurement.request_count or measurement.warmup_count
    name = "request-count" if measurement.request_count else "warmup-request-count"
    if has_count and not load.loads.is_single:
        raise OptionError(f"{name} not supported with multiple levels of load in one run")
    if load.loads.end == 0 and not measurement.latency_limit_ms:
        raise OptionError(
            "The end of the search range and the latency limit can not be both 0 simultaneously"
        )
    if load.is_binary and (load.loads.end == 0 or load.loads.is_single):
        raise OptionError("--binary-search needs a range with an end: START:END")
    if load.is_binary and not measurement.latency_limit_ms:
        raise OptionError("--binary-search needs a latency limit: -l MS")
    if load.mode is Mode.PERIODIC and not given.profile_export_file:
        raise OptionError("--periodic-concurrency-range needs --profile-export-file")
    _check_protocol_pairs(given)


def _check_protocol_pairs(given: argparse.Namespace) -> None:
    if (given.metrics_url or given.metrics_interval != 1000) and not given.collect_metrics:
        raise OptionError("--metrics-url and --metrics-interval need --collect-metrics")
    if given.protocol == "grpc" and "json" in {
        given.input_tensor_format,
        given.output_tensor_format,
    }:
        raise OptionError("tensors in JSON are only sent over HTTP: leave out -i grpc")
    if given.protocol == "http" and given.grpc_compression_algorithm != "none":
        raise OptionError("--grpc-compression-algorithm needs -i grpc")
    if given.against and given.profile_export_file:
        raise OptionError("--profile-export-file has one server: leave out --against")


def _address(given: argparse.Namespace, url: str | None) -> ServerAddress:
    is_grpc = given.protocol == "grpc"
    chosen = url or ("localhost:8001" if is_grpc else "localhost:8000")
    headers = parse_headers(given.header)
    api_key = given.api_key or os.environ.get(API_KEY_VARIABLE)
    if api_key:
        headers.append((API_KEY_HEADER, api_key))
    token = given.token or os.environ.get(TOKEN_VARIABLE)
    if token:
        headers += create_auth_headers(token, given.protocol).items()
    return ServerAddress(chosen, is_grpc, tuple(headers), _tls(given, chosen))


def _tls(given: argparse.Namespace, url: str) -> Tls | None:
    if given.protocol == "grpc":
        wanted = given.ssl_grpc_use_ssl.lower()
        if wanted not in {"true", "false", "1", "0"}:
            raise OptionError(f"--ssl-grpc-use-ssl: expected true or false, got {wanted}")
        if wanted in {"false", "0"} and not url.startswith("grpcs://"):
            return None
        return Tls(
            ca_file=given.ssl_grpc_root_certifications_file,
            certificate_file=given.ssl_grpc_certificate_chain_file,
            key_file=given.ssl_grpc_private_key_file,
        )
    if not url.startswith("https://"):
        return None
    return Tls(
        ca_file=given.ssl_https_ca_certificates_file,
        certificate_file=given.ssl_https_client_certificate_file,
        key_file=given.ssl_https_private_key_file,
        certificate_type=given.ssl_https_client_certificate_type,
        key_type=given.ssl_https_private_key_type,
        verify_peer=given.ssl_https_verify_peer == 1,
        verify_host=given.ssl_https_verify_host != 0,
    )


def _data(given: argparse.Namespace) -> DataSettings:
    sources: Sequence[str] = given.input_data or [
        given.data_directory or (ZERO if given.zero else RANDOM)
    ]
    if len(sources) > 1 and {RANDOM, ZERO} & set(sources):
        raise OptionError("--input-data: random and zero cannot be joined with files")
    _expect("-b", given.batch_size, given.batch_size > 0, "a batch size above 0")
    _expect("--string-length", given.string_length, given.string_length >= 0, "0 or more")
    return DataSettings(
        sources=tuple(sources),
        shapes=parse_shapes(given.shape),
        batch_size=given.batch_size,
        string_length=given.string_length,
        string_data=given.string_data,
        seed=given.seed,
    )
