# SPDX-License-Identifier: Apache-2.0
"""The addresses and ports that a server listens on."""

from __future__ import annotations

import os
from collections.abc import Mapping

import msgspec

from pytriton.base.settings import MAX_FRONTEND_PROCESSES
from pytriton.exceptions import PyTritonValidationError
from pytriton.serving.server.options.flags import Flags, bad_value

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


_ANY_ADDRESS = "0.0.0.0"
_CLOUD_PORT = 8080


class EndpointOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The address and port of one protocol."""

    port: int  # 0: a free one
    address: str = _ANY_ADDRESS
    allow: bool = True
    reuse_port: bool = False


class Endpoints(msgspec.Struct, frozen=True, kw_only=True):
    """All endpoints of a server."""

    http: EndpointOptions
    grpc: EndpointOptions
    metrics: EndpointOptions
    sagemaker: EndpointOptions
    vertex_ai: EndpointOptions


def read_endpoints(flags: Flags, variables: Mapping[str, str]) -> Endpoints:
    """Read the endpoints; `variables` are those of the environment.

    Raises:
        PyTritonValidationError: Two endpoints are equal, or SageMaker does not allow a port.
    """
    # Vertex AI sends requests to one port only, so the others are served if they are asked for.
    by_default = not is_prediction(variables)
    http = EndpointOptions(**flags.record("http", allow=by_default))
    endpoints = Endpoints(
        http=http,
        grpc=EndpointOptions(**flags.record("grpc", allow=by_default)),
        metrics=EndpointOptions(**flags.record("metrics", address=http.address)),
        sagemaker=EndpointOptions(**flags.record("sagemaker")),
        vertex_ai=EndpointOptions(
            **flags.record("vertex_ai", allow=not by_default, port=_vertex_ai_port(variables))
        ),
    )
    _refuse_shared_ports(endpoints)
    _refuse_unsafe_ports(endpoints, flags.value("sagemaker_safe_port_range"))
    return endpoints


def _vertex_ai_port(variables: Mapping[str, str]) -> int:
    value = variables.get(HTTP_PORT_VARIABLE) or _CLOUD_PORT
    try:
        return int(Flags({"vertex_ai_port": value}).value("vertex_ai_port"))
    except PyTritonValidationError:
        raise PyTritonValidationError(
            f"Expected a port from 0 to 65535 for the variable {HTTP_PORT_VARIABLE}, got {value!r}"
        ) from None


def _refuse_shared_ports(endpoints: Endpoints) -> None:
    taken: dict[tuple[str, int], str] = {}
    for name, endpoint in (
        ("HTTP", endpoints.http),
        ("GRPC", endpoints.grpc),
        ("metrics", endpoints.metrics),
        ("SageMaker", endpoints.sagemaker),
        ("Vertex AI", endpoints.vertex_ai),
    ):
        if not endpoint.allow or not endpoint.port:
            continue
        other = taken.setdefault((endpoint.address, endpoint.port), name)
        if other != name:
            raise PyTritonValidationError(
                f"The server cannot listen to {other} requests and {name} requests at the same "
                f"address and port {endpoint.address}:{endpoint.port}"
            )


def _refuse_unsafe_ports(endpoints: Endpoints, allowed: str | None) -> None:
    """Check the ports of other endpoints beside that of SageMaker, as Triton does."""
    if allowed is None:
        return
    name = "sagemaker_safe_port_range"
    first, dash, last = allowed.partition("-")
    if not (dash and first.isdecimal() and last.isdecimal() and int(first) <= int(last)):
        raise bad_value(name, "<first port>-<last port>", allowed)
    if not endpoints.sagemaker.allow:
        return
    for service, endpoint in (
        ("GRPC", endpoints.grpc),
        ("HTTP", endpoints.http),
        ("Vertex AI", endpoints.vertex_ai),
    ):
        if endpoint.allow and endpoint.port and not int(first) <= endpoint.port <= int(last):
            raise PyTritonValidationError(
                f"The server cannot listen to {service} requests at port {endpoint.port}, allowed "
                f"port range is [{int(first)}, {int(last)}]"
            )


PAGE_TOKEN_VARIABLE = "PYTRITON_PAGE_TOKEN"  # noqa: S105  the name of a variable
FRONTENDS_VARIABLE = "PYTRITON_FRONTEND_PROCESSES"

# Up to this many cores the clients, the server and its models already use all of them.
_CORES_FOR_ONE_PROCESS = 4
# More front ends share less of their work: requests then reach the core one by one.
_MAX_BY_DEFAULT = 8
# One front end costs what the server in one process does, so only a second one makes it faster.
_MIN_BY_DEFAULT = 2


class Surroundings(msgspec.Struct, frozen=True, kw_only=True):
    """What the machine and the environment say to settings that are not given."""

    cores: int = 1
    frontend_processes: str | None = None  # the value of `FRONTENDS_VARIABLE`
    variables: dict[str, str] = {}  # those that are set of cloud providers and of the page

    @classmethod
    def read(cls, cores: int, environment: Mapping[str, str] = os.environ) -> Surroundings:
        """Returns those of this process, which may use so many cores."""
        names = (*CLOUD_VARIABLES, PAGE_TOKEN_VARIABLE)
        return cls(
            cores=cores,
            frontend_processes=environment.get(FRONTENDS_VARIABLE),
            variables={name: environment[name] for name in names if name in environment},
        )


ONE_CORE = Surroundings()


def frontend_process_count(cores: int) -> int:
    """Returns how many front ends a machine with this many cores gets if nobody says a number."""
    if cores <= _CORES_FOR_ONE_PROCESS:
        return 0
    return min(_MAX_BY_DEFAULT, max(_MIN_BY_DEFAULT, cores // 4))


def read_frontend_processes(flags: Flags, surroundings: Surroundings) -> int:
    """Read the number of processes for HTTP and gRPC; 0 means in the server's own process.

    The flag counts most, then the environment, then the number of threads for Triton.

    Raises:
        PyTritonValidationError: for a number out of range.
    """
    given: int | None = flags.value("frontend_processes")
    threads: int | None = flags.value("http_thread_count")
    if given is None:
        given = _from_environment(surroundings.frontend_processes)
    if given is not None:
        return given
    if threads is not None:
        return min(threads, _MAX_BY_DEFAULT, surroundings.cores)
    return frontend_process_count(surroundings.cores)


def _from_environment(value: str | None) -> int | None:
    if not value:
        return None
    try:
        return int(Flags({"frontend_processes": value}).value("frontend_processes"))
    except PyTritonValidationError:
        raise PyTritonValidationError(
            f"Expected an integer from 0 to {MAX_FRONTEND_PROCESSES} for the variable "
            f"{FRONTENDS_VARIABLE}, got {value!r}"
        ) from None
