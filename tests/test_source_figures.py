# SPDX-License-Identifier: Apache-2.0
"""The figures of the source, on a small one."""

from __future__ import annotations

import pytest

from tests import source_figures

HEAD = "# SPDX-License-Identifier: Apache-2.0\n"
FILES = {
    "triton.py": "from pytriton.base.errors import Error\n\nclass Name: ...\n",
    "base/__init__.py": "",
    "base/errors.py": "from pytriton.base.texts import text  # a comment\n\nclass Error: ...\n",
    "base/texts.py": "class Name: ...\n",
}


@pytest.fixture
def source(tmp_path):
    def write(**more: str):
        for name, text in {**FILES, **more}.items():
            path = tmp_path / "pytriton" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(HEAD + text)
        return source_figures.modules_of(tmp_path)

    return write


def test_satellite_is_a_module_with_one_importer_in_its_package(source):
    assert source_figures.satellites(source()) == [("pytriton.base.texts", "pytriton.base.errors")]


def test_repeated_class_names_have_their_places(source):
    found = source_figures.repeated_classes(source())

    assert found == {"Name": ["pytriton.base.texts", "pytriton.triton"]}


def test_report_counts_files_lines_and_comments_but_no_licences(source):
    report = source_figures.report(source(), is_long=True)

    assert report[:4] == [
        "      4 files",
        "     11 lines, with 9.1 comments in 100",
        "      1 modules with exactly one importer, in the same package",
        "      1 class names that occur more than once",
    ]
    assert report[-2:] == [
        "pytriton.base.texts has one importer, pytriton.base.errors",
        "Name is a class in pytriton.base.texts, pytriton.triton",
    ]


def test_imports_that_point_up_and_cycles_are_problems(source):
    modules = source(
        **{"base/texts.py": "from pytriton.base import errors\nimport pytriton.triton\n"}
    )

    upward, cycle = source_figures.problems_of(modules)

    assert upward.startswith("pytriton.base.texts:3 imports pytriton.triton, but base is below")
    assert cycle.startswith("modules import one another in a circle: ")


def test_small_source_has_no_problems(source):
    assert source_figures.problems_of(source()) == []
