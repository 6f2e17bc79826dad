# SPDX-License-Identifier: Apache-2.0
"""Every family of metrics: names, labels, helps and values."""

from __future__ import annotations

from tests.operations_differential.asking import int32_request, metrics, over_http
from tests.operations_differential.server import Observation, Server
from tests.operations_differential.surface import Case, Surface


def successes(server: Server) -> Observation:
    over_http(server, *int32_request())
    return metrics(server, "nv_inference_request_success")


SURFACE = Surface("metrics", cases=(Case("successful requests", successes),))
