# SPDX-License-Identifier: Apache-2.0
"""An output that is an input goes back by reference, unless somebody could still change it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from pytriton.base.dtypes import FP32
from pytriton.decorators import batch
from pytriton.decorators.context import TritonContext
from pytriton.model_config import ModelConfig, Tensor
from pytriton.runtime.functions.bound_model import BoundModel
from pytriton.runtime.transport.arena import Arena
from pytriton.runtime.transport.frames import BatchResult, Execute, MemoryFrame, ResponsesFrame
from pytriton.runtime.transport.memory_channel import MemoryChannel
from pytriton.runtime.transport.refs import PartRef, TensorRef

if TYPE_CHECKING:
    from collections.abc import Callable

VALUES = np.arange(1 << 18, dtype=np.float32)
kept: list[Any] = []


@batch
def identity(x: Any) -> Any:
    return {"y": x}


@batch
def tail(x: Any) -> Any:
    return {"y": x[:, 8:]}


def first_input(requests: Any) -> Any:
    return [{"y": requests[0]["x"]}]


@batch
def keeps_array(x: Any) -> Any:
    kept.append(x)
    return {"y": x}


@batch
def keeps_view(x: Any) -> Any:
    kept.append(x[:, 1:])
    return {"y": x}


@batch
def keeps_memoryview(x: Any) -> Any:
    kept.append(memoryview(x))
    return {"y": x}


@batch
def strided(x: Any) -> Any:
    return {"y": x[:, ::2]}


def call(infer_func: Callable[..., Any], part_count: int = 1) -> tuple[TensorRef, Any]:
    """The output's place and its values, as the server sees them."""
    tensors = [Tensor(name=name, dtype=np.float32, shape=(-1,)) for name in "xy"]
    model = BoundModel("m", infer_func, tensors[:1], tensors[1:], 1, ModelConfig(max_batch_size=8))
    model.prepare(TritonContext())
    sockets, _ = model.open_instances(lambda: None)
    channel = MemoryChannel(sockets[0], Arena())
    payload = channel.payload()
    parts = [
        PartRef(*payload.add([part.data.cast("B")], part.nbytes), part.nbytes)
        for part in np.split(VALUES, part_count)
    ]
    ref = TensorRef("x", FP32.number, (1, VALUES.size), 0, VALUES.nbytes)
    if part_count == 1:
        ref.block, ref.offset = parts[0].block, parts[0].offset
    else:
        ref.parts = parts
    channel.send(Execute(1, [1], [ref]), payload)
    received = channel.receive()
    while received is not None and isinstance(received.frame, MemoryFrame):
        received = channel.receive()
    assert received is not None
    if isinstance(received.frame, BatchResult):
        output = received.frame.outputs[0]
    else:
        assert isinstance(received.frame, ResponsesFrame)
        assert received.frame.items[0].outputs is not None
        output = received.frame.items[0].outputs[0]
    values = np.frombuffer(received.buffer(output), np.float32).copy()
    channel.close()
    model.close(5)
    return output, values


@pytest.mark.parametrize("infer_func", [identity, tail, first_input])
def test_input_that_nobody_keeps_is_passed_on_by_reference(infer_func: Any) -> None:
    output, values = call(infer_func)

    assert output.block < 0
    assert np.array_equal(values, VALUES[8:] if infer_func is tail else VALUES)


@pytest.mark.parametrize("infer_func", [keeps_array, keeps_view, keeps_memoryview, strided])
def test_input_that_could_change_is_copied(infer_func: Any) -> None:
    output, values = call(infer_func)

    assert output.block > 0
    assert np.array_equal(values, VALUES[::2] if infer_func is strided else VALUES)


@pytest.mark.parametrize("infer_func", [identity, first_input])
def test_input_in_several_parts_is_one_array_to_the_function(infer_func: Any) -> None:
    output, values = call(infer_func, part_count=4)

    assert output.block > 0
    assert np.array_equal(values, VALUES)
