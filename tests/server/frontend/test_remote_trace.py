# SPDX-License-Identifier: Apache-2.0
"""Requests of a front end that the core traces."""

from __future__ import annotations

import gc
import weakref

import pytest

from pytriton.base.errors import InternalError
from pytriton.base.messages import InferRequest, TraceOrigin
from pytriton.runtime.executor.inference import Inference
from pytriton.serving.engine.observers import Watch
from pytriton.serving.server.frontend.remote_tracing import RemoteTraces
from tests.fakes import RecordingSink, model_spec


class Exchange(RecordingSink):
    """A request of a client, which refers to its inference."""


@pytest.mark.parametrize("end", ["on_response", "on_error", "on_refused"])
def test_request_that_ended_is_freed_without_garbage_collection(end):
    exchange = Exchange()
    requests = [InferRequest("m", {})]
    traces = RemoteTraces(TraceOrigin("HTTP"), requests, model_spec(), lambda _: None)
    trace = Watch(exchange, [traces])
    exchange.inference = Inference(InferRequest("m", {}), trace, trace)
    sink = exchange.inference.end()
    freed = weakref.ref(exchange)
    del exchange, trace, traces
    gc.disable()
    try:
        if end == "on_response":
            sink.on_response(None, final=True)
        else:
            getattr(sink, end)(InternalError("broken"))
        del sink

        assert freed() is None
    finally:
        gc.enable()
