# SPDX-License-Identifier: Apache-2.0
"""The settings of the server, from code, a dictionary or the environment, and as a command line."""

from __future__ import annotations

import dataclasses
import functools
import logging
import os
import pathlib
import re
import shlex
import types
import typing
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from pytriton.base.settings import BY_NAME
from pytriton.exceptions import PyTritonError, PyTritonValidationError
from pytriton.utils.dataclasses import kwonly_dataclass

logger = logging.getLogger(__name__)

ENVIRONMENT_PREFIX = "PYTRITON_TRITON_CONFIG_"

# Names in guides for fields that have another name.
_ALIASES = {"log_verbosity": "log_verbose"}
_RESPONSE_CACHE_ALIAS = "response_cache_byte_size"
_LIST_ELEMENT = re.compile(r"(?P<name>.+)_(?P<index>\d+)")
_BOOLEANS = {"true": True, "1": True, "yes": True, "on": True} | {
    "false": False, "0": False, "no": False, "off": False,
}  # fmt: skip


@kwonly_dataclass
@dataclasses.dataclass(kw_only=True)
class TritonConfig:
    """Settings of the server, as keyword arguments; None means the default of the server.

    Args:
        model_repository: folder with further models to load, also in an object store (`s3://...`);
            default is a folder of the workspace.
        id: name of the server; default is triton.
        log_verbose: level of verbose logging; 0 is off.
        log_file: file for the server's log.
        log_format: start of its lines, default or ISO8601, or json; default is default.
        access_log: file for a line about each request, `-` for standard output; default is none.
        access_log_format: plain or json; default is plain.
        access_log_health: whether questions about health have lines there; default True.
        access_log_fields: names of fields there that say what a request cost; default is none.
        shadow_url: address of another server that gets requests as well; default is none.
        shadow_share: share of the requests that it gets at most; default is 1.
        shadow_models: names of the models whose requests it gets; default is all.
        shadow_rtol: share of a float by which its answers may differ; default is 1e-05.
        shadow_atol: how much they may differ besides; default is 1e-08.
        exit_timeout_secs: seconds to wait for open requests when the server stops; default 30.
        exit_on_error: whether an error at start ends the server; default True.
        strict_readiness: whether the server is ready only while all its models are; default True.
        allow_http: whether HTTP requests are served; default True.
        http_address: address to listen on for HTTP; default 0.0.0.0.
        http_port: port for HTTP; default 8000.
        http_header_forward_pattern: regular expression of the headers to pass on as parameters.
        http_max_input_size: maximum size of a request body in bytes; default 2 GiB - 1 byte.
        http_thread_count: threads for HTTP; here the number of processes, at most 8 and at most the
            number of cores, if `frontend_processes` is not given.
        http_restricted_api: groups of endpoints that require a header, `<APIs>:<key>=<value>`.
        cors_allow_origins: origins whose pages may use this server from a browser, such as
            https://app.example.com, https://*.example.com or http://localhost:*, or a single *.
        cors_allow_headers: headers that these pages may send, instead of those that clients send.
        cors_allow_credentials: whether these pages may send cookies; not with *; default False.
        cors_max_age_secs: seconds for which a browser need not ask again; default 600.
        allowed_hosts: names that clients may use for this server, beyond localhost, the machine's
            name and IP addresses; others are refused; * allows all. Without it, a server that
            listens on its own machine allows no others, and one without tokens none to browsers.
        max_connections_per_address: maximum connections of one address to each port; 0 means no
            limit; default 0.
        max_request_memory: bytes of memory for the bodies of all requests under way; 0 means no
            limit; default is half of the memory of the machine or of its container.
        allow_grpc: whether gRPC requests are served; default True.
        grpc_address: address to listen on for gRPC; default 0.0.0.0.
        grpc_port: port for gRPC; default 8001.
        grpc_header_forward_pattern: regular expression of the metadata to pass on as parameters.
        grpc_infer_allocation_pool_size: number of requests kept for reuse; default 8.
        grpc_use_ssl: whether gRPC is encrypted; default False.
        grpc_use_ssl_mutual: whether gRPC clients need a certificate; default False.
        grpc_server_cert: PEM file with the server's certificate.
        grpc_server_key: PEM file with the server's key.
        grpc_root_cert: PEM file with the root certificates for client certificates.
        grpc_infer_response_compression_level: none, low, medium or high; default none.
        grpc_keepalive_time: milliseconds between keepalive pings; default 7200000.
        grpc_keepalive_timeout: milliseconds to wait for the reply to a ping; default 20000.
        grpc_keepalive_permit_without_calls: whether to ping when no call is open; default False.
        grpc_http2_max_pings_without_data: maximum pings without data; default 2.
        grpc_http2_min_recv_ping_interval_without_data: minimum milliseconds between two pings of a
            client that sends no data; default 300000.
        grpc_http2_max_ping_strikes: early pings before a client is disconnected; default 2.
        grpc_restricted_protocol: groups of calls that require a header, `<groups>:<key>=<value>`.
        secure: start only if nothing is open to strangers; needs `tls_cert`, `tls_key` and
            `auth_config`, and has safe defaults; default False.
        hide_exceptions: answer requests for which a model raised an unexpected exception with a
            number, under which the log has the exception; default False.
        auth_config: TOML or JSON file that says who may do what; it is read again when it changes.
        trusted_proxies: addresses and networks of proxies, such as 10.0.0.0/8, that say in
            X-Forwarded-For or Forwarded which address a request is from; default is none.
        tls_cert: PEM file with the server's certificate, which encrypts all ports; default is none.
        tls_key: PEM file with its private key.
        tls_client_ca: PEM file with the authorities of clients' certificates; with it, clients need
            a certificate.
        tls_client_auth: required, or optional if clients may have none; default is required.
        tls_min_version: oldest version of TLS that clients may use, 1.2 or 1.3; default is 1.2.
        allow_metrics: whether metrics are served; default True.
        allow_gpu_metrics: whether metrics of GPUs are collected; default True.
        allow_cpu_metrics: whether metrics of the CPU are collected; default True.
        metrics_interval_ms: milliseconds between two collections; default 2000.
        metrics_port: port for metrics; default 8002.
        metrics_address: address to listen on for metrics; default is the HTTP address.
        landing_page: who gets a page about the models at `/` of the HTTP port: `none`, `browsers`,
            or `all`, where other clients than browsers get the addresses as JSON; default all.
        allow_page: whether the page is served on the metrics port; default True.
        page_token: what the log and the actions on the page need; default is the access token, or
            a random one, which the command `pytriton page` tells to the user of the server.
        allow_sagemaker: whether SageMaker requests are served; default False.
        sagemaker_port: port for SageMaker; default 8080.
        sagemaker_safe_port_range: range that the other ports must be in with SageMaker.
        sagemaker_thread_count: threads for SageMaker; default 8.
        allow_vertex_ai: whether Vertex AI requests are served; default False.
        vertex_ai_port: port for Vertex AI; default 8080.
        vertex_ai_thread_count: threads for Vertex AI; default 8.
        vertex_ai_default_model: model for Vertex AI requests that do not name one.
        metrics_config: settings `<setting>=<value>` of the metrics.
        trace_config: settings `<mode>,<setting>=<value>` or `<setting>=<value>` of the traces.
        cache_config: settings `<cache>,<setting>=<value>` of the response caches.
        cache_directory: folder with cache implementations.
        buffer_manager_thread_count: threads that copy tensors; default 0.
        backend_directory: folder that has a folder for each backend; default is
            /opt/tritonserver/backends. `~` in it is the user's home.
        backend_config: settings `<backend>,<setting>=<value>` of one backend, or
            `<setting>=<value>` of all.
        rate_limit: off or execution_count; with the latter, an instance runs when the resources
            that it needs are free; default off.
        rate_limit_resource: amounts `<name>:<count>[:<device>]` of these resources.
        frontend_processes: processes that serve HTTP and gRPC, from 0 (in the server's own) to 64;
            default depends on the cores: 0 for up to four, else a quarter of them, from 2 to 8.
        allow_client_shm: whether clients may register shared memory; default True. The group
            `shared-memory` of endpoints is restricted by default.
        executor: ray or local, where models of `model_repository` run if their configurations do
            not say it; default is local.
        ray_address: address of the Ray cluster; default is that of the variable RAY_ADDRESS, or the
            cluster that this machine is part of.
        ray_instance_address: name or IP address of this machine for the actors, which connect to
            it; default is the one that Ray uses.
        ray_instance_port: port for the connections of actors; default is a free one.
        ray_working_dir: folder with modules that models import, which Ray copies to all nodes, or
            the address of a ZIP archive that Ray fetches.
        ray_start_timeout: maximum seconds until an actor runs, for models of `model_repository`
            that do not say it; default 120.
        sandbox: off, on or strict, with grants after commas: whether the processes of models of
            `model_repository` see only their own files and have no network; default off.
        sandbox_allow: grants that these models may ask for with their parameter SANDBOX.
        response_cache_byte_size: size of the local response cache, the same as
            `cache_config=["local,size=<bytes>"]`; not a field.

    Raises:
        PyTritonValidationError: Neither HTTP nor gRPC is allowed, or `response_cache_byte_size` and
            `cache_config` are given together.
    """

    model_repository: pathlib.Path | None = None
    id: str | None = None
    log_verbose: int | None = None
    log_file: pathlib.Path | None = None
    log_format: str | None = None
    access_log: pathlib.Path | None = None
    access_log_format: str | None = None
    access_log_health: bool | None = None
    access_log_fields: list[str] | None = None
    shadow_url: str | None = None
    shadow_share: float | None = None
    shadow_models: list[str] | None = None
    shadow_rtol: float | None = None
    shadow_atol: float | None = None
    exit_timeout_secs: int | None = None
    exit_on_error: bool | None = None
    strict_readiness: bool | None = None
    allow_http: bool | None = None
    http_address: str | None = None
    http_port: int | None = None
    http_header_forward_pattern: str | None = None
    http_max_input_size: int | None = None
    http_thread_count: int | None = None
    http_restricted_api: str | None = None
    cors_allow_origins: list[str] | None = None
    cors_allow_headers: list[str] | None = None
    cors_allow_credentials: bool | None = None
    cors_max_age_secs: int | None = None
    allowed_hosts: list[str] | None = None
    max_connections_per_address: int | None = None
    max_request_memory: int | None = None
    allow_grpc: bool | None = None
    grpc_address: str | None = None
    grpc_port: int | None = None
    grpc_header_forward_pattern: str | None = None
    grpc_infer_allocation_pool_size: int | None = None
    grpc_use_ssl: bool | None = None
    grpc_use_ssl_mutual: bool | None = None
    grpc_server_cert: pathlib.Path | None = None
    grpc_server_key: pathlib.Path | None = None
    grpc_root_cert: pathlib.Path | None = None
    grpc_infer_response_compression_level: str | None = None
    grpc_keepalive_time: int | None = None
    grpc_keepalive_timeout: int | None = None
    grpc_keepalive_permit_without_calls: bool | None = None
    grpc_http2_max_pings_without_data: int | None = None
    grpc_http2_min_recv_ping_interval_without_data: int | None = None
    grpc_http2_max_ping_strikes: int | None = None
    grpc_restricted_protocol: str | None = None
    secure: bool | None = None
    hide_exceptions: bool | None = None
    auth_config: pathlib.Path | None = None
    trusted_proxies: list[str] | None = None
    tls_cert: pathlib.Path | None = None
    tls_key: pathlib.Path | None = None
    tls_client_ca: pathlib.Path | None = None
    tls_client_auth: str | None = None
    tls_min_version: str | None = None
    allow_metrics: bool | None = None
    allow_gpu_metrics: bool | None = None
    allow_cpu_metrics: bool | None = None
    metrics_interval_ms: int | None = None
    metrics_port: int | None = None
    metrics_address: str | None = None
    landing_page: str | None = None
    allow_page: bool | None = None
    page_token: str | None = dataclasses.field(default=None, repr=False)
    allow_sagemaker: bool | None = None
    sagemaker_port: int | None = None
    sagemaker_safe_port_range: str | None = None
    sagemaker_thread_count: int | None = None
    allow_vertex_ai: bool | None = None
    vertex_ai_port: int | None = None
    vertex_ai_thread_count: int | None = None
    vertex_ai_default_model: str | None = None
    metrics_config: list[str] | None = None
    trace_config: list[str] | None = None
    cache_config: list[str] | None = None
    cache_directory: str | None = None
    buffer_manager_thread_count: int | None = None
    backend_directory: pathlib.Path | None = None
    backend_config: list[str] | None = None
    rate_limit: str | None = None
    rate_limit_resource: list[str] | None = None
    frontend_processes: int | None = None
    allow_client_shm: bool | None = None
    executor: str | None = None
    ray_address: str | None = None
    ray_instance_address: str | None = None
    ray_instance_port: int | None = None
    ray_working_dir: str | pathlib.Path | None = None
    ray_start_timeout: float | None = None
    sandbox: str | None = None
    sandbox_allow: list[str] | None = None
    response_cache_byte_size: dataclasses.InitVar[int | None] = None

    def __post_init__(self, response_cache_byte_size: int | None) -> None:
        if response_cache_byte_size is not None:
            if self.cache_config is not None:
                raise PyTritonValidationError(
                    f"Expected either `{_RESPONSE_CACHE_ALIAS}` or `cache_config`, got both: "
                    f"{response_cache_byte_size} and {self.cache_config}"
                )
            self.cache_config = [f"local,size={response_cache_byte_size}"]
        if self.allow_http not in (True, None) and self.allow_grpc not in (True, None):
            raise PyTritonValidationError("The `http` or `grpc` endpoint has to be allowed.")

    def to_dict(self) -> dict[str, Any]:
        """Return all fields with their values, including None."""
        return {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}

    @classmethod
    def from_dict(cls, config: Mapping[str, Any]) -> TritonConfig:
        """Build a configuration from names and values.

        Args:
            config: values by field; text is converted to the field's type. An unknown name is
                logged as a warning and ignored.

        Returns:
            The configuration.

        Raises:
            PyTritonValidationError: A value cannot be converted to the field's type.
        """
        converters = _converters()
        known: dict[str, Any] = {}
        for given_name, value in config.items():
            name = _ALIASES.get(given_name, given_name)
            if name not in converters:
                logger.warning(
                    "Ignoring %s=%s as could not find matching config field. Available fields: %s",
                    given_name,
                    value,
                    ", ".join(converters),
                )
            elif value is not None:
                known[name] = _converted(given_name, value, converters[name])
        return cls(**known)

    @classmethod
    def from_env(cls) -> TritonConfig:
        """Build a configuration from the environment.

        The name of a variable is `PYTRITON_TRITON_CONFIG_` and the name of a field in capitals.
        Elements of a list field are numbered, as in `..._CACHE_CONFIG_0`; without a number, the
        value is the only or first element.

        Returns:
            The configuration.

        Raises:
            PyTritonValidationError: A value cannot be converted to the field's type.
        """
        converters = _converters()
        values: dict[str, Any] = {}
        elements: dict[str, dict[int, str]] = {}
        for variable, value in os.environ.items():
            if not variable.startswith(ENVIRONMENT_PREFIX):
                continue
            name = variable.removeprefix(ENVIRONMENT_PREFIX).lower()
            element = _LIST_ELEMENT.fullmatch(name)
            if converters.get(name) is _as_list:
                elements.setdefault(name, {})[-1] = value
            elif element and converters.get(element["name"]) is _as_list:
                elements.setdefault(element["name"], {})[int(element["index"])] = value
            else:
                values[name] = value
        for name, by_index in elements.items():
            values[name] = [by_index[index] for index in sorted(by_index)]
        return cls.from_dict(values)

    def with_defaults(self, defaults: TritonConfig) -> TritonConfig:
        """Fill the fields that are None from another configuration.

        Args:
            defaults: values for the fields that are None here.

        Returns:
            A new configuration.
        """
        own = {name: value for name, value in self.to_dict().items() if value is not None}
        return TritonConfig(**(defaults.to_dict() | own))

    @classmethod
    def resolved(cls, config: TritonConfig | None = None) -> TritonConfig:
        """Fill the fields that `config` does not set from the environment.

        Args:
            config: configuration from code, or None.

        Returns:
            A new configuration.

        Raises:
            PyTritonValidationError: It is no configuration, or a value is wrong.
        """
        if config is not None and not isinstance(config, TritonConfig):
            raise PyTritonValidationError(f"config: expected a TritonConfig, got {config!r}")
        environment = cls.from_env()
        return config.with_defaults(environment) if config is not None else environment


def _as_bool(value: Any) -> bool:
    if isinstance(value, str):
        return _BOOLEANS[value.strip().lower()]
    return bool(value)


def _as_list(value: Any) -> list[str]:
    return [value] if isinstance(value, str) else [str(element) for element in value]


@functools.cache
def _converters() -> dict[str, Callable[[Any], Any]]:
    """Returns a function for each field that converts text to its type."""
    special = {bool: _as_bool, list[str]: _as_list}
    # Only of the fields, because Python 3.10 cannot evaluate the annotation of an InitVar.
    annotations = {field.name: field.type for field in dataclasses.fields(TritonConfig)}
    hints = typing.get_type_hints(types.SimpleNamespace(__annotations__=annotations), globals())
    field_types = {name: typing.get_args(hint)[0] for name, hint in hints.items()}
    converters = {name: special.get(kind, kind) for name, kind in field_types.items()}
    return converters | {_RESPONSE_CACHE_ALIAS: int}


def _converted(name: str, value: Any, convert: Callable[[Any], Any]) -> Any:
    try:
        return convert(value)
    except (KeyError, TypeError, ValueError) as error:
        expected = "list" if convert is _as_list else convert.__name__.removeprefix("_as_")
        raise PyTritonValidationError(
            f"Expected a value of type {expected} for `{name}`, got {value!r}"
        ) from error


class TritonServerConfig:
    """Flags by name, with dashes or underscores; flags that are not set are None.

    Args:
        settings: initial values.

    Example:
        >>> TritonServerConfig({"http_port": 8015}).to_cli_string()
        '--http-port=8015'
    """

    def __init__(self, settings: Mapping[str, Any] | None = None) -> None:
        self._values: dict[str, Any] = {}
        for name, value in (settings or {}).items():
            self[name] = value

    def __getitem__(self, name: str) -> Any:
        """Returns the value of a flag, or None."""
        return self._values.get(_flag(name))

    def __setitem__(self, name: str, value: Any) -> None:
        """Set a flag; None removes it."""
        flag = _flag(name)
        if value is None:
            self._values.pop(flag, None)
        else:
            self._values[flag] = value

    def __contains__(self, name: str) -> bool:
        """Returns whether a flag is set."""
        return name.replace("_", "-") in self._values

    def get(self, name: str, default: Any = None) -> Any:
        """Get the value of a flag, or a default.

        Args:
            name: name of the flag.
            default: the result if it is not set.

        Returns:
            The value.
        """
        return self._values.get(_flag(name), default)

    def to_args_list(self) -> list[str]:
        """Convert the flags to arguments of a command.

        Returns:
            `--flag` and its value for each flag, and for each element of a value that is a list.
        """
        return [part for flag, value in self._flat() for part in (f"--{flag}", str(value))]

    def to_cli_string(self) -> str:
        """Convert the flags to one line, quoted for a shell.

        Returns:
            `--flag=value` for each, joined by spaces.
        """
        return shlex.join(f"--{flag}={value}" for flag, value in self._flat())

    def _flat(self) -> Iterator[tuple[str, Any]]:
        for flag, value in self._values.items():
            for element in value if isinstance(value, (list, tuple)) else (value,):
                path = element.as_posix() if isinstance(element, pathlib.PurePath) else element
                yield flag, path


def _flag(name: str) -> str:
    flag = name.replace("_", "-")
    if flag not in BY_NAME:
        raise PyTritonError(f"Expected the name of a flag of the server, got {name!r}")
    return flag
