# SPDX-License-Identifier: Apache-2.0
"""Bound models beside those of a repository, without processes."""

from __future__ import annotations

from pytriton.serving.engine.config import config_from_text, config_to_json, normalise_config
from pytriton.serving.engine.model import Model
from tests.fakes import FakeInstance, model_spec
from tests.repository.ensemble_files import step_config
from tests.repository.scene import Scene


def bind(it: Scene, name: str, text: str | None = None) -> Model:
    """Serve a bound model; by default it may be a step."""
    config = normalise_config(config_from_text(f'name: "{name}" {text or step_config()}', "x"))
    spec = model_spec(name=name, batches=False)
    model = Model(spec, it.loop, config_json=config_to_json(config), is_bound=True)
    model.add_instance(FakeInstance("i", model))
    it.engine.add(model)
    it.engine.set_ready(model)
    it.run(it.engine.followed())
    return model


def unbind(it: Scene, model: Model) -> None:
    it.run(it.engine.unload(model))
    it.run(it.engine.followed())
