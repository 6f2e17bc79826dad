# SPDX-License-Identifier: Apache-2.0
"""Both servers with compiled backends, and what they answered; see `tests/recorded_suite.py`."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from contextlib import AbstractContextManager
from pathlib import Path

from tests.native_backend.asking import asked
from tests.native_backend.building import backend_directory
from tests.native_backend.cases import CASES
from tests.native_backend.models import WANTED, write_repository
from tests.recorded_suite import Server, Suite, running

OPTIONS = ("--backend-config=facts,shade=dark", "--backend-config=facts,shade=light")
ENVIRONMENT = {
    "XDG_DATA_HOME": "{folder}/data",
    "TRITON_SERVER_CPU_ONLY": "1",  # as the machine of the recordings
}


def start(
    *, is_real: bool, environment: Mapping[str, str] | None = None
) -> AbstractContextManager[Server]:
    """A server that has loaded the compared models."""
    return running(
        write_repository,
        is_real=is_real,
        options=(*OPTIONS, f"--backend-directory={backend_directory()}"),
        environment={**ENVIRONMENT, **(environment or {})},
        models=WANTED,
    )


SUITE = Suite(Path(__file__).parent, start, CASES, asked, real_lives=6)

if __name__ == "__main__":
    sys.exit(SUITE.record(sys.argv[1:]))
