# SPDX-License-Identifier: Apache-2.0
"""The endpoint that Vertex AI asks."""

from __future__ import annotations

from tests.operations_differential.asking import over_http
from tests.operations_differential.server import Observation, Server
from tests.operations_differential.surface import Case, Setup, Surface


def health(server: Server) -> Observation:
    return over_http(server, "/health", port="vertex_ai")


SURFACE = Surface(
    "vertex_ai",
    cases=(Case("health", health),),
    setup=Setup(
        options=(
            "--allow-vertex-ai=true",
            "--vertex-ai-port={vertex_ai}",
            "--vertex-ai-default-model=numbers",
        ),
        environment={"AIP_HEALTH_ROUTE": "/health", "AIP_PREDICT_ROUTE": "/predict"},
        ports=("vertex_ai",),
    ),
)
