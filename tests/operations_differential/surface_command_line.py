# SPDX-License-Identifier: Apache-2.0
"""The command: what it says of its options, and how it ends."""

from __future__ import annotations

import re
import socket
from pathlib import Path

from tests.operations_differential.command_line import ended, written
from tests.operations_differential.models import write_mirror, write_model
from tests.operations_differential.server import Observation, Server
from tests.operations_differential.surface import Case, Setup, Surface

NOWHERE = "--model-repository={folder}/nowhere"  # so that no command goes on for ever
PORTS = ("--http-port={http}", "--grpc-port={grpc}", "--metrics-port={metrics}")
UNREADY = re.compile(r"\| (\w+) +\| (\w+) +\| (.*?) *\|$")


def given(*options: str) -> Case:
    """A command with these options that ends at the latest because there are no models."""
    return Case(f"{' '.join(options)}", lambda server: ended(server, NOWHERE, *options))


def alone(*options: str) -> Case:
    """A command with these options only."""
    name = f"alone: {' '.join(options)}".strip()
    return Case(name, lambda server: ended(server, *options))


GIVEN = (
    given(),
    # Names
    given("--no-such-option"),
    given("--no-such-option=1"),
    given("--Http-port=1"),
    given("--http_port=1"),
    given("foo"),
    given("--", "foo"),
    given("--http-port"),
    given("--disable-auto-complete-config=1"),
    given("--model=1"),
    given("--http=1"),
    given("--log-f=default"),
    given("--log-verb=x"),
    given("--http-po=x"),
    given("--grpc-keepalive-t=1"),
    given("--rate=x"),
    given("--strict=false"),
    given("--allow-c=1"),
    # Values
    given("--http-port=x"),
    given("--http-port="),
    given("--http-port=1x"),
    given("--http-port=1.5"),
    given("--grpc-port=x"),
    given("--metrics-port=x"),
    given("--http-thread-count=x"),
    given("--exit-timeout-secs=x"),
    given("--repository-poll-secs=x"),
    given("--allow-http=x"),
    given("--allow-http="),
    given("--allow-grpc=2"),
    given("--allow-metrics=TRUE"),
    given("--allow-http=On"),
    given("--allow-http=yes"),
    given("--strict-readiness=maybe"),
    given("--exit-on-error=maybe"),
    given("--log-verbose=x"),
    given("--log-verbose=true"),
    given("--log-info=x"),
    given("--log-format=other"),
    given("--log-format=iso8601"),
    given("--log-file={folder}/no/such/folder/log"),
    given("--model-control-mode=other"),
    given("--model-control-mode=EXPLICIT"),
    given("--load-model=m"),
    given("--model-control-mode=poll", "--load-model=m"),
    given("--model-control-mode=explicit", "--load-model=*", "--load-model=m"),
    given("--rate-limit=other"),
    given("--rate-limit-resource=R"),
    given("--rate-limit-resource=R:x"),
    given("--rate-limit-resource=R:1:x"),
    given("--backend-config=x"),
    given("--backend-config=python"),
    given("--backend-config=python,x"),
    given("--cache-config=x"),
    given("--cache-config=local"),
    given("--cache-config=local,size"),
    given("--metrics-config=x"),
    given("--metrics-config=,x"),
    given("--trace-config=x"),
    given("--trace-config=rate=x"),
    given("--trace-config=level=x"),
    given("--trace-config=mode=x"),
    given("--trace-config=triton,file"),
    given("--host-policy=x"),
    given("--host-policy=x,y"),
    given("--host-policy=x,y=z"),
    given("--cuda-memory-pool-byte-size=x"),
    given("--cuda-memory-pool-byte-size=0"),
    given("--pinned-memory-pool-byte-size=x"),
    given("--min-supported-compute-capability=x"),
    given("--model-load-gpu-limit=0"),
    given("--model-load-thread-count=x"),
    given("--buffer-manager-thread-count=x"),
    given("--response-cache-byte-size=x"),
    given("--http-restricted-api=x"),
    given("--http-restricted-api=other:a=b"),
    given("--http-restricted-api=health:a=b", "--http-restricted-api=health:c=d"),
    given("--http-restricted-api=health:a"),
    given("--grpc-restricted-protocol=other:a=b"),
    given("--grpc-restricted-protocol=health:a"),
    given("--grpc-infer-response-compression-level=x"),
    given("--grpc-use-ssl=x"),
    given("--grpc-keepalive-time=x"),
    given("--http-header-forward-pattern=("),
    given("--sagemaker-safe-port-range=x"),
    given("--vertex-ai-default-model="),
    # Together
    given("--http-port={http}", "--grpc-port={http}"),
    given("--http-port={http}", "--metrics-port={http}"),
    given("--grpc-port={grpc}", "--metrics-port={grpc}"),
    given("--http-port={http}", "--grpc-port={http}", "--allow-grpc=false"),
    given("--http-port=x", "--http-port={http}"),
    given("--allow-http=false", "--allow-grpc=false", "--allow-metrics=false"),
    alone(),
    alone("--model-repository"),
    alone("--model-repository="),
    alone("--model-store={folder}/nowhere"),
    alone("--model-repo={folder}/nowhere"),
    alone("--http-port={http}"),
)


def models(server: Server, *options: str) -> Observation:
    """The exit code, the table of models and the last words of a command that cannot load all."""
    code, lines = written(server, "--model-repository={models}", *PORTS, *options)
    rows = [match.groups() for match in map(UNREADY.match, lines) if match]
    return {
        "exit code": code,
        "models": sorted(row for row in rows if row[0] != "Model"),
        "says": [line for line in lines if line.startswith("error: ")],
    }


def write_broken(repository: Path) -> None:
    write_mirror(repository, "good", "INT32")
    write_model(repository, "wrong", "raise ValueError('as asked')", 'backend: "python"')
    write_model(repository, "nobody", "", 'backend: "other"')
    (repository / "empty").mkdir()


def taken(port: str) -> Case:
    """A command whose port is in use."""

    def ask(server: Server) -> Observation:
        with socket.socket() as other:
            other.bind(("0.0.0.0", server.ports[port]))
            other.listen()
            repository = "--model-repository={models}"
            code, lines = written(server, repository, "--model-control-mode=explicit", *PORTS)
        says = [line.removeprefix("<prefix> ") for line in lines if "failed to start" in line]
        return {"exit code": code, "says": says}

    return Case(f"{port} port in use", ask, BROKEN)


BROKEN = Setup(models=write_broken, is_started=False)
STARTING = (
    Case("models that cannot be loaded", models, BROKEN),
    Case(
        "model to load that is not there",
        lambda server: models(server, "--model-control-mode=explicit", "--load-model=nowhere"),
        BROKEN,
    ),
    Case(
        "model to load that is broken",
        lambda server: models(server, "--model-control-mode=explicit", "--load-model=wrong"),
        BROKEN,
    ),
    taken("http"),
    taken("grpc"),
    taken("metrics"),
)


def lines_of_start(server: Server) -> Observation:
    """What the log says about the ports."""
    text = server.normalised(server.log.read_text(errors="replace"))
    return sorted(re.findall(r'"(Started [^"]*)"', text))


def table(title: str) -> Case:
    """The rows of a table that the log shows at the start, without widths and versions."""

    def ask(server: Server) -> Observation:
        text = server.normalised(server.log.read_text(errors="replace"))
        lines = text[text.index(f"| {title} ") :].splitlines()
        body = lines[2 : 2 + [line.startswith("+") for line in lines[2:]].index(True)]
        head = [cell.strip() for cell in lines[0].strip("|").split("|")]
        rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in body]
        return [head, *rows]

    return Case(f"table: {title}", ask, STARTED)


def options_table(server: Server) -> Observation:
    """Without what differs by release and machine."""
    by_release = ("server_version", "server_extensions", "min_supported_compute_capability")
    return [row for row in table("Option").ask(server) if row[0] not in by_release]


STARTED = Setup(
    options=(
        "--id=mine",
        "--exit-timeout-secs=7",
        "--strict-readiness=false",
        "--model-control-mode=explicit",
        "--load-model=numbers",
        "--load-model=texts",
        "--rate-limit=execution_count",
        "--rate-limit-resource=R:3",
    ),
)

SURFACE = Surface(
    "command_line",
    cases=(
        *GIVEN,
        *STARTING,
        Case("lines of the start", lines_of_start, STARTED),
        table("Model"),
        Case("table: options", options_table, STARTED),
    ),
    setup=Setup(is_started=False),
)
