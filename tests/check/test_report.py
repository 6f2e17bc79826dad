# SPDX-License-Identifier: Apache-2.0
from pytriton.check.report import Finding, Section, State, failures

SECTION = Section(
    "Checking things",
    (
        Finding("cores", "2"),
        Finding("numpy==2.0", ""),
        Finding("server", "works", State.OK),
        Finding("port", "taken", State.NOTE),
        Finding("client", "broke\non two lines", State.FAILED),
    ),
)


def test_text_has_a_line_for_each_finding_and_marks_what_was_judged():
    assert SECTION.to_text().splitlines() == [
        "Checking things",
        "  cores: 2",
        "  numpy==2.0",
        "  [ok] server: works",
        "  [note] port: taken",
        "  [FAILED] client: broke",
        "      on two lines",
    ]


def test_json_has_the_same_findings():
    document = SECTION.to_json()

    assert document["title"] == "Checking things"
    assert document["findings"][2] == {"name": "server", "value": "works", "state": "ok"}
    assert len(document["findings"]) == len(SECTION.findings)


def test_failures_leave_notes_out():
    assert [finding.name for finding in failures([SECTION])] == ["client"]
