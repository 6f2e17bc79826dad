# SPDX-License-Identifier: Apache-2.0
"""Who is told about changed settings of the log."""

from __future__ import annotations

from pytriton.base.log_switches import LogFeed, LogSwitches

QUIET = LogSwitches(info=False)


def test_listeners_hear_of_changes_until_they_are_removed():
    feed = LogFeed()
    heard = []
    feed.add(heard.append)
    feed.change(QUIET)
    feed.remove(heard.append)
    feed.remove(heard.append)
    feed.change(LogSwitches())

    assert heard == [QUIET]
    assert feed.switches == LogSwitches()


def test_settings_that_stay_are_not_told():
    feed = LogFeed(QUIET)
    heard = []
    feed.add(heard.append)
    feed.change(LogSwitches(info=False))

    assert heard == []


def test_listener_may_remove_itself():
    feed = LogFeed()
    heard = []

    def once(switches):
        heard.append(switches)
        feed.remove(once)

    feed.add(once)
    feed.add(heard.append)
    feed.change(QUIET)

    assert heard == [QUIET, QUIET]
