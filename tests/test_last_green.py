# SPDX-License-Identifier: Apache-2.0
"""What `scripts/test` says of the long parts of the suite."""

from __future__ import annotations

import datetime as dt
import subprocess

import pytest

from tests import last_green, parts

TODAY = dt.date(2026, 5, 17)


def test_records_are_read_as_they_were_written():
    greens = {"page": last_green.Green("a1", TODAY), "cloud": last_green.Green("b2", TODAY)}

    assert last_green.read(last_green.written(greens)) == greens


@pytest.mark.parametrize(
    "days, changed, why",
    [
        (3, False, ""),
        (4, False, "2026-05-17"),
        (0, True, "before changes of what it covers"),
    ],
)
def test_part_is_old_after_three_days_or_changes(days, changed, why):
    green = last_green.Green("a1", TODAY)

    assert last_green.why_old(green, TODAY + dt.timedelta(days=days), changed) == why


def test_part_that_never_ran_is_old():
    assert last_green.why_old(None, TODAY, changed=False) == "never"


def test_reminder_is_one_line_that_says_how_to_run_the_parts():
    line = last_green.reminder({"page": "never", "cloud": "", "docs": "2026-05-01"})

    assert line == (
        "Long parts, and when they were last green: page (never), docs (2026-05-01). "
        "Run: scripts/test page docs"
    )
    assert last_green.reminder({"page": ""}) == ""


@pytest.fixture
def clone(tmp_path, monkeypatch):
    """A repository with one commit, whose parts are ours."""

    def git(*words):
        identity = ("-c", "user.name=a", "-c", "user.email=a@example.com")
        subprocess.run(["git", *identity, *words], cwd=tmp_path, check=True, capture_output=True)

    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "last_green.toml").write_text(last_green.HEADER)
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "page.md").write_text("one")
    git("init", "--quiet")
    git("add", ".")
    git("commit", "--quiet", "-m", "one")
    monkeypatch.setattr(parts, "REPOSITORY", tmp_path)
    monkeypatch.setattr(last_green, "FILE", tmp_path / "tests" / "last_green.toml")
    return git


def test_green_part_is_recorded_until_what_it_covers_changes(clone, capsys):
    last_green.record(list(parts.PARTS)[1:], TODAY, last_green.committed())
    last_green.remind(TODAY)
    said = capsys.readouterr().out
    (parts.REPOSITORY / "docs" / "page.md").write_text("two")
    clone("commit", "--quiet", "--all", "-m", "two")
    last_green.remind(TODAY)

    assert "page" in said
    assert "Long parts" not in said
    assert "docs (before changes of what it covers). Run: scripts/test docs" in (
        capsys.readouterr().out
    )


def test_run_with_changes_that_are_not_committed_is_not_recorded(clone, capsys):
    (parts.REPOSITORY / "docs" / "page.md").write_text("two")

    last_green.record(["docs"], TODAY, last_green.committed())

    assert "stays as it is: there are changes that are not committed" in capsys.readouterr().out
    assert last_green.read(last_green.FILE.read_text()) == {}


def test_run_during_which_there_was_a_commit_is_not_recorded(clone, capsys):
    began_at = last_green.committed()
    (parts.REPOSITORY / "docs" / "page.md").write_text("two")
    clone("commit", "--quiet", "--all", "-m", "two")

    last_green.record(["docs"], TODAY, began_at)

    assert "stays as it is" in capsys.readouterr().out
    assert last_green.read(last_green.FILE.read_text()) == {}
