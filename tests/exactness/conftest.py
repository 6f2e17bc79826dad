# SPDX-License-Identifier: Apache-2.0
"""All tests of this folder start real servers."""

from __future__ import annotations

import pathlib

import pytest

from tests.collected import items_in


def pytest_collection_modifyitems(items):
    for item in items_in(pathlib.Path(__file__).parent, items):
        item.add_marker(pytest.mark.e2e)
