# SPDX-License-Identifier: Apache-2.0
"""What SageMaker and Vertex AI tell a server, most of it in environment variables."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from pytriton.exceptions import PyTritonValidationError
from pytriton.serving.server.options.flags import Flags

# Vertex AI sets these in every container (its "custom container requirements").
MODE_VARIABLE = "AIP_MODE"
HTTP_PORT_VARIABLE = "AIP_HTTP_PORT"
PREDICT_ROUTE_VARIABLE = "AIP_PREDICT_ROUTE"
HEALTH_ROUTE_VARIABLE = "AIP_HEALTH_ROUTE"
STORAGE_VARIABLE = "AIP_STORAGE_URI"
_PREDICTION = "PREDICTION"

# Those who deploy a model on SageMaker set these.
DEFAULT_MODEL_VARIABLE = "SAGEMAKER_TRITON_DEFAULT_MODEL_NAME"
PING_VARIABLE = "SAGEMAKER_TRITON_PING_MODE"
INFERENCE_VARIABLE = "SAGEMAKER_TRITON_INFERENCE_TYPE"
_PING_MODES = ("ready", "live")
_INFERENCE_TYPES = ("infer", "generate", "generate_stream")

CLOUD_VARIABLES = (
    MODE_VARIABLE,
    HTTP_PORT_VARIABLE,
    PREDICT_ROUTE_VARIABLE,
    HEALTH_ROUTE_VARIABLE,
    STORAGE_VARIABLE,
    DEFAULT_MODEL_VARIABLE,
    PING_VARIABLE,
    INFERENCE_VARIABLE,
)


class VertexAiOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How Vertex AI asks; the routes are needed if its endpoint is served."""

    predict_route: str = ""
    health_route: str = ""
    default_model: str | None = None  # None: the only one that is there


class SageMakerOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How SageMaker asks."""

    # Triton's name for a default model that nobody has named: a request says that it is unknown.
    default_model: str = f"unspecified_{DEFAULT_MODEL_VARIABLE}"
    ping_mode: str = "ready"  # or "live"
    inference_type: str = "infer"  # or "generate", "generate_stream"


def is_prediction(variables: Mapping[str, str]) -> bool:
    """Returns whether Vertex AI has started this container to serve requests."""
    return variables.get(MODE_VARIABLE) == _PREDICTION


def default_repository(variables: Mapping[str, str]) -> dict[str, str]:
    """Returns the flag for the repository that Vertex AI names, if it names one."""
    storage = variables.get(STORAGE_VARIABLE)
    return {"model_repository": storage} if storage else {}


def read_vertex_ai_options(flags: Flags, variables: Mapping[str, str]) -> VertexAiOptions:
    """Read the settings for Vertex AI; `variables` are empty if its endpoint is not served."""
    return VertexAiOptions(
        predict_route=_route(variables, PREDICT_ROUTE_VARIABLE),
        health_route=_route(variables, HEALTH_ROUTE_VARIABLE),
        default_model=flags.value("vertex_ai_default_model"),
    )


def read_sagemaker_options(variables: Mapping[str, str]) -> SageMakerOptions:
    """Read the settings for SageMaker; `variables` are empty if its endpoint is not served."""
    default = SageMakerOptions()
    return SageMakerOptions(
        default_model=variables.get(DEFAULT_MODEL_VARIABLE) or default.default_model,
        ping_mode=_choice(variables, PING_VARIABLE, _PING_MODES),
        inference_type=_choice(variables, INFERENCE_VARIABLE, _INFERENCE_TYPES),
    )


def _route(variables: Mapping[str, str], name: str) -> str:
    route = variables.get(name, "")
    if route and not route.startswith("/"):
        raise PyTritonValidationError(
            f"Expected a path that begins with / for the variable {name}, got {route!r}"
        )
    return route


def _choice(variables: Mapping[str, str], name: str, choices: tuple[str, ...]) -> str:
    value = variables.get(name) or choices[0]
    if value not in choices:
        expected = f"{', '.join(choices[:-1])} or {choices[-1]}"
        raise PyTritonValidationError(f"Expected {expected} for the variable {name}, got {value!r}")
    return value
