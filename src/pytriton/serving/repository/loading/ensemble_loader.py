# SPDX-License-Identifier: Apache-2.0
"""Loads versions of ensembles. They have no instances: the models of their steps do the work."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING

from pytriton.base.lazy_module import LazyModule
from pytriton.serving.engine.config import config_to_json, spec_from_config

if TYPE_CHECKING:
    from pytriton.serving.engine.cache import ResponseCache
    from pytriton.serving.engine.engine import Engine
    from pytriton.serving.engine.ensemble import ensemble_model, graph
    from pytriton.serving.engine.ensemble.ensemble_request import BeginStepTrace
    from pytriton.serving.engine.served_model import ManagedModel
    from pytriton.serving.repository.loading.ensemble_steps import StepFinder, StepModels
    from pytriton.serving.repository.loading.plans import VersionPlan

    MakeEnsemble = Callable[[VersionPlan, StepModels], ManagedModel]
else:
    ensemble_model = LazyModule("pytriton.serving.engine.ensemble.ensemble_model")
    graph = LazyModule("pytriton.serving.engine.ensemble.graph")


class StepUse:
    """Which models of steps are in use by versions of ensembles, so that they are not stopped."""

    def __init__(self) -> None:
        self._users: dict[ManagedModel, set[EnsembleVersion]] = {}
        self._released: dict[ManagedModel, asyncio.Event] = {}

    def begin(self, version: EnsembleVersion) -> None:
        """Count a version as a user of its steps."""
        for model in version.steps.models.values():
            self._users.setdefault(model, set()).add(version)
            self._released.setdefault(model, asyncio.Event())

    def end(self, version: EnsembleVersion) -> None:
        """Stop counting a version that has ended."""
        for model in version.steps.models.values():
            users = self._users.get(model, set())
            users.discard(version)
            if not users and model in self._users:
                del self._users[model]
                self._released.pop(model).set()

    async def released(self, model: ManagedModel) -> None:
        """Wait until no ensemble uses the model as a step."""
        event = self._released.get(model)
        if event is not None:
            await event.wait()

    def __len__(self) -> int:
        return len(self._users)


class EnsembleVersion:
    """A loaded version of an ensemble. See `LoadedVersion`."""

    def __init__(
        self, model: ManagedModel, steps: StepModels, finder: StepFinder, use: StepUse
    ) -> None:
        self.model = model
        self.steps = steps
        self._finder = finder
        self._use = use
        use.begin(self)

    @property
    def is_current(self) -> bool:
        """Whether its steps are still served by the models that it was made of."""
        return self._finder.is_same(self.steps)

    async def drain_and_stop(self, timeout_s: float | None = None) -> None:
        """Wait at most `timeout_s` until its requests are finished, then stop it."""
        try:
            await self.model.drain(timeout_s)
            self.model.stop()
        finally:
            self._use.end(self)

    def __repr__(self) -> str:
        return f"<EnsembleVersion {self.model!r}>"


class EnsembleLoader:
    """Makes versions of ensembles. See `VersionLoader`."""

    def __init__(self, finder: StepFinder, use: StepUse, make: MakeEnsemble) -> None:
        self._finder = finder
        self._use = use
        self._make = make

    async def load(self, plan: VersionPlan) -> EnsembleVersion:
        """Make one version of the models that are served now.

        Raises:
            StepsError: It does not fit them.
        """
        steps = self._finder.find(plan.identifier, plan.config)
        return EnsembleVersion(self._make(plan, steps), steps, self._finder, self._use)


def ensemble_maker(
    engine: Engine,
    loop: asyncio.AbstractEventLoop,
    cache: ResponseCache | None,
    begin_trace: BeginStepTrace | None = None,
) -> MakeEnsemble:
    """Returns the function that makes the engine's models of ensembles."""

    def make(plan: VersionPlan, steps: StepModels) -> ManagedModel:
        return ensemble_model.EnsembleModel(
            spec_from_config(
                steps.config, plan.version, _labels(plan, steps), namespace=plan.namespace
            ),
            graph.make_graph(steps.config, steps.configs, steps.identifiers),
            engine,
            loop,
            cache,
            config_json=config_to_json(steps.config),
            begin_trace=begin_trace,
        )

    return make


def _labels(plan: VersionPlan, steps: StepModels) -> dict[str, tuple[str, ...]]:
    """Returns the class names of outputs: the ensemble's own, else those of the step's model."""
    labels = {}
    for step in plan.config.ensemble_scheduling.step:
        model = steps.models[step.model_name, step.model_version]
        for output, tensor in step.output_map.items():
            if output in model.spec.labels:
                labels[tensor] = model.spec.labels[output]
    return {**labels, **plan.labels}
