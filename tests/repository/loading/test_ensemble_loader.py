# SPDX-License-Identifier: Apache-2.0
"""The engine's models of ensembles, made of plans and of the models of their steps."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from pytriton.serving.engine.config import (
    config_from_text,
    config_to_json,
    normalise_config,
    spec_from_config,
)
from pytriton.serving.engine.engine import Engine
from pytriton.serving.engine.model import Model
from pytriton.serving.repository.loading.ensemble_loader import (
    EnsembleLoader,
    StepFinder,
    StepUse,
    ensemble_maker,
)
from pytriton.serving.repository.loading.plans import VersionPlan
from tests.repository.ensemble_files import ensemble_config, step_config

STEP_LABELS, OWN_LABELS = ("cat", "dog"), ("yes", "no")


def parse(name: str, text: str):
    return normalise_config(config_from_text(f'name: "{name}" {text}', "x"))


class World:
    """An engine with bound models and a loader of ensembles."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self.engine = Engine()
        self.use = StepUse()
        finder = StepFinder(self.engine, {})
        self._loader = EnsembleLoader(finder, self.use, ensemble_maker(self.engine, None))

    def bind(self, name: str, text: str = "", labels=None) -> Model:
        config = parse(name, text or step_config())
        spec = spec_from_config(config, 1, labels)
        model = Model(spec, self.loop, config_json=config_to_json(config), is_bound=True)
        self.engine.add(model)
        self.engine.set_ready(model)
        return model

    def load(self, *steps: str, labels=None):
        plan = VersionPlan(
            name="e",
            version=3,
            model_directory=Path("/models/e"),
            version_directory=Path("/models/e/3"),
            config=parse("e", ensemble_config(*steps)),
            labels=labels or {},
            instances=(),
        )
        return self.loop.run_until_complete(self._loader.load(plan))


@pytest.fixture
def world():
    loop = asyncio.new_event_loop()
    yield World(loop)
    loop.close()


def test_version_of_an_ensemble_has_its_name_version_and_configuration(world):
    world.bind("a")

    version = world.load("a")

    spec = version.model.spec
    assert (spec.name, spec.version, spec.platform) == ("e", 3, "ensemble")
    assert b'"model_name":"a"' in version.model.config_json
    assert not version.model.is_bound


def test_decoupled_step_makes_the_ensemble_decoupled(world):
    world.bind("a", step_config(more="model_transaction_policy { decoupled: true }"))

    assert world.load("a").model.spec.decoupled


def test_labels_are_those_of_the_step_that_writes_an_output_unless_the_ensemble_has_its_own(world):
    world.bind("a", labels={"OUT": STEP_LABELS})
    world.bind("b")

    assert world.load("a").model.spec.labels["OUT"] == STEP_LABELS
    assert world.load("a", labels={"OUT": OWN_LABELS}).model.spec.labels["OUT"] == OWN_LABELS
    assert "OUT" not in world.load("a", "b").model.spec.labels


def test_version_is_current_until_a_step_is_replaced_and_uses_its_steps_until_it_is_stopped(world):
    world.bind("a")
    version = world.load("a")
    assert version.is_current
    assert len(world.use) == 1

    world.bind("a")

    assert not version.is_current
    world.loop.run_until_complete(version.drain_and_stop())
    assert len(world.use) == 0
