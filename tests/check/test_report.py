# SPDX-License-Identifier: Apache-2.0
import pytest

from pytriton.tools.check.report import CheckReport, Finding, State

FINDINGS = (
    Finding("cores", "2"),
    Finding("numpy==2.0", ""),
    Finding("server", "works", State.OK, took_ms=1.25),
    Finding("port", "taken", State.NOTE),
    Finding("client", "broke\non two lines", State.FAILED),
)
TEXT = """\
Checking things
  cores: 2
  numpy==2.0
  [ok] server: works (1.2 ms)
  [note] port: taken
  [FAILED] client: broke
      on two lines"""


@pytest.fixture
def shown():
    return []


@pytest.fixture
def report(shown):
    report = CheckReport(shown.append)
    report.begin("Checking things")
    for finding in FINDINGS:
        report.add(finding)
    return report


def test_lines_are_shown_as_they_come(report, shown):
    report.begin("Checking more")

    assert "\n".join(shown) == f"{TEXT}\nChecking more"


def test_text_has_a_line_for_each_finding_and_marks_what_was_judged(report):
    assert report.to_text() == TEXT


def test_json_has_the_same_findings(report):
    (section,) = report.to_json()

    assert section["title"] == "Checking things"
    assert section["findings"][2] == {
        "name": "server",
        "value": "works",
        "state": "ok",
        "took_ms": 1.25,
    }
    assert len(section["findings"]) == len(FINDINGS)


def test_findings_are_counted_by_their_state(report):
    assert report.count(State.FAILED) == 1
    assert report.count(State.FACT) == 2


def test_error_is_a_failure_that_names_its_kind():
    finding = Finding.of_error("client", ValueError("no such model"))

    assert finding.state is State.FAILED
    assert finding.value == "Error occurred in command: ValueError: no such model"
