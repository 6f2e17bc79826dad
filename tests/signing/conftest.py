# SPDX-License-Identifier: Apache-2.0
"""Scenes that end with their test."""

from __future__ import annotations

import pytest

from tests.repository.scene import Scene


@pytest.fixture
def repository(tmp_path):
    path = tmp_path / "models"
    path.mkdir()
    return path


@pytest.fixture
def scene(repository):
    """Makes scenes around `repository`; settings are those of `RepositorySettings`."""
    scenes = []

    def make(**settings):
        scenes.append(Scene(repository, **settings))
        return scenes[-1]

    yield make
    for each in scenes:
        each.close()
