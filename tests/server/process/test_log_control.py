# SPDX-License-Identifier: Apache-2.0
"""Settings of the log while a server runs."""

from __future__ import annotations

import logging

from hypothesis import given
from hypothesis import strategies as st

from pytriton.base.log_switches import LOG_FORMATS, LogSwitches
from pytriton.serving.server.options.server_options import LogOptions
from pytriton.serving.server.process.logs import LogControl

switch = st.booleans()
changes = st.fixed_dictionaries(
    {},
    optional={
        "log_info": switch,
        "log_warning": switch,
        "log_error": switch,
        "log_verbose_level": st.integers(0, 9),
        "log_format": st.sampled_from(LOG_FORMATS),
    },
)


def test_settings_are_those_of_the_start():
    control = LogControl(LogOptions(verbose=2, warning=False, format="ISO8601", file="a.log"))

    assert control.change({}) == {
        "log_file": "a.log",
        "log_info": True,
        "log_warning": False,
        "log_error": True,
        "log_verbose_level": 2,
        "log_format": "ISO8601",
    }


@given(st.lists(changes))
def test_last_change_of_each_setting_counts(rounds):
    control = LogControl(LogOptions())
    told = []
    control.feed.add(told.append)
    expected = control.change({})
    for each in rounds:
        expected |= each
        assert control.change(each) == expected
    assert (told[-1] if told else LogSwitches()) == control.feed.switches
    assert len(told) <= len(rounds)


def test_process_with_another_log_keeps_its_level():
    level = logging.getLogger().level
    LogControl(LogOptions()).change({"log_verbose_level": 1})

    assert logging.getLogger().level == level
