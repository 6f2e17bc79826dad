# SPDX-License-Identifier: Apache-2.0
"""Model repositories in the cloud: what is said of addresses that do not work."""

from __future__ import annotations

from tests.operations_differential.command_line import ended
from tests.operations_differential.server import Observation, Server
from tests.operations_differential.surface import Case, Setup, Surface


def unknown_scheme(server: Server) -> Observation:
    return ended(server, "--model-repository={folder}/nowhere")


SURFACE = Surface(
    "cloud",
    cases=(Case("repository that is not there", unknown_scheme),),
    setup=Setup(is_started=False),
)
