# SPDX-License-Identifier: Apache-2.0
"""The session of a process that binds models to this server, and these models."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import time
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from pytriton.base.background_tasks import BackgroundTasks
from pytriton.base.errors import InternalError, NotFoundError, ServerError, UnavailableError
from pytriton.runtime.executor.channel_instance import ChannelInstance
from pytriton.runtime.transport.arena import MemoryTrimmer
from pytriton.runtime.transport.control import (
    Bind,
    CallDone,
    ControlLink,
    LinesLogged,
    LinesTaken,
    ModelsServed,
    ServerStop,
    Started,
    Unbind,
)
from pytriton.runtime.transport.memory_channel import MemoryChannel
from pytriton.runtime.transport.peer_account import PeerAccount
from pytriton.runtime.transport.rendezvous import peer_process
from pytriton.serving.engine.config import (
    config_from_dict,
    config_to_json,
    normalise_config,
    spec_from_config,
)
from pytriton.serving.engine.config_rules import validate_config
from pytriton.serving.engine.rate_limiter import InstanceLimits
from pytriton.serving.repository.loading.instance_factory import VersionParts
from pytriton.serving.server.process.kept_lines import keep_sent_lines, kept_lines

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine

    from pytriton.base.model_spec import ModelSpec
    from pytriton.serving.engine.engine import Engine
    from pytriton.serving.engine.model import Model
    from pytriton.serving.repository.loading.instance_factory import InstanceFactory
    from pytriton.serving.repository.loading.python_version import PythonVersion

    LoadFunction = Callable[[Bind], Awaitable["PythonVersion"]]

logger = logging.getLogger(__name__)

# How long a model that is unbound may finish its requests; the binding process waits meanwhile.
UNBIND_TIMEOUT_S = 30.0


class BoundSpec(NamedTuple):
    """A bound model as the engine knows it."""

    config: Any  # the ModelConfig message, normalised
    spec: ModelSpec

    @classmethod
    def read(cls, message: Bind) -> BoundSpec:
        """Read and check a message.

        Raises:
            ServerError: The configuration is wrong.
        """
        config = normalise_config(config_from_dict(message.config))
        validate_config(config)
        spec = spec_from_config(config, message.version, initial_states=message.initial_states)
        spec = msgspec.structs.replace(
            spec,
            takes_parameters=message.takes_parameters,
            documentation=message.documentation,
            nullable=message.nullable,
        )
        return cls(config, spec)

    @property
    def limits(self) -> InstanceLimits:
        """The resources of each instance, for the rate limiter."""
        return InstanceLimits.read(self.config.instance_group[0].rate_limiter)

    def parts(self, memory: MemoryTrimmer, instance_count: int) -> VersionParts:
        """Returns what the model and its instances are made of."""
        return VersionParts(
            spec=self.spec,
            config_json=config_to_json(self.config),
            memory=memory,
            limits=[self.limits] * instance_count,
            is_bound=True,
        )


class BinderSession:
    """The session of one binding process, whose models are served until it ends.

    Then `on_end` is called, with whether it sent `ServerStop` before. `load_function` loads
    functions whose instances run elsewhere.
    """

    def __init__(
        self,
        link: ControlLink,
        engine: Engine,
        factory: InstanceFactory,
        on_end: Callable[[bool], None],
        load_function: LoadFunction | None = None,
    ) -> None:
        self._link = link
        self._engine = engine
        self._factory = factory
        self._loop = loop = factory.loop
        self._on_end = on_end
        self._load_function = load_function
        self._models: dict[tuple[str, int], Model] = {}
        self._supervised: dict[Model, PythonVersion] = {}  # those with instances elsewhere
        self._loading = BackgroundTasks(loop)
        self._answers = BackgroundTasks(loop)  # those that wait until front ends know a change
        self._unloading: dict[asyncio.Task[None], Model] = {}

    def start(self, ports: Started) -> None:
        """Start to read messages, and send the server's ports."""
        self._link.socket.setblocking(False)
        self._loop.add_reader(self._link.fileno(), self._on_readable)
        self._send(msgspec.structs.replace(ports, keeps_lines=kept_lines() is not None))

    async def close(self) -> None:
        """End the session and remove its models."""
        if self._link.fileno() < 0:
            return  # already closed
        self._stop_reading()
        self._loading.cancel()
        for model in self._models.values():
            model.stop()
            self._engine.remove(model)
        self._models.clear()
        for model in self._unloading.values():
            model.stop()
        if self._unloading:
            await asyncio.wait(self._unloading)
        await self._loading.wait()
        await asyncio.gather(*map(self._end_instances, list(self._supervised)))
        self._answers.cancel()
        self._loop.remove_writer(self._link.fileno())  # answers may have been added until now
        self._link.close()

    def _stop_reading(self) -> None:
        self._loop.remove_reader(self._link.fileno())

    def _on_readable(self) -> None:
        try:
            while (message := self._link.receive()) is not None:
                if isinstance(message, Bind) and message.ray is not None:
                    self._loading.start(self._load(message))
                elif isinstance(message, Bind):
                    self._answer(message.call, self._bind, message)
                elif isinstance(message, Unbind):
                    self._unbind(message)
                elif isinstance(message, ModelsServed):
                    self._engine.stop_awaiting()
                elif isinstance(message, LinesLogged):
                    keep_sent_lines(message.lines)
                    self._send(LinesTaken())
                elif isinstance(message, ServerStop):
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
            self._send(CallDone(call, error.message, error.code))
        except Exception as error:  # a bug here must not end the session
            logger.exception("call of a binding process failed")
            self._send(CallDone(call, f"{type(error).__name__}: {error}", InternalError.code))
        else:
            self._answers.start(self._send_when_known(call))

    async def _load(self, message: Bind) -> None:
        """Serve a model whose instances run elsewhere, when they are ready."""
        started_ns = time.monotonic_ns()
        try:
            if self._load_function is None:
                raise UnavailableError("this server runs functions only in the binding process")  # noqa: TRY301
            supervised = await self._load_function(message)
        except ServerError as error:
            self._send(CallDone(message.call, error.message, error.code))
        except Exception as error:  # the process waits for an answer
            logger.exception("call of a binding process failed")
            self._send(
                CallDone(message.call, f"{type(error).__name__}: {error}", InternalError.code)
            )
        else:
            self._supervised[supervised.model] = supervised
            self._put_in_service(supervised.model)
            supervised.model.statistics.load_ns = time.monotonic_ns() - started_ns
            await self._send_when_known(message.call)

    async def _end_instances(self, model: Model) -> None:
        supervised = self._supervised.pop(model, None)
        if supervised is not None:
            await supervised.drain_and_stop(0.0)

    async def _send_when_known(self, call: int) -> None:
        """Answer once every front end knows the change: the next request may reach any."""
        await self._engine.wait_until_known()
        self._send(CallDone(call))

    def _send(self, message: CallDone | LinesTaken | Started) -> None:
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
        try:
            parts = BoundSpec.read(message).parts(MemoryTrimmer(self._loop), len(sockets))
            model = self._factory.make_model(parts)
        except BaseException:
            for sock in sockets:
                sock.close()
            raise
        self._add_instances(model, parts, sockets, message.concurrency)
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

    def _add_instances(
        self,
        model: Model,
        parts: VersionParts,
        sockets: list[socket.socket],
        concurrency: list[int],
    ) -> None:
        pid, labels, memory = peer_process(self._link.socket), parts.labels, parts.memory
        for index, (sock, count) in enumerate(zip(sockets, concurrency, strict=True)):
            channel = MemoryChannel(sock, memory.arena, account=PeerAccount())
            name = f"{model.spec.name}_0_{index}"
            model.add_instance(
                ChannelInstance(name, labels, channel, memory, self._loop, model, count, pid)
            )

    def _put_in_service(self, model: Model) -> None:
        """Serve a model. An older one of the same name and version finishes its requests."""
        key = (model.spec.name, model.spec.version)
        previous = self._models.get(key)
        self._models[key] = model
        self._engine.add(model)
        self._engine.set_ready(model)
        if previous is not None:
            self._spawn(previous, self._unload(previous))

    def _unbind(self, message: Unbind) -> None:
        model = self._models.pop((message.name, message.version), None)
        if model is None:
            error = f"model '{message.name}' version {message.version} is not bound here"
            self._send(CallDone(message.call, error, NotFoundError.code))
        else:
            self._spawn(model, self._unbind_model(model, message.call))

    async def _unbind_model(self, model: Model, call: int) -> None:
        await self._unload(model, UNBIND_TIMEOUT_S)
        # Not awaited here: the end of the session waits for this, but not for front ends.
        self._answers.start(self._send_when_known(call))

    async def _unload(self, model: Model, timeout_s: float | None = None) -> None:
        await self._engine.unload(model, timeout_s)
        await self._end_instances(model)

    def _spawn(self, model: Model, work: Coroutine[Any, Any, None]) -> None:
        task = self._loop.create_task(work)
        self._unloading[task] = model
        task.add_done_callback(self._unloading.pop)
