# SPDX-License-Identifier: Apache-2.0
"""Repositories made of texts, and the real command that serves them."""

from __future__ import annotations

import pathlib

import pytest

from tests.collected import items_in
from tests.otlp_collector import Collector
from tests.repository_e2e.server_process import starter


def pytest_collection_modifyitems(items):
    for item in items_in(pathlib.Path(__file__).parent, items):
        item.add_marker(pytest.mark.e2e)


@pytest.fixture
def start_server(tmp_path, front_end_mode):
    """Starts servers of one test."""
    with starter(tmp_path) as start:
        yield start


@pytest.fixture(scope="module")
def start_module_server(tmp_path_factory, front_end_mode):
    """Starts servers that the tests of a module share."""
    with starter(tmp_path_factory.mktemp("servers")) as start:
        yield start


@pytest.fixture(scope="module")
def collector():
    """Takes the spans of a module's servers."""
    with Collector() as running:
        yield running
