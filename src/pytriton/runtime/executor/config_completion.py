# SPDX-License-Identifier: Apache-2.0
"""Lets a model complete its configuration, in a worker process that ends then."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from msgspec import structs

from pytriton.runtime.executor.model_labels import ModelLabels
from pytriton.runtime.executor.python_instance import PythonInstance
from pytriton.runtime.transport.arena import MemoryTrimmer

if TYPE_CHECKING:
    import asyncio

    from pytriton.runtime.executor.base import Instance, Outcome, RunningBatch
    from pytriton.runtime.executor.call_server import WorkerServices
    from pytriton.runtime.executor.worker import Launcher, WorkerSpec
    from pytriton.runtime.transport.frames import Initialize

logger = logging.getLogger(__name__)


class _IgnoredEvents:
    """Receives the events of an instance that never runs a batch."""

    def on_outcomes(
        self,
        instance: Instance,
        batch: RunningBatch,
        outcomes: list[Outcome],
        times_ns: tuple[int, int],
    ) -> None:
        raise AssertionError(f"{instance.name} answered a batch that it was not given")

    def on_unavailable(self, instance: Instance) -> None:
        """Do nothing: `on_died` follows."""

    def on_died(self, instance: Instance, reason: str) -> None:
        logger.debug("%s ended: %s", instance.name, reason)


async def complete_config(
    launcher: Launcher,
    spec: WorkerSpec,
    initialize: Initialize,
    loop: asyncio.AbstractEventLoop,
    services: WorkerServices,
) -> str:
    """Call `auto_complete_config` in a new worker; returns the configuration as JSON text.

    Raises:
        ServerError: `auto_complete_config` raised, or the process ended.
    """
    labels = ModelLabels("", "", (), batching=False)
    if spec.placement is not None:
        spec = structs.replace(spec, placement=structs.replace(spec.placement, group_size=1))
    worker = await launcher.launch(spec)
    instance = PythonInstance(worker, labels, MemoryTrimmer(loop), loop, _IgnoredEvents(), services)
    report = await instance.initialize(structs.replace(initialize, completes_config=True))
    instance.stop()
    return report.config
