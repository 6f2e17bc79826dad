# SPDX-License-Identifier: Apache-2.0
"""The endpoint that Vertex AI asks."""

from __future__ import annotations

import struct
from typing import Any

from tests.operations_differential.asking import over_http
from tests.operations_differential.server import Observation, Server
from tests.operations_differential.surface import Case, Setup, Surface

PREDICT, HEALTH = "/predict", "/health"
INPUT = {"name": "INPUT0", "shape": [2], "datatype": "INT32", "data": [1, 2]}
BODY = {"inputs": [INPUT]}
BINARY = "application/vnd.vertex-ai-triton.binary+json;json-header-size="
TEXT = (
    b'{"inputs":[{"name":"INPUT0","shape":[2],"datatype":"INT32",'
    b'"parameters":{"binary_data_size":8}}]}'
)
BINARY_BODY = TEXT + struct.pack("<2i", 1, 2)
CONTENT_TYPE = ("Content-Type",)


def ask(name: str, path: str, body: Any = None, **more: Any) -> Case:
    """A case that asks the port of Vertex AI."""

    def run(server: Server) -> Observation:
        return over_http(server, path, body, port="vertex_ai", **more)

    return Case(name, run)


def redirect(name: str, target: str, body: Any = b"", **more: Any) -> Case:
    """A case that asks another endpoint with the header for that."""
    headers = {"X-Vertex-Ai-Triton-Redirect": target, **more.pop("headers", {})}
    return ask(f"redirect_{name}", PREDICT, body, headers=headers, **more)


def binary(name: str, length: str, body: bytes = BINARY_BODY) -> Case:
    headers = {"Content-Type": BINARY + length}
    return ask(f"binary_{name}", PREDICT, body, headers=headers)


SURFACE = Surface(
    "vertex_ai",
    cases=(
        ask("health", HEALTH),
        ask("health_with_query", HEALTH + "?x=1"),
        ask("health_by_post", HEALTH, b""),
        ask("health_with_slash", HEALTH + "/"),
        ask("health_in_capitals", "/HEALTH"),
        ask("predict", PREDICT, BODY, show=CONTENT_TYPE),
        ask("predict_by_get", PREDICT),
        ask("predict_by_put", PREDICT, BODY, method="PUT"),
        ask("predict_with_slash", PREDICT + "/", BODY),
        ask("predict_with_two_slashes", "/" + PREDICT, BODY),
        ask("predict_percent_encoded", "/%70redict", BODY),
        ask("predict_without_body", PREDICT, b""),
        ask("predict_malformed", PREDICT, b"{"),
        ask("predict_without_inputs", PREDICT, {"inputs": []}),
        ask("predict_with_wrong_input", PREDICT, {"inputs": [{**INPUT, "name": "X"}]}),
        ask("predict_accepting_gzip", PREDICT, BODY, headers={"Accept-Encoding": "gzip"}),
        ask("endpoint_of_the_http_port", "/v2/health/live"),
        ask("metrics", "/metrics"),
        ask("root", "/"),
        binary("input", str(len(TEXT))),
        binary("length_with_more", f"{len(TEXT)};x=y"),
        binary("length_zero", "0", BINARY_BODY[-8:]),
        binary("length_negative", "-5"),
        binary("length_too_large", "99999"),
        binary("length_no_number", "x"),
        redirect("to_live", "v2/health/live"),
        redirect("to_ready", "v2/health/ready"),
        redirect("to_config", "v2/models/numbers/config"),
        redirect("to_model_ready", "v2/models/pair/versions/1/ready"),
        redirect("to_index", "v2/repository/index"),
        redirect("to_infer", "v2/models/numbers/infer", BODY),
        redirect("to_failing_model", "v2/models/failing/infer", BODY),
        redirect("to_unknown_model", "v2/models/none/infer", BODY),
        redirect("to_restricted", "v2/models/numbers"),
        redirect("to_restricted_with_key", "v2/models/numbers", headers={"key": "value"}),
        redirect("to_unknown_with_key", "v2/models/none", headers={"key": "value"}),
        redirect("to_load", "v2/repository/models/numbers/load"),
        redirect("to_nothing", "none"),
        redirect("empty", ""),
        redirect("with_slash", "/v2/health/live"),
        redirect("with_two_slashes", "//v2/health/live"),
        redirect("with_detour", "v2/x/../health/live"),
        redirect("with_query", "v2/health/live?x=1"),
        redirect("percent_encoded", "%762/health/live"),
        redirect("in_capitals", "V2/health/live"),
        redirect("by_get", "v2/health/live", None),
        redirect("to_predict", "predict", BODY),
        redirect("to_generate", "v2/models/numbers/generate", {"INPUT0": [1, 2]}),
    ),
    setup=Setup(
        options=(
            "--allow-vertex-ai=true",
            "--vertex-ai-port={vertex_ai}",
            "--vertex-ai-default-model=numbers",
            "--http-restricted-api=metadata:key=value",
        ),
        environment={"AIP_HEALTH_ROUTE": HEALTH, "AIP_PREDICT_ROUTE": PREDICT},
        ports=("vertex_ai",),
    ),
)
