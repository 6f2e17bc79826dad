# SPDX-License-Identifier: Apache-2.0
"""Loads versions of ensembles, which have no instances: the models of their steps do the work.

`StepFinder` finds these models, or says in Triton's words why an ensemble cannot be served.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import orjson

from pytriton.base.errors import InvalidArgumentError
from pytriton.base.lazy_module import LazyModule
from pytriton.serving.engine.config import config_from_dict, config_to_json, spec_from_config
from pytriton.serving.engine.ensemble.ensemble_rules import (
    circular_dependency,
    complete_ensemble,
    composing_models,
    version_text,
)
from pytriton.serving.repository.reading.layout import ModelNames

if TYPE_CHECKING:
    from pytriton.serving.engine.engine import Engine
    from pytriton.serving.engine.served_model import ManagedModel
    from pytriton.serving.repository.model_lifecycle import ModelLifecycle

if TYPE_CHECKING:
    from pytriton.serving.engine.cache import ResponseStore
    from pytriton.serving.engine.engine import Engine
    from pytriton.serving.engine.ensemble import ensemble_model, graph
    from pytriton.serving.engine.served_model import ManagedModel
    from pytriton.serving.repository.loading.plans import VersionPlan
    from pytriton.serving.repository.model_lifecycle import ModelLifecycle

    MakeEnsemble = Callable[[VersionPlan, "StepModels"], ManagedModel]
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


class EnsembleLoader:
    """Makes versions of ensembles. See `VersionLoader`."""

    def __init__(self, finder: StepFinder, use: StepUse, make: MakeEnsemble) -> None:
        self._finder = finder
        self._use = use
        self._make = make

    async def load(self, plan: VersionPlan) -> EnsembleVersion:
        """Make one version of the models that are served now."""
        steps = self._finder.find(plan.identifier, plan.config)
        return EnsembleVersion(self._make(plan, steps), steps, self._finder, self._use)


def ensemble_maker(engine: Engine, cache: ResponseStore | None) -> MakeEnsemble:
    """Returns the function that makes the engine's models of ensembles."""

    def make(plan: VersionPlan, steps: StepModels) -> ManagedModel:
        return ensemble_model.EnsembleModel(
            spec_from_config(
                steps.config, plan.version, _labels(plan, steps), namespace=plan.namespace
            ),
            graph.make_graph(steps.config, steps.configs, steps.identifiers),
            engine,
            cache,
            config_json=config_to_json(steps.config),
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


class StepsError(InvalidArgumentError):
    """An ensemble does not fit the models that are served, or they are missing.

    Args:
        message: Triton's words.
        is_withdrawn: A model was unloaded on purpose.
        is_awaited: The repositories do not have a model, a process may bind it.
    """

    def __init__(
        self, message: str, *, is_withdrawn: bool = False, is_awaited: bool = False
    ) -> None:
        super().__init__(message)
        self.is_withdrawn = is_withdrawn
        self.is_awaited = is_awaited


@dataclass(frozen=True)
class StepModels:
    """The models that an ensemble is made of at one moment."""

    models: dict[tuple[str, int], ManagedModel]  # by name and version, as steps write it
    configs: dict[str, Any]  # their ModelConfig messages by name
    config: Any  # that of the ensemble, with what follows from the others
    identifiers: dict[str, str] = field(default_factory=dict)  # of the models by name
    namespace: str = ""  # of the ensemble


class StepFinder:
    """Finds the models of steps in the engine, also bound ones."""

    def __init__(
        self,
        engine: Engine,
        tracked: Mapping[str, ModelLifecycle],
        names: ModelNames | None = None,
    ) -> None:
        self._engine = engine
        self._tracked = tracked
        self._names = names or ModelNames()
        # The configurations of ensembles that are about to be loaded, to find cycles.
        self.announced: dict[str, Any] = {}

    def find(self, identifier: str, config: Any) -> StepModels:
        """Returns the models of an ensemble's steps as they are served now.

        Raises StepsError if a model is missing or ambiguous, or the ensemble does not fit.
        """
        namespace, _ = self._names.split(identifier)
        steps = composing_models(config)
        self._check_cycle(identifier, config)
        identifiers = {model: self._identifier(identifier, model, namespace) for model, _ in steps}
        # Of several models that are not available, Triton names the last.
        models = {
            (model, version): self._find(identifier, identifiers[model], version)
            for model, version in steps[::-1]
        }
        configs = {
            model: config_from_dict(orjson.loads(served.config_json))
            for (model, _), served in models.items()
        }
        try:
            complete = complete_ensemble(config, configs)
        except StepsError:
            raise
        except InvalidArgumentError as error:
            raise StepsError(error.message) from error
        return StepModels(models, configs, complete, identifiers, namespace)

    def is_same(self, steps: StepModels) -> bool:
        """Returns whether the steps would find the same models again."""
        return all(
            (identifier := self.named(name, steps.namespace)) is not None
            and self._engine.find(identifier, version_text(version)) is model
            for (name, version), model in steps.models.items()
        )

    def named(self, name: str, namespace: str) -> str | None:
        """Returns the identifier of the model that a step names.

        None if no model of this name should serve, or several that are all of other namespaces.
        """
        if self._engine.is_bound(name):
            return name
        return self._names.find(name, namespace, self._is_wanted)

    def _check_cycle(self, identifier: str, config: Any) -> None:
        configs = {
            each: tracked.wanted_config
            for each, tracked in self._tracked.items()
            if tracked.wanted_config is not None
        }
        configs |= self.announced
        configs[identifier] = config

        def find(ensemble: str, step: str) -> str:
            namespace, _ = self._names.split(ensemble)
            return self._names.find(step, namespace, configs.__contains__) or step

        message = circular_dependency(identifier, configs, find)
        if message is not None:
            raise StepsError(message)

    def _is_wanted(self, identifier: str) -> bool:
        """Returns whether a model should serve: a client or the control mode wants it."""
        tracked = self._tracked.get(identifier)
        return tracked is not None and tracked.wanted_config is not None

    def _identifier(self, ensemble: str, model: str, namespace: str) -> str:
        identifier = self.named(model, namespace)
        if identifier is None:
            tracked = self._names.among(model, self._tracked)
            is_ambiguous = any(map(self._is_wanted, tracked))
            raise StepsError(
                f"ensemble {ensemble} contains models that are not available or ambiguous: {model}",
                is_withdrawn=bool(tracked) and not is_ambiguous,
                is_awaited=not tracked,
            )
        return identifier

    def _find(self, ensemble: str, model: str, version: int) -> ManagedModel:
        served = self._engine.find(model, version_text(version))
        if served is not None:
            return served
        if self._engine.ready_versions(model):
            raise StepsError(
                f"ensemble '{ensemble}' depends on '{model}' whose required version {version} "
                "is not loaded."
            )
        tracked = self._tracked.get(model)
        failure = "" if tracked is None else tracked.failure
        if isinstance(failure, StepsError):
            raise StepsError(
                f"ensemble '{ensemble}' depends on '{model}' which is not valid. "
                f"Model '{model}' failed with error: {failure.message}",
                is_withdrawn=failure.is_withdrawn,
                is_awaited=failure.is_awaited,
            )
        text = f"ensemble '{ensemble}' depends on '{model}' which has no loaded version."
        if failure:
            text += f" Model '{model}' loading failed with error: {failure}"
        raise StepsError(text)
