# SPDX-License-Identifier: Apache-2.0
"""Runs tests with the fixture `system` on the real system and on the simulated one.

Tests that run a server on the simulated machine do it with `elsewhere`, in a process of its own.
"""

from __future__ import annotations

import pathlib
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from tests.collected import items_in
from tests.simulation.elsewhere import Elsewhere
from tests.simulation.systems import RealSystem, SimulatedSystem, System


def pytest_collection_modifyitems(items):
    for item in items_in(pathlib.Path(__file__).parent, items):
        item.add_marker(pytest.mark.real_start)  # by the `subprocess` of the simulation


@pytest.fixture(
    params=[
        pytest.param(
            RealSystem,
            id="real",
            marks=pytest.mark.skipif(
                not sys.platform.startswith("linux"), reason="the contract is that of Linux"
            ),
        ),
        pytest.param(SimulatedSystem, id="simulated"),
    ]
)
def system(request: pytest.FixtureRequest) -> System:
    made: System = request.param()
    return made


@pytest.fixture(scope="module")
def elsewhere() -> Iterator[Elsewhere]:
    with Elsewhere() as process:
        yield process


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    found: Any = pyfuncitem.funcargs.get("system")
    if not isinstance(found, System):
        return None
    arguments = {name: pyfuncitem.funcargs[name] for name in pyfuncitem._fixtureinfo.argnames}
    found.run(lambda: pyfuncitem.obj(**arguments))
    return True
