# SPDX-License-Identifier: Apache-2.0
"""Repositories made of texts, and the real command that serves them."""

from __future__ import annotations

import contextlib
import itertools
import pathlib

import pytest

from tests.collected import items_in
from tests.otlp_collector import Collector
from tests.repository_e2e.model_files import write_model
from tests.repository_e2e.server_process import ServerProcess


def pytest_collection_modifyitems(items):
    for item in items_in(pathlib.Path(__file__).parent, items):
        item.add_marker(pytest.mark.e2e)


@contextlib.contextmanager
def starter(folder):
    """Starts servers of repositories, each a dict of models; kills what is left of them."""
    numbers = itertools.count(1)
    with contextlib.ExitStack() as stack:

        def start(*repositories, **settings) -> ServerProcess:
            place = folder / f"server{next(numbers)}"
            paths = []
            for number, models in enumerate(repositories):
                paths.append(place / f"models{number}")
                paths[-1].mkdir(parents=True)
                for name, files in models.items():
                    write_model(paths[-1] / name, files)
            server = ServerProcess(place, paths, **settings)
            return stack.enter_context(server)

        yield start


@pytest.fixture
def start_server(tmp_path):
    """Starts servers of one test."""
    with starter(tmp_path) as start:
        yield start


@pytest.fixture(scope="module")
def start_module_server(tmp_path_factory):
    """Starts servers that the tests of a module share."""
    with starter(tmp_path_factory.mktemp("servers")) as start:
        yield start


@pytest.fixture(scope="module")
def collector():
    """Takes the spans of a module's servers."""
    with Collector() as running:
        yield running
