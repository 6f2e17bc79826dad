# SPDX-License-Identifier: Apache-2.0
"""What a worker process may ask of the server: other models, control of models, metrics, its log.

`SharedServices` is the server's, `ModelServices` one worker's. Errors go back as the server's bare
text; what models read before it is added where they are.
"""

from __future__ import annotations

import contextlib
import logging
from typing import TYPE_CHECKING, Any

from pytriton.background_tasks import BackgroundTasks
from pytriton.errors import InvalidArgumentError, ServerError
from pytriton.repository.loading.load_dependencies import LoadDependencies
from pytriton.repository.services.bls import MAX_DEPTH, ModelCaller
from pytriton.repository.services.custom_metrics import WorkerMetrics

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Coroutine

    from pytriton.engine.control import ModelControl
    from pytriton.engine.engine import Engine
    from pytriton.messages import InferTensor, ResponseSink
    from pytriton.repository.services.bls import BeginTrace, CallingInstance, ModelCall
    from pytriton.repository.services.custom_metrics import CustomMetrics
    from pytriton.transport.worker_frames import InferCall, LogLine

    Reply = Callable[[Any, str | None], None]

logger = logging.getLogger(__name__)

_TRACEBACK = "Traceback (most recent call last):\n"
_LEVELS = {
    "INFO": logging.INFO,
    "WARNING": logging.WARNING,
    "ERROR": logging.ERROR,
    "VERBOSE": logging.DEBUG,
}


class SharedServices:
    """What the workers of all models have in common."""

    def __init__(
        self,
        engine: Engine,
        control: ModelControl,
        metrics: CustomMetrics,
        loop: asyncio.AbstractEventLoop,
        *,
        max_depth: int = MAX_DEPTH,
        begin_trace: BeginTrace | None = None,
    ) -> None:
        self.engine = engine
        self.control = control
        self.metrics = metrics
        self.caller = ModelCaller(engine, loop, max_depth=max_depth, begin_trace=begin_trace)
        self.load_dependencies = LoadDependencies()
        self._tasks = BackgroundTasks(loop)

    def start(self, work: Coroutine[Any, Any, None]) -> None:
        """Run something that may take long; it goes on when the worker that asked is gone."""
        self._tasks.start(work)

    def __repr__(self) -> str:
        return f"<SharedServices {len(self._tasks)} running, {len(self.caller.waits)} wait>"


class ModelServices:
    """The services of one worker.

    `instance` is set once the worker's instance is there; before, its model has made no call.
    """

    def __init__(self, shared: SharedServices, model_name: str, instance_name: str) -> None:
        self.instance: CallingInstance | None = None
        self.is_loading = True  # until the instance is in service
        self._shared = shared
        self._model_name = model_name
        self._instance_name = instance_name
        self._metrics = metrics = WorkerMetrics(shared.metrics)
        self._at_once: dict[str, Callable[..., Any]] = {
            "increment": metrics.increment,
            "set": metrics.set,
            "observe": metrics.observe,
            "value": metrics.value,
            "new_family": metrics.new_family,
            "delete_family": metrics.delete_family,
            "new_metric": metrics.new_metric,
            "delete_metric": metrics.delete_metric,
        }
        self._in_time: dict[str, Callable[..., Coroutine[Any, Any, Any]]] = {
            "load_model": self._load_model,
            "unload_model": self._unload_model,
            "is_model_ready": self._is_model_ready,
        }

    def infer(
        self, call: InferCall, inputs: dict[str, InferTensor], sink: ResponseSink
    ) -> ModelCall:
        """Start an inference; ServerError where it cannot be taken, and the sink hears nothing."""
        return self._shared.caller.call(self.instance, call, inputs, sink)

    def serve(self, action: str, arguments: dict[str, Any], reply: Reply | None) -> None:
        """Do something; `reply` gets the value, or None and the error's text, now or later."""
        if action in self._at_once:
            self._answer(action, self._at_once[action], arguments, reply)
        elif action in self._in_time:
            work = self._in_time[action](**arguments)
            self._shared.start(self._answer_in_time(action, work, reply))
        else:
            known = ", ".join([*self._at_once, *self._in_time])
            raise InvalidArgumentError(f"there is no service '{action}', only {known}")

    def log(self, line: LogLine) -> None:
        """Write a line to the server's log, as coming from the model's own file and line."""
        level = _LEVELS.get(line.level, logging.INFO)
        if logger.isEnabledFor(level):
            message, traceback = _split_traceback(line.message)
            record = logging.LogRecord(
                self._instance_name, level, line.file, line.line, message, None, None
            )
            record.exc_text = traceback  # which formatters write below the line
            logger.handle(record)

    def close(self) -> None:
        """The worker is gone: what it had is released."""
        self._metrics.close()

    def __repr__(self) -> str:
        return f"<ModelServices of {self._instance_name}>"

    def _answer(
        self,
        action: str,
        do: Callable[..., Any],
        arguments: dict[str, Any],
        reply: Reply | None,
    ) -> None:
        try:
            value = do(**arguments)
        except ServerError as error:
            self._refuse(action, error, reply)
        else:
            if reply is not None:
                reply(value, None)

    async def _answer_in_time(
        self, action: str, work: Coroutine[Any, Any, Any], reply: Reply | None
    ) -> None:
        try:
            value = await work
        except ServerError as error:
            self._refuse(action, error, reply)
        except Exception as error:  # the model waits for an answer, whatever happened
            logger.exception("%s: %s failed", self._instance_name, action)
            if reply is not None:
                reply(None, f"{type(error).__name__}: {error}")
        else:
            if reply is not None:
                reply(value, None)

    def _refuse(self, action: str, error: ServerError, reply: Reply | None) -> None:
        if reply is not None:
            reply(None, error.message)
        else:
            logger.warning("%s: %s failed: %s", self._instance_name, action, error.message)

    async def _load_model(self, name: str, config: str, files: dict[str, bytes]) -> None:
        dependencies = self._shared.load_dependencies
        with (
            dependencies.add(self._model_name, name)
            if self.is_loading
            else contextlib.nullcontext()
        ):
            await self._shared.control.load(name, config or None, files)

    async def _unload_model(self, name: str, unload_dependents: bool) -> None:
        await self._shared.control.unload(name, unload_dependents=unload_dependents)

    async def _is_model_ready(self, name: str, version: str) -> bool:
        engine = self._shared.engine
        if not engine.is_model_ready(name, version):
            return False
        model = engine.lookup(name, version)
        return not model.has_ready_check or await model.check_ready()


def _split_traceback(text: str) -> tuple[str, str | None]:
    """What a line says, and the traceback in it, if any."""
    if text.startswith(_TRACEBACK):
        return text.rstrip().rpartition("\n")[2], text
    message, mark, rest = text.partition("\n" + _TRACEBACK)
    return (message, _TRACEBACK + rest) if mark else (text, None)
