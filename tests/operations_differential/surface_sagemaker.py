# SPDX-License-Identifier: Apache-2.0
"""The endpoint that SageMaker asks."""

from __future__ import annotations

from tests.operations_differential.asking import over_http
from tests.operations_differential.server import Observation, Server
from tests.operations_differential.surface import Case, Setup, Surface


def ping(server: Server) -> Observation:
    return over_http(server, "/ping", port="sagemaker")


SURFACE = Surface(
    "sagemaker",
    cases=(Case("ping", ping),),
    setup=Setup(
        options=("--allow-sagemaker=true", "--sagemaker-port={sagemaker}"), ports=("sagemaker",)
    ),
)
