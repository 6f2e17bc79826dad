# SPDX-License-Identifier: Apache-2.0
"""An ensemble in an engine, with models whose instances answer when a test says so."""

from __future__ import annotations

from typing import Any

from pytriton.base import dtypes
from pytriton.base.messages import InferRequest, InferResponse, InferTensor
from pytriton.runtime.executor.inference import Inference, Outcome, RunningBatch
from pytriton.serving.engine.cache import ResponseStore
from pytriton.serving.engine.config import spec_from_config
from pytriton.serving.engine.engine import Engine
from pytriton.serving.engine.ensemble.ensemble_model import EnsembleModel
from pytriton.serving.engine.ensemble.ensemble_rules import complete_ensemble
from pytriton.serving.engine.ensemble.graph import make_graph
from pytriton.serving.engine.model import Model
from pytriton.serving.engine.rate_limiter import InstanceLimits, InstanceTurns, ResourceLimiter
from tests.fakes import FakeClock, FakeInstance, FakeLoop, RecordingSink, infer_request


def tensor(name: str, values: bytes = bytes(16), rows: int = 1) -> InferTensor:
    return InferTensor(name, dtypes.FP32, (rows, 4), values)


class EnsembleRig:
    """An engine with models and ensembles, by name."""

    def __init__(
        self,
        *configs: Any,
        cache: ResponseStore | None = None,
        limits: InstanceLimits | None = None,
    ) -> None:
        self.clock = FakeClock()
        self.loop: Any = FakeLoop(self.clock)
        self.engine = Engine()
        self.configs: dict[str, Any] = {}
        self.models: dict[str, Model] = {}
        self.ensembles: dict[str, EnsembleModel] = {}
        self._cache = cache
        self._limits = limits  # of every instance
        self._turns = InstanceTurns(ResourceLimiter(), self.loop)
        for config in configs:
            self.add(config)

    def add(self, config: Any) -> Any:
        """Serve a model with one instance, or an ensemble of models that were added before."""
        if config.platform == "ensemble":
            config = complete_ensemble(config, self.configs)
            graph = make_graph(config, self.configs)
            spec = spec_from_config(config, 1)
            model: Any = EnsembleModel(spec, graph, self.engine, self._cache)
            self.ensembles[config.name] = model
        else:
            turns = None if self._limits is None else self._turns.join([self._limits])
            model = Model(spec_from_config(config, 1), self.loop, self._cache, turns=turns)
            model.add_instance(FakeInstance(config.name, model, concurrency=8))
            self.models[config.name] = model
        self.configs[config.name] = config
        self.engine.add(model)
        self.engine.set_ready(model)
        return model

    def instance(self, name: str) -> FakeInstance:
        (instance,) = self.models[name].instances
        assert isinstance(instance, FakeInstance)
        return instance

    def infer(
        self, name: str = "e", *inputs: InferTensor, **fields: Any
    ) -> tuple[Inference, RecordingSink]:
        """Submit a request; its input is X unless others are given."""
        given = {each.name: each for each in inputs or (tensor("X"),)}
        request = infer_request(name, given, received_ns=self.clock.now_ns, **fields)
        sink = RecordingSink()
        inference = self.engine.infer(request, sink)
        self.loop.run()
        return inference, sink

    def running(self, name: str) -> list[tuple[RunningBatch, Inference]]:
        """Returns the requests that a model runs, each in a batch of its own or with others."""
        return [
            (batch, batch.inferences[position])
            for batch in self.instance(name).running
            for position in sorted(batch.open_positions)
        ]

    def request(self, name: str) -> InferRequest:
        """Returns the only request that a model runs."""
        ((_, inference),) = self.running(name)
        return inference.request

    def answer(self, name: str, *outputs: InferTensor, index: int = 0, final: bool = True) -> None:
        """Answer one of the requests that a model runs."""
        self._report(name, index, Outcome(0, InferResponse("m", "1", "", list(outputs))), final)

    def end(self, name: str, index: int = 0) -> None:
        """End one of the requests that a decoupled model runs."""
        self._report(name, index, Outcome(0), True)

    def fail(self, name: str, error: Any, index: int = 0, *, final: bool = True) -> None:
        """Answer one of the requests that a model runs with an error."""
        self._report(name, index, Outcome(0, None, error), final)

    def _report(self, name: str, index: int, outcome: Outcome, is_final: bool) -> None:
        batch, inference = self.running(name)[index]
        outcome.position = batch.inferences.index(inference)
        outcome.is_final = is_final
        self.instance(name).report(batch, [outcome])
        self.loop.run()
