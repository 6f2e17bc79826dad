# SPDX-License-Identifier: Apache-2.0
"""The options of `tritonserver` about its process, its ports and its log."""

from __future__ import annotations

from collections.abc import Mapping

from pytriton.serving.server.command.option import Option, Takes, each, integer, path, switch, text

_APIS = (
    "Known groups: health, metadata, inference, shared-memory, model-config, model-repository, "
    "statistics, trace, logging."
)
_REUSE = "Let servers with this option share the port; the system distributes clients to them."

SERVING_OPTIONS: Mapping[str, tuple[Option, ...]] = {
    "Server": (
        Option("help", Takes.NOTHING, "", "Show this help, like -h."),
        Option(
            "version",
            Takes.NOTHING,
            "",
            "Show the version of this server and of the Triton version that it is compatible with. "
            "Not an option of Triton.",
        ),
        text("id", "triton", "Name of the server in its metadata."),
        integer("exit-timeout-secs", "30", "Seconds to wait for open requests on exit."),
        Option(
            "exit-grace-secs",
            Takes.NUMBER,
            "0",
            "Seconds that the server continues to serve after a signal while it reports that it is "
            "not ready, so that load balancers notice first. Not an option of Triton.",
        ),
        integer(
            "frontend-processes",
            "",
            "Number of processes that serve HTTP and gRPC, at most 64; 0 means in the server's own "
            "process. Default: 0 for up to four cores, else a quarter of the cores, from 2 to 8. "
            "The environment variable PYTRITON_FRONTEND_PROCESSES sets another default. Not an "
            "option of Triton.",
        ),
    ),
    "Logging": (
        integer("log-verbose", "0", "Level of verbose logging; 0 turns it off."),
        switch("log-info", "true", "Log information messages."),
        switch("log-warning", "true", "Log warnings."),
        switch("log-error", "true", "Log errors."),
        text(
            "log-format",
            "default",
            "Start of each line: LMMDD hh:mm:ss.ssssss, or YYYY-MM-DDThh:mm:ssZ L; or each line is "
            "a JSON object.",
            "default|ISO8601|json",
        ),
        path("log-file", "", "File for the whole log, instead of the console."),
        path(
            "access-log",
            "",
            "File for a line about each request over HTTP and gRPC; - is standard output. Not an "
            "option of Triton, as the two below.",
        ),
        text("access-log-format", "plain", "Form of these lines.", "plain|json"),
        switch("access-log-health", "true", "Write lines for questions about health, too."),
    ),
    "HTTP": (
        switch("allow-http", "true", "Serve HTTP."),
        text("http-address", "0.0.0.0", "Address to listen on.", "<address>"),
        integer("http-port", "8000", "Port to listen on; 0 takes a free one."),
        switch("reuse-http-port", "false", _REUSE),
        Option(
            "http-header-forward-pattern",
            Takes.PATTERN,
            "",
            "Headers to pass on to models as request parameters.",
        ),
        integer("http-max-input-size", "67108864", "Maximum size of a request body in bytes."),
        Option(
            "http-idle-timeout-secs",
            Takes.NUMBER,
            "3600",
            "Seconds after which a connection without requests is closed; 0 means never. Not an "
            "option of Triton.",
        ),
        integer(
            "http-thread-count",
            "",
            "Number of processes, at most 8 and at most the number of cores, if "
            "--frontend-processes is not given.",
        ),
        each(
            "http-restricted-api",
            "<group>[,<group>...]:<header>=<value>",
            f"Require this header for these groups of requests. May be repeated. {_APIS}",
        ),
    ),
    "gRPC": (
        switch("allow-grpc", "true", "Serve gRPC."),
        text("grpc-address", "0.0.0.0", "Address to listen on.", "<address>"),
        integer("grpc-port", "8001", "Port to listen on; 0 takes a free one."),
        switch("reuse-grpc-port", "false", _REUSE),
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
        integer(
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
        switch("grpc-use-ssl", "false", "Encrypt gRPC; needs a certificate and a key."),
        switch("grpc-use-ssl-mutual", "false", "Require a certificate from clients too."),
        path("grpc-server-cert", "", "PEM file with the server's certificate."),
        path("grpc-server-key", "", "PEM file with the server's key."),
        path("grpc-root-cert", "", "PEM file with the root certificates for client certificates."),
        text(
            "grpc-infer-response-compression-level",
            "none",
            "Compression level of responses.",
            "none|low|medium|high",
        ),
        integer("grpc-keepalive-time", "7200000", "Milliseconds between keepalive pings."),
        integer("grpc-keepalive-timeout", "20000", "Milliseconds to wait for a ping reply."),
        switch("grpc-keepalive-permit-without-calls", "false", "Ping even if no call is open."),
        integer(
            "grpc-http2-max-pings-without-data",
            "2",
            "Maximum pings without data; 0 means no limit.",
        ),
        integer(
            "grpc-http2-min-recv-ping-interval-without-data",
            "300000",
            "Minimum milliseconds between two pings of a client that sends no data.",
        ),
        integer(
            "grpc-http2-max-ping-strikes",
            "2",
            "Number of early pings before a client is disconnected; 0 means no limit.",
        ),
        integer("grpc-max-connection-age", "", "Maximum age of a connection in milliseconds."),
        integer("grpc-max-connection-age-grace", "", "Milliseconds for open calls after that."),
        each(
            "grpc-restricted-protocol",
            "<group>[,<group>...]:<key>=<value>",
            "Require the metadata triton-grpc-protocol-<key> for these groups of calls. "
            "May be repeated. The groups are those of --http-restricted-api.",
        ),
    ),
    "SageMaker and Vertex AI": (
        switch("allow-sagemaker", "false", "Serve SageMaker requests."),
        integer("sagemaker-port", "8080", "Port for SageMaker requests."),
        text(
            "sagemaker-safe-port-range",
            "",
            "Range that the ports of HTTP and gRPC must be in if SageMaker requests are served.",
            "<first>-<last>",
        ),
        integer(
            "sagemaker-thread-count",
            "8",
            "Number of threads for SageMaker requests.",
            has_effect=False,
        ),
        switch(
            "allow-vertex-ai",
            "",
            "Serve Vertex AI requests. Default: true if AIP_MODE is PREDICTION; HTTP and gRPC are "
            "then served only if --allow-http and --allow-grpc say so.",
        ),
        integer(
            "vertex-ai-port",
            "",
            "Port for Vertex AI requests. Default: AIP_HTTP_PORT if it is set, else 8080.",
        ),
        integer(
            "vertex-ai-thread-count",
            "8",
            "Number of threads for Vertex AI requests.",
            has_effect=False,
        ),
        text(
            "vertex-ai-default-model",
            "",
            "Model for requests that do not name one; not needed if there is only one.",
            "<model>",
        ),
    ),
}
