# SPDX-License-Identifier: Apache-2.0
"""Servers in the tests' own process, and the repositories that they serve."""

from __future__ import annotations

import pathlib

import pytest

import tritonserver
from tests.collected import items_in
from tests.inprocess import models
from tests.repository_e2e.model_files import write_model

MODELS = {
    "identity": models.identity(),
    "strings": models.identity("STRING"),
    "halves": models.identity("BF16"),
    "cached": models.identity("FP32", "response_cache { enable: true }"),
    "counting": models.COUNTING,
    "patient": models.PATIENT,
    "telling": models.TELLING,
    "failing": models.FAILING,
}


def pytest_collection_modifyitems(items):
    for item in items_in(pathlib.Path(__file__).parent, items):
        if {"server", "repository"} & set(item.fixturenames):
            item.add_marker(pytest.mark.e2e)


@pytest.fixture(scope="module")
def repository(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    for name, files in MODELS.items():
        write_model(folder / name, files)
    return folder


@pytest.fixture(scope="module")
def server(repository):
    server = tritonserver.Server(
        model_repository=str(repository),
        cache_config={"local": {"size": 1 << 20}},
        exit_timeout=5,
    )
    server.start(wait_until_ready=True)
    yield server
    server.stop()
