# SPDX-License-Identifier: Apache-2.0
"""Our own pages: their Python blocks run, their links and the commands they name exist."""

from __future__ import annotations

import os
import pathlib
import re

import pytest

from tests.snippets import run_python_blocks, snippets

REPOSITORY = pathlib.Path(__file__).parent.parent
FOLDERS = (".", "docs", "docs/*", "examples", "examples/*", "examples/*/*", "benchmarks")
PAGES = sorted(page for folder in FOLDERS for page in REPOSITORY.glob(f"{folder}/*.md"))
PAGES_WITH_PYTHON = [page for page in PAGES if snippets(page, "python")]
GROUPS = (
    REPOSITORY / "docs/guides",
    REPOSITORY / "docs/migration",
)  # short pages, one process each
LINK = re.compile(r"\[[^\]]*\]\((?P<target>[^)#\s]+)[^)]*\)")
SCRIPT = re.compile(r"(?<![\w/.-])(?:scripts|\.ci|examples|benchmarks)/[\w./-]*\w")


def name_of(page: pathlib.Path) -> str:
    return str(page.relative_to(REPOSITORY))


def pages_by_process() -> list[list[pathlib.Path]]:
    alone = [[page] for page in PAGES_WITH_PYTHON if page.parent not in GROUPS]
    groups = [[page for page in PAGES_WITH_PYTHON if page.parent == group] for group in GROUPS]
    return [*alone, *filter(None, groups)]


@pytest.mark.e2e
@pytest.mark.parametrize("pages", pages_by_process(), ids=lambda pages: name_of(pages[0]))
def test_every_python_block_of_a_page_runs(pages, tmp_path):
    outcomes = run_python_blocks(tmp_path / "results", *pages)

    assert len(outcomes) == sum(len(snippets(page, "python")) for page in pages)
    assert {block: error for block, error in outcomes.items() if error is not None} == {}


def test_readme_is_among_the_pages_that_run():
    assert REPOSITORY / "README.md" in PAGES_WITH_PYTHON


def test_site_lists_every_document():
    navigation = (REPOSITORY / "mkdocs.yml").read_text().partition("\nnav:")[2]
    listed = re.findall(r"^ +- (?:[^:\n]+: )?(\S+\.md)$", navigation, re.MULTILINE)
    documents = [path.relative_to(REPOSITORY / "docs") for path in REPOSITORY.glob("docs/**/*.md")]

    assert {str(document) for document in documents} - set(listed) == set()


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_links_of_a_page_lead_somewhere(page):
    targets = [match["target"] for match in LINK.finditer(page.read_text())]
    local = [target for target in targets if not target.startswith(("http:", "https:"))]

    assert [target for target in local if not (page.parent / target).exists()] == []


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_files_that_a_page_names_exist(page):
    text = page.read_text()
    made = set(re.findall(r" -o (\S+)", text))  # what a command of the page compiles
    named = set(SCRIPT.findall(text)) - made

    assert [path for path in sorted(named) if not (REPOSITORY / path).exists()] == []


@pytest.mark.parametrize("script", sorted((REPOSITORY / "scripts").iterdir()), ids=name_of)
def test_script_is_executable_and_stops_at_errors(script):
    assert os.access(script, os.X_OK)
    assert "set -euo pipefail" in script.read_text()


def test_contributing_is_short_enough_to_be_read():
    assert len((REPOSITORY / "CONTRIBUTING.md").read_text().splitlines()) <= 170


def test_changelog_begins_with_the_next_or_the_current_version():
    pyproject = (REPOSITORY / "pyproject.toml").read_text()
    version = re.search(r'^version = "(.+)"$', pyproject, re.MULTILINE)
    newest = re.search(r"^## \[(.+?)\]", (REPOSITORY / "CHANGELOG.md").read_text(), re.MULTILINE)

    assert version is not None
    assert newest is not None
    assert newest[1] in ("Unreleased", version[1])


@pytest.mark.parametrize("page", ["CONTRIBUTING.md", "docs/architecture.md", "docs/internals.md"])
def test_page_names_only_files_that_exist(page):
    tops = (REPOSITORY, REPOSITORY / "src/pytriton")
    named = set(re.findall(r"`((?:\w+/)+\w+\.\w+)`", (REPOSITORY / page).read_text()))

    missing = [path for path in sorted(named) if not any((top / path).exists() for top in tops)]

    assert named
    assert missing == []


def test_architecture_and_internals_name_every_package():
    pages = ("docs/architecture.md", "docs/internals.md")
    text = "".join((REPOSITORY / page).read_text() for page in pages)
    source = REPOSITORY / "src/pytriton"
    packages = [path.parent.relative_to(source) for path in source.glob("**/__init__.py")]
    named = {part for span in re.findall(r"`([\w/.]+)`", text) for part in span.split("/")}

    assert sorted(str(package) for package in packages if package.name not in {"", *named}) == []
