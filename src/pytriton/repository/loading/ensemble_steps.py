# SPDX-License-Identifier: Apache-2.0
"""Finds the models of an ensemble's steps, or says in Triton's words why it cannot be served."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import orjson

from pytriton.engine.config import config_from_dict
from pytriton.engine.ensemble.ensemble_rules import NEWEST, circular_dependency, composing_models
from pytriton.engine.ensemble.step_rules import complete_ensemble
from pytriton.errors import InvalidArgumentError

if TYPE_CHECKING:
    from pytriton.engine.engine import Engine
    from pytriton.engine.served_model import ServedModel


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


class TrackedModel(Protocol):
    """A model of the repositories that was loaded, should have been, or was unloaded."""

    @property
    def wanted_config(self) -> Any | None:
        """The configuration with which it should serve; None if it was unloaded or never read."""

    @property
    def failure(self) -> StepsError | str:
        """Why it does not serve; for an ensemble that does not fit its steps, the error."""


@dataclass(frozen=True)
class StepModels:
    """The models that an ensemble is made of at one moment."""

    models: dict[tuple[str, int], ServedModel]  # by name and version, as steps write it
    configs: dict[str, Any]  # their ModelConfig messages by name
    config: Any  # that of the ensemble, with what follows from the others


class StepFinder:
    """Finds the models of steps in the engine, also bound ones.

    Args:
        engine: The engine.
        tracked: The models of the repositories by name.
    """

    def __init__(self, engine: Engine, tracked: Mapping[str, TrackedModel]) -> None:
        self._engine = engine
        self._tracked = tracked
        # The configurations of ensembles that are about to be loaded, to find cycles.
        self.announced: dict[str, Any] = {}

    def find(self, config: Any) -> StepModels:
        """Returns the models of an ensemble's steps as they are served now.

        Args:
            config: The ModelConfig message of the ensemble, normalised.

        Raises:
            StepsError: A model is missing, or the ensemble does not fit.
        """
        name = config.name
        steps = composing_models(config)
        self._check_cycle(config)
        for model, _ in steps:
            self._check_known(name, model)
        # Of several models that are not available, Triton names the last.
        models = {
            (model, version): self._find(name, model, version) for model, version in steps[::-1]
        }
        configs = {model: _config_of(served) for (model, _), served in models.items()}
        try:
            complete = complete_ensemble(config, configs)
        except StepsError:
            raise
        except InvalidArgumentError as error:
            raise StepsError(error.message) from error
        return StepModels(models, configs, complete)

    def is_same(self, models: Mapping[tuple[str, int], ServedModel]) -> bool:
        """Returns whether steps would find the same models again."""
        return all(
            self._is_known(name) and self._engine.find(name, _version_text(version)) is model
            for (name, version), model in models.items()
        )

    def _check_cycle(self, config: Any) -> None:
        configs = {
            name: tracked.wanted_config
            for name, tracked in self._tracked.items()
            if tracked.wanted_config is not None
        }
        configs |= self.announced
        message = circular_dependency(config.name, {**configs, config.name: config})
        if message is not None:
            raise StepsError(message)

    def _is_known(self, model: str) -> bool:
        """Returns whether a model should serve: a client or the control mode wants it."""
        tracked = self._tracked.get(model)
        if tracked is not None and tracked.wanted_config is not None:
            return True
        return self._engine.is_bound(model)

    def _check_known(self, ensemble: str, model: str) -> None:
        if not self._is_known(model):
            raise StepsError(
                f"ensemble {ensemble} contains models that are not available or ambiguous: {model}",
                is_withdrawn=model in self._tracked,
                is_awaited=model not in self._tracked,
            )

    def _find(self, ensemble: str, model: str, version: int) -> ServedModel:
        served = self._engine.find(model, _version_text(version))
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


def _version_text(version: int) -> str:
    return "" if version == NEWEST else str(version)


def _config_of(model: ServedModel) -> Any:
    return config_from_dict(orjson.loads(model.config_json))
