# SPDX-License-Identifier: Apache-2.0
"""All options of the `tritonserver` command; parser, help and manual read this table.

The file is long because there are many options; it contains nothing else.
"""

from __future__ import annotations

from collections.abc import Mapping

from pytriton.server.command.option import Option, Takes


def _switch(name: str, default: str, text: str, *, has_effect: bool = True) -> Option:
    return Option(name, Takes.BOOLEAN, default, text, has_effect=has_effect)


def _integer(name: str, default: str, text: str, *, has_effect: bool = True) -> Option:
    return Option(name, Takes.INTEGER, default, text, has_effect=has_effect)


def _text(name: str, default: str, text: str, form: str = "", *, has_effect: bool = True) -> Option:
    return Option(name, Takes.TEXT, default, text, form, has_effect=has_effect)


def _path(name: str, default: str, text: str, *, has_effect: bool = True) -> Option:
    return Option(name, Takes.PATH, default, text, has_effect=has_effect)


def _each(name: str, form: str, text: str, *, has_effect: bool = True) -> Option:
    return Option(name, Takes.TEXT, "", text, form, is_repeatable=True, has_effect=has_effect)


def _old_trace(name: str, takes: Takes, prefix: str, text: str) -> Option:
    instead = f"--trace-config={prefix}..."
    return Option(name, takes, "", text, instead=instead, becomes=("trace-config", prefix))


_APIS = (
    "Known groups: health, metadata, inference, shared-memory, model-config, model-repository, "
    "statistics, trace, logging."
)
_REUSE = "Let servers with this option share the port; the system distributes clients to them."

OPTIONS: Mapping[str, tuple[Option, ...]] = {
    "Server": (
        Option("help", Takes.NOTHING, "", "Show this help, like -h."),
        Option(
            "version",
            Takes.NOTHING,
            "",
            "Show the version of this server and of the Triton version that it is compatible with. "
            "Not an option of Triton.",
        ),
        _text("id", "triton", "Name of the server in its metadata."),
        _integer("exit-timeout-secs", "30", "Seconds to wait for open requests on exit."),
        Option(
            "exit-grace-secs",
            Takes.NUMBER,
            "0",
            "Seconds that the server continues to serve after a signal while it reports that it is "
            "not ready, so that load balancers notice first. Not an option of Triton.",
        ),
        _integer(
            "frontend-processes",
            "",
            "Number of processes that serve HTTP and gRPC, at most 64; 0 means in the server's own "
            "process. Default: 0 for up to four cores, else a quarter of the cores, from 2 to 8. "
            "The environment variable PYTRITON_FRONTEND_PROCESSES sets another default. Not an "
            "option of Triton.",
        ),
    ),
    "Logging": (
        _integer("log-verbose", "0", "Level of verbose logging; 0 turns it off."),
        _switch("log-info", "true", "Log information messages."),
        _switch("log-warning", "true", "Log warnings."),
        _switch("log-error", "true", "Log errors."),
        _text(
            "log-format",
            "default",
            "Start of each line: LMMDD hh:mm:ss.ssssss, or YYYY-MM-DDThh:mm:ssZ L.",
            "default|ISO8601",
        ),
        _path("log-file", "", "File for the whole log, instead of the console."),
    ),
    "Model repository": (
        Option(
            "model-repository",
            Takes.PATH,
            "",
            "Folder with models. Required; may be repeated. A model that is in two repositories is "
            "not served.",
            is_repeatable=True,
        ),
        Option(
            "model-store",
            Takes.PATH,
            "",
            "The same as --model-repository.",
            is_repeatable=True,
            becomes=("model-repository", ""),
        ),
        _switch("exit-on-error", "true", "End the server if a model cannot be loaded at start."),
        _switch(
            "strict-readiness",
            "true",
            "Report ready only while all models are; if false, as soon as it listens.",
        ),
        Option(
            "disable-auto-complete-config",
            Takes.NOTHING,
            "",
            "Do not complete configurations: each model needs a complete config.pbtxt.",
        ),
        _text(
            "model-control-mode",
            "none",
            "none: load all models at start. poll: also follow changes of the repository. "
            "explicit: load the models of --load-model, and those that clients request.",
            "none|poll|explicit",
        ),
        _integer("repository-poll-secs", "15", "Seconds between two checks in mode poll."),
        _each(
            "load-model",
            "<model>",
            "Model to load at start in mode explicit; may be repeated. A single * means all.",
        ),
        _text(
            "model-config-name", "", "Use configs/<name>.pbtxt of a model if it exists.", "<name>"
        ),
        _integer("model-load-thread-count", "4", "Number of models to load at the same time."),
        _integer("model-load-retry-count", "0", "Number of further attempts if loading fails."),
        Option(
            "model-load-timeout-secs",
            Takes.NUMBER,
            "0",
            "Maximum seconds for each attempt to load a model version; 0 means no limit. The "
            "parameter LOAD_TIMEOUT_SECS of a model takes precedence. Not an option of Triton.",
        ),
        _switch(
            "allow-repository-links",
            "false",
            "Allow models that are links out of the repositories. Not an option of Triton.",
        ),
        _switch(
            "model-namespacing",
            "false",
            "Serve models of the same name from several repositories.",
            has_effect=False,
        ),
        _switch(
            "enable-peer-access", "true", "Let GPUs access each other's memory.", has_effect=False
        ),
    ),
    "HTTP": (
        _switch("allow-http", "true", "Serve HTTP."),
        _text("http-address", "0.0.0.0", "Address to listen on.", "<address>"),
        _integer("http-port", "8000", "Port to listen on; 0 takes a free one."),
        _switch("reuse-http-port", "false", _REUSE),
        Option(
            "http-header-forward-pattern",
            Takes.PATTERN,
            "",
            "Headers to pass on to models as request parameters.",
        ),
        _integer("http-max-input-size", "67108864", "Maximum size of a request body in bytes."),
        Option(
            "http-idle-timeout-secs",
            Takes.NUMBER,
            "3600",
            "Seconds after which a connection without requests is closed; 0 means never. Not an "
            "option of Triton.",
        ),
        _integer(
            "http-thread-count",
            "",
            "Number of processes, at most 8 and at most the number of cores, if "
            "--frontend-processes is not given.",
        ),
        _each(
            "http-restricted-api",
            "<group>[,<group>...]:<header>=<value>",
            f"Require this header for these groups of requests. May be repeated. {_APIS}",
        ),
    ),
    "gRPC": (
        _switch("allow-grpc", "true", "Serve gRPC."),
        _text("grpc-address", "0.0.0.0", "Address to listen on.", "<address>"),
        _integer("grpc-port", "8001", "Port to listen on; 0 takes a free one."),
        _switch("reuse-grpc-port", "false", _REUSE),
        Option(
            "grpc-header-forward-pattern",
            Takes.PATTERN,
            "",
            "Metadata to pass on to models as request parameters.",
        ),
        Option(
            "grpc-infer-thread-count",
            Takes.INTEGER,
            "2",
            "Number of threads that serve gRPC.",
            has_effect=False,
            range=(2, 128),
        ),
        _integer(
            "grpc-infer-allocation-pool-size",
            "8",
            "Number of requests kept for reuse.",
            has_effect=False,
        ),
        Option(
            "grpc-max-response-pool-size",
            Takes.INTEGER,
            "2147483647",
            "Maximum number of responses of a stream that wait for the client.",
            has_effect=False,
            range=(1, 2**31 - 1),
        ),
        _switch("grpc-use-ssl", "false", "Encrypt gRPC; needs a certificate and a key."),
        _switch("grpc-use-ssl-mutual", "false", "Require a certificate from clients too."),
        _path("grpc-server-cert", "", "PEM file with the server's certificate."),
        _path("grpc-server-key", "", "PEM file with the server's key."),
        _path("grpc-root-cert", "", "PEM file with the root certificates for client certificates."),
        _text(
            "grpc-infer-response-compression-level",
            "none",
            "Compression level of responses.",
            "none|low|medium|high",
        ),
        _integer("grpc-keepalive-time", "7200000", "Milliseconds between keepalive pings."),
        _integer("grpc-keepalive-timeout", "20000", "Milliseconds to wait for a ping reply."),
        _switch("grpc-keepalive-permit-without-calls", "false", "Ping even if no call is open."),
        _integer(
            "grpc-http2-max-pings-without-data",
            "2",
            "Maximum pings without data; 0 means no limit.",
        ),
        _integer(
            "grpc-http2-min-recv-ping-interval-without-data",
            "300000",
            "Minimum milliseconds between two pings of a client that sends no data.",
        ),
        _integer(
            "grpc-http2-max-ping-strikes",
            "2",
            "Number of early pings before a client is disconnected; 0 means no limit.",
        ),
        _integer("grpc-max-connection-age", "", "Maximum age of a connection in milliseconds."),
        _integer("grpc-max-connection-age-grace", "", "Milliseconds for open calls after that."),
        _each(
            "grpc-restricted-protocol",
            "<group>[,<group>...]:<key>=<value>",
            "Require the metadata triton-grpc-protocol-<key> for these groups of calls. "
            "May be repeated. The groups are those of --http-restricted-api.",
        ),
    ),
    "Metrics": (
        _switch("allow-metrics", "true", "Serve metrics."),
        _switch("allow-cpu-metrics", "true", "Include metrics of the CPU and memory."),
        _switch("allow-gpu-metrics", "true", "Include metrics of GPUs."),
        _text("metrics-address", "", "Address to listen on; default: that of HTTP.", "<address>"),
        _integer("metrics-port", "8002", "Port to listen on; 0 takes a free one."),
        Option(
            "metrics-interval-ms",
            Takes.NUMBER,
            "2000",
            "Milliseconds between two measurements of CPU and GPU.",
        ),
        _each(
            "metrics-config",
            "<setting>=<value>",
            "counter_latencies=false omits latencies. May be repeated.",
        ),
    ),
    "Tracing": (
        _each(
            "trace-config",
            "[<mode>,]<setting>=<value>",
            "Settings mode, level, rate and count, and the settings of a mode. May be repeated. "
            "Only mode=opentelemetry creates traces.",
        ),
    ),
    "Backends": (
        _path(
            "backend-directory", "/opt/tritonserver/backends", "Folder with backends in C or C++."
        ),
        _each(
            "backend-config",
            "[<backend>,]<setting>=<value>",
            "Setting of one backend, or of all: default-max-batch-size (4). May be repeated.",
        ),
        _path(
            "repoagent-directory",
            "/opt/tritonserver/repoagents",
            "Folder with repository agents.",
            has_effect=False,
        ),
    ),
    "Response cache": (
        _each(
            "cache-config",
            "<cache>,<setting>=<value>",
            "local,size=<bytes> caches responses of models whose configuration allows it.",
        ),
        _path(
            "cache-directory",
            "/opt/tritonserver/caches",
            "Folder with caches in C or C++.",
            has_effect=False,
        ),
    ),
    "Rate limiter": (
        _text(
            "rate-limit",
            "off",
            "execution_count: an instance runs when the resources that it needs are free.",
            "off|execution_count",
        ),
        _each(
            "rate-limit-resource",
            "<name>:<count>[:<device>]",
            "Available amount of a resource, on one device or on each. May be repeated.",
        ),
    ),
    "Memory and devices": (
        _switch(
            "allow-client-shm", "false", "Let clients register shared memory.", has_effect=False
        ),
        _integer(
            "pinned-memory-pool-byte-size",
            "268435456",
            "Size of the pool that metrics report; this server allocates none.",
        ),
        _each(
            "cuda-memory-pool-byte-size",
            "<device>:<bytes>",
            "Size of a GPU's memory pool.",
            has_effect=False,
        ),
        _each(
            "cuda-virtual-address-size",
            "<device>:<bytes>",
            "Maximum size of a growable state.",
            has_effect=False,
        ),
        Option(
            "min-supported-compute-capability",
            Takes.NUMBER,
            "7.5",
            "Minimum compute capability of a GPU; passed on to backends.",
        ),
        _integer("buffer-manager-thread-count", "0", "Number of copy threads.", has_effect=False),
        _each(
            "host-policy",
            "<policy>,<setting>=<value>",
            "CPU cores or memory node for instances.",
            has_effect=False,
        ),
        _each(
            "model-load-gpu-limit",
            "<device>:<fraction>",
            "Share of a GPU's memory in use above which no model is loaded.",
            has_effect=False,
        ),
    ),
    "SageMaker and Vertex AI": (
        _switch("allow-sagemaker", "false", "Serve SageMaker requests.", has_effect=False),
        _integer("sagemaker-port", "8080", "Port for SageMaker requests.", has_effect=False),
        _text(
            "sagemaker-safe-port-range",
            "",
            "Range that the other ports must be in.",
            "<first>-<last>",
            has_effect=False,
        ),
        _integer(
            "sagemaker-thread-count",
            "8",
            "Number of threads for SageMaker requests.",
            has_effect=False,
        ),
        _switch("allow-vertex-ai", "false", "Serve Vertex AI requests.", has_effect=False),
        _integer("vertex-ai-port", "8080", "Port for Vertex AI requests.", has_effect=False),
        _integer(
            "vertex-ai-thread-count",
            "8",
            "Number of threads for Vertex AI requests.",
            has_effect=False,
        ),
        _text(
            "vertex-ai-default-model",
            "",
            "Model for requests that do not name one.",
            "<model>",
            has_effect=False,
        ),
    ),
    "Deprecated": (
        Option(
            "strict-model-config",
            Takes.BOOLEAN,
            "",
            "true means the same as --disable-auto-complete-config.",
            instead="--disable-auto-complete-config",
        ),
        Option(
            "response-cache-byte-size",
            Takes.INTEGER,
            "",
            "Size of the local response cache.",
            instead="--cache-config=local,size=...",
        ),
        _old_trace("trace-file", Takes.PATH, "triton,file=", "File for traces."),
        _old_trace("trace-level", Takes.TEXT, "level=", "Level of tracing."),
        _old_trace("trace-rate", Takes.INTEGER, "rate=", "One in this many requests is traced."),
        _old_trace("trace-count", Takes.INTEGER, "count=", "Maximum number of traced requests."),
        _old_trace(
            "trace-log-frequency", Takes.INTEGER, "triton,log-frequency=", "Traces per file."
        ),
    ),
}

BY_NAME: Mapping[str, Option] = {
    option.name: option for options in OPTIONS.values() for option in options
}
