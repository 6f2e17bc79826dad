# SPDX-License-Identifier: Apache-2.0
"""python -m tests.client_differential.asking SERVERS   asks everything, with the package at hand.

It runs with this package and with NVIDIA PyTriton. SERVERS is JSON, the fields of `Servers`; the
outcomes are the last line of the output, also JSON.
"""

from __future__ import annotations

import json
import logging
import os
import sys

from tests.client_differential.case import Servers, outcomes
from tests.client_differential.cases import CASES


def main() -> None:
    """Ask, write down, and end although calls of the original may never return."""
    logging.disable()
    found = outcomes(CASES, Servers(**json.loads(sys.argv[1])))
    sys.stdout.write(f"\n{json.dumps(found)}\n")
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
