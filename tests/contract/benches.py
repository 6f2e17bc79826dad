# SPDX-License-Identifier: Apache-2.0
"""A model on its real thread; the server's end of its channel on a loop of the test."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from pytriton.base import dtypes
from pytriton.base.messages import InferResponse, InferTensor
from pytriton.decorators import TritonContext, batch
from pytriton.model_config import ModelConfig, SequenceBatcher, Tensor
from pytriton.runtime.executor.channel_instance import ChannelInstance
from pytriton.runtime.executor.inference import Inference, ModelLabels, burst_outcomes
from pytriton.runtime.functions.bound_model import BoundModel
from pytriton.runtime.transport.arena import MemoryTrimmer
from pytriton.runtime.transport.memory_channel import MemoryChannel
from pytriton.serving.engine.hidden_exceptions import HiddenExceptions
from tests.e2e.loop_waiting import comes_true
from tests.e2e.waiting import DEADLINE_S
from tests.fakes import RecordingSink, infer_request, model_spec

Arrays = dict[str, np.ndarray]
Function = Callable[[Arrays], Arrays]
SPEC = model_spec()


def _plain(function: Function) -> Callable[..., Any]:
    return lambda requests: [function(request) for request in requests]


def _batch(function: Function) -> Callable[..., Any]:
    return batch(lambda **inputs: function(inputs))


def _coroutine(function: Function) -> Callable[..., Any]:
    async def infer(requests):
        await asyncio.sleep(0)
        return [function(request) for request in requests]

    return infer


def _generator(function: Function) -> Callable[..., Any]:
    def infer(requests):
        yield [function(request) for request in requests]

    return infer


def _async_generator(function: Function) -> Callable[..., Any]:
    async def infer(requests):
        await asyncio.sleep(0)
        yield [function(request) for request in requests]

    return infer


# How a function of one request becomes an inference callable of each kind.
COUPLED = {"plain": _plain, "batch": _batch, "coroutine": _coroutine}
DECOUPLED = {"generator": _generator, "async generator": _async_generator}


def labels_of(
    inputs: list[Tensor], sequence: SequenceBatcher | None, *, batching: bool, **labels: Any
) -> ModelLabels:
    """What an instance knows of a model, with what sequences add to its tensors."""
    names = [spec.name for spec in inputs]
    if sequence is not None:
        names += [control.name for control in sequence.controls]
        names += [state.input_name for state in sequence.states]
    states = state_names(sequence)
    return ModelLabels("m", "1", names, batching=batching, state_outputs=states, **labels)


def state_names(sequence: SequenceBatcher | None) -> list[str]:
    """The outputs with the states of a sequence."""
    return [] if sequence is None else [state.output_name for state in sequence.states]


class Call:
    """A request in an instance's hands, and what it was answered so far."""

    def __init__(self, inference: Inference, sink: RecordingSink) -> None:
        self.inference = inference
        self.takes = True  # whether responses are acknowledged
        self.responses: list[Arrays] = []
        self._sink = sink

    @property
    def is_over(self) -> bool:
        return self._sink.final_count > 0

    @property
    def outputs(self) -> Arrays:
        """The outputs of the only response."""
        assert (self._sink.errors, self._sink.final_count) == ([], 1)
        (only,) = self.responses
        return only

    @property
    def ended_well(self) -> bool:
        return self.is_over and not self._sink.errors

    @property
    def error(self) -> str:
        assert self._sink.final_count == 1
        (only,) = self._sink.errors
        return only.message


class InstanceBench:
    """An instance and its events; `until` runs the loop. Those below have one each."""

    costs = None  # of batches: nobody asks for them here
    hidden: HiddenExceptions | None = None  # what clients get of exceptions; None: their texts

    instance: ChannelInstance
    far_channel: MemoryChannel  # the model's end
    # What is said of a model that raised, and of one whose connection ended.
    raised_log: str
    lost_error: str
    lost_reasons: tuple[str, ...]

    def __init__(self, loop, *, batching: bool) -> None:
        self.loop = loop
        self.deaths: list[str] = []
        self.memory = MemoryTrimmer(loop)
        self._batching = batching
        self._calls: dict[int, Call] = {}

    def is_alive(self) -> bool:
        """Whether the model's threads run."""
        raise NotImplementedError

    # What the instance tells its owner

    def shown(self, error, batch):
        return error if self.hidden is None else self.hidden.shown(SPEC, error, [])

    def on_outcomes(self, instance, batch, outcomes, times_ns):
        assert instance is self.instance
        for outcome in outcomes:
            call = self._calls[id(batch.inferences[outcome.position])]
            sink = call.inference.sink
            assert sink.final_count == 0, "answered after its end"
            if outcome.error is not None:
                sink.on_error(outcome.error)
                continue
            if outcome.response is not None:
                call.responses.append(to_arrays(outcome.response))
            sink.on_response(None, final=outcome.is_final)  # it would keep the memory
            if not outcome.is_final and call.takes:
                instance.grant(call.inference, 1)

    def on_burst(self, instance, batch, position, burst, times_ns):
        self.on_outcomes(instance, batch, burst_outcomes(position, burst), times_ns)

    def on_unavailable(self, instance):
        assert not instance.free_slots

    def on_died(self, instance, reason):
        self.deaths.append(reason)

    # What a test does

    def execute(self, *batch: Arrays, **fields: Any) -> list[Call]:
        """Run requests with these inputs together."""
        calls = []
        for arrays in batch:
            sink = RecordingSink()
            inputs = {name: to_tensor(name, array) for name, array in arrays.items()}
            rows = next((len(array) for array in arrays.values() if array.ndim), 1)
            if not self._batching:
                rows = 1
            call = Call(Inference(infer_request("m", inputs, rows=rows, **fields), sink), sink)
            self._calls[id(call.inference)] = call
            calls.append(call)
        self.instance.execute([call.inference for call in calls], time.monotonic_ns())
        return calls

    def infer(self, *batch: Arrays, **fields: Any) -> list[Call]:
        """Like `execute`, and wait for the end of all."""
        calls = self.execute(*batch, **fields)
        assert self.until(lambda: all(call.is_over for call in calls))
        return calls

    def until(self, condition: Callable[[], Any], deadline_s: float = DEADLINE_S) -> bool:
        """Let the loop run until a condition comes true; whether it did before the deadline."""
        return self.loop.run_until_complete(comes_true(condition, deadline_s))

    def close(self) -> None:
        self.instance.stop()
        assert self.until(lambda: not self.is_alive())


class Bench(InstanceBench):
    """A bound callable."""

    raised_log = "model 'm': "
    lost_error = "the instance is gone, its process ended"
    lost_reasons = ("its process ended",)

    def __init__(self, loop, infer_func, inputs, outputs, *, strict=False, **config):
        self.bound = BoundModel(
            "m", infer_func, inputs, outputs, config=ModelConfig(**config), strict=strict
        )
        batching = self.bound.config.batching
        super().__init__(loop, batching=batching)
        self.bound.prepare(TritonContext())
        self.stops = 0  # how often a callable asked for everything to stop
        sockets, concurrency = self.bound.open_instances(self._on_unrecoverable)
        labels = labels_of(inputs, config.get("sequence"), batching=batching)
        channel = MemoryChannel(sockets[0], self.memory.arena)
        self.instance = ChannelInstance(
            "m_0_0", labels, channel, self.memory, loop, self, concurrency[0]
        )
        self.instance.start()
        (host,) = self.bound._hosts
        self.far_channel = host._channel

    def is_alive(self) -> bool:
        return self.bound.is_alive()

    def _on_unrecoverable(self):
        self.stops += 1


def to_tensor(name: str, array: np.ndarray) -> InferTensor:
    if array.dtype == object:
        data = dtypes.encode_bytes(array.ravel().tolist())
        return InferTensor(name, dtypes.BYTES, array.shape, data)
    dtype = dtypes.from_numpy(array.dtype)
    assert dtype is not None
    return InferTensor(name, dtype, array.shape, array.tobytes())


def to_arrays(response: InferResponse) -> Arrays:
    """The outputs as copies, so that a test keeps no memory of the instance's."""
    arrays = {}
    for tensor in response.outputs:
        if tensor.dtype is dtypes.BYTES:
            elements = dtypes.decode_bytes(tensor.data)
            arrays[tensor.name] = dtypes.bytes_elements_to_array(elements, tensor.shape)
        else:
            flat = np.frombuffer(bytes(tensor.data), tensor.dtype.numpy)
            arrays[tensor.name] = flat.reshape(tensor.shape)
    return arrays


def floats(*names: str) -> list[Tensor]:
    return [Tensor(name=name, dtype=np.float32, shape=(-1,)) for name in names]
