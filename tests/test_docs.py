# SPDX-License-Identifier: Apache-2.0
"""Our own pages: their Python blocks run, their links and the commands they name exist."""

from __future__ import annotations

import os
import pathlib
import re

import pytest

from tests.snippets import run_python_blocks, snippets

REPOSITORY = pathlib.Path(__file__).parent.parent
FOLDERS = (".", "docs", "examples", "examples/*", "examples/*/*", "benchmarks")
PAGES = sorted(page for folder in FOLDERS for page in REPOSITORY.glob(f"{folder}/*.md"))
PAGES_WITH_PYTHON = [page for page in PAGES if snippets(page, "python")]
LINK = re.compile(r"\[[^\]]*\]\((?P<target>[^)#\s]+)[^)]*\)")
SCRIPT = re.compile(r"(?<![\w/.-])(?:scripts|\.ci|examples|benchmarks)/[\w./-]*\w")


def name_of(page: pathlib.Path) -> str:
    return str(page.relative_to(REPOSITORY))


@pytest.mark.e2e
@pytest.mark.parametrize("page", PAGES_WITH_PYTHON, ids=name_of)
def test_every_python_block_of_a_page_runs(page, tmp_path):
    outcomes = run_python_blocks(page, tmp_path / "results")

    assert len(outcomes) == len(snippets(page, "python"))
    assert [error for error in outcomes.values() if error is not None] == []


def test_readme_is_among_the_pages_that_run():
    assert REPOSITORY / "README.md" in PAGES_WITH_PYTHON


def test_readme_lists_every_document():
    text = (REPOSITORY / "README.md").read_text()
    listed = set(re.findall(r"^- \[(docs/\w+\.md)\]", text, re.MULTILINE))

    assert listed == {name_of(page) for page in (REPOSITORY / "docs").glob("*.md")}


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_links_of_a_page_lead_somewhere(page):
    targets = [match["target"] for match in LINK.finditer(page.read_text())]
    local = [target for target in targets if not target.startswith(("http:", "https:"))]

    assert [target for target in local if not (page.parent / target).exists()] == []


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_files_that_a_page_names_exist(page):
    named = set(SCRIPT.findall(page.read_text()))

    assert [path for path in sorted(named) if not (REPOSITORY / path).exists()] == []


@pytest.mark.parametrize("script", sorted((REPOSITORY / "scripts").iterdir()), ids=name_of)
def test_script_is_executable_and_stops_at_errors(script):
    assert os.access(script, os.X_OK)
    assert "set -euo pipefail" in script.read_text()


def test_contributing_is_short_enough_to_be_read():
    assert len((REPOSITORY / "CONTRIBUTING.md").read_text().splitlines()) <= 150


def test_changelog_begins_with_the_next_or_the_current_version():
    pyproject = (REPOSITORY / "pyproject.toml").read_text()
    version = re.search(r'^version = "(.+)"$', pyproject, re.MULTILINE)
    newest = re.search(r"^## \[(.+?)\]", (REPOSITORY / "CHANGELOG.md").read_text(), re.MULTILINE)

    assert version is not None
    assert newest is not None
    assert newest[1] in ("Unreleased", version[1])


@pytest.mark.parametrize("page", ["CONTRIBUTING.md", "docs/architecture.md"])
def test_page_names_only_files_that_exist(page):
    tops = (REPOSITORY, REPOSITORY / "src/pytriton")
    named = set(re.findall(r"`((?:\w+/)+\w+\.\w+)`", (REPOSITORY / page).read_text()))

    missing = [path for path in sorted(named) if not any((top / path).exists() for top in tops)]

    assert named
    assert missing == []


def test_architecture_names_every_package():
    text = (REPOSITORY / "docs/architecture.md").read_text()
    source = REPOSITORY / "src/pytriton"
    packages = [path.parent.relative_to(source) for path in source.glob("**/__init__.py")]
    named = {part for span in re.findall(r"`([\w/.]+)`", text) for part in span.split("/")}

    assert sorted(str(package) for package in packages if package.name not in {"", *named}) == []
