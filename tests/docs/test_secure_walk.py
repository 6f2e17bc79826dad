# SPDX-License-Identifier: Apache-2.0
"""The page for those who open a server to others, gone through."""

from __future__ import annotations

import pathlib

import pytest

from tests.docs.page_walk import PageWalk
from tests.free_ports import free_ports
from tests.sandbox.conftest import require

PAGE = pathlib.Path(__file__).parents[2] / "docs" / "guides" / "secure.md"


@pytest.mark.e2e
def test_page_goes_as_it_says(tmp_path):
    require("landlock", "seccomp", "processes")
    walk = PageWalk(PAGE, tmp_path, free_ports(3))

    walk.run()

    assert [step.command.split()[0] for step in walk.steps][:2] == ["openssl", "pytriton"]
    assert not walk.misfits(), "\n".join(walk.misfits())
