# SPDX-License-Identifier: Apache-2.0
"""Random loads, unloads, changes and bindings: an ensemble serves exactly while its steps do."""

from __future__ import annotations

import contextlib
import tempfile
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from pytriton.base.errors import ServerError
from pytriton.serving.engine.model import Model
from pytriton.serving.repository.model_set import superfluous
from tests.repository.binding import bind, unbind
from tests.repository.ensemble_files import step_config, write_ensemble, write_step
from tests.repository.scene import Scene, write_config

ENSEMBLES = {"e": ["a", "b"], "n": ["e", "b"], "o": ["a"], "p": ["bound", "o"]}
IN_FILES = ["a", "b", *ENSEMBLES]
FITS, DIFFERS = "TYPE_FP32", "TYPE_INT32"

operations = st.lists(
    st.one_of(
        st.tuples(st.sampled_from(["load", "unload", "unload all"]), st.sampled_from(IN_FILES)),
        st.tuples(st.sampled_from([FITS, DIFFERS]), st.sampled_from("ab")),
        st.tuples(st.sampled_from(["bind", "unbind"]), st.sampled_from([FITS, DIFFERS])),
    ),
    max_size=12,
)


class Expected:
    """What should be served, in the simplest way to say it."""

    def __init__(self) -> None:
        self.asked: set[str] = set()
        self.wanted: set[str] = set()
        self.types: dict[str, str] = {}  # of the steps that are served
        self.files = {"a": FITS, "b": FITS}

    def load(self, name: str) -> None:
        self.asked.add(name)
        self._load(name)

    def _load(self, name: str) -> None:
        self.wanted.add(name)
        if name in self.files:
            self.types[name] = self.files[name]
        for step in ENSEMBLES.get(name, ()):
            if step in IN_FILES:
                self._load(step)

    def unload(self, name: str, *, with_steps: bool) -> None:
        self.asked.discard(name)
        gone = {name}
        if with_steps and name in self.wanted:
            steps = {each: ENSEMBLES[each] for each in ENSEMBLES if each in self.wanted}
            gone |= superfluous(name, steps, self.asked) - {"bound"}  # its process unbinds it
        self.wanted -= gone
        for each in gone & self.types.keys():
            del self.types[each]

    def serves(self, name: str) -> bool:
        if name not in ENSEMBLES:
            return name in self.types
        return name in self.wanted and all(map(self._fits, ENSEMBLES[name]))

    def _fits(self, step: str) -> bool:
        return self.serves(step) and self.types.get(step, FITS) == FITS

    def served(self) -> set[str]:
        return {name for name in [*IN_FILES, "bound"] if self.serves(name)}


class World:
    """The real thing."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        for name in "ab":
            write_step(folder, name)
        for name, steps in ENSEMBLES.items():
            write_ensemble(folder, name, *steps)
        self.scene = Scene(folder)
        self.bound: Model | None = None

    def do(self, action: str, argument: str, expected: Expected) -> None:
        if action == "load":
            expected.load(argument)
            with contextlib.suppress(ServerError):
                self.scene.load(argument)
        elif action in ("unload", "unload all"):
            with_steps = action == "unload all"
            expected.unload(argument, with_steps=with_steps)
            self.scene.unload(argument, unload_dependents=with_steps)
        elif action in (FITS, DIFFERS):
            expected.files[argument] = action
            write_config(self.folder / argument, step_config(action))
        else:
            self._change_bound(action, argument, expected)

    def _change_bound(self, action: str, data_type: str, expected: Expected) -> None:
        if self.bound is not None:
            unbind(self.scene, self.bound)
            self.bound = None
            del expected.types["bound"]
        if action == "bind":
            self.bound = bind(self.scene, "bound", step_config(data_type))
            expected.types["bound"] = data_type

    def served(self) -> set[str]:
        return {model.spec.name for model in self.scene.engine.models() if model.is_ready}


@settings(max_examples=60)
@given(operations)
def test_ensembles_serve_exactly_while_their_steps_do(steps):
    with tempfile.TemporaryDirectory() as folder:
        world, expected = World(Path(folder)), Expected()
        try:
            for action, argument in steps:
                world.do(action, argument, expected)
                assert world.served() == expected.served(), (action, argument)
            scene = world.scene
            scene.until(lambda: not scene.engine.draining)
            in_processes = expected.served() & {"a", "b"}
            assert sorted(each.plan.name for each in scene.loader.alive) == sorted(in_processes)
        finally:
            world.scene.close()
