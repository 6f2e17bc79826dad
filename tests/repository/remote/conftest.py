# SPDX-License-Identifier: Apache-2.0
"""Scenes whose models are in an object store."""

from __future__ import annotations

import pytest

from pytriton.serving.repository.remote.finder import RemoteFinder
from tests.repository.remote.fake_objects import ADDRESS, FakeObjects
from tests.repository.scene import Scene


@pytest.fixture
def objects():
    return FakeObjects()


@pytest.fixture
def mount(tmp_path):
    """The folder in which local copies are made."""
    path = tmp_path / "mount"
    path.mkdir()
    return path


@pytest.fixture
def remote(objects, mount):
    """Makes scenes around `objects`; settings are those of `RepositorySettings`."""
    pytest.importorskip("fsspec", reason="downloads need fsspec")
    scenes = []

    def make(*others, mode="poll", retry_count=0, environment=None, **settings):
        finder = RemoteFinder(
            [ADDRESS, *map(str, others)],
            {"TRITON_AWS_MOUNT_DIRECTORY": str(mount), **(environment or {})},
            with_files=mode != "explicit",
            retry_count=retry_count,
            open_system=objects.open,
            first_pause_s=0.0,
            namespacing="namespaces" in settings,
        )
        it = Scene(*others, mode=mode, finder=finder, retry_count=retry_count, **settings)
        it.finder = finder
        scenes.append(it)
        return it

    yield make
    for each in scenes:
        each.close()
        each.finder.close()
