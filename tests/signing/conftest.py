# SPDX-License-Identifier: Apache-2.0
"""Scenes that end with their test, as those of repositories."""

from tests.repository.conftest import repository, scene

__all__ = ["repository", "scene"]
