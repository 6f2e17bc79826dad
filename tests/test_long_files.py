# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import pathlib

from tests.long_files import LONG_FILES, long_files_first

REPOSITORY = pathlib.Path(__file__).parent.parent


def test_long_files_are_there():
    assert [file for file in LONG_FILES if not (REPOSITORY / file).is_file()] == []


def test_long_files_come_first_and_small_ones_last():
    long, longest = f"{LONG_FILES[1]}::test", f"{LONG_FILES[0]}::test"
    node_ids = ["tests/a.py::one", "tests/b.py::one", "tests/b.py::two[::]", long, longest]

    order = long_files_first(node_ids)

    assert [node_ids[index] for index in order] == [
        longest,
        long,
        "tests/b.py::one",
        "tests/b.py::two[::]",
        "tests/a.py::one",
    ]


def test_xdist_keeps_this_order(pytestconfig):
    assert pytestconfig.option.loadscopereorder is False
