# SPDX-License-Identifier: Apache-2.0
"""Starts engines for in-process servers. It imports the engine, so it is imported when needed."""

from __future__ import annotations

import weakref
from collections.abc import Callable

from pytriton.inprocess.engine_thread import EngineThread
from pytriton.inprocess.metrics import shared_families
from pytriton.inprocess.options import Options, server_settings
from pytriton.runtime.transport.loop_spinner import allow_spinning
from pytriton.serving.server.metrics.exposition import SampleFamily
from pytriton.serving.server.metrics.families import custom_families
from pytriton.serving.server.options.server_options import ServerOptions
from pytriton.serving.server.process.resources import usable_cores


def start_engine(options: Options) -> EngineThread:
    """Start an engine and load its models.

    Raises:
        PyTritonValidationError: A setting has a wrong value.
        ServerError: A repository cannot be read, or a model cannot be loaded.
        OSError: The log cannot be written.
    """
    settings = ServerOptions.from_triton_config(server_settings(options))
    allow_spinning(usable_cores(), also_workers=True)
    engine = EngineThread(settings, _families)
    engine.start()
    return engine


def stop_with(server: object, engine: EngineThread) -> Callable[[], object]:
    """End the engine when the server is freed; returns what makes it stay."""
    finalizer = weakref.finalize(server, engine.abandon)
    finalizer.atexit = False  # at the end of the program its thread and workers end anyway
    return finalizer.detach


def _families() -> list[SampleFamily]:
    with shared_families() as shared:
        return list(custom_families(shared))
