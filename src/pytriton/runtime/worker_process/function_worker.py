# SPDX-License-Identifier: Apache-2.0
"""Runs one instance of a bound function in its own process, from its import to its end.

The main thread both reads the channel and calls the function, unless that is asynchronous.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from pytriton.base.errors import InvalidArgumentError, NotFoundError
from pytriton.base.log_switches import JSON_FORMAT
from pytriton.decorators.context import TritonContext
from pytriton.exceptions import PyTritonError
from pytriton.model_config.model_config import ModelConfig
from pytriton.model_config.parser import ModelConfigParser
from pytriton.model_config.tensor import Tensor
from pytriton.models.binding import BindArguments, bound_model
from pytriton.models.references import (
    Reference,
    add_import_paths,
    is_maker,
    make_function,
    parse_reference,
    resolve,
)
from pytriton.runtime.backend.backend import Backend
from pytriton.runtime.backend.connection import GroupMember
from pytriton.runtime.backend.failure_text import describe_fully, raised_at
from pytriton.runtime.backend.worker import Worker
from pytriton.runtime.python_backend.output import LabelledStream, end_output, end_printed_lines
from pytriton.runtime.transport.frames import (
    Finalize,
    Initialize,
    Initialized,
    LogChange,
    WorkerLogLine,
)

if TYPE_CHECKING:
    from pytriton.base.log_switches import LogSwitches
    from pytriton.runtime.backend.batch import WorkerBatch
    from pytriton.runtime.backend.connection import ServerConnection
    from pytriton.runtime.backend.flow_control import OpenBatches
    from pytriton.runtime.functions.bound_model import BoundModel
    from pytriton.runtime.transport.channel import Received
    from pytriton.runtime.transport.frames import Frame, FunctionSource, FunctionTensor

_WAYS_OUT = (
    "Install it on every node, put it into a folder that all nodes have under the same path, or "
    "give the server the folder as ray_working_dir"
)
UNRECOVERABLE = 3  # exit status after an error with which the function asks for its end
_RANK_FAILED = 4  # that of a process without batches whose function raised


def find_target(source: FunctionSource) -> tuple[Any, Reference]:
    """Import the function, class or factory of a model.

    Raises:
        NotFoundError: This machine does not have the module, or the module no such object. The
            module itself may raise anything.
    """
    reference = parse_reference(source.reference)
    add_import_paths(source.search_paths)
    try:
        return resolve(reference), reference
    except ModuleNotFoundError as error:
        if not _is_part_of(error.name, reference.module):
            raise  # a module that it imports
        raise NotFoundError(
            f"Expected the module {reference.module!r} of {reference}, but {sys.executable} does "
            f"not find {error.name!r} there, not even in "
            f"{', '.join(source.search_paths) or 'folders of the binding process'}. {_WAYS_OUT}."
        ) from error
    except AttributeError as error:
        module = sys.modules.get(reference.module)
        if module is None or hasattr(module, reference.name.split(".", maxsplit=1)[0]):
            raise
        raise NotFoundError(
            f"Expected {reference.name!r} in the module {reference.module!r} "
            f"({getattr(module, '__file__', 'built in')}), which has no such name"
        ) from error


def load_function(
    source: FunctionSource, name: str, version: int, group_size: int = 1
) -> BoundModel:
    """Import the function, or make it, and return the model that it is.

    Raises:
        PyTritonValidationError: The function or an argument of its `bind` is wrong. Code of users
            may raise anything.
    """
    target, reference = find_target(source)
    check_group(target, reference, group_size)
    config = _model_config(source.config)
    given = BindArguments(
        name,
        make_function(target, reference),
        _tensors(source.inputs),
        _tensors(source.outputs),
        version,
        config,
        source.is_strict,
    )
    model = bound_model(given, count=1)
    _check_tensors(model.message(), source.config, reference)
    return model


def make_follower(source: FunctionSource, group_size: int) -> Callable[[], object] | None:
    """Call the factory in a process that gets no batches; returns its work, if there is any.

    Raises:
        InvalidArgumentError: It is no factory, or returns something else than a function or None.
    """
    target, reference = find_target(source)
    check_group(target, reference, group_size)
    work: Any = target()
    if work is not None and not callable(work):
        raise InvalidArgumentError(
            f"Expected {reference} to return a function without arguments or None where RANK is "
            f"not 0, got an object of {type(work).__name__}"
        )
    made: Callable[[], object] | None = work
    return made


def check_group(target: Any, reference: Reference, group_size: int) -> None:
    """Refuse a function that is no factory, where several processes are one instance."""
    if group_size > 1 and not is_maker(target):
        raise InvalidArgumentError(
            f"Expected a factory for instances of {group_size} actors, got {reference}, which "
            "takes arguments: each of them calls it once, to begin its part of the work"
        )


def _is_part_of(name: str | None, module: str) -> bool:
    return name is not None and (module == name or module.startswith(f"{name}."))


def _tensors(records: Sequence[FunctionTensor] | None) -> list[Tensor] | None:
    if records is None:
        return None
    return [
        Tensor(
            shape=tuple(each.shape),
            dtype=getattr(np, each.dtype),
            name=each.name,
            optional=each.is_optional,
            device=each.device,
        )
        for each in records
    ]


def _model_config(message: Mapping[str, Any]) -> ModelConfig:
    """Returns the settings of a ModelConfig message that `bind` knows."""
    rest = {name: value for name, value in message.items() if name not in ("input", "output")}
    config = ModelConfigParser.from_dict(rest)
    return ModelConfig(
        batching=config.batching,
        max_batch_size=config.max_batch_size,
        batcher=config.batcher,
        response_cache=config.response_cache is not None and config.response_cache.enable,
        decoupled=config.decoupled,
        model_warmup=config.model_warmup,
        sequence=config.sequence,
        rate_limiter=config.rate_limiter,
        openai=config.openai,
    )


def _check_tensors(
    message: Mapping[str, Any], expected: Mapping[str, Any], reference: Reference
) -> None:
    """Refuse annotations that are others than those of the process that bound the model."""
    for kind in ("input", "output", "model_transaction_policy"):
        ours, theirs = message.get(kind), expected.get(kind)
        if ours != theirs:
            raise InvalidArgumentError(
                f"Expected the same {kind} of {reference} as in the process that bound it, "
                f"{theirs}, got {ours}: this node has another version of the module"
            )


class FunctionWorker(Worker):
    """Runs a bound function, whose host reads the channel: no other thread needs messages."""

    def __init__(self, connection: ServerConnection) -> None:
        self.backend = ImportedFunction(connection)
        super().__init__(self.backend, self.backend, connection)

    def _run_batches(self) -> None:
        self.backend.run_batches()


class ImportedFunction(Backend):
    """The backend of a function that is imported; once that is loaded, its own backend works."""

    can_infer = False

    def __init__(self, connection: ServerConnection) -> None:
        self._connection = connection
        self._channel = connection.outbox.channel
        self._is_finalized = False
        self._work: Callable[[], object] | None = None  # of a process that gets no batches

    def load(self, frame: Initialize, batches: OpenBatches) -> Initialized:
        """See `Backend`."""
        self._use(frame.log)
        self._label = f"The function of model '{frame.arguments['model_name']}'"
        self._connection.handlers[LogChange] = self._on_log_change
        try:
            return self._load(frame, batches)
        except PyTritonError as error:
            raise InvalidArgumentError(error.message) from error

    def _load(self, frame: Initialize, batches: OpenBatches) -> Initialized:
        source, arguments = frame.function, frame.arguments
        assert source is not None, "the server has chosen this worker for it"
        member = GroupMember(arguments, self._connection)
        if member.is_follower:
            self._work = make_follower(source, member.size)
            return Initialized()
        name = arguments["model_name"]
        model = load_function(source, name, int(arguments["model_version"]), member.size)
        model.prepare(TritonContext())
        call = model.only_call(arguments["model_instance_name"])
        self._backend = backend = model.backend(call, self._end_unrecoverably)
        return Initialized(concurrency=backend.concurrency)

    def run(self, batch: WorkerBatch) -> None:
        """See `Backend`."""
        self._backend.run(batch)

    def run_batches(self) -> None:
        """Run batches until the model is to be finalized.

        Raises:
            EOFError: The server has ended, or ConnectionError.
        """
        host = self._backend.host_class(self._backend, self._channel)
        host.on_other = self._on_other
        try:
            host.run()
        except (EOFError, ConnectionError):
            if not self._is_finalized:
                raise
        if not self._is_finalized:
            raise EOFError
        self._channel.set_blocking(True)  # an event loop may have changed it

    def follow(self, member: GroupMember) -> None:
        """Do the work of a process that gets no batches, which the factory has returned."""
        threading.Thread(target=self._follow, args=(member,), daemon=True).start()
        member.wait_for_end()

    def _follow(self, member: GroupMember) -> None:
        try:
            if self._work is not None:
                self._work()
        except BaseException as error:  # noqa: BLE001  the process ends
            self._log(error, f"The function of rank {member.rank} raised")
            self._connection.outbox.flush()
            os._exit(_RANK_FAILED)  # which ends the group

    def _on_other(self, frame: Frame) -> None:
        if isinstance(frame, LogChange):
            self._use(frame.switches)
        elif isinstance(frame, Finalize):
            self._is_finalized = True
            raise EOFError  # noqa: TRY004  it ends the host's loop

    def _on_log_change(self, received: Received) -> None:
        self._on_other(received.frame)

    def _use(self, switches: LogSwitches) -> None:
        LabelledStream.is_json = switches.format == JSON_FORMAT

    def set_batch(self, batch: int, ids: Mapping[int, str] | None = None) -> None:
        """See `Environment`: the host says it."""

    def log_raised(self, error: BaseException, what: str, default_file: str = "") -> None:
        """See `Environment`."""
        self._log(error, f"{self._label} {what}")

    def _log(self, error: BaseException, what: str) -> None:
        line = WorkerLogLine("ERROR", f"{what}: {describe_fully(error)}", *raised_at(error))
        self._connection.outbox.post(line)

    def _end_unrecoverably(self) -> None:
        """End the process: the function has said that it cannot work any more."""
        self._channel.set_blocking(True)
        self._channel.flush()  # the answer may wait for room in the socket
        end_printed_lines()
        end_output()
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        os._exit(UNRECOVERABLE)
