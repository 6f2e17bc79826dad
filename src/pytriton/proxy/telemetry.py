# SPDX-License-Identifier: Apache-2.0
"""OpenTelemetry spans around inference callables.

OpenTelemetry is optional and is imported only if there is a trace configuration or a tracer.
Without a tracer every function here returns after one comparison.
"""

from __future__ import annotations

import atexit
import contextlib
import importlib
import json
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

from pytriton.utils.trace_config import INSTALL_HINT, read_trace_config

_BACKEND_SPAN_NAME = "python_backend_execute"
_EXPORT_S = 2.0  # for the last spans to be sent
_NO_SPAN: AbstractContextManager[None] = contextlib.nullcontext()

_tracer: Any = None


def _opentelemetry(module: str) -> Any:
    try:
        return importlib.import_module(f"opentelemetry.{module}")
    except ImportError as error:
        raise ImportError(INSTALL_HINT) from error


def raise_if_no_telemetry() -> None:
    """Check that OpenTelemetry is installed.

    Raises:
        ImportError: if it is not; the message says what to install.
    """
    for module in (
        "trace",
        "trace.propagation.tracecontext",
        "sdk.trace",
        "exporter.otlp.proto.http.trace_exporter",
    ):
        _opentelemetry(module)


def set_telemetry_tracer(tracer: Any) -> None:
    """Set the tracer of this process; it can be set once.

    Args:
        tracer: an OpenTelemetry tracer.

    Raises:
        ValueError: if a tracer is set already.
    """
    global _tracer  # noqa: PLW0603  OpenTelemetry has one tracer per process
    if _tracer is not None:
        raise ValueError("Telemetry tracer is already set")
    _tracer = tracer


def get_telemetry_tracer() -> Any:
    """Get the tracer of this process.

    Returns:
        The tracer that was set, or None.
    """
    return _tracer


def parse_trace_config(trace_config_list: Sequence[str]) -> tuple[str, dict[str, str]]:
    """Read the OpenTelemetry settings of a trace configuration.

    Args:
        trace_config_list: settings as in `TritonConfig.trace_config`.

    Returns:
        The URL to which spans are sent, and the resource attributes.

    Raises:
        ValueError: if the mode is not OpenTelemetry or the URL is missing.
    """
    config = read_trace_config(trace_config_list)
    if not config.is_opentelemetry:
        raise ValueError(f"Only opentelemetry mode is supported, got mode={config.mode or None}")
    if not config.url:
        raise ValueError(f"opentelemetry,url is required, got {list(trace_config_list)}")
    return config.url, config.resource


def build_proxy_tracer_from_triton_config(trace_config: Sequence[str]) -> Any:
    """Make a tracer that exports over OTLP, from a trace configuration.

    Args:
        trace_config: settings as in `TritonConfig.trace_config`.

    Returns:
        An OpenTelemetry tracer.

    Raises:
        ValueError: if the configuration is not one for OpenTelemetry.
        ImportError: if OpenTelemetry is not installed.
    """
    url, attributes = parse_trace_config(trace_config)
    raise_if_no_telemetry()
    sdk = _opentelemetry("sdk.trace")
    exporter = _opentelemetry("exporter.otlp.proto.http.trace_exporter").OTLPSpanExporter(url)
    resource = _opentelemetry("sdk.resources").Resource.create(attributes)
    batching = read_trace_config(trace_config).batching
    processor = _opentelemetry("sdk.trace.export").BatchSpanProcessor(exporter, **batching)
    provider = sdk.TracerProvider(resource=resource, shutdown_on_exit=False)
    provider.add_span_processor(processor)
    _send_rest_at_exit(provider)
    return provider.get_tracer(__name__)


def _send_rest_at_exit(provider: Any) -> None:
    """Send the last spans when the process ends, if the receiver takes them in time."""
    is_ending, is_sent = threading.Event(), threading.Event()

    def send() -> None:
        is_ending.wait()
        provider.shutdown()  # a slow receiver can block this for any time
        is_sent.set()

    # The thread is started now, because no thread can be started while the interpreter exits.
    sender = threading.Thread(target=send, name="span export", daemon=True)
    sender.start()

    def end() -> None:
        is_ending.set()
        if sender.is_alive():  # not in a forked child
            is_sent.wait(_EXPORT_S)

    atexit.register(end)


def trace_with(trace_config: Sequence[str]) -> None:
    """Set up this process's tracer if the mode is OpenTelemetry and no tracer is set.

    Args:
        trace_config: settings as in `TritonConfig.trace_config`; other modes concern only the
            server.

    Raises:
        ValueError: if the URL for spans is missing.
        ImportError: if OpenTelemetry is not installed.
    """
    if _tracer is None and "mode=opentelemetry" in trace_config:
        set_telemetry_tracer(build_proxy_tracer_from_triton_config(trace_config))


def traced_span(request: Any, span_name: str, **kwargs: Any) -> AbstractContextManager[None]:
    """Open a span under the span of a request.

    Args:
        request: an object with a `span`, which is None if it is not traced.
        span_name: name of the new span.
        **kwargs: passed on to the tracer.

    Returns:
        A context manager that makes the new span the current one and ends it.
    """
    span = getattr(request, "span", None)
    if span is None or _tracer is None:
        return _NO_SPAN
    return _child_span(span, span_name, kwargs)


@contextlib.contextmanager
def _child_span(span: Any, name: str, options: Mapping[str, Any]) -> Iterator[None]:
    use_span = _opentelemetry("trace").use_span
    with use_span(span, end_on_exit=False), _tracer.start_as_current_span(name, **options):
        yield


def start_span_from_span(span: Any, name: str) -> Any:
    """Start a span under another one.

    Args:
        span: the parent; None if there is none.
        name: name of the new span.

    Returns:
        The new span; None without a parent or a tracer.
    """
    if span is None or _tracer is None:
        return None
    context = _opentelemetry("trace").set_span_in_context(span)
    return _tracer.start_span(name, context=context)


def get_span_dict(span: Any) -> dict[str, str]:
    """Describe a span for another process.

    Args:
        span: a span, or None.

    Returns:
        The W3C headers of the span; empty without one.
    """
    headers: dict[str, str] = {}
    if span is not None:
        context = _opentelemetry("trace").set_span_in_context(span)
        _propagator().inject(headers, context=context)
    return headers


def start_span_from_remote(span_dict: Mapping[str, str] | None, name: str) -> Any:
    """Start a span under a span of another process.

    Args:
        span_dict: the result of `get_span_dict` in that process.
        name: name of the new span.

    Returns:
        The new span; None without a parent or a tracer.
    """
    if not span_dict or _tracer is None:
        return None
    return _tracer.start_span(name, context=_propagator().extract(dict(span_dict)))


def _propagator() -> Any:
    return _opentelemetry("trace.propagation.tracecontext").TraceContextTextMapPropagator()


def end_span(span: Any, error: object = None) -> None:
    """End a span with its outcome.

    Args:
        span: a span; with None this does nothing.
        error: the error, if there was one.
    """
    if span is None:
        return
    trace = _opentelemetry("trace")
    if error is None:
        span.set_status(trace.Status(trace.StatusCode.OK))
    else:
        span.set_status(trace.Status(trace.StatusCode.ERROR, str(error)))
    span.end()


class TracableModel:
    """A model of the Python backend that opens a span for each of its requests."""

    def configure_tracing(self, trace_config: Sequence[str] | None) -> None:
        """Set up this process's tracer, unless one is set or nothing is traced.

        Args:
            trace_config: settings as in `TritonConfig.trace_config`.
        """
        if trace_config and _tracer is None:
            set_telemetry_tracer(build_proxy_tracer_from_triton_config(trace_config))

    def start_requests_spans(self, triton_requests: Sequence[Any]) -> list[Any]:
        """Start a span for each request under the server's own.

        Args:
            triton_requests: requests of the Python backend.

        Returns:
            The spans; None for a request that is not traced.
        """
        if _tracer is None:
            return [None] * len(triton_requests)
        contexts = [request.trace().get_context() for request in triton_requests]
        return [start_span_from_remote(_headers(text), _BACKEND_SPAN_NAME) for text in contexts]

    def end_requests_spans(self, spans: Sequence[Any], triton_responses_or_error: Any) -> None:
        """End the spans of a batch.

        Args:
            spans: the result of `start_requests_spans`.
            triton_responses_or_error: the responses, or the error with which all requests failed.
        """
        failed = isinstance(triton_responses_or_error, Exception)
        for span in spans:
            end_span(span, triton_responses_or_error if failed else None)


def _headers(context: str | None) -> dict[str, str]:
    """Returns the W3C headers in the JSON text that is a trace's context in the Python backend."""
    return dict(json.loads(context)) if context else {}
