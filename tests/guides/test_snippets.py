# SPDX-License-Identifier: Apache-2.0
"""Every Python block of the two users' guides runs as it stands there."""

from __future__ import annotations

import json
import os
import pathlib
import subprocess
import sys

import pytest

from tests.guides.conftest import free_ports, guides_folder
from tests.snippets import Snippet, snippets

PAGES = ("binding_models.md", "deploying_models.md")
GUIDES = guides_folder()
PAGE_TIMEOUT_S = 180

pytestmark = [
    pytest.mark.guide,
    pytest.mark.e2e,
    pytest.mark.skipif(
        not GUIDES.is_dir(),
        reason="the guides are not beside this checkout; PYTRITON_GUIDES can name their folder",
    ),
]


def all_blocks() -> list[Snippet]:
    if not GUIDES.is_dir():
        return []
    return [block for page in PAGES for block in snippets(GUIDES / page, "python")]


@pytest.fixture(scope="module")
def outcome_of_page(tmp_path_factory):
    """Runs a page when its first block is asked for; gives the error of each block by line."""
    outcomes: dict[str, dict[str, str | None]] = {}

    def outcome(page: str) -> dict[str, str | None]:
        if page not in outcomes:
            outcomes[page] = run_page(GUIDES / page, tmp_path_factory.mktemp("page") / "results")
        return outcomes[page]

    return outcome


def run_page(page: pathlib.Path, results: pathlib.Path) -> dict[str, str | None]:
    http, grpc, metrics = free_ports(3)
    environment = {
        **os.environ,
        "PYTRITON_TRITON_CONFIG_HTTP_PORT": str(http),
        "PYTRITON_TRITON_CONFIG_GRPC_PORT": str(grpc),
        "PYTRITON_TRITON_CONFIG_METRICS_PORT": str(metrics),
    }
    runner = pathlib.Path(__file__).with_name("run_page.py")
    process = subprocess.run(
        [sys.executable, str(runner), str(page), str(results)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=PAGE_TIMEOUT_S,
        check=False,
    )
    if not results.exists():
        pytest.fail(f"no block of {page.name} was run:\n{process.stdout}\n{process.stderr}")
    return json.loads(results.read_text())


@pytest.mark.parametrize("page", PAGES)
def test_guide_has_python_blocks(page):
    assert len(snippets(GUIDES / page, "python")) >= 8


@pytest.mark.parametrize("block", all_blocks(), ids=str)
def test_guide_block_runs_unchanged(block, outcome_of_page):
    outcomes = outcome_of_page(block.page)

    assert str(block.line) in outcomes, "the process ended before it came to this block"
    assert outcomes[str(block.line)] is None, outcomes[str(block.line)]
