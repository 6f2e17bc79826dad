# SPDX-License-Identifier: Apache-2.0
"""Pauses of threads, with which rare races are looked for."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.pauses import sitecustomize as pauses

# A race that the pauses are for: what a thread has set is seen before it has noted that.
RACE = """
import threading

def is_seen_early():
    is_set, noted = threading.Event(), []

    def work():
        is_set.set()
        noted.append(1)

    thread = threading.Thread(target=work)
    thread.start()
    is_set.wait()
    is_early = not noted
    thread.join()
    pauses.left = 40
    return is_early

print(any(is_seen_early() for _ in range(1000)))
"""
FIRST = f"from tests.pauses import sitecustomize\npauses = sitecustomize.begin('7')\n{RACE}"
CHILD = f"from sitecustomize import of_this_process as pauses\n{RACE}"
PARENT = f"""
import subprocess, sys
from tests.pauses import sitecustomize

sitecustomize.begin('7')
subprocess.run([sys.executable, '-c', {CHILD!r}], check=True)
"""


@pytest.mark.parametrize("code", [FIRST, PARENT], ids=["own process", "started process"])
def test_pauses_show_a_race(code, monkeypatch):
    monkeypatch.delenv(pauses.SEED, raising=False)
    command = [sys.executable, "-c", code]
    result = subprocess.run(command, capture_output=True, text=True, check=True)

    assert result.stdout == "True\n"


def test_each_process_has_few_pauses():
    given = pauses.Pauses("7")
    given._sleep = lambda _: None
    for _ in range(100 * pauses.MAX_PAUSES):
        given.pause()

    assert given.left == 0
