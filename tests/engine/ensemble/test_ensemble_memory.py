# SPDX-License-Identifier: Apache-2.0
"""Large tensors pass from step to step in shared memory, without a copy in the server."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from pytriton.base import dtypes
from pytriton.base.messages import InferTensor
from pytriton.runtime.transport.arena import Arena, Block, block_bytes
from pytriton.runtime.transport.frames import Execute
from pytriton.runtime.transport.link import socket_pair
from pytriton.runtime.transport.memory_channel import MemoryChannel
from pytriton.runtime.transport.refs import TensorRef
from pytriton.serving.engine.ensemble.graph import make_graph, make_plan
from pytriton.serving.engine.ensemble.run import EnsembleRun
from tests.engine.ensemble.ensemble_configs import ensemble_config, model_config, step

COUNT = 1 << 18  # elements: 1 MiB
NAMES = ("a", "b", "c")


class CountingArena(Arena):
    """The server's memory for one model; counts the tensors that are copied into it."""

    def __init__(self) -> None:
        super().__init__()
        self.copies = 0

    def allocate(self, size: int) -> Block:
        self.copies += 1
        return super().allocate(size)


class Worker:
    """A model in another process, which adds one to its input, and the server's channel to it."""

    def __init__(self) -> None:
        server, worker = socket_pair()
        self.arena = CountingArena()
        self.channel = MemoryChannel(server, self.arena)
        self._worker = MemoryChannel(worker, Arena())

    def execute(self, tensor: InferTensor) -> InferTensor:
        _send(self.channel, tensor.data)
        received = self._worker.receive()
        assert received is not None
        assert isinstance(received.frame, Execute)
        array = received.array(received.frame.inputs[0])
        _send(self._worker, (array + 1).tobytes())
        array[:] = -1  # a model may use the memory of its input
        del array, received
        answer = self.channel.receive()
        assert answer is not None
        assert isinstance(answer.frame, Execute)
        data = answer.buffer(answer.frame.inputs[0])
        return InferTensor("OUT", dtypes.FP32, tensor.shape, data)

    def close(self) -> None:
        self.channel.close()
        self._worker.close()


def _send(channel: MemoryChannel, data: bytes | memoryview) -> None:
    payload = channel.payload()
    block, offset = payload.add([data], len(data))
    ref = TensorRef("x", dtypes.FP32.number, (COUNT,), offset, len(data), block)
    channel.send(Execute(1, [1], [ref]), payload)


@pytest.fixture
def workers() -> Iterator[dict[str, Worker]]:
    made = {name: Worker() for name in NAMES}
    yield made
    for worker in made.values():
        worker.close()


def run(workers: dict[str, Worker], data: memoryview, *outputs: str) -> dict[str, float]:
    """Run an input of zeros through all workers; the first element of each output."""
    config = ensemble_config(
        step("a", {"IN": "X"}, {"OUT": "t"}),
        step("b", {"IN": "t"}, {"OUT": "u"}),
        step("c", {"IN": "u"}, {"OUT": "Y"}),
        outputs=outputs,
        dims=[COUNT],
    )
    graph = make_graph(config, {name: model_config(name, dims=[COUNT]) for name in NAMES})
    ensemble = EnsembleRun(make_plan(graph, None))
    calls = ensemble.start({"X": InferTensor("X", dtypes.FP32, (1, COUNT), data)}, graph.inputs)
    while calls:
        (call,) = calls
        inputs, call.inputs = call.inputs, {}
        output = workers[call.step.model_name].execute(inputs.pop("IN"))
        calls = ensemble.respond(call, [output], is_final=True)
    (answer,) = ensemble.take_answers()
    assert answer.outputs is not None
    return {each.name: np.frombuffer(each.data, np.float32)[0] for each in answer.outputs}


def body(arena: Arena) -> memoryview:
    """A request's tensor of zeros, in memory as front ends allocate it."""
    array = block_bytes(arena.allocate(4 * COUNT))
    array[:] = 0
    return array.data


def copies(workers: dict[str, Worker]) -> list[int]:
    return [worker.arena.copies for worker in workers.values()]


def test_tensor_that_steps_pass_on_whole_is_not_copied_in_the_server(
    workers: dict[str, Worker],
) -> None:
    assert run(workers, body(workers["a"].arena), "Y") == {"Y": 3}
    assert copies(workers) == [1, 0, 0]  # the one is the body itself


def test_body_in_memory_of_another_model_is_not_copied(workers: dict[str, Worker]) -> None:
    assert run(workers, body(Arena()), "Y") == {"Y": 3}
    assert copies(workers) == [0, 0, 0]


def test_step_gets_a_copy_of_a_tensor_that_is_also_an_output(workers: dict[str, Worker]) -> None:
    assert run(workers, body(Arena()), "Y", "t") == {"Y": 3, "t": 1}
    assert copies(workers) == [0, 1, 0]
