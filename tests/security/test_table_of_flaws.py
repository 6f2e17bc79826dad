# SPDX-License-Identifier: Apache-2.0
"""The table of flaws in docs/security.md names a test for each of them, or why none can be."""

from __future__ import annotations

import pathlib
import re

import pytest

FOLDER = pathlib.Path(__file__).parent
PAGE = FOLDER.parents[1] / "docs" / "security.md"
FILES = {path: path.read_text() for path in sorted(FOLDER.glob("test_*.py"))}
TESTS = {
    name: path
    for path, text in FILES.items()
    for name in re.findall(r"^def (test_\w+)", text, re.MULTILINE)
    if path.name not in (pathlib.Path(__file__).name, "test_policy_routes.py")
}
FLAW = re.compile(r"CVE-\d{4}-\d+|`[0-9a-f]{7,9}`|ShadowMQ")

# No row may be lost: these flaws were found when the table was made.
KNOWN = {
    *(f"CVE-{number}" for number in (
        "2023-31036", "2024-0087", "2024-0088", "2024-0095", "2024-0100", "2024-0103", "2024-0116",
        "2024-2912", "2024-50050", "2024-53880", "2025-23268", "2025-23310", "2025-23311",
        "2025-23316", "2025-23317", "2025-23318", "2025-23319", "2025-23320", "2025-23321",
        "2025-23322", "2025-23323", "2025-23324", "2025-23325", "2025-23326", "2025-23327",
        "2025-23329", "2025-23331", "2025-23333", "2025-23334", "2025-23335", "2025-23336",
        "2025-33201", "2025-33202", "2025-33211", "2025-33238", "2025-33254", "2026-24146",
        "2026-24158", "2026-24173", "2026-24174", "2026-24206", "2026-24207", "2026-24208",
        "2026-24209", "2026-24210", "2026-26220",
    )),
    *(f"`{change}`" for change in (
        "10f2a691a", "25baa7b33", "3033a6b", "47f9e03", "669cef083", "69987b7b0", "6b0539b92",
        "8cb2b77c5", "a550e3cd0", "a5b45da57", "b58e983ec", "c1b7cb73c", "c8d4d4cc1", "e24fd86da",
        "f2226c0",
    )),
    "ShadowMQ",
}  # fmt: skip


def rows_after(heading):
    """The cells of the rows of the table that begins with a line."""
    lines = PAGE.read_text().partition(heading)[2].splitlines()[2:]
    table = lines[: next(number for number, line in enumerate(lines) if not line.startswith("|"))]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in table]


ROWS = rows_after("| flaw | what it was | what this server does | tests |")
DEFAULTS = rows_after("| default | tests |")


def named_in(cell):
    return re.findall(r"`(test_\w+)`", cell)


def in_names(flaw):
    """How names of tests write a flaw."""
    return flaw.strip("`").lower().replace("-", "_")


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0][:40])
def test_row_has_tests_that_exist_or_a_reason(row):
    flaw, was, does, cell = row
    names = named_in(cell)
    first, *others = FLAW.findall(flaw)

    assert was
    assert does
    if not names:
        assert re.fullmatch(r"Does not apply: .{20,}", cell)
        return
    assert [name for name in names if name not in TESTS] == []
    assert [name for name in names if in_names(first) in name] != []
    texts = {FILES[TESTS[name]] for name in names}
    for other in others:  # a reader who searches for it finds the place
        assert any(other.strip("`") in text for text in texts), other


def test_every_test_of_a_flaw_is_in_the_table():
    named = {name for row in (*ROWS, *DEFAULTS) for name in named_in(row[-1])}

    assert set(TESTS) - named == set()


def test_table_has_every_known_flaw_once():
    found = [flaw for row in ROWS for flaw in FLAW.findall(row[0])]

    assert set(found) == KNOWN
    assert len(found) == len(KNOWN)


def test_defaults_have_tests_that_exist():
    names = [name for row in DEFAULTS for name in named_in(row[-1])]

    assert len(names) == len(DEFAULTS)
    assert [name for name in names if name not in TESTS] == []
