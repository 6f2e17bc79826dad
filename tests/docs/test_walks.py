# SPDX-License-Identifier: Apache-2.0
"""The pages that a newcomer goes through, gone through: files are written, commands run."""

from __future__ import annotations

import pathlib

import pytest

from tests.docs.page_walk import PageWalk
from tests.free_ports import free_ports
from tests.pictures import keep
from tests.snippets import blocks

REPOSITORY = pathlib.Path(__file__).parents[2]
# The home page has no more than the quick start; tests of the commands run those of their page, and
# those about clusters need one, or what stands in for it.
OTHERS = {
    "docs/index.md",
    "docs/commands.md",
    "docs/guides/secure.md",
    "docs/scaling.md",
    "docs/kubernetes.md",
}
PAGES = ["README.md", "docs/start/quick_start.md", "docs/tutorial.md"]
WITHOUT_FILES = ["docs/projects.md"]


@pytest.mark.e2e
@pytest.mark.parametrize("page", [*PAGES, *WITHOUT_FILES])
def test_page_goes_as_it_says(page, tmp_path):
    walk = PageWalk(REPOSITORY / page, tmp_path, free_ports(3))

    walk.run()

    assert walk.steps
    assert not walk.misfits(), "\n".join(walk.misfits())
    if page.endswith("tutorial.md"):
        keep("tutorial_perf.png", walk.folder / "mood.png")


def test_every_page_with_files_is_gone_through():
    pages = [*REPOSITORY.glob("*.md"), *REPOSITORY.glob("docs/**/*.md")]
    with_files = [page for page in pages if any(block.title for block in blocks(page))]
    names = {str(page.relative_to(REPOSITORY)) for page in with_files}

    assert names - OTHERS == set(PAGES)


def test_home_shows_what_the_quick_start_does():
    home, start = (blocks(REPOSITORY / "docs" / name) for name in ("index.md", PAGES[1][5:]))
    shown = [block.text.strip() for block in home]
    run = "\n".join(block.text for block in start)

    assert shown
    assert [text for text in shown if text not in run] == []
