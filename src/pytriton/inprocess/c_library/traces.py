# SPDX-License-Identifier: Apache-2.0
"""TRITONSERVER_InferenceTrace: the times of requests, told to functions of the application.

They are told when a request is over, all at once. Tensors are not traced.
"""

from __future__ import annotations

import itertools
import time
from typing import Any

from pytriton.base.errors import UnsupportedError
from pytriton.base.messages import ExecutionTimes, InferRequest, TraceContext
from pytriton.runtime.native_backend.api_table import prototype
from pytriton.runtime.native_backend.callbacks import export
from pytriton.runtime.native_backend.memory import Handles, Texts, put_word, required_text

_TIMES, _TENSORS = 0b0111, 0b1000  # of TRITONSERVER_InferenceTraceLevel; all but tensors are times
# Of TRITONSERVER_InferenceTraceActivity.
_REQUEST_START, _QUEUE_START, _COMPUTE_START, _INPUT_END, _OUTPUT_START, _COMPUTE_END = range(6)
_REQUEST_END, _CUSTOM = 6, 10
_numbers = itertools.count(1)


class Trace:
    """One trace. While a server has it, it is the `RequestTrace` of its request."""

    def __init__(self, level: int, parent_id: int, functions: tuple[int, int], userp: int) -> None:
        self.handle = 0
        self.id = next(_numbers)
        self.parent_id = parent_id
        self.level = level
        self.functions = functions  # of activities, and of the release
        self.userp = userp
        self.model_name = ""
        self.model_version = 0
        self.request_id = ""
        self.context_text = ""
        self.texts = Texts()
        self._activity: Any = prototype("v:piQp")(functions[0]) if functions[0] else None
        self._release: Any = prototype("v:pp")(functions[1]) if functions[1] else None
        self._received_ns = 0
        self._executions: list[ExecutionTimes] = []

    def begin(self, request: InferRequest, model_version: int) -> None:
        """Belong to a request."""
        self.model_name, self.model_version = request.model_name, model_version
        self.request_id = request.id
        self._received_ns = request.received_ns
        self._executions = []

    # RequestTrace, on the engine's thread

    def context(self, *, is_model_file: bool) -> TraceContext | None:
        """See `RequestTrace`; models add nothing to this trace."""
        return None

    def add_execution(self, times_ns: ExecutionTimes) -> None:
        """See `RequestTrace`."""
        self._executions.append(times_ns)

    def on_cancelled(self) -> None:
        """See `RequestTrace`."""

    # On the thread of callbacks

    def end(self) -> None:
        """Tell all times, and give the trace back."""
        self.report(_REQUEST_START, self._received_ns)
        if self._executions:
            first, last = self._executions[0], self._executions[-1]
            self.report(_QUEUE_START, first.queued_ns)
            self.report(_COMPUTE_START, first.started_ns)
            self.report(_INPUT_END, first.infer_start_ns)
            self.report(_OUTPUT_START, last.output_start_ns)
            self.report(_COMPUTE_END, last.ended_ns)
        self.report(_REQUEST_END, time.monotonic_ns())
        if self._release is not None:
            self._release(self.handle, self.userp)

    def report(self, activity: int, time_ns: int) -> None:
        """Tell one time."""
        if self._activity is not None and self.level & _TIMES:
            self._activity(self.handle, activity, time_ns, self.userp)


class Traces:
    """The traces that exist."""

    def __init__(self) -> None:
        self.handles: Handles[Trace] = Handles("a trace")

    def _add(self, place: int, trace: Trace) -> None:
        trace.handle = self.handles.add(trace)
        put_word(place, trace.handle)

    @export("TRITONSERVER_InferenceTraceNew")
    def _new(
        self, place: int, level: int, parent_id: int, activity: int, release: int, userp: int
    ) -> None:
        if level & _TENSORS:
            raise UnsupportedError("tensors cannot be traced, only times: expected another level")
        self._add(place, Trace(level, parent_id, (activity, release), userp))

    @export("TRITONSERVER_InferenceTraceTensorNew")
    def _new_with_tensors(
        self, place: int, level: int, parent_id: int, activity: int, _tensors: int, *rest: int
    ) -> None:
        self._new(place, level, parent_id, activity, *rest)

    @export("TRITONSERVER_InferenceTraceDelete")
    def _delete(self, handle: int) -> None:
        self.handles.pop(handle)

    @export("TRITONSERVER_InferenceTraceId")
    def _id(self, handle: int, place: int) -> None:
        put_word(place, self.handles.get(handle).id)

    @export("TRITONSERVER_InferenceTraceParentId")
    def _parent_id(self, handle: int, place: int) -> None:
        put_word(place, self.handles.get(handle).parent_id)

    @export("TRITONSERVER_InferenceTraceModelName")
    def _model_name(self, handle: int, place: int) -> None:
        trace = self.handles.get(handle)
        put_word(place, trace.texts.address("model name", trace.model_name))

    @export("TRITONSERVER_InferenceTraceModelVersion")
    def _model_version(self, handle: int, place: int) -> None:
        put_word(place, self.handles.get(handle).model_version)

    @export("TRITONSERVER_InferenceTraceRequestId")
    def _request_id(self, handle: int, place: int) -> None:
        trace = self.handles.get(handle)
        put_word(place, trace.texts.address("request id", trace.request_id))

    @export("TRITONSERVER_InferenceTraceSpawnChildTrace")
    def _spawn(self, handle: int, place: int) -> None:
        trace = self.handles.get(handle)
        self._add(place, Trace(trace.level, trace.id, trace.functions, trace.userp))

    @export("TRITONSERVER_InferenceTraceSetContext")
    def _set_context(self, handle: int, text: bytes | None) -> None:
        self.handles.get(handle).context_text = required_text(text)

    @export("TRITONSERVER_InferenceTraceContext")
    def _context(self, handle: int, place: int) -> None:
        trace = self.handles.get(handle)
        put_word(place, trace.texts.address("context", trace.context_text))

    @export("TRITONSERVER_InferenceTraceReportActivity")
    def _report(self, handle: int, time_ns: int, _name: bytes | None) -> None:
        self.handles.get(handle).report(_CUSTOM, time_ns)
