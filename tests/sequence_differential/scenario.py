# SPDX-License-Identifier: Apache-2.0
"""One scenario: the model that it needs, what is sent when, and how it is asked of a server."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from tests.recorded_suite import Observation, Server
from tests.sequence_differential import rig as rigs
from tests.sequence_differential.rig import Rig

Play = Callable[[Rig], Observation]


@dataclasses.dataclass(frozen=True)
class Scenario:
    """Something that happens to a sequence model of both servers."""

    name: str
    config: str
    play: Play
    files: dict[str, bytes] = dataclasses.field(default_factory=dict)


class Scenarios:
    """The scenarios of one file, in the order in which they are written."""

    def __init__(self) -> None:
        self.made: list[Scenario] = []

    def __call__(
        self, config: str, files: dict[str, bytes] | None = None
    ) -> Callable[[Play], Play]:
        """Make a scenario of a function, whose name it has."""

        def decorate(play: Play) -> Play:
            self.made.append(Scenario(play.__name__, config, play, files or {}))
            return play

        return decorate


def asked(scenario: Scenario, server: Server) -> Observation:
    """What a server does in a scenario."""
    with rigs.rig(server, scenario.name) as rig:
        refused = rig.load(scenario.config, files=scenario.files)
        if refused[0] != 200:
            return {"refused": refused}
        seen = scenario.play(rig)
        if seen is None:
            rig.open_gate()
            seen = {"answers": rig.answers(), "executions": rig.batches()}
        rig.unload()
    return seen


def asked_to_load(name: str, config: str, files: dict[str, bytes], server: Server) -> Observation:
    """Whether a server takes a configuration; if not, the reason that it logs or answers."""
    with rigs.rig(server, name) as rig:
        before = len(server.log.read_text())
        status, text = rig.load(config, files=files)
        if status == 200:
            rig.unload()
            return "loaded"
        lines = server.log.read_text()[before:].splitlines()
    mark = "Poll failed for model directory '<model>': "
    reasons = [
        rig.normal(line).partition(mark)[2]
        for line in lines
        if " Poll failed" in line or '"Poll failed' in line
    ]
    return [status, *(reasons or [text])]
