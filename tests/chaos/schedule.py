# SPDX-License-Identifier: Apache-2.0
"""Which faults hit a server, and when: a pure function of a seed.

A fault names no process: which of those that live then is hit follows from its `choice`.
"""

from __future__ import annotations

import dataclasses
import enum
import random
from collections.abc import Collection


class Kind(enum.Enum):
    """What a fault does; the value is what the time line says."""

    KILL_WORKER = "kill worker"
    STOP_WORKER = "stop worker"
    KILL_WORKER_ZYGOTE = "kill zygote of workers"
    STOP_WORKER_ZYGOTE = "stop zygote of workers"
    KILL_FRONT_END = "kill front end"
    STOP_FRONT_END = "stop front end"
    KILL_FRONT_END_ZYGOTE = "kill zygote of front ends"
    STOP_FRONT_END_ZYGOTE = "stop zygote of front ends"
    KILL_CODEC = "kill codec process"
    STOP_CODEC = "stop codec process"
    KEEP_WORKER_DEAD = "keep worker dead"
    STOP_SERVER = "stop server"
    STOP_SCRIPT = "stop script"
    KILL_LOADING_WORKER = "kill worker that loads"
    UNLOAD = "unload model"
    RELOAD = "reload changed model"
    RELOAD_BROKEN = "reload broken model"
    TAKE_DESCRIPTORS = "take descriptors"
    FILL_DISK = "fill disk"
    ROTATE_LOGS = "rotate logs"


class ServerKind(enum.Enum):
    BOUND = "bound"  # functions, with `Triton`
    REPOSITORY = "repository"  # a model repository, with `tritonserver`


@dataclasses.dataclass(frozen=True, slots=True)
class Scene:
    """A server that a run starts, and for how long faults hit it."""

    server: ServerKind
    front_ends: int
    seed: int
    duration_s: float
    can_fill_disk: bool = True

    @property
    def name(self) -> str:
        where = f"{self.front_ends} front ends" if self.front_ends else "one process"
        return f"{self.server.value}, {where}"


@dataclasses.dataclass(frozen=True, slots=True)
class Fault:
    """One fault: it begins at a time, and what it stops or takes comes back after a while."""

    at_s: float
    kind: Kind
    lasts_s: float
    choice: float  # from 0 to 1: which of the processes or models, and where in a load


@dataclasses.dataclass(frozen=True, slots=True)
class _Rule:
    weight: int
    shortest_s: float = 0.0
    longest_s: float = 0.0


_RULES = {
    Kind.KILL_WORKER: _Rule(6),
    Kind.STOP_WORKER: _Rule(4, 0.1, 5.0),
    Kind.KILL_WORKER_ZYGOTE: _Rule(2),
    Kind.STOP_WORKER_ZYGOTE: _Rule(2, 0.1, 5.0),
    Kind.KILL_FRONT_END: _Rule(5),
    # A front end that does not answer for three seconds is replaced.
    Kind.STOP_FRONT_END: _Rule(4, 0.1, 8.0),
    Kind.KILL_FRONT_END_ZYGOTE: _Rule(2),
    Kind.STOP_FRONT_END_ZYGOTE: _Rule(2, 0.1, 5.0),
    Kind.KILL_CODEC: _Rule(3),
    Kind.STOP_CODEC: _Rule(2, 0.1, 3.0),
    Kind.KEEP_WORKER_DEAD: _Rule(2, 3.0, 5.0),
    Kind.STOP_SERVER: _Rule(2, 0.1, 5.0),
    Kind.STOP_SCRIPT: _Rule(4, 0.1, 5.0),
    Kind.KILL_LOADING_WORKER: _Rule(4),
    Kind.UNLOAD: _Rule(4, 0.0, 3.0),
    Kind.RELOAD: _Rule(5),
    Kind.RELOAD_BROKEN: _Rule(2),
    Kind.TAKE_DESCRIPTORS: _Rule(3, 0.5, 5.0),
    Kind.FILL_DISK: _Rule(3, 0.5, 5.0),
    Kind.ROTATE_LOGS: _Rule(2),
}
_OF_WORKERS = {
    Kind.KILL_WORKER,
    Kind.STOP_WORKER,
    Kind.KILL_WORKER_ZYGOTE,
    Kind.STOP_WORKER_ZYGOTE,
    Kind.KEEP_WORKER_DEAD,
    Kind.KILL_LOADING_WORKER,
    Kind.RELOAD,
    Kind.RELOAD_BROKEN,
}
_OF_FRONT_ENDS = {
    Kind.KILL_FRONT_END,
    Kind.STOP_FRONT_END,
    Kind.KILL_FRONT_END_ZYGOTE,
    Kind.STOP_FRONT_END_ZYGOTE,
}
_OF_SCRIPTS = {Kind.STOP_SCRIPT}
# Mean of the time between the beginnings of two faults; they may overlap.
MEAN_GAP_S = 1.5


def kinds_of(scene: Scene) -> list[Kind]:
    """The faults that can hit the server of a scene."""
    left_out: set[Kind] = set()
    if not scene.front_ends:
        left_out |= _OF_FRONT_ENDS
    left_out |= _OF_SCRIPTS if scene.server is ServerKind.REPOSITORY else _OF_WORKERS
    if not scene.can_fill_disk:
        left_out.add(Kind.FILL_DISK)
    return [kind for kind in Kind if kind not in left_out]


def make_schedule(
    scene: Scene, kinds: Collection[Kind] | None = None, mean_gap_s: float = MEAN_GAP_S
) -> list[Fault]:
    """The faults of a scene, in the order of their times."""
    chosen = kinds_of(scene)
    if kinds:
        chosen = [kind for kind in chosen if kind in kinds]
    # Texts seed as well as numbers do, and the same on every machine.
    chance = random.Random(f"{scene.seed} {scene.server.value} {scene.front_ends}")
    weights = [_RULES[kind].weight for kind in chosen]
    faults: list[Fault] = []
    at_s = chance.expovariate(1 / mean_gap_s)
    while chosen and at_s < scene.duration_s:
        kind = chance.choices(chosen, weights)[0]
        rule = _RULES[kind]
        lasts_s = chance.uniform(rule.shortest_s, rule.longest_s)
        faults.append(Fault(at_s, kind, lasts_s, chance.random()))
        at_s += chance.expovariate(1 / mean_gap_s)
    return faults


def scenes(
    minutes: float,
    seed: int,
    front_ends: Collection[int],
    servers: Collection[ServerKind],
    *,
    can_fill_disk: bool,
) -> list[Scene]:
    """The scenes of a run, which share its time equally."""
    pairs = [(server, count) for count in front_ends for server in servers]
    share_s = minutes * 60 / len(pairs)
    return [Scene(server, count, seed, share_s, can_fill_disk) for server, count in pairs]
