# SPDX-License-Identifier: Apache-2.0
"""A process that binds models into this server: its session, and the models that go with it."""

from __future__ import annotations

import logging
import socket
import time
from typing import TYPE_CHECKING

from pytriton.engine.config import (
    config_from_dict,
    config_to_json,
    normalise_config,
    spec_from_config,
)
from pytriton.engine.config_rules import validate_config
from pytriton.engine.model import Model
from pytriton.errors import InternalError, NotFoundError, ServerError
from pytriton.executor.channel_instance import ChannelInstance, ModelLabels
from pytriton.executor.memory_keeper import MemoryKeeper
from pytriton.transport.channel import Channel
from pytriton.transport.control import Bind, ControlLink, Done, Stop, Unbind

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

    from pytriton.engine.cache import ResponseCache
    from pytriton.engine.engine import Engine

logger = logging.getLogger(__name__)


class BinderSession:
    """One binding process. Its models are served for as long as it lives."""

    def __init__(
        self,
        link: ControlLink,
        engine: Engine,
        loop: asyncio.AbstractEventLoop,
        cache: ResponseCache | None,
        on_end: Callable[[bool], None],
    ) -> None:
        self._link = link
        self._engine = engine
        self._loop = loop
        self._cache = cache
        self._on_end = on_end  # told whether the process asked for the end, or is just gone
        self._models: dict[tuple[str, int], Model] = {}

    def start(self) -> None:
        """Begin to take calls."""
        self._link.socket.setblocking(False)
        self._loop.add_reader(self._link.fileno(), self._on_readable)

    def close(self) -> None:
        """End the session and take its models away."""
        self._loop.remove_reader(self._link.fileno())
        self._loop.remove_writer(self._link.fileno())
        for model in self._models.values():
            model.stop()
            self._engine.remove(model)
        self._models.clear()
        self._link.close()

    def _on_readable(self) -> None:
        try:
            while (message := self._link.receive()) is not None:
                if isinstance(message, Bind):
                    self._answer(message.call, self._bind, message)
                elif isinstance(message, Unbind):
                    self._answer(message.call, self._unbind, message)
                elif isinstance(message, Stop):
                    self._on_end(True)
                    return
        except (EOFError, OSError):
            self._on_end(False)

    def _answer(self, call: int, action: Callable[..., None], message: Bind | Unbind) -> None:
        try:
            action(message)
        except ServerError as error:
            self._send(Done(call, error.message, error.code))
        except Exception as error:  # a bug here must not end the session
            logger.exception("call of a binding process failed")
            self._send(Done(call, f"{type(error).__name__}: {error}", InternalError.code))
        else:
            self._send(Done(call))

    def _send(self, message: Done) -> None:
        self._link.send(message)
        if not self._link.flush():
            self._loop.add_writer(self._link.fileno(), self._on_writable)

    def _on_writable(self) -> None:
        if self._link.flush():
            self._loop.remove_writer(self._link.fileno())

    def _bind(self, message: Bind) -> None:
        started_ns = time.monotonic_ns()
        sockets = [
            socket.socket(fileno=descriptor)
            for descriptor in self._link.take_descriptors(len(message.concurrency))
        ]
        try:
            config = normalise_config(config_from_dict(message.config))
            validate_config(config)
            spec = spec_from_config(config, message.version)
        except ServerError:
            for sock in sockets:
                sock.close()
            raise
        model = Model(spec, self._loop, self._cache)
        model.config_json = config_to_json(config)
        labels = ModelLabels(
            spec.name, str(spec.version), list(spec.inputs), batching=spec.max_batch_size > 0
        )
        keeper = MemoryKeeper(self._loop)
        model.body_memory = keeper.body_memory
        for index, (sock, concurrency) in enumerate(zip(sockets, message.concurrency, strict=True)):
            channel = Channel(sock, keeper.arena)
            name = f"{spec.name}_0_{index}"
            model.add_instance(
                ChannelInstance(name, labels, channel, keeper, self._loop, model, concurrency)
            )
        self._take_over(model)
        model.statistics.load_ns = time.monotonic_ns() - started_ns

    def _take_over(self, model: Model) -> None:
        """Serve a model; one of the same name and version is drained and goes."""
        key = (model.spec.name, model.spec.version)
        previous = self._models.pop(key, None)
        self._models[key] = model
        self._engine.add(model)
        self._engine.set_ready(model)
        if previous is not None:
            previous.stop()

    def _unbind(self, message: Unbind) -> None:
        model = self._models.pop((message.name, message.version), None)
        if model is None:
            raise NotFoundError(
                f"model '{message.name}' version {message.version} is not bound here"
            )
        self._engine.remove(model)
        model.stop()
