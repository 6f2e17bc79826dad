# SPDX-License-Identifier: Apache-2.0
"""Planted bugs are diffs that fit the source; `test_planted.py` looks whether they are found."""

from __future__ import annotations

import pathlib
import shutil

import pytest

from tests.simulation.diffs import DiffError
from tests.simulation.planted import BUGS, SOURCE, read_record

REPOSITORY = pathlib.Path(__file__).parents[2]


def test_every_bug_can_be_planted(tmp_path):
    for bug in BUGS.values():
        folder = tmp_path / bug.name
        for file in {hunk.file for hunk in bug.hunks}:
            (folder / file).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(REPOSITORY / file, folder / file)
        bug.apply(folder)
        for file in {hunk.file for hunk in bug.hunks}:
            text = (folder / file).read_text()
            compile(text, file, "exec")
            assert file.startswith(f"{SOURCE}/")
            assert text != (REPOSITORY / file).read_text()


def test_every_bug_was_found_or_is_known_to_be_missed():
    assert read_record().keys() == BUGS.keys()


@pytest.mark.parametrize("copies", [None, 0, 2])
def test_bug_that_does_not_fit_says_what_to_do(tmp_path, copies):
    bug = BUGS["steps_are_reordered"]
    path = tmp_path / bug.hunks[0].file
    path.parent.mkdir(parents=True)
    if copies is not None:
        path.write_text(copies * (REPOSITORY / bug.hunks[0].file).read_text())

    with pytest.raises(DiffError, match=r"'steps_are_reordered' cannot be planted, as .*git diff"):
        bug.apply(tmp_path)
