# SPDX-License-Identifier: Apache-2.0
"""The pytest plugin: fixtures that start real servers.

Every run of pytest in an environment with this package imports this module, so it imports nothing
else of the package before a test asks for a server.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pytriton.base.lazy_module import LazyModule

if TYPE_CHECKING:
    from pytriton import testing
    from pytriton.testing import StartServer
else:
    testing = LazyModule("pytriton.testing")

_STARTERS: pytest.StashKey[list[StartServer]] = pytest.StashKey()


@pytest.fixture
def pytriton_server(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[StartServer]:
    """Start real servers on free loopback ports, which end with the test."""
    yield from _starting(request, tmp_path_factory)


@pytest.fixture(scope="module")
def pytriton_module_server(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[StartServer]:
    """Start real servers on free loopback ports, which end with the module."""
    yield from _starting(request, tmp_path_factory)


@pytest.fixture(scope="session")
def pytriton_session_server(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[StartServer]:
    """Start real servers on free loopback ports, which end with the session."""
    yield from _starting(request, tmp_path_factory)


def _starting(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[StartServer]:
    def new_folder() -> Path:
        return tmp_path_factory.mktemp("pytriton_server")

    starter = testing.StartServer(new_folder)
    request.node.stash.setdefault(_STARTERS, []).append(starter)
    try:
        yield starter
    finally:
        request.node.stash[_STARTERS].remove(starter)
        starter.stop()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, Any, Any]:
    """Add the logs of its servers to the report of a test that failed."""
    report = yield
    if report.failed:
        for node in item.listchain():
            for starter in node.stash.get(_STARTERS, []):
                for server in starter.servers:
                    if text := server.log:
                        title = f"Log of the server at {server.http_url}"
                        report.sections.append((title, text))
    return report
