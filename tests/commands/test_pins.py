# SPDX-License-Identifier: Apache-2.0
"""What a package of a project is pinned to."""

from __future__ import annotations

import pytest

from pytriton.tools.commands.project.lock import Pin


@pytest.mark.parametrize(
    "version, is_local, is_of_special_index",
    [("2.13.0+cpu", False, True), ("2.13.0", False, False), ("2.13.0+cpu", True, False)],
)
def test_version_with_a_local_part_comes_from_a_special_index(
    version, is_local, is_of_special_index
):
    assert Pin("torch", version, is_local).is_of_special_index == is_of_special_index
