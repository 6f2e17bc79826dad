# SPDX-License-Identifier: Apache-2.0
"""Which levels the settings of the log want."""

from __future__ import annotations

import logging

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from pytriton.base.log_switches import LOG_FORMATS, LogSwitches

LEVELS = (logging.DEBUG, logging.INFO, logging.WARNING, logging.ERROR)
switches = st.builds(
    LogSwitches,
    info=st.booleans(),
    warning=st.booleans(),
    error=st.booleans(),
    verbose=st.integers(0, 3),
    format=st.sampled_from(LOG_FORMATS),
)


@given(switches)
def test_lowest_level_hides_nothing_that_is_wanted(each):
    wanted = [level for level in LEVELS if each.wants(level)]

    assert all(level >= each.lowest_level for level in wanted)
    assert not wanted or each.wants(each.lowest_level)


@given(switches)
def test_each_level_has_its_switch(each):
    assert [each.wants(level) for level in LEVELS] == [
        each.verbose > 0,
        each.info,
        each.warning,
        each.error,
    ]
    assert each.wants(logging.CRITICAL) == each.error


@given(switches)
def test_settings_reach_another_process_as_they_are(each):
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(each), type=LogSwitches) == each
