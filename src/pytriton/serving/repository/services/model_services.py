# SPDX-License-Identifier: Apache-2.0
"""The services of the server for worker processes: calls, control of models, metrics, the log.

The server has one `SharedServices`, each worker has one `ModelServices`. Errors are returned as the
server's message alone; the worker adds the prefix that models see.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import logging
import time
import typing
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any

import msgspec

from pytriton.base.background_tasks import BackgroundTasks
from pytriton.base.device_copies import CopyReason
from pytriton.base.errors import (
    InvalidArgumentError,
    ServerError,
    UnavailableError,
    error_for_clients,
)
from pytriton.base.model_spec import identifier_of
from pytriton.base.request_ids import visible
from pytriton.runtime.executor.device_blocks import ledger_of, taking_of
from pytriton.serving.repository.loading.load_coordinator import LoadDependencies
from pytriton.serving.repository.services.bls import CallingInstance, ModelCaller, RunningBlsCall
from pytriton.serving.repository.services.custom_metrics import CustomMetrics, WorkerMetrics

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Coroutine

    from pytriton.base.messages import InferTensor, ResponseSink
    from pytriton.runtime.transport.frames import InferCallFrame, WorkerLogLine
    from pytriton.serving.engine.client import ModelControl
    from pytriton.serving.engine.engine import Engine
    from pytriton.serving.engine.rate_limiter import InstanceTurns

    Reply = Callable[[Any, str | None], None]

logger = logging.getLogger(__name__)

_TRACEBACK = "Traceback (most recent call last):\n"
MAX_RUNNING = 1000  # services of one worker that take time, such as to load a model
# Lines of one worker: models that write more cannot be read, and the event loop has other work.
_LINES_AT_ONCE = 20_000
_LINES_PER_S = 2_000
_LINE_CHARACTERS = 1_000  # a longer one counts as several
_MAX_TEXT = 1 << 18
_MAX_NAME = 255
_MAX_IDS = 1000
_MAX_NUMBER = 1 << 31
_MAX_AGE_S = 24 * 3600.0
_LEVELS = {
    "INFO": logging.INFO,
    "WARNING": logging.WARNING,
    "ERROR": logging.ERROR,
    "VERBOSE": logging.DEBUG,
}


class SharedServices:
    """The common parts of all workers' services."""

    def __init__(
        self,
        engine: Engine,
        control: ModelControl,
        metrics: CustomMetrics,
        loop: asyncio.AbstractEventLoop,
        *,
        load_dependencies: LoadDependencies | None = None,
        turns: InstanceTurns | None = None,
    ) -> None:
        self.engine = engine
        self.control = control
        self.metrics = metrics
        self.caller = ModelCaller(engine, loop, turns=turns)
        self.load_dependencies = (
            LoadDependencies() if load_dependencies is None else load_dependencies
        )
        self._tasks = BackgroundTasks(loop)

    def start(self, work: Coroutine[Any, Any, None]) -> None:
        """Run a coroutine in the background, also after its worker has ended."""
        self._tasks.start(work)

    def __repr__(self) -> str:
        return f"<SharedServices {len(self._tasks)} running, {len(self.caller.waits)} wait>"


class ModelServices:
    """The services of one worker.

    `instance` is set when the worker's instance exists; its model makes no call before that.
    """

    def __init__(
        self, shared: SharedServices, model_name: str, instance_name: str, namespace: str = ""
    ) -> None:
        self.instance: CallingInstance | None = None
        self.is_loading = True  # until the instance is in service
        self.may_control = True  # a model in a sandbox needs a grant to load and unload models
        self._shared = shared
        self._identifier = identifier_of(namespace, model_name)
        self._model_name = model_name
        self._namespace = namespace
        self._instance_name = instance_name
        self._log = WorkerLog(instance_name, model_name)
        self._running = 0  # coroutines
        self._metrics = metrics = WorkerMetrics(shared.metrics)
        self._functions: dict[str, Callable[..., Any]] = {
            "increment": metrics.increment,
            "set": metrics.set,
            "observe": metrics.observe,
            "value": metrics.value,
            "new_family": metrics.new_family,
            "delete_family": metrics.delete_family,
            "new_metric": metrics.new_metric,
            "delete_metric": metrics.delete_metric,
            "describe_model": self._describe_model,
            "device_taking": self._device_taking,
        }
        self._coroutines: dict[str, Callable[..., Coroutine[Any, Any, Any]]] = {
            "load_model": self._load_model,
            "unload_model": self._unload_model,
            "is_model_ready": self._is_model_ready,
        }

    def on_started(self, instance: CallingInstance) -> None:
        """Let the model call others: the calls of its instance are known by that."""
        self.instance = instance

    def infer(
        self, call: InferCallFrame, inputs: dict[str, InferTensor], sink: ResponseSink
    ) -> RunningBlsCall:
        """Start an inference; the sink receives all results, also a refusal."""
        return self._shared.caller.call(self.instance, call, inputs, sink, self._namespace)

    def serve(self, action: str, arguments: dict[str, Any], reply: Reply | None) -> None:
        """Run an action; calls `reply` with the value, or with None and the error, now or later.

        Raises:
            InvalidArgumentError: There is no such action, or it has other arguments.
            UnavailableError: Too many of this worker are running.
        """
        if action in self._functions:
            function = self._functions[action]
            self._answer(action, function, _checked(action, function, arguments), reply)
        elif action in self._coroutines:
            if self._running >= MAX_RUNNING:
                raise UnavailableError(
                    f"at most {MAX_RUNNING} services may run for a model's instance"
                )
            coroutine = self._coroutines[action]
            work = coroutine(**_checked(action, coroutine, arguments))
            self._running += 1
            self._shared.start(self._answer_coroutine(action, work, reply))
        else:
            known = ", ".join([*self._functions, *self._coroutines])
            raise InvalidArgumentError(f"there is no service '{action:.80}', only {known}")

    def log(self, line: WorkerLogLine) -> None:
        """Write a line to the server's log, with file and line of the model's code."""
        self._log.write(line)

    def close(self) -> None:
        """Release everything of a worker that has ended."""
        self._metrics.close()

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

    async def _answer_coroutine(
        self, action: str, work: Coroutine[Any, Any, Any], reply: Reply | None
    ) -> None:
        try:
            try:
                value = await work
            finally:
                self._running -= 1
        except ServerError as error:
            self._refuse(action, error, reply)
        except Exception as error:  # noqa: BLE001  the model must get a reply in any case
            activity = f"it served {action} to instance {self._instance_name}"
            self._refuse(action, error_for_clients(error, activity), reply)
        else:
            if reply is not None:
                reply(value, None)

    def _refuse(self, action: str, error: ServerError, reply: Reply | None) -> None:
        if reply is not None:
            reply(None, error.message)
        else:
            self._log.warn(f"{action} failed: {error.message}")

    def _require_control(self, name: str = "", *, with_others: bool = True) -> None:
        """Refuse to load and unload models, except that a model may unload itself alone."""
        is_itself = name == self._model_name and not with_others
        if not (self.may_control or is_itself):
            raise InvalidArgumentError(
                "a model in a sandbox may load and unload models only if it is granted 'control'"
            )

    async def _load_model(self, name: str, config: str, files: dict[str, bytes]) -> None:
        self._require_control()
        dependencies = self._shared.load_dependencies
        with (
            dependencies.add_named(self._identifier, name)
            if self.is_loading
            else contextlib.nullcontext()
        ):
            await self._shared.control.load(name, config or None, files)
        await self._wait_until_known()

    async def _unload_model(self, name: str, unload_dependents: bool) -> None:
        self._require_control(name, with_others=unload_dependents)
        await self._shared.control.unload(name, unload_dependents=unload_dependents)
        await self._wait_until_known()

    async def _wait_until_known(self) -> None:
        """Wait for all front ends: the model may tell its client, who asks any of them next."""
        settled = self._shared.engine.settled
        if settled is not None:
            await settled()

    def _describe_model(self, name: str, version: str) -> dict[str, Any]:
        """Returns facts about a model, or the error that there is none, with its code."""
        engine = self._shared.engine
        try:
            model = engine.lookup(engine.nearest(name, self._namespace), version)
        except ServerError as error:
            return {"error": error.message, "code": int(error.code)}
        return {
            "version": model.spec.version,
            "is_decoupled": model.spec.decoupled,
            "max_batch_size": model.spec.max_batch_size,
            "config": model.config_json.decode(),
        }

    def _device_taking(self, name: str, version: str) -> dict[str, Any]:
        """Returns whether a model takes inputs of the caller in GPU memory, or why it does not."""
        own = ledger_of(self.instance)
        if own is not None and own.refusal:
            return {"gpu": b"", "reason": own.refusal}
        engine = self._shared.engine
        try:
            model = engine.lookup(engine.nearest(name, self._namespace), version)
        except ServerError:  # the call will say it
            return {"gpu": b"", "reason": CopyReason.INSTANCE_KIND}
        taking = taking_of(model.spec, getattr(model, "instances", ()))
        return {"gpu": taking.gpu, "reason": taking.reason}

    async def _is_model_ready(self, name: str, version: str) -> bool:
        engine = self._shared.engine
        name = engine.nearest(name, self._namespace)
        if not engine.is_model_ready(name, version):
            return False
        model = engine.lookup(name, version)
        return not model.has_ready_check or await model.check_ready()


class WorkerLog:
    """Writes the lines of an instance's process to the server's log.

    The process may be broken or hostile. So what a line says of itself is what such a line may say,
    and lines that are too many are left out.
    """

    def __init__(
        self, instance_name: str, model_name: str, clock: Callable[[], float] = time.time
    ) -> None:
        self._instance_name = instance_name
        self._model_name = model_name
        self._clock = clock
        self._room = float(_LINES_AT_ONCE)
        self._seen_s = clock()
        self._lost_count = 0

    def write(self, line: WorkerLogLine) -> None:
        """Write a line, if the log wants it."""
        level = _LEVELS.get(line.level, logging.INFO)
        if not logger.isEnabledFor(level):
            return
        if self._takes(line.message):
            logger.handle(self._record(level, line))

    def warn(self, text: str) -> None:
        """Write a line of the server about what the process does, which counts as those of it."""
        text = _shortened(text)
        if self._takes(text):
            logger.warning("%s: %s", self._instance_name, text)

    def _takes(self, text: str) -> bool:
        """Returns whether there is room for a line; tells how many there was none for."""
        now_s = self._clock()
        more = max(0.0, now_s - self._seen_s) * _LINES_PER_S
        self._room = min(_LINES_AT_ONCE, self._room + more)
        self._seen_s = now_s
        size = 1 + min(len(text), _MAX_TEXT) // _LINE_CHARACTERS
        if self._room < size:
            self._lost_count += 1
            return False
        self._room -= size
        if self._lost_count:
            lost = "%s: %d lines were left out here, as it wrote more than %d a second"
            logger.warning(lost, self._instance_name, self._lost_count, _LINES_PER_S)
            self._lost_count = 0
        return True

    def _record(self, level: int, line: WorkerLogLine) -> logging.LogRecord:
        message, traceback = _split_traceback(_shortened(line.message))
        file = visible(PurePosixPath(line.file).name[:_MAX_NAME])
        number = line.line if 0 <= line.line < _MAX_NUMBER else 0
        record = logging.LogRecord(self._instance_name, level, file, number, message, None, None)
        record.exc_text = traceback  # formatters write it below the line
        record.triton_request_ids = [each[:_MAX_NAME] for each in line.request_ids[:_MAX_IDS]]
        record.triton_model = self._model_name if line.model else ""
        record.triton_process = line.process if 0 <= line.process < _MAX_NUMBER else 0
        record.is_printed = line.is_printed
        if self._seen_s - _MAX_AGE_S <= line.created <= self._seen_s:
            record.created = line.created
        return record


def _shortened(text: str) -> str:
    if len(text) <= _MAX_TEXT:
        return text
    return f"{text[:_MAX_TEXT]}... ({len(text) - _MAX_TEXT} more characters)"


def _checked(
    action: str, function: Callable[..., Any], arguments: dict[str, Any]
) -> dict[str, Any]:
    """Returns the arguments of a service, if they have the types that its function says."""
    kind = _arguments_of(function.__func__)  # type: ignore[attr-defined]  # it is a method
    try:
        return msgspec.structs.asdict(msgspec.convert(arguments, kind))
    except (ValueError, RecursionError) as error:
        raise InvalidArgumentError(
            f"expected the arguments of service '{action}': {error}"
        ) from None


@functools.cache
def _arguments_of(function: Callable[..., Any]) -> type[msgspec.Struct]:
    """Returns the arguments of a method as a record, by its annotations."""
    hints = typing.get_type_hints(function)
    names = list(inspect.signature(function).parameters)[1:]
    fields = [(name, hints[name]) for name in names]
    return msgspec.defstruct("Arguments", fields, forbid_unknown_fields=True)


def _split_traceback(text: str) -> tuple[str, str | None]:
    """Split a log message into its text and its traceback, if it has one."""
    if text.startswith(_TRACEBACK):
        return text.rstrip().rpartition("\n")[2], text
    message, mark, rest = text.partition("\n" + _TRACEBACK)
    return (message, _TRACEBACK + rest) if mark else (text, None)
