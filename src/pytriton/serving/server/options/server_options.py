# SPDX-License-Identifier: Apache-2.0
"""All settings of a server process: the records that its parts read, and how these are made.

Values arrive as one mapping, whether they come from flags, `TritonConfig` or a program;
`pytriton.base.settings` describes each. The records are sent to other processes. The values of
restricted APIs and the page's token are secrets, so no `repr` shows them.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from pytriton.base.errors import InvalidArgumentError
from pytriton.base.log_switches import LogSwitches
from pytriton.base.sandbox import SandboxSettings, parse_choice, read_sandbox_settings
from pytriton.base.security import TRITON_ACCESS_HEADER
from pytriton.base.settings import DEFAULT_ATOL, DEFAULT_RTOL, RayOptions
from pytriton.constants import DEFAULT_GRPC_PORT, DEFAULT_HTTP_PORT, DEFAULT_METRICS_PORT
from pytriton.exceptions import PyTritonValidationError
from pytriton.serving.server.access.client_addresses import TrustedProxies, parse_proxies
from pytriton.serving.server.api.authorization import (
    RestrictedGroup,
    RestrictedProtocol,
    parse_restricted_groups,
    required_headers,
)
from pytriton.serving.server.api.origins import BrowserOptions, OriginPolicy
from pytriton.serving.server.api.services import ClientService
from pytriton.serving.server.options.endpoints import (
    ONE_CORE,
    PAGE_TOKEN_VARIABLE,
    SANDBOX_VARIABLE,
    EndpointOptions,
    SageMakerOptions,
    Surroundings,
    VertexAiOptions,
    read_endpoints,
    read_frontend_processes,
    read_sagemaker_options,
    read_vertex_ai_options,
)
from pytriton.serving.server.options.flags import FlagError, Flags, bad_value, flag_of
from pytriton.serving.server.options.metrics_options import MetricsOptions, read_metrics_options
from pytriton.serving.server.options.repository_options import (
    RepositoryOptions,
    read_ray_options,
    read_repository_options,
)
from pytriton.serving.server.options.secure import check_secure, with_safe_values
from pytriton.utils.trace_config import KNOWN_SETTINGS

logger = logging.getLogger(__name__)

# Its form only: whether the host is there is seen later.
_ADDRESS = re.compile(r"((https?|grpcs?)://)?([^\s/:]+|\[[0-9a-fA-F:.]+\])(:\d+)?(/\S*)?")
PLAIN, JSON = "plain", "json"  # formats of the access log
# Its fields that say what a request cost.
COST_FIELDS = (
    *("worker_s", "server_s", "queue_s", "tensor_bytes_in", "tensor_bytes_out"),
    *("tokens_in", "tokens_out"),
)


class LogOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The levels, format and destination of the log."""

    verbose: int = 0
    info: bool = True
    warning: bool = True
    error: bool = True
    format: str = "default"
    file: str | None = None

    @property
    def switches(self) -> LogSwitches:
        """The settings that clients may change."""
        return LogSwitches(self.info, self.warning, self.error, self.verbose, self.format)


class AccessLogOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The destination and format of the access log, with one line per request."""

    file: str | None = None  # `-`: standard output; None: there is no access log
    format: str = PLAIN
    health: bool = True  # also log health checks
    fields: tuple[str, ...] = ()  # of `COST_FIELDS`, at the end of each line
    principal: bool = False  # there is a policy, so that plain lines have its principals


class PageOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Whether there is a page, and the token for its log and its actions."""

    allow: bool = True
    token: str = ""  # a secret: it must appear in no log; empty: nobody has these rights

    def __repr__(self) -> str:
        return f"PageOptions(allow={self.allow}, token={'<hidden>' if self.token else 'None'})"


class AccessOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The policy that says who may do what, and the key of processes of the server's user."""

    config: str | None = None  # its file; None: there is no policy
    own_key: str = ""  # a secret: it must appear in no log; empty: there is none

    def __repr__(self) -> str:
        key = "<hidden>" if self.own_key else "None"
        return f"AccessOptions(config={self.config!r}, own_key={key})"


class ShadowOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Another server, which gets a share of the requests as well."""

    url: str | None = None  # None: there is none
    share: float = 1.0
    models: tuple[str, ...] = ()  # empty: all
    rtol: float = DEFAULT_RTOL  # answers that differ by no more are equal
    atol: float = DEFAULT_ATOL


class TlsOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The PEM files of encrypted ports, and what clients have to show."""

    server_cert: str
    server_key: str
    root_cert: str | None = None  # the authorities of clients' certificates
    client_auth: str = "none"  # or optional, or required: whether clients show a certificate
    min_version: str = "1.2"  # or 1.3


class KeepaliveOptions(msgspec.Struct, frozen=True, kw_only=True):
    """When a gRPC connection is probed, and when it is closed because of its age."""

    time_ms: int = 7_200_000
    timeout_ms: int = 20_000
    permit_without_calls: bool = False
    max_pings_without_data: int = 2
    min_recv_ping_interval_without_data_ms: int = 300_000
    max_ping_strikes: int = 2
    max_connection_age_ms: int | None = None
    max_connection_age_grace_ms: int | None = None


class ClientLimits(msgspec.Struct, frozen=True, kw_only=True):
    """Limits for one client; beyond them it is refused or disconnected."""

    http_max_input_bytes: int = 64 << 20
    http_max_header_bytes: int = 64 << 10
    http_max_chunks: int = 65536  # non-empty ones of one body
    grpc_max_message_bytes: int = (2 << 30) - 1
    # From the connect to a request's first byte, and from there to the end of its headers.
    header_timeout_s: float = 60.0
    body_stall_timeout_s: float = 60.0  # without progress while a body is received
    write_stall_timeout_s: float = 300.0  # without progress while a response is sent
    http_idle_timeout_s: float = 3600.0  # between two requests of a connection; 0: no limit
    # Of one client, but for the last, which is for all clients of the server together.
    max_connections_per_address: int = 0  # to one port; 0: no limit
    max_request_memory_bytes: int | None = None  # 0: no limit; None: a share of the machine's


class ServerOptions(msgspec.Struct, frozen=True, kw_only=True):
    """All settings of a server process; the defaults are Triton's."""

    id: str = "triton"
    http: EndpointOptions = EndpointOptions(port=DEFAULT_HTTP_PORT)
    grpc: EndpointOptions = EndpointOptions(port=DEFAULT_GRPC_PORT)
    metrics: EndpointOptions = EndpointOptions(port=DEFAULT_METRICS_PORT)
    sagemaker: EndpointOptions = EndpointOptions(port=8080, allow=False)
    vertex_ai: EndpointOptions = EndpointOptions(port=8080, allow=False)
    sagemaker_options: SageMakerOptions = SageMakerOptions()
    vertex_ai_options: VertexAiOptions = VertexAiOptions()
    http_restricted: tuple[RestrictedGroup, ...] = ()
    grpc_restricted: tuple[RestrictedGroup, ...] = ()
    access: AccessOptions = AccessOptions()
    trusted_proxies: tuple[str, ...] = ()  # the networks whose headers name their clients
    secure: bool = False  # nothing may be open that the operator has not chosen
    secure_notes: tuple[str, ...] = ()  # what the operator has chosen to be less safe
    # Searched anywhere in a header's name; upper and lower case are equal.
    http_header_forward_pattern: str | None = None
    grpc_header_forward_pattern: str | None = None
    tls: TlsOptions | None = None  # of all ports but that of gRPC
    grpc_tls: TlsOptions | None = None
    grpc_keepalive: KeepaliveOptions = KeepaliveOptions()
    grpc_response_compression: str = "none"
    log: LogOptions = LogOptions()
    access_log: AccessLogOptions = AccessLogOptions()
    metrics_options: MetricsOptions = MetricsOptions()
    page: PageOptions = PageOptions()  # it is served on the metrics port
    landing_page: str = "browsers"  # or none, or all: who gets something at / of the HTTP port
    limits: ClientLimits = ClientLimits()
    browsers: BrowserOptions = BrowserOptions()
    shadow: ShadowOptions = ShadowOptions()
    repository: RepositoryOptions = RepositoryOptions()
    ray: RayOptions = RayOptions()  # of models that run there
    sandbox: SandboxSettings = SandboxSettings()  # of the processes that run models
    exit_on_error: bool = True
    exit_timeout_s: int = 30
    exit_grace_s: float = 0.0  # not ready any more, but still accepting requests
    strict_readiness: bool = True
    awaits_models: bool = False  # not ready before the process that started it says so
    cache_bytes: int = 0  # size of the response cache; 0: no cache
    trace_settings: tuple[str, ...] = ()
    frontend_processes: int = 0  # for HTTP and gRPC; 0: in the server's own process
    allow_client_shared_memory: bool = False  # whether clients may register shared memory
    hide_exceptions: bool = False  # clients get no texts of exceptions that models raise

    @property
    def has_page(self) -> bool:
        """Whether there is a page, which needs the metrics port."""
        return self.page.allow and self.metrics.allow

    @property
    def uses_tls(self) -> tuple[bool, bool, bool]:
        """Whether HTTP, gRPC and metrics are encrypted."""
        return self.tls is not None, self.grpc_tls is not None, self.tls is not None

    @property
    def names_are_public(self) -> bool:
        """Whether every client may be told the names of models."""
        groups = (*self.http_restricted, *self.grpc_restricted)
        return self.access.config is None and not any("metadata" in group.apis for group in groups)

    @property
    def proxies(self) -> TrustedProxies | None:
        """What finds the addresses of clients behind proxies; None: none are believed."""
        return TrustedProxies(self.trusted_proxies) if self.trusted_proxies else None

    @property
    def request_memory_share(self) -> int:
        """The bytes for request bodies in one of the processes that have ports; 0: no limit."""
        # With front ends, the core has the port for metrics, and needs a share for the page's form.
        processes = self.frontend_processes + 1
        total = self.limits.max_request_memory_bytes or 0
        return max(1, total // processes) if total else 0

    @property
    def is_open(self) -> bool:
        """Whether everybody who reaches the HTTP port may do everything there."""
        return not self.http_restricted and self.access.config is None

    def origin_policy(self, address: str, *, has_cors: bool = True) -> OriginPolicy:
        """Returns what browsers may do on the port that listens on an address."""
        return OriginPolicy(
            address,
            self.browsers,
            has_cors=has_cors,
            is_open=self.is_open,
            more_headers=required_headers(self.http_restricted, RestrictedProtocol.HTTP),
        )

    def services(self) -> dict[ClientService, EndpointOptions]:
        """Returns the endpoints of all services, in the order in which they are opened."""
        return {
            ClientService.GRPC: self.grpc,
            ClientService.HTTP: self.http,
            ClientService.SAGEMAKER: self.sagemaker,
            ClientService.VERTEX_AI: self.vertex_ai,
        }

    @classmethod
    def from_triton_config(
        cls,
        config: Mapping[str, Any],
        *,
        is_command: bool = False,
        surroundings: Surroundings = ONE_CORE,
    ) -> ServerOptions:
        """Read the fields of `TritonConfig`, or flags with underscores for dashes.

        Args:
            config: values by name; None leaves the choice to the server.
            is_command: whether the defaults are those of `tritonserver`, or of `Triton`.
            surroundings: the machine and the environment, for settings that depend on them.

        Returns:
            The settings.

        Raises:
            PyTritonValidationError: for an unknown name, a value of the wrong type or out of range,
                or two endpoints with the same address.
        """
        flags = Flags(with_safe_values(config, is_command=is_command), is_command=is_command)
        variables = surroundings.variables
        endpoints = read_endpoints(flags, variables)
        http_restricted = _restricted(flags, "http_restricted_api", RestrictedProtocol.HTTP)
        tls = _tls(flags)
        options = cls(
            **flags.record(),
            **endpoints,
            sagemaker_options=read_sagemaker_options(
                variables if endpoints["sagemaker"].allow else {}
            ),
            vertex_ai_options=read_vertex_ai_options(
                flags, variables if endpoints["vertex_ai"].allow else {}
            ),
            http_restricted=http_restricted,
            grpc_restricted=_restricted(flags, "grpc_restricted_protocol", RestrictedProtocol.GRPC),
            access=AccessOptions(**flags.record("access")),
            trusted_proxies=_trusted_proxies(flags),
            secure=bool(flags.value("secure")),
            tls=tls,
            grpc_tls=_grpc_tls(flags) or tls,
            grpc_keepalive=KeepaliveOptions(**flags.record("grpc_keepalive")),
            log=LogOptions(**flags.record("log")),
            access_log=_access_log(flags),
            metrics_options=read_metrics_options(flags),
            page=_page(flags, variables, http_restricted),
            limits=_limits(flags),
            browsers=_browsers(flags),
            shadow=_shadow(flags),
            repository=read_repository_options(flags),
            ray=read_ray_options(flags),
            sandbox=_sandbox(flags, variables),
            cache_bytes=_cache_bytes(flags),
            trace_settings=_trace_settings(flags),
            frontend_processes=read_frontend_processes(flags, surroundings),
        )
        flags.refuse_unread()
        notes = check_secure(options, config, is_command=is_command)
        return msgspec.structs.replace(options, secure_notes=notes)


def _restricted(
    flags: Flags, name: str, protocol: RestrictedProtocol
) -> tuple[RestrictedGroup, ...]:
    try:
        return parse_restricted_groups(flags.value(name), protocol)
    except PyTritonValidationError as error:
        raise FlagError(name, error.message) from None


def _trusted_proxies(flags: Flags) -> tuple[str, ...]:
    try:
        return parse_proxies(flags.value("trusted_proxies"))
    except ValueError as error:
        raise FlagError("trusted_proxies", f"--trusted-proxies: {error}") from None


def _page(
    flags: Flags, variables: Mapping[str, str], restricted: Iterable[RestrictedGroup]
) -> PageOptions:
    # A token in the environment is seen by fewer people than one on the command line.
    token = flags.value("page_token") or variables.get(PAGE_TOKEN_VARIABLE, "")
    if not token:  # that of the restricted APIs of HTTP opens the page, too
        headers = {group.header.lower(): group.value for group in restricted}
        token = headers.get(TRITON_ACCESS_HEADER, "")
    elif not (token.isascii() and token.isprintable()):  # it travels in a header
        raise bad_value("page_token", "ASCII characters", "others")
    return PageOptions(**flags.record("page"), token=token)


def _limits(flags: Flags) -> ClientLimits:
    size = flags.value("http_max_input_size")
    if size <= 0:
        raise FlagError(
            "http_max_input_size", "Error: --http-max-input-size must be greater than 0."
        )
    return ClientLimits(http_max_input_bytes=size, **flags.record("limits"))


def _browsers(flags: Flags) -> BrowserOptions:
    return BrowserOptions(
        **flags.record("browsers"),
        allow_origins=flags.value("cors_allow_origins"),
        allow_headers=flags.value("cors_allow_headers"),
        allowed_hosts=flags.value("allowed_hosts"),
    ).parsed()


def _access_log(flags: Flags) -> AccessLogOptions:
    record = flags.record("access_log")
    texts: Iterable[str] = record.pop("fields")
    fields = tuple(name.strip() for text in texts for name in text.split(","))
    for name in fields:
        if name not in COST_FIELDS:
            raise bad_value("access_log_fields", f"names of {', '.join(COST_FIELDS)}", name)
    has_policy = flags.value("auth_config") is not None
    return AccessLogOptions(**record, fields=fields, principal=has_policy)


def _shadow(flags: Flags) -> ShadowOptions:
    options = ShadowOptions(**flags.record("shadow"))
    if options.share > 1:
        raise bad_value("shadow_share", "a number from 0 to 1", options.share)
    if options.url is not None and not _ADDRESS.fullmatch(options.url):
        raise bad_value("shadow_url", "an address such as grpc://host:8001", options.url)
    return options


def _sandbox(flags: Flags, variables: Mapping[str, str]) -> SandboxSettings:
    name = "sandbox"
    text = flags.value(name, variables.get(SANDBOX_VARIABLE) or None)
    try:
        parse_choice(text)  # first, so that the error names the right flag
        name = "sandbox_allow"
        return read_sandbox_settings(text, flags.value(name))
    except InvalidArgumentError as error:
        raise FlagError(name, f"--{name.replace('_', '-')}: {error.message}") from None


def _tls(flags: Flags) -> TlsOptions | None:
    certificate, key, client_ca, client_auth = (
        flags.value(name) for name in ("tls_cert", "tls_key", "tls_client_ca", "tls_client_auth")
    )
    min_version = flags.value("tls_min_version")
    if certificate is None:
        for name, value in (("tls_key", key), ("tls_client_ca", client_ca)):
            if value is not None:
                raise bad_value("tls_cert", f"a PEM file, as {flag_of(name)} is given,", None)
        return None
    if key is None:
        raise bad_value("tls_key", f"a PEM file, as {flag_of('tls_cert')} is given,", None)
    if client_ca is None and client_auth is not None:
        name = flag_of("tls_client_auth")
        raise bad_value("tls_client_ca", f"a PEM file, as {name} is given,", None)
    return TlsOptions(
        server_cert=str(certificate),
        server_key=str(key),
        root_cert=client_ca,
        client_auth="none" if client_ca is None else client_auth or "required",
        min_version=min_version,
    )


def _grpc_tls(flags: Flags) -> TlsOptions | None:
    mutual = flags.value("grpc_use_ssl_mutual")
    wanted = flags.value("grpc_use_ssl") or mutual
    files = {
        name: flags.value(name)
        for name in ("grpc_server_cert", "grpc_server_key", "grpc_root_cert")
    }
    if not wanted:
        return None
    needed = list(files) if mutual else ["grpc_server_cert", "grpc_server_key"]
    for name in needed:
        if files[name] is None:
            raise bad_value(name, "a PEM file, as gRPC is to be encrypted,", None)
    return TlsOptions(
        server_cert=str(files["grpc_server_cert"]),
        server_key=str(files["grpc_server_key"]),
        root_cert=files["grpc_root_cert"],
        client_auth="required" if mutual else "none",
        min_version=flags.value("tls_min_version"),
    )


def _trace_settings(flags: Flags) -> tuple[str, ...]:
    settings: tuple[str, ...] = flags.value("trace_config")
    for text in settings:
        setting, equals, _ = text.partition("=")
        if not (setting and equals):
            raise FlagError(
                "trace_config",
                f"--trace-config option format is '<trace mode>,<setting>=<value>'. Got {text}",
            )
        if setting not in KNOWN_SETTINGS:  # it may be one of another version of Triton
            known = " ".join(KNOWN_SETTINGS)
            logger.warning("--trace-config %s has no effect; known are %s", setting, known)
    return settings


def _cache_bytes(flags: Flags) -> int:
    size: int | None = flags.value("response_cache_byte_size")
    caches = _caches(flags)
    if size is not None and caches:
        raise PyTritonValidationError(
            "Error: Incompatible flags --response-cache-byte-size and --cache-config both "
            "provided. Please provide one or the other."
        )
    if len(caches) > 1:
        raise PyTritonValidationError(
            "found multiple cache configurations, but only a single cache is currently supported"
        )
    for cache, settings in caches.items():
        if cache != "local" or settings.keys() != {"size"}:
            # Values are not shown: those of other caches may be passwords.
            came = " ".join(f"{cache},{setting}=..." for setting in settings)
            raise bad_value("cache_config", "local,size=<bytes>", came)
        if not settings["size"].isdecimal() or not int(settings["size"]):
            raise bad_value("cache_config", "a number of bytes as size", settings["size"])
        size = int(settings["size"])
    return size or 0


def _caches(flags: Flags) -> dict[str, dict[str, str]]:
    """Returns the settings by cache."""
    caches: dict[str, dict[str, str]] = {}
    for text in flags.value("cache_config"):
        cache, _, pair = text.partition(",")
        setting, equals, value = pair.partition("=")
        if not (cache and setting and equals):
            form = "<cache name>,<setting>=<value>"
            problem = (
                f"--cache-config option format is '{form}'"
                if cache and pair
                else f"No cache specified. --cache-config option format is {form}"
            )
            raise FlagError("cache_config", f"{problem}. Got {text}")
        caches.setdefault(cache, {})[setting] = value
    return caches
