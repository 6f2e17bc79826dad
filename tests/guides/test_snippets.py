# SPDX-License-Identifier: Apache-2.0
"""Every Python block of the two users' guides runs as it stands there."""

from __future__ import annotations

import pytest

from tests.guides.conftest import guides_folder
from tests.snippets import Snippet, run_python_blocks, snippets

PAGES = ("binding_models.md", "deploying_models.md")
GUIDES = guides_folder()

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
            outcomes[page] = run_python_blocks(
                tmp_path_factory.mktemp("page") / "results", GUIDES / page
            )
        return outcomes[page]

    return outcome


@pytest.mark.parametrize("page", PAGES)
def test_guide_has_python_blocks(page):
    assert len(snippets(GUIDES / page, "python")) >= 8


@pytest.mark.parametrize("block", all_blocks(), ids=str)
def test_guide_block_runs_unchanged(block, outcome_of_page):
    outcomes = outcome_of_page(block.page)
    key = f"{GUIDES / block.page}:{block.line}"

    assert key in outcomes, "the process ended before it came to this block"
    assert outcomes[key] is None, outcomes[key]
