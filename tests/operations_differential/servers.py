# SPDX-License-Identifier: Apache-2.0
"""Both servers, started alike as a setup says."""

from __future__ import annotations

import contextlib
import dataclasses
import socket
import tempfile
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path

from tests.e2e.waiting import eventually
from tests.free_ports import free_ports
from tests.operations_differential.forked_commands import forked_commands
from tests.operations_differential.server import Server
from tests.operations_differential.surface import Setup
from tests.recorded_suite import COMMON_OPTIONS, START_DEADLINE_S, started


@contextlib.contextmanager
def running(setup: Setup, *, is_real: bool) -> Iterator[Server]:
    """A server that is ready, or a place to start servers in if the setup says so."""
    names = ("http", "grpc", "metrics", *setup.ports)
    ports = dict(zip(names, free_ports(len(names)), strict=True))
    with tempfile.TemporaryDirectory() as name:
        models, log = Path(name, "models"), Path(name, "log")
        models.mkdir()
        setup.models(models)
        log.touch()
        server = Server(ports["http"], ports["grpc"], ports["metrics"], models, log, is_real, ports)
        if not setup.is_started:
            with nullcontext() if is_real else forked_commands(server.folder) as fork:
                yield dataclasses.replace(server, fork=fork)
            return
        port, path = setup.ready
        options = options_of(setup, is_real=is_real)
        ready = (ports[port], path)
        with started(server, options, setup.environment, Path(name), ready) as server_of_setup:
            for more in setup.ports:  # the real one opens these after it says that it is ready
                if not eventually(lambda port=ports[more]: _is_open(port), START_DEADLINE_S):
                    raise TimeoutError(f"the port of {more} is not open")
            yield server_of_setup


def options_of(setup: Setup, *, is_real: bool) -> list[str]:
    """The options of a setup; a later option replaces a common one."""
    own = (*setup.options, *(setup.real_options if is_real else setup.our_options))
    given = {option.partition("=")[0] for option in own}
    return [*(each for each in COMMON_OPTIONS if each.partition("=")[0] not in given), *own]


def _is_open(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0
