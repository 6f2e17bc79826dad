# SPDX-License-Identifier: Apache-2.0
"""python -m tests.client_differential.asking SERVERS   asks everything, with the package at hand.

It runs with this package and with NVIDIA PyTriton. SERVERS is JSON, the fields of `Servers`; the
outcomes are the last line of the output, also JSON.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import logging
import os
import sys

from tests.client_differential.case import Servers, outcomes
from tests.client_differential.cases import CASES

PATIENCE_S = 55.0


def wait_for_answers() -> None:
    """Let the waits of this package's clients end with the server's first answers.

    However long these take, so that the times of the cases are for the original alone. Shorter than
    a second are those for servers that do not answer.
    """
    name = "pytriton.client.waiting"
    if importlib.util.find_spec(name) is None:
        return
    wait = importlib.import_module(name).ReadinessWait
    limit_s = wait.limit_s
    wait.next_pause_s = lambda _: None
    wait.limit_s = lambda self: limit_s(self) if self._timeout_s < 1 else PATIENCE_S


def main() -> None:
    """Ask, write down, and end although calls of the original may never return."""
    logging.disable()
    wait_for_answers()
    found = outcomes(CASES, Servers(**json.loads(sys.argv[1])))
    sys.stdout.write(f"\n{json.dumps(found)}\n")
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
