# SPDX-License-Identifier: Apache-2.0
"""A client of a server whose model doubles what it gets, when a test says so."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from pytriton.base import dtypes
from pytriton.base.model_spec import ModelTensor
from pytriton.base.protos import service_pb2
from pytriton.serving.engine.engine import Engine
from pytriton.serving.engine.model import Model
from pytriton.serving.server.binding.bound_control import BoundControl
from tests.column_rig import DoublingInstance
from tests.fakes import model_spec
from tests.server.grpc_fakes import SERVICE, GrpcClient, framed
from tests.server.http_fakes import FakeLoop
from tests.wire.http2.frame_client import data

WIDTH = 2


class ColumnScene:
    """The parts of a server around one client; `instances` are those of the models under test."""

    def __init__(self, **options) -> None:
        self.loop = FakeLoop()
        self.engine = Engine()
        self.instances: list[DoublingInstance] = []
        control = BoundControl(self.engine, None)
        self.client = GrpcClient(engine=self.engine, control=control, loop=self.loop, **options)

    def serve(self, **spec) -> Model:
        """A model with two inputs that it gives back; it has no instance yet."""
        tensors = {
            each: ModelTensor(name=each, dtype=dtypes.INT32, dims=(WIDTH,), shape=(-1, WIDTH))
            for each in ("x", "y")
        }
        model = Model(model_spec(32, **{"outputs": tensors, "inputs": tensors, **spec}), self.loop)
        self.engine.add(model)
        self.engine.set_ready(model)
        return model

    def send(self, *messages: bytes, fields: Sequence[tuple[str, str]] = ()) -> list[int]:
        """Make calls in one read; returns their streams."""
        wire, streams = b"", []
        for message in messages:
            head = self.client.head(f"{SERVICE}/ModelInfer", *fields)
            streams.append(int.from_bytes(head[5:9], "big"))
            wire += head + data(streams[-1], framed(message), end_stream=True)
        self.client.receive(wire)
        return streams

    def finish(self) -> None:
        while any(instance.running for instance in self.instances):
            for instance in self.instances:
                if instance.running:
                    instance.double()
            self.loop.run()
        self.client.run()

    @property
    def is_columns(self) -> list[bool]:
        """Whether the requests of the running batches travel as columns."""
        return [
            inference.chunk is not None
            for instance in self.instances
            for batch in instance.running
            for inference in instance.tracker.inferences_of(batch)
        ]


def add_inputs(message: service_pb2.ModelInferRequest, *values: int, rows: int = 1) -> None:
    for name, value in zip(("x", "y"), values, strict=True):
        message.inputs.add(name=name, datatype="INT32", shape=[rows, WIDTH])
        message.raw_input_contents.append(np.full((rows, WIDTH), value, np.int32).tobytes())
