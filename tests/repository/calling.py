# SPDX-License-Identifier: Apache-2.0
"""Models that call one another, on an engine with fake instances and a loop that a test turns."""

from __future__ import annotations

from typing import Any

from pytriton.base.dtypes import INT32
from pytriton.base.messages import InferTensor
from pytriton.base.model_spec import ModelTensor
from pytriton.runtime.executor.inference import Inference
from pytriton.runtime.transport.frames import InferCallFrame
from pytriton.runtime.transport.refs import TensorRef
from pytriton.serving.engine.cache import ResponseStore
from pytriton.serving.engine.engine import Engine
from pytriton.serving.engine.model import Model
from pytriton.serving.repository.services.bls import (
    MAX_DEPTH,
    ModelCaller,
    RunningBlsCall,
)
from tests.fakes import (
    FakeClock,
    FakeInstance,
    FakeLoop,
    FakeSupervisor,
    RecordingSink,
    model_spec,
    request,
)

INPUT = ModelTensor(name="IN", dtype=INT32, dims=(1,), shape=(1,))


class CallingFake(FakeInstance):
    """An instance whose batches have numbers from 1, as they have in a worker's messages."""

    def execute(self, inferences: list[Inference], now_ns: int) -> None:
        super().execute(inferences, now_ns)
        batch = self.batches[-1]
        batch.id = len(self.batches)
        for position, each in enumerate(inferences):
            each.batch_id, each.position = batch.id, position

    def call_depth_of(self, batch_id: int) -> int:
        running = [batch.inferences for batch in self.running if batch.id == batch_id]
        return max((each.request.call_depth for batch in running for each in batch), default=0)

    def principal_of(self, batch_id: int) -> str:
        running = [batch.inferences for batch in self.running if batch.id == batch_id]
        principals = {each.request.fields.principal for batch in running for each in batch}
        return principals.pop() if len(principals) == 1 else ""


class World:
    """An engine, its models, and what calls are made with."""

    def __init__(self, *, max_depth: int = MAX_DEPTH) -> None:
        self.loop = FakeLoop(FakeClock())
        self.engine = Engine()
        self.caller = ModelCaller(self.engine, self.loop, max_depth=max_depth)
        self.cache = ResponseStore(1 << 20)

    def add(
        self,
        name: str,
        instances: int = 1,
        concurrency: int = 1,
        check: Any = None,
        replaces: bool = False,
        **spec: Any,
    ) -> Model:
        """A ready model that takes requests one by one, each with one integer."""
        settings = {"max_batch_size": 0, "batches": False, "inputs": {"IN": INPUT}, **spec}
        model = Model(
            model_spec(name=name, **settings),
            self.loop,
            self.cache,
            supervisor=FakeSupervisor(check, replaces=replaces),
        )
        for index in range(instances):
            model.add_instance(CallingFake(f"{name}_0_{index}", model, concurrency))
        self.engine.add(model)
        self.engine.set_ready(model)
        self.loop.run()
        return model

    def ask(self, model: Model) -> CallingFake:
        """Let a client ask a model; the instance that runs the request."""
        asked = request(model_name=model.spec.name, inputs=tensors())
        made = self.engine.infer(asked, RecordingSink())
        self.loop.run()
        return made.instance

    def call(
        self, instance: CallingFake | None, name: str, sink: RecordingSink, **fields: Any
    ) -> RunningBlsCall:
        """Let an instance call a model, which waits for it in the batch that it runs."""
        inputs = fields.pop("inputs", tensors())
        if instance is not None and instance.running:
            fields.setdefault("blocked_batch", instance.running[-1].id)
        refs = [TensorRef(each, 0, (), 0, 0) for each in fields.pop("names", inputs)]
        frame = InferCallFrame(1, name, fields.pop("model_version", -1), refs, **fields)
        made = self.caller.call(instance, frame, inputs, sink)
        self.loop.run()
        return made


def tensors(value: int = 0) -> dict[str, InferTensor]:
    return {"IN": InferTensor("IN", INT32, (1,), bytes([value, 0, 0, 0]))}
