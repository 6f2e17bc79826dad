# SPDX-License-Identifier: Apache-2.0
"""Imports what a first request would import, so that no random input is charged with it."""

from __future__ import annotations

import importlib
import pkgutil

import pytest

import pytriton.protocol
import pytriton.serving.server


@pytest.fixture(scope="session", autouse=True)
def _imported_modules():
    for package in (pytriton.protocol, pytriton.serving.server):
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            if not module.name.endswith("__main__"):
                importlib.import_module(module.name)
