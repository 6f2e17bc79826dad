# SPDX-License-Identifier: Apache-2.0
"""TRITONSERVER_ServerInferAsync: gives requests to servers."""

from __future__ import annotations

from pytriton.base.errors import InvalidArgumentError
from pytriton.inprocess.c_library.exchange import CallerExchange
from pytriton.inprocess.c_library.servers import CallerServers
from pytriton.inprocess.c_library.traces import Traces
from pytriton.runtime.native_backend.callbacks import export
from pytriton.runtime.native_backend.caller_requests import CallerRequests
from pytriton.runtime.native_backend.caller_responses import CallerResponses


class Inferences:
    """Sends the application's requests."""

    def __init__(
        self,
        servers: CallerServers,
        requests: CallerRequests,
        responses: CallerResponses,
        traces: Traces,
    ) -> None:
        self._servers = servers
        self._requests = requests
        self._responses = responses
        self._traces = traces

    @export("TRITONSERVER_ServerInferAsync")
    def _infer(self, handle: int, request_handle: int, trace_handle: int) -> None:
        server, request = self._servers.handles.get(handle), self._requests.owned(request_handle)
        trace = self._traces.handles.get(trace_handle) if trace_handle else None
        if request.allocator is None or not request.respond[0]:
            raise InvalidArgumentError(
                "expected a request with an allocator and a response callback, see "
                "TRITONSERVER_InferenceRequestSetResponseCallback"
            )
        model = self._servers.find(handle, request.model_name, request.version)
        CallerExchange(request, request.allocator, server, model, self._responses, trace).send()
