# SPDX-License-Identifier: Apache-2.0
"""The command of a worker that connects to the server."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from pytriton.runtime.executor.python_process import WORKER_SCRIPT, fallback_paths
from pytriton.runtime.executor.worker import Placement
from pytriton.runtime.transport.handshake import pytriton_version
from pytriton.runtime.transport.rendezvous import TOKEN_VARIABLE

if TYPE_CHECKING:
    from pytriton.runtime.executor.remote.starter import StartOrder


def worker_command(
    order: StartOrder, node_id: str, rank: int = 0
) -> tuple[list[str], dict[str, str]]:
    """Returns the arguments of a worker process, and what to add to its environment.

    Call it on the node that the process is to run on. For an instance with an interpreter of its
    own it starts that interpreter once, to ask for its version.

    Raises:
        InternalError: That interpreter does not run.
    """
    spec = order.spec
    interpreter = spec.interpreter or sys.executable
    arguments = [interpreter, WORKER_SCRIPT]
    for address in order.addresses:
        arguments += ["--connect", address]
    arguments += ["--start", order.name, "--node-id", node_id, "--rank", str(rank)]
    # Another interpreter has no package of ours whose version it could look up.
    arguments += ["--title", spec.title, "--version", pytriton_version()]
    environment: dict[str, str] = {}
    if interpreter != sys.executable:
        for path in fallback_paths(interpreter):
            arguments += ["--fallback-path", path]
        environment["PYTHONHOME"] = ""  # it is for the node's own Python
    if not (spec.placement or Placement()).num_gpus:
        environment["CUDA_VISIBLE_DEVICES"] = ""  # a cluster shows all to who asked for none
    environment.update(spec.environment)
    environment[TOKEN_VARIABLE] = order.token
    return arguments, environment
