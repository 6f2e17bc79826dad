# SPDX-License-Identifier: Apache-2.0
"""Regions of clients' shared memory: registered, asked for, used and forgotten."""

from __future__ import annotations

from tests.operations_differential.asking import both
from tests.operations_differential.server import Observation, Server
from tests.operations_differential.surface import Case, Setup, Surface


def status_of_none(server: Server) -> Observation:
    return both(server, "/v2/systemsharedmemory/status", None, "SystemSharedMemoryStatus")


SURFACE = Surface(
    "shared_memory",
    cases=(Case("status of no regions", status_of_none),),
    # The real one of this release always allows it.
    setup=Setup(our_options=("--allow-client-shm=true",)),
)
