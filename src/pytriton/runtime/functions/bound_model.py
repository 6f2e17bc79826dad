# SPDX-License-Identifier: Apache-2.0
"""A model made of Python callables: the arguments of `bind`, and its instances while served.

A warm-up that fails is logged; the model is served anyway. Hosts for asynchronous callables are
imported only if needed, because asyncio takes 4 MiB.
"""

from __future__ import annotations

import copy
import functools
import inspect
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from pytriton.base.device_copies import is_on_gpu
from pytriton.base.failure_log import FailureLog, model_label
from pytriton.base.lazy_module import LazyModule
from pytriton.base.log_capture import set_line_source
from pytriton.base.user_frames import user_traceback
from pytriton.decorators.context import inject_triton_context
from pytriton.exceptions import PyTritonValidationError
from pytriton.model_config.common import ModelWarmup, generate_warmup_requests
from pytriton.model_config.model_config import ModelConfig
from pytriton.model_config.sequence_batcher import SequenceBatcher, only_request_inputs
from pytriton.model_config.tensor import cuda_device, triton_datatype
from pytriton.proxy.types import Request
from pytriton.runtime.cuda.device_array import DeviceArray, copy_to_device, write_to_host
from pytriton.runtime.functions.backends import FunctionBackend, GeneratorBackend
from pytriton.runtime.functions.bound_config import (
    AnyModel,
    bound_config,
    call_tensors,
    check_name_and_tensors,
    signature_problem,
)
from pytriton.runtime.functions.model_call import FunctionCall, write_failure
from pytriton.runtime.functions.output_validation import DeclaredTensor, OutputValidator
from pytriton.runtime.transport.arena import Arena, block_bytes
from pytriton.runtime.transport.link import socket_pair
from pytriton.runtime.transport.memory_channel import MemoryChannel
from pytriton.runtime.transport.payload import INLINE_TENSOR_BYTES

if TYPE_CHECKING:
    import socket
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from pytriton.base.failure_log import Failure
    from pytriton.decorators.context import TritonContext
    from pytriton.model_config.tensor import Tensor
    from pytriton.runtime.functions.host import InstanceHost
    from pytriton.runtime.pb_utils import gpu_arrays
    from pytriton.runtime.transport.channel import Payload, Received
    from pytriton.runtime.transport.refs import TensorRef
else:  # most models have no tensors on a GPU
    gpu_arrays = LazyModule("pytriton.runtime.pb_utils.gpu_arrays")

if TYPE_CHECKING:
    from pytriton.runtime.functions import async_backends
else:
    async_backends = LazyModule("pytriton.runtime.functions.async_backends")


logger = logging.getLogger(__name__)
InferFunc = Callable[..., Any]


def backend_for(infer_func: Callable[..., Any], *, is_decoupled: bool) -> type[FunctionBackend]:
    """Returns the class of the backend of a callable."""
    forms: list[Any] = [infer_func]
    if not inspect.isroutine(infer_func):  # an object is called as its class says
        forms.append(type(infer_func).__call__)
    if any(
        inspect.iscoroutinefunction(form) or (is_decoupled and inspect.isasyncgenfunction(form))
        for form in forms
    ):
        if is_decoupled:
            return async_backends.AsyncGeneratorBackend
        return async_backends.CoroutineBackend
    return GeneratorBackend if is_decoupled else FunctionBackend


def warm_up(
    model_name: str,
    warmups: Sequence[ModelWarmup],
    call: Callable[[list[Request]], object],
    input_specs: Sequence[Any] = (),
    sequence: SequenceBatcher | None = None,
) -> int:
    """Send one instance its warm-up requests in order; returns the number of answered ones.

    `call` executes a list of requests completely, like `call_to_completion`, with the context of
    the callable set. If `input_specs` are given, a warm-up with other inputs fails. With
    `sequence`, each request is a whole sequence.
    """
    return sum(_answered(model_name, warmup, call, input_specs, sequence) for warmup in warmups)


def _answered(
    model_name: str,
    warmup: ModelWarmup,
    call: Callable[[list[Request]], object],
    input_specs: Sequence[Any],
    sequence: SequenceBatcher | None,
) -> int:
    answered = 0
    try:
        for data in generate_warmup_requests([warmup], input_specs):
            if sequence is not None:
                data.update(only_request_inputs(sequence, warmup.batch_size))
            call([Request(data=data, parameters={})])
            answered += 1
    except Exception as error:
        # Despite any exception here, the model may be able to serve real requests.
        logger.warning(
            "Warm-up %r of model %s failed after %d of %d requests; the model is served anyway",
            warmup.name,
            model_name,
            answered,
            warmup.count,
            exc_info=(type(error), error, user_traceback(error)),
        )
    return answered


def call_to_completion(infer_func: Callable[..., Any], requests: list[Request]) -> list[Any]:
    """Call a callable of any kind; returns all its returned or yielded results, in order.

    An asynchronous callable runs on a new event loop. A host that serves such a callable on an
    event loop warms it up on that loop, because tasks that it starts may have to stay alive.
    """
    result = infer_func(requests)
    if inspect.isgenerator(result):
        return list(result)
    if not inspect.isasyncgen(result) and not inspect.isawaitable(result):
        return [result]
    import asyncio  # noqa: PLC0415  takes 4 MiB, needed only for async callables

    if inspect.isasyncgen(result):
        return asyncio.run(_collected(result))
    return [asyncio.run(_awaited(result))]


async def _collected(responses: AsyncIterator[Any]) -> list[Any]:
    return [response async for response in responses]


async def _awaited(result: Awaitable[Any]) -> Any:
    return await result


class BoundModel(AnyModel):
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
        check_name_and_tensors(model_name, inputs, outputs)
        self.infer_funcs = _as_callables(infer_func)
        count = len(self.infer_funcs)
        made = bound_config(
            model_name, model_version, count, inputs, outputs, config or ModelConfig()
        )
        super().__init__(model_name, model_version, made)
        self._inputs, self._outputs = call_tensors(self.config)
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
        self._device = _device_side(self.config.inputs or (), inputs, outputs)
        self._hosts: list[InstanceHost] = []
        self._failures = FailureLog(self._write_failure)

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

    def prepare(self, context: TritonContext) -> None:
        """Set the context of the callables and warm them up."""
        for infer_func in self.infer_funcs:
            context.model_configs[infer_func] = copy.deepcopy(self.config)
            inject_triton_context(context, infer_func)
        warmups, inputs = self.config.model_warmup or (), self.config.inputs or ()
        for infer_func in self.infer_funcs:
            call = functools.partial(call_to_completion, infer_func)
            warm_up(self.name, warmups, call, inputs, self.config.sequence)

    def leave(self, context: TritonContext) -> None:
        """Remove the callables from the context, so that nothing keeps them alive."""
        for infer_func in self.infer_funcs:
            context.model_configs.pop(infer_func, None)

    def open_instances(
        self, on_unrecoverable: Callable[[], None]
    ) -> tuple[list[socket.socket], list[int]]:
        """Start an instance for each callable; see `AnyModel`."""
        remote: list[socket.socket] = []
        self._hosts = []  # earlier hosts end when the server replaces them by these
        self._failures = FailureLog(self._write_failure)  # an earlier one was closed
        try:
            for index, infer_func in enumerate(self.infer_funcs):
                ours, theirs = socket_pair()
                remote.append(theirs)
                self._start_host(index, infer_func, ours, on_unrecoverable)
        except BaseException:  # no descriptors or threads left; this ends those that run
            for sock in remote:
                sock.close()
            raise
        return remote, [host.backend.concurrency for host in self._hosts]

    def _start_host(
        self,
        index: int,
        infer_func: InferFunc,
        sock: socket.socket,
        on_unrecoverable: Callable[[], None],
    ) -> None:
        call = self._call(f"{self.name}_0_{index}", infer_func, index)
        call.line_source = self.line_source
        backend = self.backend(call, on_unrecoverable)
        host = backend.host_class(backend, MemoryChannel(sock, Arena()))
        host.start()
        self._hosts.append(host)

    def backend(self, call: FunctionCall, on_unrecoverable: Callable[[], None]) -> FunctionBackend:
        """Returns the backend of an instance with this call."""
        kind = backend_for(call.infer_func, is_decoupled=self.config.decoupled)
        return kind(call, on_unrecoverable)

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
        self._failures.close()

    def calls(self) -> list[FunctionCall]:
        """Returns what calls each of its callables."""
        return [
            self._call(f"{self.name}_0_{index}", infer_func, index)
            for index, infer_func in enumerate(self.infer_funcs)
        ]

    def only_call(self, instance_name: str) -> FunctionCall:
        """Returns what calls its only callable, in an instance of this name."""
        (infer_func,) = self.infer_funcs
        return self._call(instance_name, infer_func)

    def _write_failure(self, failure: Failure) -> None:
        set_line_source(self.line_source)  # it may be the thread of the log
        write_failure(failure)

    def _call(self, instance_name: str, infer_func: InferFunc, index: int = 0) -> FunctionCall:
        return FunctionCall(
            instance_name,
            infer_func,
            {spec.name: triton_datatype(spec.dtype) for spec in self._outputs},
            self._validator,
            batching=self.config.batching,
            failures=self._failures,
            label=model_label(self.name, self.version, index, len(self.infer_funcs)),
            annotated_name="" if self.takes_parameters else self.name,
            device=self._device,
            inputs=[spec.name for spec in self._inputs],
        )


def _device_side(
    specs: Sequence[DeclaredTensor], inputs: Sequence[Tensor], outputs: Sequence[Tensor]
) -> DeviceSide | None:
    """Returns how tensors get to GPUs; None if none of them belongs there."""
    if all(tensor.device is None for tensor in (*inputs, *outputs)):
        return None
    return DeviceSide(
        {
            spec.name: cuda_device(tensor.device)
            for spec, tensor in zip(specs, inputs, strict=True)
            if tensor.device is not None
        }
    )


def _as_callables(infer_func: InferFunc | Sequence[InferFunc]) -> list[InferFunc]:
    candidates: list[Any]
    candidates = list(infer_func) if isinstance(infer_func, (list, tuple)) else [infer_func]
    if not candidates or not all(callable(candidate) for candidate in candidates):
        raise PyTritonValidationError(
            f"infer_func has to be a callable or a list or tuple of callables, got {infer_func!r}"
        )
    return candidates


class DeviceSide:
    """How one model's tensors get to GPUs and back; `inputs` are the devices by name.

    These inputs are `GpuArray`s: any library takes them by `__cuda_array_interface__` or DLPack,
    without a copy. Outputs on a GPU are copied straight to where the server reads them.
    """

    def __init__(self, inputs: Mapping[str, int]) -> None:
        self._inputs = inputs

    def input(self, received: Received, ref: TensorRef) -> Any:
        """Returns an input of a batch, on its device if it has one.

        Raises:
            ServerError: It cannot be copied there.
        """
        array = received.array(ref)
        device = self._inputs.get(ref.name)
        if device is None:
            return array
        there = copy_to_device(array, device)
        return gpu_arrays.GpuArray.over(there)

    def outputs(self, outputs: Mapping[str, Any], payload: Payload) -> dict[str, Any]:
        """Returns outputs with those on the host that are on a GPU.

        Raises:
            ServerError: One cannot be copied, or is of no kind that can be sent.
        """
        return {
            name: self._to_host(value, payload)
            if not isinstance(value, np.ndarray) and is_on_gpu(value)
            else value
            for name, value in outputs.items()
        }

    def _to_host(self, value: Any, payload: Payload) -> NDArray[Any]:
        array = gpu_arrays.import_array(value)
        if not isinstance(array, DeviceArray):
            return array
        arena = payload.arena
        if arena is None or array.nbytes <= INLINE_TENSOR_BYTES:
            return array.copy()
        # Nothing else refers to this memory, so it is sent by reference.
        memory = block_bytes(arena.allocate(array.nbytes))[: array.nbytes]
        write_to_host((array,), memory.data)
        return memory.view(array.dtype).reshape(array.shape)
