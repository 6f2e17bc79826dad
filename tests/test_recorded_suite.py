# SPDX-License-Identifier: Apache-2.0
"""Recordings that do not fit to their cases are found; what cannot be asked again is kept."""

from __future__ import annotations

import contextlib

import pytest

from tests import peers, recorded_json
from tests.recorded_suite import Case, Suite, mistakes

FITTING = {
    "real": {"same": 1, "other": 2},
    "different": {"other": 3, "deadly": 4},
    "reasons": {"other": "because"},
    "names": ["same", "other", "deadly"],
    "only_ours": {"deadly"},
}


def test_recordings_that_fit_have_no_mistakes():
    assert mistakes(**FITTING) == {}


@pytest.mark.parametrize(
    "change, kind, name",
    [
        ({"reasons": {}}, "different without a reason", "other"),
        ({"reasons": {"other": ""}}, "different without a reason", "other"),
        ({"reasons": {"other": "y", "same": "x"}}, "reason without a difference", "same"),
        ({"different": {"other": 2, "deadly": 4}}, "not different", "other"),
        ({"names": ["same", "same", "other", "deadly"]}, "named twice", "same"),
        ({"names": ["same", "other", "deadly", "new"]}, "not recorded", "new"),
        ({"different": {"other": 3}}, "not recorded of ours", "deadly"),
        ({"real": {"same": 1, "other": 2, "deadly": 3}}, "recorded of the real one", "deadly"),
        ({"names": ["other", "deadly"]}, "recorded without a case", "same"),
    ],
)
def test_mistake_is_found(change, kind, name):
    assert name in mistakes(**{**FITTING, **change})[kind]


def test_what_the_real_server_is_not_asked_again_stays_recorded(tmp_path, monkeypatch):
    monkeypatch.setattr(peers, "missing", str)
    suite = Suite(
        tmp_path,
        lambda **_: contextlib.nullcontext(None),
        [Case("asked", lambda _: "new"), Case("deadly", lambda _: "never", only_ours=True)],
        is_asked_again=lambda name: name != "deadly",
    )
    recorded_json.write(suite.golden, {"asked": "old", "deadly": "kept", "without a case": 1})

    assert suite.record([]) == 0

    assert recorded_json.load(suite.golden) == {"asked": "new", "deadly": "kept"}
    assert suite.asked_again() == suite.answers(is_real=True)
