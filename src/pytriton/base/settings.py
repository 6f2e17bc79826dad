# SPDX-License-Identifier: Apache-2.0
"""The table of all settings of a server: one row declares one setting for every surface.

A setting may be given as an option of `tritonserver`, a field of `TritonConfig`, a field of the
in-process `Options`, or by a function of the C API. Its row has its name, kind, default, range and
help, and says which of these surfaces have it:

- the command line parses, checks and explains its options by the rows, and `docs/tritonserver.md`
  ends with them (`python -m tests.server.command.manual` writes that part again);
- `TritonConfig` and the in-process `Options` are written classes, because type checkers and editors
  read them; tests compare their fields with the rows, and rows convert their values;
- the functions of the C library that set one value are made of the rows;
- `Flags` reads values by their rows, and a row with a `field` fills that field of `ServerOptions`.

To add a setting, add a row, the field of `ServerOptions` that it fills, and the fields of the two
classes if they have it. A setting without `field` is read where its parts are put together.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

import msgspec

from pytriton.constants import DEFAULT_GRPC_PORT, DEFAULT_HTTP_PORT, DEFAULT_METRICS_PORT

MAX_FRONTEND_PROCESSES = 64
MAX_INTEGER = 2**63 - 1
_PORTS = (0, 65535)
_FROM_MINUS_1 = (-1, MAX_INTEGER)
_APIS = (
    "Known groups: health, metadata, inference, shared-memory, model-config, model-repository, "
    "statistics, trace, logging."
)
_REUSE = "Let servers with this option share the port; the system distributes clients to them."
DEFAULT_START_TIMEOUT_S = 120.0  # of an instance on a cluster
# How far numbers of two answers may be apart, by a share of one and besides, and count as equal.
DEFAULT_RTOL, DEFAULT_ATOL = 1e-5, 1e-8


class Takes(enum.Enum):
    """The kind of value that a setting takes, as the help shows it."""

    NOTHING = ""
    BOOLEAN = "<boolean>"
    INTEGER = "<integer>"
    NUMBER = "<number>"
    TEXT = "<text>"
    PATH = "<path>"
    PATTERN = "<regex>"


@dataclass(frozen=True, slots=True)
class ServerSetting:
    """One setting.

    Attributes:
        name: The option of the command line, without dashes at its start.
        default: As on the command line; "": it has none, or it depends on other settings.
        help: The meaning, for users.
        form: The form of the value, if it is more specific than `takes`; words with `|` between
            them are the only values.
        takes: The kind of value.
        is_repeatable: Whether it may be given several times.
        has_effect: False if it is accepted for compatibility only.
        range: The range of an integer.
        is_positive: Whether a number must be greater than 0; otherwise 0 is allowed.
        instead: For a deprecated option its replacement, with "..." for the value.
        becomes: The option that it is another name of, and a prefix for the value.
        field: The place in `ServerOptions` that it fills, if nothing else decides on that.
        in_config: Whether `TritonConfig` has it.
        config_default: The default of servers that `Triton` starts, if it differs.
        inprocess: The field of the in-process `Options`; "": there is none.
        c_function: The end of the function's name, after TRITONSERVER_ServerOptions; "": none.
    """

    name: str
    default: str
    help: str
    form: str = ""
    takes: Takes = Takes.TEXT
    is_repeatable: bool = False
    has_effect: bool = True
    range: tuple[int, int] = (0, MAX_INTEGER)
    is_positive: bool = False
    instead: str = ""
    becomes: tuple[str, str] | None = None
    field: str = ""
    in_config: bool = True
    config_default: str = ""
    inprocess: str = ""
    c_function: str = ""

    @property
    def key(self) -> str:
        """The name with underscores, as in `TritonConfig`."""
        return self.name.replace("-", "_")

    @property
    def value(self) -> str:
        """The form of the value, as the help shows it."""
        return self.form or self.takes.value

    @property
    def choices(self) -> tuple[str, ...]:
        """The only values; empty if there are others. The C API numbers them in this order."""
        return tuple(self.form.split("|")) if "|" in self.form else ()


_flag = partial(ServerSetting, takes=Takes.NOTHING)
_switch = partial(ServerSetting, takes=Takes.BOOLEAN)
_integer = partial(ServerSetting, takes=Takes.INTEGER)
_number = partial(ServerSetting, takes=Takes.NUMBER)
_text = partial(ServerSetting, takes=Takes.TEXT)
_path = partial(ServerSetting, takes=Takes.PATH)
_pattern = partial(ServerSetting, takes=Takes.PATTERN)
_each = partial(ServerSetting, takes=Takes.TEXT, is_repeatable=True)


# By group, in the order of the help.
# fmt: off
SETTINGS: Mapping[str, tuple[ServerSetting, ...]] = {
    "Server": (
        _flag("help", "", "Show this help, like -h.", in_config=False),
        _flag("version", "",
            "Show the version of this server and of the Triton version that it is compatible "
            "with. Not an option of Triton.", in_config=False),
        _text("id", "triton", "Name of the server in its metadata.", field="id",
            inprocess="server_id", c_function="SetServerId"),
        _integer("exit-timeout-secs", "30", "Seconds to wait for open requests on exit.",
            field="exit_timeout_s", inprocess="exit_timeout", c_function="SetExitTimeout"),
        _number("exit-grace-secs", "0",
            "Seconds that the server continues to serve after a signal while it reports that it "
            "is not ready, so that load balancers notice first. Not an option of Triton.",
            field="exit_grace_s", in_config=False),
        _integer("frontend-processes", "",
            "Number of processes that serve HTTP and gRPC, at most 64; 0 means in the server's "
            "own process. Default: 0 for up to four cores, else a quarter of the cores, from 2 "
            "to 8. The environment variable PYTRITON_FRONTEND_PROCESSES sets another default. "
            "Not an option of Triton.", range=(0, MAX_FRONTEND_PROCESSES)),
    ),
    "Logging": (
        _integer("log-verbose", "0", "Level of verbose logging; 0 turns it off.",
            field="log.verbose", inprocess="log_verbose", c_function="SetLogVerbose"),
        _switch("log-info", "true", "Log information messages.", field="log.info", in_config=False,
            inprocess="log_info", c_function="SetLogInfo"),
        _switch("log-warning", "true", "Log warnings.", field="log.warning", in_config=False,
            inprocess="log_warn", c_function="SetLogWarn"),
        _switch("log-error", "true", "Log errors.", field="log.error", in_config=False,
            inprocess="log_error", c_function="SetLogError"),
        _text("log-format", "default",
            "Start of each line: LMMDD hh:mm:ss.ssssss, or YYYY-MM-DDThh:mm:ssZ L; or each line "
            "is a JSON object.", "default|ISO8601|json", field="log.format", inprocess="log_format",
            c_function="SetLogFormat"),
        _path("log-file", "", "File for the whole log, instead of the console.", field="log.file",
            inprocess="log_file", c_function="SetLogFile"),
        _path("access-log", "",
            "File for a line about each request over HTTP and gRPC; - is standard output. Not an "
            "option of Triton, as the three below.", field="access_log.file"),
        _text("access-log-format", "plain", "Form of these lines.", "plain|json",
            field="access_log.format"),
        _switch("access-log-health", "true", "Write lines for questions about health, too.",
            field="access_log.health"),
        _each("access-log-fields", "",
            "Fields at the end of these lines that say what a request cost, with commas between "
            "them: worker_s, server_s, queue_s, tensor_bytes_in, tensor_bytes_out, tokens_in, "
            "tokens_out. May be repeated.", "<name>,...", field="access_log.fields"),
    ),
    "Shadow": (
        _text("shadow-url", "",
            "Address of another server, such as grpc://host:8001, which gets requests as well; its "
            "answers are compared and counted. None of these five is an option of Triton.",
            "<address>", field="shadow.url"),
        _number("shadow-share", "1", "Share of the requests that it gets at most.",
            is_positive=True, field="shadow.share"),
        _each("shadow-models", "", "Model whose requests it gets; may be repeated. Default: all.",
            "<name>", field="shadow.models"),
        _number("shadow-rtol", f"{DEFAULT_RTOL:g}",
            "Floats of its answers may differ by this share of the value and count as equal.",
            field="shadow.rtol"),
        _number("shadow-atol", f"{DEFAULT_ATOL:g}", "And by this much besides.",
            field="shadow.atol"),
    ),
    "Model repository": (
        _path("model-repository", "",
            "Folder with models, or s3://, gs:// or as:// address of one. Required; may be "
            "repeated. A model that is in two repositories is not served, unless "
            "--model-namespacing is true.", is_repeatable=True, inprocess="model_repository",
            c_function="SetModelRepositoryPath"),
        _path("model-store", "", "The same as --model-repository.", is_repeatable=True,
            becomes=("model-repository", ""), in_config=False),
        _switch("exit-on-error", "true", "End the server if a model cannot be loaded at start.",
            field="exit_on_error", inprocess="exit_on_error", c_function="SetExitOnError"),
        _switch("strict-readiness", "true",
            "Report ready only while all models are; if false, as soon as it listens.",
            field="strict_readiness", inprocess="strict_readiness",
            c_function="SetStrictReadiness"),
        _flag("disable-auto-complete-config", "",
            "Do not complete configurations: each model needs a complete config.pbtxt.",
            in_config=False),
        _text("model-control-mode", "none",
            "none: load all models at start. poll: also follow changes of the repository. "
            "explicit: load the models of --load-model, and those that clients request.",
            "none|poll|explicit", field="repository.model_control_mode", in_config=False,
            inprocess="model_control_mode", c_function="SetModelControlMode"),
        _integer("repository-poll-secs", "15", "Seconds between two checks in mode poll.",
            in_config=False),
        _each("load-model", "",
            "Model to load at start in mode explicit; may be repeated. A single * means all.",
            "<model>", in_config=False, inprocess="startup_models", c_function="SetStartupModel"),
        _text("model-config-name", "", "Use configs/<name>.pbtxt of a model if it exists.",
            "<name>", in_config=False, c_function="SetModelConfigName"),
        _integer("model-load-thread-count", "4", "Number of models to load at the same time.",
            range=(1, MAX_INTEGER), field="repository.load_thread_count", in_config=False,
            inprocess="model_load_thread_count", c_function="SetModelLoadThreadCount"),
        _integer("model-load-retry-count", "0", "Number of further attempts if loading fails.",
            field="repository.load_retry_count", in_config=False,
            inprocess="model_load_retry_count", c_function="SetModelLoadRetryCount"),
        _number("model-load-timeout-secs", "0",
            "Maximum seconds for each attempt to load a model version; 0 means no limit. The "
            "parameter LOAD_TIMEOUT_SECS of a model takes precedence. Not an option of Triton.",
            field="repository.load_timeout_s", in_config=False),
        _switch("allow-repository-links", "false",
            "Allow models that are links out of the repositories. Not an option of Triton.",
            field="repository.allow_links", in_config=False),
        _switch("model-namespacing", "false",
            "Serve models of the same name from several repositories.",
            field="repository.namespacing", in_config=False, inprocess="model_namespacing",
            c_function="SetModelNamespacing"),
        _switch("require-signed-models", "false",
            "Load only models whose folder has a valid OpenSSF model signature, model.sig, by a "
            "signer of the options below; clients may then send no configurations. None of these "
            "is an option of Triton.", in_config=False),
        _path("model-signing-key", "", "PEM file with the public key of a signer. May be repeated.",
            is_repeatable=True, in_config=False),
        _path("model-signing-certificates", "",
            "PEM file with root certificates, whose certificates may sign. May be repeated.",
            is_repeatable=True, in_config=False),
        _text("model-signing-identity", "",
            "Identity that may sign with sigstore: an email address, or the address of a "
            "workflow.", "<identity>", in_config=False),
        _text("model-signing-issuer", "", "Address of the issuer of this identity.", "<address>",
            in_config=False),
        _path("model-signing-trust-root", "",
            "JSON file with the trusted root of sigstore; nothing is asked over the network.",
            in_config=False),
        _switch("enable-peer-access", "true", "Let GPUs access each other's memory.",
            has_effect=False, in_config=False, inprocess="enable_peer_access",
            c_function="SetEnablePeerAccess"),
    ),
    "HTTP": (
        _switch("allow-http", "true", "Serve HTTP.", field="http.allow"),
        _text("http-address", "0.0.0.0", "Address to listen on.", "<address>",
            field="http.address"),
        _integer("http-port", str(DEFAULT_HTTP_PORT), "Port to listen on; 0 takes a free one.",
            range=_PORTS, field="http.port"),
        _switch("reuse-http-port", "false", _REUSE, field="http.reuse_port", in_config=False),
        _pattern("http-header-forward-pattern", "",
            "Headers to pass on to models as request parameters.",
            field="http_header_forward_pattern"),
        _integer("http-max-input-size", "67108864", "Maximum size of a request body in bytes.",
            range=(-MAX_INTEGER - 1, MAX_INTEGER), config_default=str(2**31 - 1)),
        _number("http-idle-timeout-secs", "3600",
            "Seconds after which a connection without requests is closed; 0 means never. Not an "
            "option of Triton.", field="limits.http_idle_timeout_s", in_config=False),
        _integer("http-thread-count", "",
            "Number of processes, at most 8 and at most the number of cores, if "
            "--frontend-processes is not given."),
        _each("http-restricted-api", "",
            f"Require this header for these groups of requests. May be repeated. {_APIS}",
            "<group>[,<group>...]:<header>=<value>"),
    ),
    "Browsers": (
        _each("cors-allow-origins", "",
            "Origins whose pages may use this server from a browser (CORS), such as "
            "https://app.example.com, https://*.example.com or http://localhost:*, with commas "
            "between them; a single * means all. May be repeated. Default: none. None of these "
            "five is an option of Triton.", "<origin>,..."),
        _each("cors-allow-headers", "",
            "Headers that these pages may send, such as x-tenant or x-*, instead of those that "
            "clients of this server send. May be repeated.", "<name>,..."),
        _switch("cors-allow-credentials", "false",
            "Let these pages send cookies and HTTP authentication of their users; not with *.",
            field="browsers.allow_credentials"),
        _integer("cors-max-age-secs", "600",
            "Seconds for which a browser need not ask again what a page may send.",
            field="browsers.max_age_s"),
        _each("allowed-hosts", "",
            "Names that clients may use for this server, such as models.example.com or "
            "*.example.com, beyond localhost, the machine's name and IP addresses; others are "
            "refused. * allows all. May be repeated. Default: a server that listens on its own "
            "machine allows no others, and one without tokens refuses browsers that use others.",
            "<name>,..."),
    ),
    "Limits": (
        _integer("max-connections-per-address", "0",
            "Maximum number of connections that clients of one address may have to each port, for "
            "IPv6 of one /64 network; 0 means no limit. Neither of these is an option of Triton.",
            field="limits.max_connections_per_address"),
        _integer("max-request-memory", "",
            "Bytes of memory for the bodies of all requests that are being received or served; "
            "beyond them, large requests are refused for a while. 0 means no limit. Default: half "
            "of the memory that the machine or its container has.",
            field="limits.max_request_memory_bytes"),
    ),
    "gRPC": (
        _switch("allow-grpc", "true", "Serve gRPC.", field="grpc.allow"),
        _text("grpc-address", "0.0.0.0", "Address to listen on.", "<address>",
            field="grpc.address"),
        _integer("grpc-port", str(DEFAULT_GRPC_PORT), "Port to listen on; 0 takes a free one.",
            range=_PORTS, field="grpc.port"),
        _switch("reuse-grpc-port", "false", _REUSE, field="grpc.reuse_port", in_config=False),
        _pattern("grpc-header-forward-pattern", "",
            "Metadata to pass on to models as request parameters.",
            field="grpc_header_forward_pattern"),
        _integer("grpc-infer-thread-count", "2", "Number of threads that serve gRPC.",
            has_effect=False, range=(2, 128), in_config=False),
        _integer("grpc-infer-allocation-pool-size", "8", "Number of requests kept for reuse.",
            has_effect=False, range=_FROM_MINUS_1),
        _integer("grpc-max-response-pool-size", "2147483647",
            "Maximum number of responses of a stream that wait for the client.", has_effect=False,
            range=(1, 2**31 - 1), in_config=False),
        _switch("grpc-use-ssl", "false", "Encrypt gRPC; needs a certificate and a key."),
        _switch("grpc-use-ssl-mutual", "false", "Require a certificate from clients too."),
        _path("grpc-server-cert", "", "PEM file with the server's certificate."),
        _path("grpc-server-key", "", "PEM file with the server's key."),
        _path("grpc-root-cert", "", "PEM file with the root certificates for client certificates."),
        _text("grpc-infer-response-compression-level", "none", "Compression level of responses.",
            "none|low|medium|high", field="grpc_response_compression"),
        _integer("grpc-keepalive-time", "7200000", "Milliseconds between keepalive pings.",
            field="grpc_keepalive.time_ms"),
        _integer("grpc-keepalive-timeout", "20000", "Milliseconds to wait for a ping reply.",
            field="grpc_keepalive.timeout_ms"),
        _switch("grpc-keepalive-permit-without-calls", "false", "Ping even if no call is open.",
            field="grpc_keepalive.permit_without_calls"),
        _integer("grpc-http2-max-pings-without-data", "2",
            "Maximum pings without data; 0 means no limit.",
            field="grpc_keepalive.max_pings_without_data"),
        _integer("grpc-http2-min-recv-ping-interval-without-data", "300000",
            "Minimum milliseconds between two pings of a client that sends no data.",
            field="grpc_keepalive.min_recv_ping_interval_without_data_ms"),
        _integer("grpc-http2-max-ping-strikes", "2",
            "Number of early pings before a client is disconnected; 0 means no limit.",
            field="grpc_keepalive.max_ping_strikes"),
        _integer("grpc-max-connection-age", "", "Maximum age of a connection in milliseconds.",
            field="grpc_keepalive.max_connection_age_ms", in_config=False),
        _integer("grpc-max-connection-age-grace", "", "Milliseconds for open calls after that.",
            field="grpc_keepalive.max_connection_age_grace_ms", in_config=False),
        _each("grpc-restricted-protocol", "",
            "Require the metadata triton-grpc-protocol-<key> for these groups of calls. May be "
            "repeated. The groups are those of --http-restricted-api.",
            "<group>[,<group>...]:<key>=<value>"),
    ),
    "Access": (
        _flag("secure", "",
            "Start only if nothing is open to strangers: ports that other machines reach need "
            "--tls-cert, requests need a principal of --auth-config, and models a signature. What "
            "nobody chose is safe: --sandbox=strict, no shared memory of clients, 256 connections "
            "of one address, --hide-exceptions. Not an option of Triton."),
        _switch("hide-exceptions", "false",
            "Answer requests for which a model raised an unexpected exception with a number, under "
            "which the log has the exception, and say to nobody but those who may load models why "
            "a model is not ready. Not an option of Triton.", field="hide_exceptions"),
        _path("auth-config", "",
            "TOML or JSON file that says who may do what: keys, issuers of tokens and client "
            "certificates, and the rights of each. It is read again when it changes. Not an "
            "option of Triton.", field="access.config"),
        _each("trusted-proxies", "",
            "Addresses and networks of proxies, such as 10.0.0.0/8 or 127.0.0.1, with commas "
            "between them: what they say in X-Forwarded-For or Forwarded is the address of a "
            "client, in the access log and where wrong credentials are counted. Others are not "
            "believed. May be repeated. Default: none. Not an option of Triton.",
            "<address>,..."),
    ),
    "TLS": (
        _path("tls-cert", "",
            "PEM file with the server's certificate, and those of the authorities between it and "
            "a root. Encrypts all ports: HTTP, gRPC, metrics and the page, SageMaker and Vertex "
            "AI. Files that change are read again, also on SIGHUP. For gRPC, --grpc-use-ssl and "
            "the files of gRPC take precedence. None of these is an option of Triton."),
        _path("tls-key", "", "PEM file with its private key, without a passphrase."),
        _path("tls-client-ca", "",
            "PEM file with the certificates of authorities. Clients need a certificate of one of "
            "them."),
        _text("tls-client-auth", "",
            "Whether clients need a certificate, or may also have none. Default: required, if "
            "--tls-client-ca is given.", "required|optional"),
        _text("tls-min-version", "1.2", "The oldest version of TLS that clients may use.",
            "1.2|1.3"),
    ),
    "Metrics": (
        _switch("allow-metrics", "true", "Serve metrics.", field="metrics.allow",
            inprocess="metrics", c_function="SetMetrics"),
        _switch("allow-cpu-metrics", "true", "Include metrics of the CPU and memory.",
            field="metrics_options.cpu", inprocess="cpu_metrics", c_function="SetCpuMetrics"),
        _switch("allow-gpu-metrics", "true", "Include metrics of GPUs.",
            field="metrics_options.gpu", inprocess="gpu_metrics", c_function="SetGpuMetrics"),
        _text("metrics-address", "", "Address to listen on; default: that of HTTP.", "<address>",
            field="metrics.address"),
        _integer("metrics-port", str(DEFAULT_METRICS_PORT),
            "Port to listen on; 0 takes a free one.", range=_PORTS, field="metrics.port"),
        _number("metrics-interval-ms", "2000",
            "Milliseconds between two measurements of CPU and GPU.", is_positive=True,
            field="metrics_options.interval_ms", inprocess="metrics_interval",
            c_function="SetMetricsInterval"),
        _each("metrics-config", "",
            "counter_latencies, summary_latencies, histogram_latencies, latency_histograms (true "
            "or false), summary_quantiles, latency_buckets, batch_size_buckets. May be repeated.",
            "<setting>=<value>", inprocess="metrics_configuration", c_function="SetMetricsConfig"),
    ),
    "Page": (
        _text("landing-page", "browsers",
            "Who gets a page with the models, their descriptions and a form at / of the HTTP "
            "port: nobody, or browsers; with all, other clients get a short JSON document with "
            "the addresses there, where Triton has nothing.", "none|browsers|all",
            field="landing_page", config_default="all"),
        _switch("allow-page", "true", "Serve the page on the metrics port.", field="page.allow"),
        _text("page-token", "",
            "Who has it may read the log, send requests and load models on the page. The "
            "variable PYTRITON_PAGE_TOKEN does the same, unseen by other users of the machine. "
            "Otherwise it is random, and 'pytriton page' tells it to the user of the server.",
            "<token>"),
    ),
    "Tracing": (
        _each("trace-config", "",
            "Settings mode (triton or opentelemetry), level, rate and count, and those of a "
            "mode, such as triton,file=<path> and triton,log-frequency=<count>. May be repeated.",
            "[<mode>,]<setting>=<value>"),
    ),
    "Backends": (
        _path("backend-directory", "/opt/tritonserver/backends",
            "Folder with a folder for each backend: its library, or its model.py.",
            field="repository.backend_directory", inprocess="backend_directory",
            c_function="SetBackendDirectory"),
        _each("backend-config", "",
            "Setting of one backend, or of all: default-max-batch-size (4). May be repeated.",
            "[<backend>,]<setting>=<value>", inprocess="backend_configuration",
            c_function="SetBackendConfig"),
        _path("repoagent-directory", "/opt/tritonserver/repoagents",
            "Folder with repository agents in C or C++. The agents checksum and signature need "
            "none.",
            field="repository.agent_directory", in_config=False, inprocess="repo_agent_directory",
            c_function="SetRepoAgentDirectory"),
    ),
    "Ray cluster": (
        _text("executor", "local",
            "ray: run models as actors of a Ray cluster, with instance_group.count as the number "
            "of actors; local: on this machine. The parameter EXECUTOR of a model takes "
            "precedence. This and the following are not options of Triton.", "local|ray",
            field="repository.executor", inprocess="executor"),
        _text("ray-address", "",
            "Address of the cluster, <host>:<port>. Without it, the variable RAY_ADDRESS, or the "
            "cluster that this machine is part of.", "<address>", inprocess="ray_address"),
        _text("ray-instance-address", "",
            "Name or IP address of this machine for the actors, which connect to it. Without it, "
            "the one that Ray uses.", "<host>", inprocess="ray_instance_address"),
        _integer("ray-instance-port", "0",
            "Port for the connections of actors; 0 means a free one.", range=_PORTS,
            field="ray.instance_port", inprocess="ray_instance_port"),
        _path("ray-working-dir", "",
            "Folder with modules that models import; Ray copies it to all nodes. Files of models "
            "are not taken from there.", inprocess="ray_working_dir"),
        _number("ray-start-timeout", f"{DEFAULT_START_TIMEOUT_S:g}",
            "Maximum seconds until an actor runs, the wait for free resources included. The "
            "parameter RAY_START_TIMEOUT_S of a model takes precedence.", is_positive=True,
            field="ray.start_timeout_s", inprocess="ray_start_timeout"),
    ),
    "Sandbox": (
        _text("sandbox", "off",
            "off, on or strict. on: each process that runs a model of a repository sees only its "
            "own files, has no network, and has limits; strict: as on, and the server does not "
            "start where the machine lacks a part of that. Grants for all models follow after "
            "commas: network, "
            "unix, control, read=<path>, write=<path>, device=<path>, env=<name>, memory=<size>, "
            "processes=<count>, files=<count>, scratch=<size>. The parameter SANDBOX of a model "
            "has the same form. The environment variable PYTRITON_SANDBOX sets another default. "
            "This and the following are not options of Triton.",
            "<mode>[,<grant>...]"),
        _each("sandbox-allow", "",
            "What models may ask for with their parameter SANDBOX, beyond --sandbox: a grant, a "
            "higher limit, or off. May be repeated.", "<grant>[,<grant>...]"),
    ),
    "Response cache": (
        _each("cache-config", "",
            "local,size=<bytes> caches responses of models whose configuration allows it.",
            "<cache>,<setting>=<value>", inprocess="cache_config", c_function="SetCacheConfig"),
        _path("cache-directory", "/opt/tritonserver/caches", "Folder with caches in C or C++.",
            has_effect=False, inprocess="cache_directory", c_function="SetCacheDirectory"),
    ),
    "Rate limiter": (
        _text("rate-limit", "off",
            "execution_count: an instance runs when the resources that it needs are free.",
            "off|execution_count", inprocess="rate_limiter_mode", c_function="SetRateLimiterMode"),
        _each("rate-limit-resource", "",
            "Available amount of a resource, on one device or on each. May be repeated.",
            "<name>:<count>[:<device>]", inprocess="rate_limiter_resources",
            c_function="AddRateLimiterResource"),
    ),
    "Memory and devices": (
        _switch("allow-client-shm", "false", "Let clients register shared memory.",
            field="allow_client_shared_memory", config_default="true"),
        _integer("pinned-memory-pool-byte-size", "268435456",
            "Size of the pool that metrics report; this server allocates none.",
            field="metrics_options.pinned_memory_pool_bytes", in_config=False,
            inprocess="pinned_memory_pool_size", c_function="SetPinnedMemoryPoolByteSize"),
        _each("cuda-memory-pool-byte-size", "", "Size of a GPU's memory pool.", "<device>:<bytes>",
            has_effect=False, in_config=False, inprocess="cuda_memory_pool_sizes",
            c_function="SetCudaMemoryPoolByteSize"),
        _each("cuda-virtual-address-size", "", "Maximum size of a growable state.",
            "<device>:<bytes>", has_effect=False, in_config=False,
            c_function="SetCudaVirtualAddressSize"),
        _number("min-supported-compute-capability", "7.5",
            "Minimum compute capability of a GPU; passed on to backends.", is_positive=True,
            field="repository.min_compute_capability", in_config=False,
            inprocess="min_supported_compute_capability",
            c_function="SetMinSupportedComputeCapability"),
        _integer("buffer-manager-thread-count", "0", "Number of copy threads.", has_effect=False,
            range=_FROM_MINUS_1, inprocess="buffer_manager_thread_count",
            c_function="SetBufferManagerThreadCount"),
        _each("host-policy", "", "CPU cores (cpu-cores) or memory node (numa-node) for instances.",
            "<policy name>,<setting>=<value>", has_effect=False, in_config=False,
            inprocess="host_policies", c_function="SetHostPolicy"),
        _each("model-load-gpu-limit", "",
            "Share of a GPU's memory in use above which no model is loaded.", "<device>:<fraction>",
            has_effect=False, in_config=False, inprocess="model_load_device_limits",
            c_function="SetModelLoadDeviceLimit"),
    ),
    "SageMaker and Vertex AI": (
        _switch("allow-sagemaker", "false", "Serve SageMaker requests.", field="sagemaker.allow"),
        _integer("sagemaker-port", "8080", "Port for SageMaker requests.", range=_PORTS,
            field="sagemaker.port"),
        _text("sagemaker-safe-port-range", "",
            "Range that the ports of HTTP and gRPC must be in if SageMaker requests are served.",
            "<first>-<last>"),
        _integer("sagemaker-thread-count", "8", "Number of threads for SageMaker requests.",
            has_effect=False, range=_FROM_MINUS_1),
        _switch("allow-vertex-ai", "",
            "Serve Vertex AI requests. Default: true if AIP_MODE is PREDICTION; HTTP and gRPC "
            "are then served only if --allow-http and --allow-grpc say so.",
            field="vertex_ai.allow"),
        _integer("vertex-ai-port", "",
            "Port for Vertex AI requests. Default: AIP_HTTP_PORT if it is set, else 8080.",
            range=_PORTS, field="vertex_ai.port"),
        _integer("vertex-ai-thread-count", "8", "Number of threads for Vertex AI requests.",
            has_effect=False, range=_FROM_MINUS_1),
        _text("vertex-ai-default-model", "",
            "Model for requests that do not name one; not needed if there is only one.", "<model>"),
    ),
    "Deprecated": (
        _switch("strict-model-config", "", "true means the same as --disable-auto-complete-config.",
            instead="--disable-auto-complete-config", in_config=False,
            inprocess="strict_model_config", c_function="SetStrictModelConfig"),
        _integer("response-cache-byte-size", "", "Size of the local response cache.",
            instead="--cache-config=local,size=...", in_config=False,
            c_function="SetResponseCacheByteSize"),
        _path("trace-file", "", "File for traces.", instead="--trace-config=triton,file=...",
            becomes=("trace-config", "triton,file="), in_config=False),
        _text("trace-level", "", "Level of tracing.", instead="--trace-config=level=...",
            becomes=("trace-config", "level="), in_config=False),
        _integer("trace-rate", "", "One in this many requests is traced.", range=_FROM_MINUS_1,
            instead="--trace-config=rate=...", becomes=("trace-config", "rate="), in_config=False),
        _integer("trace-count", "", "Maximum number of traced requests.", range=_FROM_MINUS_1,
            instead="--trace-config=count=...", becomes=("trace-config", "count="),
            in_config=False),
        _integer("trace-log-frequency", "", "Traces per file.", range=_FROM_MINUS_1,
            instead="--trace-config=triton,log-frequency=...",
            becomes=("trace-config", "triton,log-frequency="), in_config=False),
    ),
}
# fmt: on

BY_NAME: Mapping[str, ServerSetting] = {
    setting.name: setting for group in SETTINGS.values() for setting in group
}
BY_KEY: Mapping[str, ServerSetting] = {setting.key: setting for setting in BY_NAME.values()}


class RayOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of a Ray cluster; the launcher process of the cluster gets them, too.

    Attributes:
        address: The cluster's address, as Ray takes it; "": that of the variable RAY_ADDRESS, or
            the cluster of this machine.
        instance_address: The address of the server as actors reach it; "": that of this machine, as
            Ray knows it.
        instance_port: The port of the server that actors connect to; 0: a free one.
        working_dir: A folder with modules, which Ray copies to its nodes; "": none.
        start_timeout_s: How long the start of an instance may take, unless its model says it.
    """

    address: str = ""
    instance_address: str = ""
    instance_port: int = 0
    working_dir: str = ""
    start_timeout_s: float = DEFAULT_START_TIMEOUT_S
