# SPDX-License-Identifier: Apache-2.0
"""Keeps the registries of all front ends equal to the core's."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from typing import TYPE_CHECKING

from pytriton.base.errors import sendable_text
from pytriton.base.sent_specs import encode_spec
from pytriton.runtime.transport.frontend_frames import ModelRecord, ModelStateRecord, Registry

if TYPE_CHECKING:
    from collections.abc import Callable

    from pytriton.serving.engine.engine import Engine
    from pytriton.serving.engine.served_model import ServedModel
    from pytriton.serving.server.frontend.session import FrontEndSession


class RegistryFeed:
    """Sends the registry to all front ends when it has changed, once per loop iteration.

    `trace_rates` returns which requests front ends select for traces; None: nothing is traced.
    """

    def __init__(
        self,
        engine: Engine,
        is_serving: Callable[[], bool],
        loop: asyncio.AbstractEventLoop,
        trace_rates: Callable[[], dict[str, int]] | None = None,
    ) -> None:
        self._engine = engine
        self._trace_rates = trace_rates
        self._is_serving = is_serving
        self._loop = loop
        self._epoch = 1
        self._readers: dict[FrontEndSession, None] = {}
        self._numbers: dict[ServedModel, int] = {}
        self._next_number = itertools.count(1)
        self._is_due = False
        self._waiters: list[tuple[int, asyncio.Future[None]]] = []
        self.models: dict[int, ServedModel] = {}  # those that are not hidden, by number
        engine.on_changed = self._on_changed
        engine.settled = self.settled

    def add(self, reader: FrontEndSession) -> None:
        """Send the registry to a new front end, now and when it changes."""
        self._readers[reader] = None
        self._send_to(reader, self._statuses())

    def remove(self, reader: FrontEndSession) -> None:
        """Forget a front end that has ended."""
        self._readers.pop(reader, None)
        self.on_taken()

    def push(self) -> None:
        """Send the registry now if it has changed."""
        if self._is_due:
            self._is_due = False
            self._epoch += 1
            statuses = self._statuses()
            # A reader may be removed meanwhile: sending may find that its front end has ended.
            for reader in list(self._readers):
                self._send_to(reader, statuses)

    async def settled(self) -> None:
        """Wait until every front end knows the current models."""
        self.push()
        if self._is_taken(self._epoch):
            return
        waiter: asyncio.Future[None] = self._loop.create_future()
        self._waiters.append((self._epoch, waiter))
        await waiter

    @property
    def is_settled(self) -> bool:
        """Whether every front end knows the current models."""
        return not self._is_due and self._is_taken(self._epoch)

    async def settled_within(self, timeout_s: float) -> None:
        """Like `settled`, but wait at most for some time: a front end may hang."""
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self.settled(), timeout_s)

    def on_taken(self) -> None:
        """Called when a front end has taken a registry, or has ended."""
        waiting = []
        for epoch, waiter in self._waiters:
            if waiter.done():
                continue
            if self._is_taken(epoch):
                waiter.set_result(None)
            else:
                waiting.append((epoch, waiter))
        self._waiters = waiting

    def _is_taken(self, epoch: int) -> bool:
        return all(reader.taken_epoch >= epoch for reader in self._readers)

    def _on_changed(self) -> None:
        if not self._is_due:
            self._is_due = True
            self._loop.call_soon(self.push)

    def _statuses(self) -> list[ModelStateRecord]:
        current = list(self._engine.models())
        # A model keeps its number as long as it is listed; a number is never used again, so that a
        # late request cannot reach another model.
        self._numbers = {
            model: self._numbers.get(model) or next(self._next_number) for model in current
        }
        self.models = {number: model for model, number in self._numbers.items()}
        return [
            ModelStateRecord(number, model.state.value, model.is_ready, sendable_text(model.reason))
            for number, model in self.models.items()
        ]

    def _send_to(self, reader: FrontEndSession, statuses: list[ModelStateRecord]) -> None:
        # Specifications are sent once; later registries only have states.
        reader.known_models &= self.models.keys()
        new = [number for number in self.models if number not in reader.known_models]
        reader.known_models.update(new)
        reader.send_registry(
            Registry(
                self._epoch,
                statuses,
                [_describe(number, self.models[number]) for number in new],
                self._engine.is_exiting,
                self._is_serving(),
                {} if self._trace_rates is None else self._trace_rates(),
            )
        )


def _describe(number: int, model: ServedModel) -> ModelRecord:
    return ModelRecord(
        number,
        encode_spec(model.spec),
        model.config_json,
        model.is_bound,
        model.has_ready_check,
        model.takes_columns,
    )
