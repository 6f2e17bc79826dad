# SPDX-License-Identifier: Apache-2.0
"""The times of the log's lines."""

from __future__ import annotations

from datetime import datetime, timezone

from hypothesis import given
from hypothesis import strategies as st

from pytriton.serving.server.process.logs import SecondTexts

TIMES = st.floats(0, 4e9, allow_nan=False)


@given(st.lists(TIMES | st.sampled_from([1e9, 1e9 + 0.4, 1e9 + 0.9999999, 1e9 + 1])))
def test_times_are_those_of_datetime_in_any_order(times):
    texts = SecondTexts("%Y-%m-%dT%H:%M:%S")

    for time_s in times:
        second, microsecond = texts.read(time_s)
        moment = datetime.fromtimestamp(time_s, timezone.utc)
        assert f"{second}.{microsecond:06}" == f"{moment:%Y-%m-%dT%H:%M:%S.%f}"


def test_last_microsecond_may_belong_to_the_next_second():
    texts = SecondTexts("%S")

    assert texts.read(5.25) == ("05", 250_000)
    assert texts.read(5.9999999) == ("06", 0)
