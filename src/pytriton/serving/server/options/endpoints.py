# SPDX-License-Identifier: Apache-2.0
"""Settings of ports, of cloud providers and of front ends, with the environment they depend on."""

from __future__ import annotations

import ipaddress
import os
from collections.abc import Mapping
from typing import Any

import msgspec

from pytriton.base.settings import MAX_FRONTEND_PROCESSES
from pytriton.exceptions import PyTritonValidationError
from pytriton.serving.server.options.flags import Flags, bad_value

PAGE_TOKEN_VARIABLE = "PYTRITON_PAGE_TOKEN"  # noqa: S105  the name of a variable
FRONTENDS_VARIABLE = "PYTRITON_FRONTEND_PROCESSES"
SANDBOX_VARIABLE = "PYTRITON_SANDBOX"

# Vertex AI sets these in every container (its "custom container requirements").
HTTP_PORT_VARIABLE = "AIP_HTTP_PORT"
PREDICT_ROUTE_VARIABLE = "AIP_PREDICT_ROUTE"
HEALTH_ROUTE_VARIABLE = "AIP_HEALTH_ROUTE"
_MODE_VARIABLE = "AIP_MODE"
_STORAGE_VARIABLE = "AIP_STORAGE_URI"

# Set by whoever deploys a model on SageMaker.
DEFAULT_MODEL_VARIABLE = "SAGEMAKER_TRITON_DEFAULT_MODEL_NAME"
_PING_VARIABLE = "SAGEMAKER_TRITON_PING_MODE"
_INFERENCE_VARIABLE = "SAGEMAKER_TRITON_INFERENCE_TYPE"

# The names of endpoints in messages, by their fields of `ServerOptions`.
_NAMES = {
    "http": "HTTP",
    "grpc": "GRPC",
    "metrics": "metrics",
    "sagemaker": "SageMaker",
    "vertex_ai": "Vertex AI",
}
_CLOUD_PORT = 8080

# Up to this many cores the clients, the server and its models already use all of them.
_CORES_FOR_ONE_PROCESS = 4
# More front ends share less of their work: requests then reach the core one by one.
_MAX_BY_DEFAULT = 8
# One front end costs what the server in one process does, so only a second one makes it faster.
_MIN_BY_DEFAULT = 2


class Surroundings(msgspec.Struct, frozen=True, kw_only=True):
    """The machine and the environment, for settings that are not given."""

    cores: int = 1
    frontend_processes: str | None = None  # the value of `FRONTENDS_VARIABLE`
    variables: dict[str, str] = {}  # those of cloud providers and of the page

    @classmethod
    def read(cls, cores: int) -> Surroundings:
        """Returns those of this process, which may use so many cores."""
        names = ("AIP_", "SAGEMAKER_TRITON_", PAGE_TOKEN_VARIABLE, SANDBOX_VARIABLE)
        return cls(
            cores=cores,
            frontend_processes=os.environ.get(FRONTENDS_VARIABLE),
            variables={name: os.environ[name] for name in os.environ if name.startswith(names)},
        )


ONE_CORE = Surroundings()


class EndpointOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The address and port of one protocol."""

    port: int  # 0: a free one
    address: str = "0.0.0.0"
    allow: bool = True
    reuse_port: bool = False

    @property
    def is_loopback(self) -> bool:
        """Whether only clients on this machine reach it."""
        try:
            return ipaddress.ip_address(self.address).is_loopback
        except ValueError:  # a name
            return self.address == "localhost"


class VertexAiOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The requests of Vertex AI; the routes are needed if its endpoint is served."""

    predict_route: str = ""
    health_route: str = ""
    default_model: str | None = None  # None: the only one that is there


class SageMakerOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The requests of SageMaker."""

    # Triton's name for a default model that nobody has named: a request says that it is unknown.
    default_model: str = f"unspecified_{DEFAULT_MODEL_VARIABLE}"
    ping_mode: str = "ready"  # or "live"
    inference_type: str = "infer"  # or "generate", "generate_stream"


def read_endpoints(flags: Flags, variables: Mapping[str, str]) -> dict[str, Any]:
    """Returns the endpoints by their fields of `ServerOptions`.

    Raises:
        PyTritonValidationError: Two endpoints are equal, or SageMaker does not allow a port.
    """
    # Vertex AI sends requests to one port only, so the others are served if they are asked for.
    by_default = variables.get(_MODE_VARIABLE) != "PREDICTION"
    http = EndpointOptions(**flags.record("http", allow=by_default))
    port = _vertex_ai_port(variables)
    endpoints = {
        "http": http,
        "grpc": EndpointOptions(**flags.record("grpc", allow=by_default)),
        "metrics": EndpointOptions(**flags.record("metrics", address=http.address)),
        "sagemaker": EndpointOptions(**flags.record("sagemaker")),
        "vertex_ai": EndpointOptions(**flags.record("vertex_ai", allow=not by_default, port=port)),
    }
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


def _refuse_shared_ports(endpoints: Mapping[str, EndpointOptions]) -> None:
    taken: dict[tuple[str, int], str] = {}
    for field, endpoint in endpoints.items():
        if not endpoint.allow or not endpoint.port:
            continue
        other = taken.setdefault((endpoint.address, endpoint.port), field)
        if other != field:
            raise PyTritonValidationError(
                f"The server cannot listen to {_NAMES[other]} requests and {_NAMES[field]} "
                f"requests at the same address and port {endpoint.address}:{endpoint.port}"
            )


def _refuse_unsafe_ports(endpoints: Mapping[str, EndpointOptions], allowed: str | None) -> None:
    """Check the ports of other endpoints beside that of SageMaker, as Triton does."""
    if allowed is None:
        return
    first, dash, last = allowed.partition("-")
    if not (dash and first.isdecimal() and last.isdecimal() and int(first) <= int(last)):
        raise bad_value("sagemaker_safe_port_range", "<first port>-<last port>", allowed)
    if not endpoints["sagemaker"].allow:
        return
    for field in ("grpc", "http", "vertex_ai"):
        endpoint = endpoints[field]
        if endpoint.allow and endpoint.port and not int(first) <= endpoint.port <= int(last):
            raise PyTritonValidationError(
                f"The server cannot listen to {_NAMES[field]} requests at port {endpoint.port}, "
                f"allowed port range is [{int(first)}, {int(last)}]"
            )


def default_repository(variables: Mapping[str, str]) -> dict[str, str]:
    """Returns the flag for the repository that Vertex AI names, if it names one."""
    storage = variables.get(_STORAGE_VARIABLE)
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
    types = ("infer", "generate", "generate_stream")
    return SageMakerOptions(
        default_model=variables.get(DEFAULT_MODEL_VARIABLE) or SageMakerOptions().default_model,
        ping_mode=_choice(variables, _PING_VARIABLE, ("ready", "live")),
        inference_type=_choice(variables, _INFERENCE_VARIABLE, types),
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


def read_frontend_processes(flags: Flags, surroundings: Surroundings) -> int:
    """Read the number of processes for HTTP and gRPC; 0 means in the server's own process.

    The flag counts most, then the environment, then the number of threads for Triton.
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


def frontend_process_count(cores: int) -> int:
    """Returns how many front ends a machine with this many cores gets if nobody says a number."""
    if cores <= _CORES_FOR_ONE_PROCESS:
        return 0
    return min(_MAX_BY_DEFAULT, max(_MIN_BY_DEFAULT, cores // 4))


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
