# SPDX-License-Identifier: Apache-2.0
"""A model made of Python callables: the arguments of `bind`, and its instances while served."""

from __future__ import annotations

import copy
import dataclasses
import functools
import logging
import re
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from pytriton.backend.host_kinds import host_for, stream_host_for
from pytriton.backend.model_call import ModelCall
from pytriton.backend.output_validation import OutputValidator
from pytriton.backend.signatures import signature_problem
from pytriton.backend.warmup import call_to_completion, warm_up
from pytriton.decorators.context import inject_triton_context
from pytriton.exceptions import PyTritonValidationError
from pytriton.model_config.common import DeviceKind
from pytriton.model_config.generator import ModelConfigGenerator
from pytriton.model_config.model_config import ModelConfig
from pytriton.model_config.sequence_message import initial_states
from pytriton.model_config.tensor import Tensor, triton_datatype
from pytriton.model_config.triton_model_config import (
    ResponseCache,
    TensorSpec,
    TritonModelConfig,
)
from pytriton.transport.arena import Arena
from pytriton.transport.link import socket_pair
from pytriton.transport.memory_channel import MemoryChannel

if TYPE_CHECKING:
    import socket

    from pytriton.backend.host import InstanceHost
    from pytriton.decorators.context import TritonContext

InferFunc = Callable[..., Any]

logger = logging.getLogger(__name__)

_NAME = re.compile(r"[a-zA-Z0-9._-]+")


class BoundModel:
    """A bound model. The constructor only checks arguments; `open_instances` starts instances."""

    def __init__(
        self,
        model_name: str,
        infer_func: InferFunc | Sequence[InferFunc],
        inputs: Sequence[Tensor],
        outputs: Sequence[Tensor],
        model_version: int = 1,
        config: ModelConfig | None = None,
        *,
        strict: bool = False,
    ) -> None:
        _check_name(model_name)
        _check_tensors("inputs", inputs)
        _check_tensors("outputs", outputs)
        self.name = model_name
        self.version = model_version
        self.infer_funcs = _as_callables(infer_func)
        self.config = _make_config(
            model_name,
            model_version,
            len(self.infer_funcs),
            inputs,
            outputs,
            config or ModelConfig(),
        )
        self._inputs, self._outputs = _call_tensors(self.config)
        self._check_callables()
        self._validator = OutputValidator(
            model_name,
            self._outputs,
            self.config.batching,
            strict,
            unnamed=[
                spec.name
                for spec, tensor in zip(self.config.outputs or (), outputs, strict=True)
                if not tensor.name
            ],
            decoupled=self.config.decoupled,
        )
        self._hosts: list[InstanceHost] = []

    def _check_callables(self) -> None:
        """Refuses callables that cannot accept requests; warns about a model without outputs."""
        inputs, outputs = self._inputs, self.config.outputs
        if not inputs and not outputs:
            return  # it cannot get useful requests
        required = [spec.name for spec in inputs if not spec.optional]
        for infer_func in self.infer_funcs:
            problem = signature_problem(infer_func, [spec.name for spec in inputs], required)
            if problem is not None:
                raise PyTritonValidationError(f"infer_func of model {self.name}: {problem}")
        if not outputs:
            logger.warning("Model %s declares no outputs: its clients get no data", self.name)

    @property
    def key(self) -> tuple[str, int]:
        """The unique key of the model in one server."""
        return self.name.lower(), self.version

    def message(self) -> dict[str, Any]:
        """Returns the ModelConfig message for the server, without warm-ups, which run here."""
        config = dataclasses.replace(self.config, model_warmup=None)
        return ModelConfigGenerator(config).get_config()

    def initial_states(self) -> dict[str, bytes]:
        """Returns the initial states of its sequences, by input, in the protocol's layout."""
        return initial_states(self.config.sequence)

    def prepare(self, context: TritonContext) -> None:
        """Set the context of the callables and warm them up."""
        for infer_func in self.infer_funcs:
            context.model_configs[infer_func] = copy.deepcopy(self.config)
            inject_triton_context(context, infer_func)
        warmups, inputs = self.config.model_warmup or (), self.config.inputs or ()
        for infer_func in self.infer_funcs:
            call = functools.partial(call_to_completion, infer_func)
            warm_up(self.name, warmups, call, inputs, self.config.sequence)

    def open_instances(
        self, on_unrecoverable: Callable[[], None]
    ) -> tuple[list[socket.socket], list[int]]:
        """Start an instance for each callable.

        Returns:
            The server's ends of their channels, and the number of concurrent batches of each.
        """
        remote: list[socket.socket] = []
        self._hosts = []  # earlier hosts end when the server replaces them by these
        try:
            for index, infer_func in enumerate(self.infer_funcs):
                ours, theirs = socket_pair()
                remote.append(theirs)
                self._start_host(index, infer_func, ours, on_unrecoverable)
        except BaseException:  # no descriptors or threads left; this ends those that run
            for sock in remote:
                sock.close()
            raise
        return remote, [host.concurrency for host in self._hosts]

    def _start_host(
        self,
        index: int,
        infer_func: InferFunc,
        sock: socket.socket,
        on_unrecoverable: Callable[[], None],
    ) -> None:
        kind = stream_host_for if self.config.decoupled else host_for
        host = kind(infer_func)(
            self._call(index, infer_func), MemoryChannel(sock, Arena()), on_unrecoverable
        )
        host.start()
        self._hosts.append(host)

    def is_alive(self) -> bool:
        """Whether every instance accepts batches."""
        return all(host.is_alive() for host in self._hosts)

    def close(self, timeout_s: float) -> None:
        """Wait for the instances, which end when the server has closed their channels.

        An instance that is blocked in user code is not waited for: its thread ends with the
        process.
        """
        end = time.monotonic() + timeout_s
        for host in self._hosts:
            host.join(max(0.0, end - time.monotonic()))
        self._hosts = []

    def _call(self, index: int, infer_func: InferFunc) -> ModelCall:
        return ModelCall(
            f"{self.name}_0_{index}",
            infer_func,
            {spec.name: triton_datatype(spec.dtype) for spec in self._outputs},
            self._validator,
            batching=self.config.batching,
        )


def _check_tensors(argument: str, tensors: Any) -> None:
    if isinstance(tensors, Tensor) or not isinstance(tensors, Sequence):
        raise PyTritonValidationError(
            f"{argument}: expected a list of Tensor, got {type(tensors).__name__}"
        )
    for tensor in tensors:
        if not all(hasattr(tensor, field) for field in ("name", "shape", "dtype", "optional")):
            raise PyTritonValidationError(
                f"{argument}: expected a list of Tensor, got a list with {tensor!r}"
            )


def _check_name(model_name: str) -> None:
    if not model_name:
        raise PyTritonValidationError("Model name cannot be empty")
    if not _NAME.fullmatch(model_name):
        raise PyTritonValidationError(
            "Model name can only contain alphanumeric characters, dots, underscores and dashes, "
            f"got {model_name!r}"
        )


def _as_callables(infer_func: InferFunc | Sequence[InferFunc]) -> list[InferFunc]:
    candidates: list[Any]
    candidates = list(infer_func) if isinstance(infer_func, (list, tuple)) else [infer_func]
    if not candidates or not all(callable(candidate) for candidate in candidates):
        raise PyTritonValidationError(
            f"infer_func has to be a callable or a list or tuple of callables, got {infer_func!r}"
        )
    return candidates


def _make_config(
    name: str,
    version: int,
    instance_count: int,
    inputs: Sequence[Tensor],
    outputs: Sequence[Tensor],
    config: ModelConfig,
) -> TritonModelConfig:
    optional = [spec.name for spec in outputs if spec.optional]
    if optional:
        raise PyTritonValidationError(
            f"Output tensors cannot be optional. Outputs marked as optional: {optional}."
        )
    return TritonModelConfig(
        model_name=name,
        model_version=version,
        max_batch_size=config.max_batch_size,
        batching=config.batching,
        batcher=config.batcher,
        instance_group={DeviceKind.KIND_CPU: instance_count},
        decoupled=config.decoupled,
        inputs=_named(inputs, "INPUT"),
        outputs=_named(outputs, "OUTPUT"),
        response_cache=ResponseCache(enable=True) if config.response_cache else None,
        model_warmup=config.model_warmup,
        sequence=config.sequence,
        rate_limiter=config.rate_limiter,
    )


def _call_tensors(config: TritonModelConfig) -> tuple[list[TensorSpec], list[TensorSpec]]:
    """Returns what callables get and return: also the controls and states of sequences."""
    inputs, outputs = list(config.inputs or ()), list(config.outputs or ())
    if config.sequence is None:
        return inputs, outputs
    inputs += [
        TensorSpec(control.name, (1,), control.dtype) for control in config.sequence.controls
    ]
    for state in config.sequence.states:
        inputs.append(TensorSpec(state.input_name, tuple(state.shape), state.dtype))
        if all(state.output_name != spec.name for spec in outputs):
            outputs.append(TensorSpec(state.output_name, tuple(state.shape), state.dtype))
    names = [spec.name for spec in inputs]
    for name in names:
        if names.count(name) > 1:
            raise PyTritonValidationError(
                f"Expected inputs, controls and states with different names, got {name!r} twice"
            )
    return inputs, outputs


def _named(tensors: Sequence[Tensor], prefix: str) -> list[TensorSpec]:
    return [
        TensorSpec(
            name=tensor.name or f"{prefix}_{number}",
            shape=tuple(tensor.shape),
            dtype=tensor.dtype,
            optional=tensor.optional,
        )
        for number, tensor in enumerate(tensors, 1)
    ]
