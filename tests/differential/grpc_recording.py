# SPDX-License-Identifier: Apache-2.0
"""The real server's answers over gRPC, taken once and kept.

`python -m tests.differential.grpc_recording` takes them again; `recording` says what it needs.
"""

from __future__ import annotations

import contextlib
import socket
import sys
from collections.abc import Iterator
from pathlib import Path

from tests import peers, recorded_json
from tests.differential.grpc_case import run
from tests.differential.grpc_cases import CASES
from tests.differential.grpc_models import write_repository
from tests.recorded_suite import running

GOLDEN = Path(__file__).parent / "grpc_golden.json"


@contextlib.contextmanager
def real_server() -> Iterator[int]:
    """The real Triton with the compared models on loopback; gives its gRPC port."""
    options = (
        "--load-model=*",
        "--grpc-header-forward-pattern=x-.*",
        "--grpc-restricted-protocol=trace:triton-access-token=secret",
    )
    with running(write_repository, is_real=True, options=options) as server:
        yield server.grpc


def is_alive(port: int) -> bool:
    """Whether a server still takes connections."""
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port)):
        return True
    return False


def main() -> int:
    """Ask the real server everything and write the answers down."""
    reason = peers.missing()
    if reason:
        sys.stderr.write(f"{reason}\n")
        return 1
    with real_server() as port:
        golden = {}
        for case in CASES:
            if not case.only_ours:
                golden[case.name] = run(case, port)
                if golden[case.name]["status"] == "UNAVAILABLE" and not is_alive(port):
                    raise RuntimeError(f"the real server died of {case.name!r}")
    return recorded_json.write(GOLDEN, golden)


if __name__ == "__main__":
    sys.exit(main())
