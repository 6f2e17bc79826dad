# SPDX-License-Identifier: Apache-2.0
"""What flags and the environment of cloud providers say about endpoints."""

from __future__ import annotations

import pytest

from pytriton.exceptions import PyTritonValidationError
from pytriton.serving.server.options.endpoints import (
    EndpointOptions,
    SageMakerOptions,
    Surroundings,
    VertexAiOptions,
    default_repository,
)
from pytriton.serving.server.options.server_options import ServerOptions

ROUTES = {"AIP_PREDICT_ROUTE": "/p", "AIP_HEALTH_ROUTE": "/h"}
OFF = EndpointOptions(port=8080, allow=False)
PORTS = {"http_port": 100, "grpc_port": 101, "metrics_port": 102}


def options_in(variables=None, **flags):
    surroundings = Surroundings(variables=variables or {})
    return ServerOptions.from_triton_config(flags, surroundings=surroundings)


def refusal(variables=None, **flags):
    with pytest.raises(PyTritonValidationError) as caught:
        options_in(variables, **flags)
    return caught.value.message


def test_no_provider_is_served_by_default():
    options = options_in({**ROUTES, "AIP_HTTP_PORT": "8080"})

    assert (options.sagemaker, options.vertex_ai) == (OFF, OFF)
    assert options.vertex_ai_options == VertexAiOptions()


# Vertex AI


def test_vertex_ai_turns_its_endpoint_on_and_the_others_off():
    options = options_in({**ROUTES, "AIP_MODE": "PREDICTION", "AIP_HTTP_PORT": "7080"})

    assert options.vertex_ai == EndpointOptions(port=7080)
    assert options.vertex_ai_options == VertexAiOptions(predict_route="/p", health_route="/h")
    assert not options.http.allow
    assert not options.grpc.allow
    assert options.metrics.allow


def test_flags_count_more_than_vertex_ai():
    flags = {"allow_http": True, "allow_grpc": "1", "vertex_ai_port": 9}
    options = options_in({"AIP_MODE": "PREDICTION", "AIP_HTTP_PORT": "7080"}, **flags)

    assert options.vertex_ai.port == 9
    assert options.http.allow
    assert options.grpc.allow
    assert not options_in({"AIP_MODE": "PREDICTION"}, allow_vertex_ai=False).vertex_ai.allow


def test_other_modes_of_vertex_ai_change_nothing():
    options = options_in({**ROUTES, "AIP_MODE": "TRAINING"})

    assert options.http.allow
    assert not options.vertex_ai.allow


@pytest.mark.parametrize("value", ["abc", "-1", "65536", "8080.5"])
def test_wrong_port_of_vertex_ai_is_refused(value):
    assert refusal({"AIP_HTTP_PORT": value}) == (
        f"Expected a port from 0 to 65535 for the variable AIP_HTTP_PORT, got '{value}'"
    )


def test_route_needs_a_slash():
    message = refusal({"AIP_PREDICT_ROUTE": "p"}, allow_vertex_ai=True)

    assert message == (
        "Expected a path that begins with / for the variable AIP_PREDICT_ROUTE, got 'p'"
    )


def test_vertex_ai_names_the_repository():
    assert default_repository({"AIP_STORAGE_URI": "/models"}) == {"model_repository": "/models"}
    assert default_repository({}) == {}


# SageMaker


def test_settings_of_sagemaker_are_variables():
    variables = {
        "SAGEMAKER_TRITON_DEFAULT_MODEL_NAME": "m",
        "SAGEMAKER_TRITON_PING_MODE": "live",
        "SAGEMAKER_TRITON_INFERENCE_TYPE": "generate_stream",
    }

    assert options_in(variables, allow_sagemaker=True).sagemaker_options == SageMakerOptions(
        default_model="m", ping_mode="live", inference_type="generate_stream"
    )


def test_empty_settings_of_sagemaker_are_the_defaults():
    names = ("DEFAULT_MODEL_NAME", "PING_MODE", "INFERENCE_TYPE")
    variables = {f"SAGEMAKER_TRITON_{name}": "" for name in names}

    assert options_in(variables, allow_sagemaker=True).sagemaker_options == SageMakerOptions()


@pytest.mark.parametrize(
    "name, expected",
    [
        ("SAGEMAKER_TRITON_PING_MODE", "ready or live"),
        ("SAGEMAKER_TRITON_INFERENCE_TYPE", "infer, generate or generate_stream"),
    ],
)
def test_wrong_setting_of_sagemaker_is_refused(name, expected):
    assert refusal({name: "x"}, allow_sagemaker=True) == (
        f"Expected {expected} for the variable {name}, got 'x'"
    )
    assert options_in({name: "x"})  # SageMaker does not ask


# Ports


@pytest.mark.parametrize(
    "flags, text",
    [
        ({"sagemaker_port": 101}, "GRPC requests and SageMaker requests"),
        ({"sagemaker_port": 102}, "metrics requests and SageMaker requests"),
        (
            {"sagemaker_port": 9, "allow_vertex_ai": True, "vertex_ai_port": 9},
            "SageMaker requests and Vertex AI requests",
        ),
    ],
)
def test_ports_are_different(flags, text):
    port = flags["sagemaker_port"]
    assert refusal(allow_sagemaker=True, **PORTS, **flags) == (
        f"The server cannot listen to {text} at the same address and port 0.0.0.0:{port}"
    )


@pytest.mark.parametrize(
    "limits, text",
    [
        ("100-101", ""),
        ("101-200", "HTTP requests at port 100, allowed port range is [101, 200]"),
        ("1-100", "GRPC requests at port 101, allowed port range is [1, 100]"),
    ],
)
def test_other_ports_are_in_the_safe_range(limits, text):
    flags = {**PORTS, "sagemaker_safe_port_range": limits}

    assert options_in(**flags)  # SageMaker is not served
    if text:
        assert refusal(allow_sagemaker=True, **flags) == f"The server cannot listen to {text}"
    else:
        assert options_in(allow_sagemaker=True, **flags)


@pytest.mark.parametrize("limits", ["x", "1", "1-", "-1", "2-1", "1-2-3"])
def test_wrong_range_is_refused(limits):
    assert refusal(sagemaker_safe_port_range=limits) == (
        f"Expected <first port>-<last port> for --sagemaker-safe-port-range, got '{limits}'"
    )
