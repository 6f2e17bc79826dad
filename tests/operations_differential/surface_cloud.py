# SPDX-License-Identifier: Apache-2.0
"""Model repositories in a bucket, and what is said of addresses that do not work."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path

from tests.operations_differential.cloud_runs import refused_start, run
from tests.operations_differential.command_line import ended
from tests.operations_differential.server import Observation, Server
from tests.operations_differential.surface import Case, Setup, Surface
from tests.s3_server import S3Server

_EXPLICIT = (
    "index of a bucket before any load",
    *(
        f"{what} of {name}"
        for name in ("numbers", "versions", "all", "specific", "labelled", "kept", "marked")
        for what in ("load", "inference")
    ),
    *(
        f"load of {name}{protocol}"
        for name in ("no_version", "zeros", "renamed", "unreadable", "missing")
        for protocol in ("", " over gRPC")
    ),
    "load of broken code",
    "version that is not served",
    "states after loads",
    "inference after an upload without a load",
    "load after an upload",
    "inference after that load",
    "load of a new version",
    "inference of the new version",
    "states after an upload",
    "load of a model that was uploaded later",
    "load with a configuration",
    "load with a wrong configuration",
    "load of a model that was removed from the bucket",
    "inference after that",
    "unload",
    "inference after an unload",
)
_POLL = (
    "inference in mode poll",
    "load in mode poll",
    "new model is found",
    "changed model is found",
    "removed model is unloaded",
    "states after a removal",
)


def of_run(name: str, answer: str) -> Case:
    def ask(server: Server) -> Observation:
        return run(name, is_real=server.is_real)[answer]

    return Case(answer, ask)


def unknown_scheme(server: Server) -> Observation:
    return ended(server, "--model-repository={folder}/nowhere")


def missing_bucket(server: Server) -> Observation:
    with tempfile.TemporaryDirectory() as folder, S3Server(Path(folder)) as s3:
        seen = refused_start(server, f"s3://{s3.address}/nowhere/models")
        return {**seen, "says": [line.replace(s3.address, "<s3>") for line in seen["says"]]}


def empty_path(server: Server) -> Observation:
    with tempfile.TemporaryDirectory() as folder, S3Server(Path(folder)) as s3:
        seen = refused_start(server, s3.repository("nothing"))
        return {**seen, "says": [line.replace(s3.address, "<s3>") for line in seen["says"]]}


def without_bucket(server: Server) -> Observation:
    return refused_start(server, "s3://")


def wrong_file(text: str) -> Callable[[Server], Observation]:
    def ask(server: Server) -> Observation:
        path = Path(server.folder, "credentials.json")
        path.write_text(text)
        return refused_start(
            server, "s3://bucket/models", {"TRITON_CLOUD_CREDENTIAL_PATH": str(path)}
        )

    return ask


_NEED_S3 = (
    *(of_run("explicit", answer) for answer in _EXPLICIT),
    *(of_run("poll", answer) for answer in _POLL),
    Case("bucket that is not there", missing_bucket),
    Case("path with nothing below", empty_path),
)
SURFACE = Surface(
    "cloud",
    cases=(
        Case("repository that is not there", unknown_scheme),
        Case("address without a bucket", without_bucket),
        Case("credential file that is no JSON", wrong_file("{")),
        *_NEED_S3,
    ),
    setup=Setup(is_started=False),
)
