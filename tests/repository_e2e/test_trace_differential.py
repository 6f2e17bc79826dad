# SPDX-License-Identifier: Apache-2.0
"""The spans of requests beside those of the real Triton: as written down, and live."""

from __future__ import annotations

import numpy as np
import pytest
import tritonclient.grpc as triton_grpc

from tests import peers
from tests.e2e import http_client
from tests.e2e.http_client import is_ready
from tests.e2e.waiting import eventually
from tests.otlp_collector import new_trace_id
from tests.repository_e2e.model_files import code, model
from tests.repository_e2e.server_process import COMMAND

START_DEADLINE_S = 120.0
ROW = np.ones((1, 1), np.float32)
CALLER = """
call = pb_utils.InferenceRequest(
    model_name="leaf",
    inputs=request.inputs(),
    requested_output_names=["Y"],
    request_id="call",
    trace=request.trace(),
)
y = call.exec().output_tensors()[0].as_numpy()
"""
MODELS = {
    "leaf": model(code()),
    "caller": model(code(CALLER)),
    "failing": model(code('raise pb_utils.TritonModelException("no luck")')),
}
OUTER = "InferRequest 2 triton-server tracestate=a=b"
MODEL = (
    "2 triton-server tracestate=a=b triton.model_name triton.model_version triton.request_id "
    "triton.trace_id REQUEST_START QUEUE_START REQUEST_END"
)
COMPUTE = (
    "compute 2 triton-server tracestate=a=b COMPUTE_START COMPUTE_INPUT_END COMPUTE_OUTPUT_START "
    "COMPUTE_END"
)
HTTP = "HTTP_RECV_START HTTP_RECV_END INFER_RESPONSE_COMPLETE HTTP_SEND_START HTTP_SEND_END"
GRPC = "GRPC_WAITREAD_START GRPC_WAITREAD_END INFER_RESPONSE_COMPLETE GRPC_SEND_START GRPC_SEND_END"
# Each span below its parent, with its kind, scope, state, attributes and events.
EXPECTED = {
    ("http", "leaf"): [f"{OUTER} {HTTP}", f"  leaf {MODEL}", f"    {COMPUTE}"],
    ("grpc", "leaf"): [f"{OUTER} {GRPC}", f"  leaf {MODEL}", f"    {COMPUTE}"],
    ("http", "failing"): [f"{OUTER} {HTTP}", f"  failing {MODEL}", f"    {COMPUTE}"],
    ("http", "caller"): [
        f"{OUTER} {HTTP}",
        f"  caller {MODEL}",
        f"    {COMPUTE}",
        f"    leaf {MODEL}",
        f"      {COMPUTE}",
    ],
}
# An attribute of the real server that repeats a parent.
REPEATED = "triton.trace_parent_id"
OURS = "triton.cost."  # Triton has none


@pytest.fixture(scope="module")
def start(start_module_server, collector):
    def start(command):
        flags = [f"--trace-config={setting}" for setting in collector.settings]
        server = start_module_server(MODELS, flags=flags, command=command)
        assert eventually(lambda: is_ready(server.http_port), START_DEADLINE_S), server.output
        return server

    return start


@pytest.fixture(scope="module")
def ours(start):
    return start(COMMAND)


@pytest.fixture(scope="module")
def real(start):
    return start(peers.triton_command())


def ask(server, protocol, name):
    """Ask a model in a trace of its own; the id of that."""
    trace_id = new_trace_id()
    headers = {"traceparent": f"00-{trace_id}-{1:016x}-01", "tracestate": "a=b"}
    if protocol == "http":
        body = http_client.json_body({"X": ROW}, id="seven")
        http_client.call(server.http_port, f"/v2/models/{name}/infer", body, headers)
    else:
        tensor = triton_grpc.InferInput("X", ROW.shape, "FP32")
        tensor.set_data_from_numpy(ROW)
        with server.grpc_client() as client:
            client.infer(name, [tensor], request_id="seven", headers=headers)
    return trace_id


def tree(spans, parent_id, indent=""):
    """The spans under another one in the order of their starts, as texts."""
    lines = []
    for span in sorted(spans, key=lambda span: (span.start_ns, -span.end_ns)):
        if span.parent_id == parent_id:
            names = span.attributes.keys() - {REPEATED}
            attributes = sorted(each for each in names if not each.startswith(OURS))
            state = f"tracestate={span.tracestate}"
            words = [span.name, str(span.kind), span.scope, state, *attributes, *span.events]
            lines += [indent + " ".join(words), *tree(spans, span.span_id, indent + "  ")]
    return lines


@pytest.mark.parametrize("case", EXPECTED, ids=" ".join)
@pytest.mark.parametrize("server", ["ours", pytest.param("real", marks=pytest.mark.part("peers"))])
def test_spans_are_those_of_the_real_server(request, collector, server, case):
    trace_id = ask(request.getfixturevalue(server), *case)
    spans = collector.trace_list(trace_id, len(EXPECTED[case]))

    expected = EXPECTED[case]
    if server == "real" and case[0] == "grpc":  # it loses the state of gRPC's clients
        expected = [line.replace("tracestate=a=b", "tracestate=") for line in expected]
    assert tree(spans, f"{1:016x}") == expected
