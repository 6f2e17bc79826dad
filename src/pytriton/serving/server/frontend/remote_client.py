# SPDX-License-Identifier: Apache-2.0
"""The engine's interface for a front end in a process of its own; see `EngineClient`.

Models are looked up and requests are validated here, with a copy of the core's registry. Everything
else is asked of the core. "Remote" is the core here, as this process sees it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar

import msgspec

from pytriton.base.errors import ServerError
from pytriton.base.sent_specs import decode_spec
from pytriton.runtime.transport.frontend_frames import (
    LimitUse,
    Ping,
    Pong,
    Refusals,
    Registry,
    RegistryTaken,
)
from pytriton.serving.engine.client import question_of
from pytriton.serving.engine.engine import RequestEngine
from pytriton.serving.engine.model_state import UNLOADED, VersionState
from pytriton.serving.server.frontend.chunks import ChunkFlow
from pytriton.serving.server.frontend.core_link import CoreLink
from pytriton.serving.server.process.log_lines import write_gathered

if TYPE_CHECKING:
    import asyncio
    import socket
    from collections.abc import Callable, Sequence

    from pytriton.base.model_spec import ModelSpec
    from pytriton.runtime.executor.inference import Inference
    from pytriton.runtime.transport.frames import Frame
    from pytriton.runtime.transport.frontend_frames import ModelRecord, ModelStateRecord
    from pytriton.serving.engine.served_model import ServedModel

_P = ParamSpec("_P")
_T = TypeVar("_T")
_REPORT_S = 0.2  # from a refusal until the core hears of it, with those that came meanwhile


class RemoteModel:
    """Passes requests to the core, which decides on its lifecycle. See `ServedModel`."""

    prefers_columns = True  # two processes have less to write and to read
    quotas = None  # the core has them

    def __init__(self, link: CoreLink, description: ModelRecord, spec: ModelSpec) -> None:
        self.number = description.number
        self.spec = spec
        self.is_bound = description.is_bound
        self.config_json = description.config_json
        self.has_ready_check = description.has_ready_check
        self.takes_columns = description.takes_columns
        self.state = VersionState.LOADING
        self.reason = ""
        self.is_ready = False
        self.on_changed: Callable[[], None] = lambda: None
        self.flow = ChunkFlow()
        self._link = link
        self.version_text = str(spec.version)
        self.cancel = link.cancel
        self.pause = link.pause
        self.resume = link.resume

    def update(self, status: ModelStateRecord) -> None:
        """Apply a state that the core has sent."""
        self.state = VersionState(status.state)
        self.reason = status.reason
        self.is_ready = status.is_ready
        self.on_changed()

    @property
    def is_withdrawn(self) -> bool:
        """Whether it was unloaded on purpose, so that readiness does not wait for it."""
        return self.state is VersionState.UNLOADING or self.reason == UNLOADED

    async def check_ready(self) -> bool:
        """Returns the result of the model's own readiness check."""
        return await self._link.ask("SharedParts.check_model", number=self.number)

    # Requests

    def body_memory(self, size: int, header_bytes: int) -> memoryview | None:
        """Allocate shared memory of this process, which the core passes on to instances."""
        return self._link.memory.body_memory(size, header_bytes)

    def submit(self, inference: Inference, now_ns: int, *, is_alone: bool = False) -> None:
        """Send a request to the core; raises UnavailableError if there is no memory for it."""
        self._link.submit(self, inference)

    def submit_chunk(
        self, inferences: Sequence[Inference], now_ns: int, *, is_complete: bool = False
    ) -> None:
        """Send the members of a chunk to the core; at once if nothing is gathered any more."""
        self._link.submit_chunk(self, inferences)
        if is_complete:
            self._link.flush()

    def is_start_due(self, count: int) -> bool:
        """Returns False: the core decides, and messages with many requests are best."""
        return False

    def __repr__(self) -> str:
        return f"<RemoteModel {self.spec.name} version {self.spec.version} {self.state.value}>"


class RemoteClient:
    """A copy of the core's registry, and a connection to the core."""

    def __init__(
        self,
        sock: socket.socket,
        loop: asyncio.AbstractEventLoop,
        *,
        on_exiting: Callable[[], None],
        on_frame: Callable[[Frame], None],
        on_lost: Callable[[Exception], None],
    ) -> None:
        self._engine = engine = RequestEngine[RemoteModel]()
        self._models: dict[int, RemoteModel] = {}
        self.trace_rates: dict[str, int] = {}
        self._is_serving = False
        self._asked_serving: asyncio.Future[Any] | None = None
        self._on_exiting = on_exiting
        self._on_other_frame = on_frame
        self.link = CoreLink(
            sock,
            loop,
            on_frame=self._on_frame,
            on_lost=on_lost,
            resubmit=engine.submit_again,
            turn_away=engine.turn_away,
        )
        self.lookup = engine.lookup
        self.find = engine.find
        self.ready_versions = engine.ready_versions
        self.ready_models = engine.ready_models
        self.infer = engine.infer
        self.observers = engine.observers
        self.report_refusal = engine.report_refusal
        self.limit_use: Callable[[], LimitUse] = LimitUse  # of the front end, once there is one
        self._loop = loop
        self._is_report_due = False
        engine.failures.on_added = self._report_soon

    @property
    def is_exiting(self) -> bool:
        return self._engine.is_exiting

    @property
    def is_behind(self) -> bool:
        return self.link.is_behind

    def call_after_answers(
        self, models: Sequence[ServedModel | None], callback: Callable[[], None]
    ) -> bool:
        """See `EngineClient`."""
        flows = [model.flow for model in models if isinstance(model, RemoteModel)]
        if not flows or not all(flow.is_full for flow in flows):
            return False
        self.link.call_after_answers(callback)
        return True

    def use_namespaces(self, *, is_on: bool) -> None:
        """Say whether models of several repositories may have the same name."""
        self._engine.namespacing = is_on

    def suggest_names(self, *, is_on: bool) -> None:
        """Say whether errors may suggest names of models."""
        self._engine.suggests_names = is_on

    def tell_reasons(self, *, is_on: bool) -> None:
        """Say whether errors may say why a model is not ready."""
        self._engine.tells_reasons = is_on

    # Questions

    def is_serving(self) -> bool:
        """See `EngineClient`; returns the last known answer, and asks for the next."""
        if self._asked_serving is None:
            self._asked_serving = self.link.ask("LocalClient.is_serving")
            self._asked_serving.add_done_callback(self._on_serving)
        return self._is_serving

    def _on_serving(self, answer: asyncio.Future[Any]) -> None:
        self._asked_serving = None
        if not answer.cancelled() and answer.exception() is None:
            self._is_serving = answer.result()

    def ask(
        self, method: Callable[Concatenate[Any, _P], _T], /, *args: _P.args, **arguments: _P.kwargs
    ) -> _T:
        """See `EngineClient`."""
        assert not args, "expected arguments with names"
        answer: Any = self._ask(method.__qualname__, question_of(method).kind, arguments)
        return answer  # type: ignore[no-any-return]  # the method says what it is

    async def _ask(self, name: str, kind: Any, arguments: dict[str, Any]) -> Any:
        write_gathered()  # these lines come before it, with the settings of their time
        answer: Any = await self.link.ask(name, **arguments)
        return answer if kind is None else msgspec.convert(answer, kind)

    # Refused requests: the core knows nothing of them

    def _report_soon(self) -> None:
        """Tell the core, once for all requests that are refused in a moment."""
        if not self._is_report_due:
            self._is_report_due = True
            self._loop.call_later(_REPORT_S, self._report)

    def _report(self) -> None:
        self._is_report_due = False
        groups = self._engine.failures.take()
        try:
            self.link.send(Refusals(groups))
        except ServerError:  # there is no memory for the message now
            for group in groups:
                self._engine.failures.merge(group)

    # Messages of the core

    def _on_frame(self, frame: Frame) -> None:
        if isinstance(frame, Registry):
            self._apply(frame)
        elif isinstance(frame, Ping):
            self.link.send(Pong(frame.number, self.limit_use()))
        else:
            self._on_other_frame(frame)

    def _apply(self, registry: Registry) -> None:
        """Replace the known models by those of the core."""
        engine, models = self._engine, self._models
        for number in models.keys() - {status.number for status in registry.models}:
            engine.remove(models.pop(number))
        for description in registry.new_models:
            model = RemoteModel(self.link, description, decode_spec(description.spec))
            models[description.number] = model
            engine.add(model)
        for status in registry.models:
            models[status.number].update(status)
        self._is_serving = registry.is_serving
        self.trace_rates = registry.trace_rates
        if registry.is_exiting and not engine.is_exiting:
            engine.refuse()
            self._on_exiting()
        self.link.send(RegistryTaken(registry.epoch))
