# SPDX-License-Identifier: Apache-2.0
"""A model on a loop with fake time and fake instances."""

from __future__ import annotations

from typing import Any

import pytest

from pytriton.runtime.executor.inference import Inference
from pytriton.serving.engine import (
    answer_cache,
    batch_start,
    batch_stats,
    engine,
    instance_pool,
    model,
)
from pytriton.serving.engine.cache import ResponseStore
from pytriton.serving.engine.latencies import Latencies, LatencyPlan
from pytriton.serving.engine.model import Model, VersionState
from tests.fakes import FakeClock, FakeInstance, FakeLoop, RecordingSink, inference, model_spec


class Scene:
    """A ready model, its instances, and everything that its clients were told, in order."""

    def __init__(
        self,
        clock: FakeClock,
        instances: int = 1,
        concurrency: int = 1,
        cache: ResponseStore | None = None,
        supervisor: Any = None,
        **spec: Any,
    ) -> None:
        self.clock = clock
        self.loop = FakeLoop(clock)
        self.model = Model(model_spec(**spec), self.loop, cache, supervisor=supervisor)
        self.model.statistics.latencies = Latencies(LatencyPlan(), self.model.spec)
        self.instances = [
            FakeInstance(f"m_0_{index}", self.model, concurrency) for index in range(instances)
        ]
        for instance in self.instances:
            self.model.add_instance(instance)
        self.model.become(VersionState.READY)
        self.inferences: list[Inference] = []
        self.sinks: list[RecordingSink] = []
        self.log: list[Any] = []  # names of the sinks that heard something
        self.loop.run()

    @property
    def instance(self) -> FakeInstance:
        (only,) = self.instances
        return only

    def submit(self, count: int = 1, **fields: Any) -> list[Inference]:
        """Submit requests in one round of the loop; the sinks are numbered."""
        submitted = []
        for _ in range(count):
            sink = RecordingSink(len(self.sinks), self.log)
            each = inference(sink, received_ns=self.clock.now_ns, owner=self.model, **fields)
            self.sinks.append(sink)
            self.inferences.append(each)
            submitted.append(each)
            self.model.submit(each, self.clock.now_ns)
        self.loop.run()
        return submitted

    def sink(self, number: int) -> RecordingSink:
        return self.sinks[number]

    def check_all_answered(self, *, repeated_executions: int = 0) -> None:
        """Every request ended exactly once, and the account says so too."""
        assert [sink.final_count for sink in self.sinks] == [1] * len(self.sinks)
        statistics = self.model.statistics
        assert statistics.pending_count == 0
        counted = statistics.success_count + statistics.fail.count
        assert counted == len(self.sinks) + repeated_executions
        assert statistics.fail.count == sum(statistics.failures.values())
        latencies = statistics.latencies
        assert latencies.request.count == statistics.success_count
        executed = statistics.success_count - statistics.cache_hit.count
        assert latencies.queue.count == latencies.compute.count == executed
        assert ": 0 queued, 0 running" in repr(self.model)


@pytest.fixture
def clock(monkeypatch):
    fake = FakeClock()
    for module in (answer_cache, batch_start, batch_stats, engine, instance_pool, model):
        monkeypatch.setattr(module, "time", fake)
    return fake


@pytest.fixture
def scene(clock):
    """Makes scenes; settings are those of `Scene` and `model_spec`."""

    def make(**settings: Any) -> Scene:
        return Scene(clock, **settings)

    return make
