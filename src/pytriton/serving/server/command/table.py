# SPDX-License-Identifier: Apache-2.0
"""All options of the `tritonserver` command; parser, help and manual read this table."""

from __future__ import annotations

from collections.abc import Mapping

from pytriton.serving.server.command.model_options import MODEL_OPTIONS
from pytriton.serving.server.command.observation_options import OBSERVATION_OPTIONS
from pytriton.serving.server.command.option import Option
from pytriton.serving.server.command.serving_options import SERVING_OPTIONS

# In the order of the help.
_GROUPS = (
    "Server",
    "Logging",
    "Model repository",
    "HTTP",
    "gRPC",
    "Metrics",
    "Page",
    "Tracing",
    "Backends",
    "Ray cluster",
    "Response cache",
    "Rate limiter",
    "Memory and devices",
    "SageMaker and Vertex AI",
    "Deprecated",
)
_ALL = {**SERVING_OPTIONS, **MODEL_OPTIONS, **OBSERVATION_OPTIONS}

OPTIONS: Mapping[str, tuple[Option, ...]] = {group: _ALL[group] for group in _GROUPS}

BY_NAME: Mapping[str, Option] = {
    option.name: option for options in OPTIONS.values() for option in options
}
