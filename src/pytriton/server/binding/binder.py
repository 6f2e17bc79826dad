# SPDX-License-Identifier: Apache-2.0
"""The session of a process that binds models to this server, and these models."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import time
from typing import TYPE_CHECKING, Any

from pytriton.engine.config import (
    config_from_dict,
    config_to_json,
    normalise_config,
    spec_from_config,
)
from pytriton.engine.config_rules import validate_config
from pytriton.engine.model import Model
from pytriton.engine.rate_limiter import InstanceLimits
from pytriton.engine.sequence.sequence_inputs import added_input_names, state_output_names
from pytriton.errors import InternalError, NotFoundError, ServerError, UnavailableError
from pytriton.executor.channel_instance import ChannelInstance
from pytriton.executor.model_labels import ModelLabels
from pytriton.transport.control import Bind, ControlLink, Done, Started, Stop, Unbind
from pytriton.transport.memory_channel import MemoryChannel
from pytriton.transport.memory_trimmer import MemoryTrimmer

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from pytriton.engine.cache import ResponseCache
    from pytriton.engine.engine import Engine
    from pytriton.engine.turns import Turns

logger = logging.getLogger(__name__)

# How long a model that is unbound may finish its requests; the binding process waits meanwhile.
UNBIND_TIMEOUT_S = 30.0


class BinderSession:
    """The session of one binding process, whose models are served until it ends."""

    def __init__(
        self,
        link: ControlLink,
        engine: Engine,
        loop: asyncio.AbstractEventLoop,
        cache: ResponseCache | None,
        on_end: Callable[[bool], None],
        turns: Turns | None = None,
    ) -> None:
        self._link = link
        self._engine = engine
        self._loop = loop
        self._cache = cache
        self._turns = turns
        self._on_end = on_end  # its argument: whether the process sent `Stop` before it ended
        self._models: dict[tuple[str, int], Model] = {}
        self._unloading: dict[asyncio.Task[None], Model] = {}

    def start(self, ports: Started) -> None:
        """Start to read messages, and send the server's ports."""
        self._link.socket.setblocking(False)
        self._loop.add_reader(self._link.fileno(), self._on_readable)
        self._send(ports)

    async def close(self) -> None:
        """End the session and remove its models."""
        if self._link.fileno() < 0:
            return  # already closed
        self._stop_reading()
        self._loop.remove_writer(self._link.fileno())
        for model in self._models.values():
            model.stop()
            self._engine.remove(model)
        self._models.clear()
        for model in self._unloading.values():
            model.stop()
        if self._unloading:
            await asyncio.wait(self._unloading)
        self._link.close()

    def _stop_reading(self) -> None:
        self._loop.remove_reader(self._link.fileno())

    def _on_readable(self) -> None:
        try:
            while (message := self._link.receive()) is not None:
                if isinstance(message, Bind):
                    self._answer(message.call, self._bind, message)
                elif isinstance(message, Unbind):
                    self._unbind(message)
                elif isinstance(message, Stop):
                    self._stop_reading()
                    self._on_end(True)
                    return
        except (EOFError, OSError):
            self._stop_reading()
            self._on_end(False)
        except ValueError as error:
            logger.error("disconnected a binding process that sent an invalid message: %s", error)  # noqa: TRY400  the message is enough
            self._stop_reading()
            self._on_end(False)

    def _answer(self, call: int, action: Callable[[Bind], None], message: Bind) -> None:
        try:
            action(message)
        except ServerError as error:
            self._send(Done(call, error.message, error.code))
        except Exception as error:  # a bug here must not end the session
            logger.exception("call of a binding process failed")
            self._send(Done(call, f"{type(error).__name__}: {error}", InternalError.code))
        else:
            self._loop.create_task(self._send_when_settled(call))

    async def _send_when_settled(self, call: int) -> None:
        """Answer once every front end serves the model: the next request may reach any.

        By then, the ensembles that have waited for it are served, too.
        """
        if self._engine.followed is not None:
            await self._engine.followed()
        if self._engine.settled is not None:
            await self._engine.settled()
        self._send(Done(call))

    def _send(self, message: Done | Started) -> None:
        with contextlib.suppress(OSError):  # the process has ended; reading the link reports that
            self._link.send(message)
            if not self._link.flush():
                self._loop.add_writer(self._link.fileno(), self._on_writable)

    def _on_writable(self) -> None:
        try:
            is_done = self._link.flush()
        except OSError:
            is_done = True
        if is_done:
            self._loop.remove_writer(self._link.fileno())

    def _bind(self, message: Bind) -> None:
        started_ns = time.monotonic_ns()
        sockets = self._take_sockets(len(message.concurrency))
        memory = MemoryTrimmer(self._loop)
        try:
            model = self._make_model(message, memory)
        except BaseException:
            for sock in sockets:
                sock.close()
            raise
        self._add_instances(model, memory, sockets, message.concurrency)
        self._put_in_service(model)
        model.statistics.load_ns = time.monotonic_ns() - started_ns

    def _take_sockets(self, count: int) -> list[socket.socket]:
        sockets = [socket.socket(fileno=number) for number in self._link.take_descriptors(count)]
        if len(sockets) < count:
            for sock in sockets:
                sock.close()
            raise UnavailableError(
                f"expected {count} sockets, one for each instance, got {len(sockets)}: "
                "the server has no more file descriptors"
            )
        return sockets

    def _make_model(self, message: Bind, memory: MemoryTrimmer) -> Model:
        config = normalise_config(config_from_dict(message.config))
        validate_config(config)
        spec = spec_from_config(config, message.version, initial_states=message.initial_states)
        turns = None
        if self._turns is not None:  # last: the model gives back what it takes
            limits = InstanceLimits.read(config.instance_group[0].rate_limiter)
            turns = self._turns.join([limits] * len(message.concurrency))
        return Model(
            spec,
            self._loop,
            self._cache,
            config_json=config_to_json(config),
            is_bound=True,
            body_memory=memory.body_memory,
            turns=turns,
        )

    def _add_instances(
        self,
        model: Model,
        memory: MemoryTrimmer,
        sockets: list[socket.socket],
        concurrency: list[int],
    ) -> None:
        spec = model.spec
        labels = ModelLabels(
            spec.name,
            str(spec.version),
            [*spec.inputs, *added_input_names(spec)],
            batching=spec.max_batch_size > 0,
            state_outputs=state_output_names(spec),
            in_sequences=spec.sequence is not None,
        )
        for index, (sock, count) in enumerate(zip(sockets, concurrency, strict=True)):
            channel = MemoryChannel(sock, memory.arena)
            name = f"{spec.name}_0_{index}"
            model.add_instance(
                ChannelInstance(name, labels, channel, memory, self._loop, model, count)
            )

    def _put_in_service(self, model: Model) -> None:
        """Serve a model. An older one of the same name and version finishes its requests."""
        key = (model.spec.name, model.spec.version)
        previous = self._models.get(key)
        self._models[key] = model
        self._engine.add(model)
        self._engine.set_ready(model)
        if previous is not None:
            self._spawn(previous, self._engine.unload(previous))

    def _unbind(self, message: Unbind) -> None:
        model = self._models.pop((message.name, message.version), None)
        if model is None:
            error = f"model '{message.name}' version {message.version} is not bound here"
            self._send(Done(message.call, error, NotFoundError.code))
        else:
            self._spawn(model, self._unload(model, message.call))

    async def _unload(self, model: Model, call: int) -> None:
        await self._engine.unload(model, UNBIND_TIMEOUT_S)
        self._send(Done(call))

    def _spawn(self, model: Model, work: Coroutine[Any, Any, None]) -> None:
        task = self._loop.create_task(work)
        self._unloading[task] = model
        task.add_done_callback(self._unloading.pop)
