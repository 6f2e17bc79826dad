# SPDX-License-Identifier: Apache-2.0
"""A surface: what operators see of one part of a server, and how the server is started for it.

Every module `surface_NAME.py` has one as `SURFACE`. Its cases are functions that ask a started
server and return plain JSON. `golden/NAME.json` has what the real Triton answered, and
`known/NAME.json` what ours answers instead where it differs on purpose, each with the reason.
"""

from __future__ import annotations

import dataclasses
import importlib
from collections.abc import Callable, Mapping
from pathlib import Path

from tests import recorded_json
from tests.operations_differential.models import write_common
from tests.operations_differential.server import Observation, Server

HERE = Path(__file__).parent


@dataclasses.dataclass(frozen=True, eq=False)
class Setup:
    """How a server is started. All cases with the same one are asked one after the other.

    In options and in the environment, `{models}`, `{folder}`, `{http}`, `{grpc}`, `{metrics}` and
    the names of additional `ports` are filled in. `models` writes the repository.
    """

    options: tuple[str, ...] = ()
    our_options: tuple[str, ...] = ()  # in addition, where ours needs others than the real one
    real_options: tuple[str, ...] = ()
    environment: Mapping[str, str] = dataclasses.field(default_factory=dict)
    models: Callable[[Path], None] = write_common
    ports: tuple[str, ...] = ()
    ready: tuple[str, str] = ("http", "/v2/health/ready")  # a port, and what it is asked
    is_started: bool = True  # otherwise the cases start servers with Server.command themselves


@dataclasses.dataclass(frozen=True)
class Case:
    """Something that both servers are asked, if not as the surface says then with its own setup."""

    name: str
    ask: Callable[[Server], Observation]
    setup: Setup | None = None


@dataclasses.dataclass(frozen=True)
class Surface:
    """What is compared of one part of a server."""

    name: str
    cases: tuple[Case, ...]
    setup: Setup = dataclasses.field(default_factory=Setup)

    @property
    def golden(self) -> Path:
        return HERE / "golden" / f"{self.name}.json"

    @property
    def known(self) -> Path:
        return HERE / "known" / f"{self.name}.json"

    def setups(self) -> dict[Setup, list[Case]]:
        """The cases by how their server is started, in order."""
        found: dict[Setup, list[Case]] = {}
        for case in self.cases:
            found.setdefault(case.setup or self.setup, []).append(case)
        return found


def load(path: Path) -> dict[str, Observation]:
    """Stored answers by the name of the case; none where nothing is stored."""
    return recorded_json.load(path) if path.exists() else {}


def surfaces() -> dict[str, Surface]:
    """All of them, by name."""
    names = sorted(path.stem for path in HERE.glob("surface_*.py"))
    found = [importlib.import_module(f"tests.operations_differential.{name}") for name in names]
    return {module.SURFACE.name: module.SURFACE for module in found}
