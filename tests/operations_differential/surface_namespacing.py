# SPDX-License-Identifier: Apache-2.0
"""Models of the same name in two repositories."""

from __future__ import annotations

from pathlib import Path

from tests.operations_differential.asking import both
from tests.operations_differential.models import write_mirror
from tests.operations_differential.server import Observation, Server
from tests.operations_differential.surface import Case, Setup, Surface


def write_two(repository: Path) -> None:
    for name in ("first", "second"):
        write_mirror(repository / name, "same", "INT32")
    write_mirror(repository / "second", "other", "INT32")


def index(server: Server) -> Observation:
    seen = both(server, "/v2/repository/index", {}, "RepositoryIndex")
    seen["HTTP"]["body"].sort(key=lambda row: (row["name"], row.get("namespace", "")))
    seen["gRPC"]["models"].sort(key=lambda row: row["name"])
    return seen


SURFACE = Surface(
    "namespacing",
    cases=(Case("index without namespacing", index),),
    setup=Setup(
        options=("--model-repository={models}/first", "--model-repository={models}/second"),
        real_options=("--exit-on-error=false",),
        our_options=("--exit-on-error=false",),
        models=write_two,
        ready=("http", "/v2/health/live"),
    ),
)
