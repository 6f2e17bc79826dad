# SPDX-License-Identifier: Apache-2.0
"""Loading and unloading of ensembles and of the models of their steps.

`outer` uses the ensembles `inner` and `joined`, and `adds`; both ensembles use `adds`, and `joined`
also `sums`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from tests.e2e.waiting import eventually
from tests.ensemble_differential import asking
from tests.ensemble_differential.asking import rows
from tests.recorded_suite import Case, Observation, Server

FAMILY = ("outer", "inner", "joined", "adds", "sums")
STEADY = ("READY", "UNAVAILABLE", None)


def steady_states(server: Server) -> Observation:
    """The states of the family once nothing is being unloaded any more."""
    seen: list[Observation] = []

    def is_steady() -> bool:
        seen.append(asking.states(server, *FAMILY))
        return all(state in STEADY for found in seen[-1].values() for _, state, _ in found)

    eventually(is_steady)
    return {name: found[0][1:] if found else [] for name, found in seen[-1].items()}


def write(server: Server, path: str, text: str) -> None:
    (server.repository / path).write_text(text)


@dataclasses.dataclass(frozen=True)
class Life:
    """A server whose family of ensembles is changed step by step."""

    server: Server

    def load(self, name: str, **parameters: str) -> Observation:
        return [asking.load(self.server, name, **parameters), steady_states(self.server)]

    def unload(self, name: str, **parameters: bool) -> Observation:
        return [asking.unload(self.server, name, **parameters), steady_states(self.server)]

    def ask(self, name: str = "outer") -> Observation:
        return asking.by_both(self.server, name, {"A": rows(1)})

    def rewrite(self, path: str, old: str, new: str) -> None:
        text = (self.server.repository / path).read_text()
        assert old in text
        write(self.server, path, text.replace(old, new))


def lived(name: str, live: Callable[[Life], Observation]) -> Case:
    """A life that begins with nothing of the family but what it loads."""

    def ask(server: Server) -> Observation:
        for member in FAMILY:
            asking.unload(server, member)
        steady_states(server)
        return live(Life(server))

    return Case(f"life: {name}", ask)


def unloaded_alone(life: Life) -> Observation:
    return [life.load("outer"), life.unload("outer"), life.ask(), life.ask("inner")]


def unloaded_with_dependents(life: Life) -> Observation:
    return [life.load("outer"), life.unload("outer", unload_dependents=True)]


def loaded_by_name_stays(life: Life) -> Observation:
    return [
        life.load("adds"),
        life.load("outer"),
        life.unload("outer", unload_dependents=True),
    ]


def used_by_another_stays(life: Life) -> Observation:
    return [
        life.load("joined"),
        life.load("outer"),
        life.unload("outer", unload_dependents=True),
        life.ask("joined"),
    ]


def step_unloaded(life: Life) -> Observation:
    server = life.server
    return [
        life.load("outer"),
        life.unload("adds"),
        life.ask(),
        [asking.call(server, f"/models/outer{path}") for path in ("", "/ready", "/stats")],
        asking.call(server, "/health/ready"),
        life.load("adds"),
        life.ask(),
    ]


def inner_ensemble_unloaded(life: Life) -> Observation:
    return [life.load("outer"), life.unload("inner"), life.load("outer"), life.ask()]


def step_grows_too_small(life: Life) -> Observation:
    seen = [life.load("outer")]
    life.rewrite("adds/config.pbtxt", "max_batch_size: 8", "max_batch_size: 6")
    seen += [life.load("adds"), life.ask()]
    life.rewrite("adds/config.pbtxt", "max_batch_size: 6", "max_batch_size: 8")
    seen += [life.load("adds"), life.ask()]
    return seen


def step_with_new_source(life: Life) -> Observation:
    seen = [life.load("inner"), life.ask("inner")]
    life.rewrite("adds/1/model.py", "array + 1", "array + 10")
    seen += [life.load("adds"), life.ask("inner"), asking.counts(life.server, "inner")]
    life.rewrite("adds/1/model.py", "array + 10", "array + 1")
    seen += [life.load("adds"), life.ask("inner")]
    return seen


def step_that_breaks(life: Life) -> Observation:
    source = (life.server.repository / "adds/1/model.py").read_text()
    seen = [life.load("inner")]
    write(life.server, "adds/1/model.py", 'raise RuntimeError("not today")\n')
    seen += [life.load("adds"), life.ask("inner")]
    write(life.server, "adds/1/model.py", source)
    return seen


def refused_change(life: Life) -> Observation:
    seen = [life.load("outer")]
    life.rewrite("inner/config.pbtxt", "max_batch_size: 8", "max_batch_size: 16")
    seen += [life.load("inner"), life.ask("inner"), life.ask()]
    life.rewrite("inner/config.pbtxt", "max_batch_size: 16", "max_batch_size: 8")
    seen += [life.load("inner"), life.ask()]
    return seen


def refused_leaves_steps(life: Life) -> Observation:
    return [life.load("too_large"), asking.states(life.server, "too_large")]


CASES = (
    lived("unloaded alone", unloaded_alone),
    lived("unloaded with dependents", unloaded_with_dependents),
    lived("step that was loaded by name stays", loaded_by_name_stays),
    lived("step of another ensemble stays", used_by_another_stays),
    lived("step unloaded", step_unloaded),
    lived("inner ensemble unloaded", inner_ensemble_unloaded),
    lived("step with a smaller batch", step_grows_too_small),
    lived("step with a new source", step_with_new_source),
    lived("step that breaks", step_that_breaks),
    lived("change that is refused", refused_change),
    lived("refused ensemble leaves its steps", refused_leaves_steps),
)
