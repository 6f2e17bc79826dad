# SPDX-License-Identifier: Apache-2.0
"""The real server's answers, taken once and kept.

`python -m tests.differential.recording` takes them again. It needs the peers.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from tests import peers, recorded_json
from tests.differential.case import Case, Observation, observe
from tests.differential.cases import CASES
from tests.differential.exchange import exchange, request_bytes
from tests.differential.model_table import write_repository
from tests.free_ports import free_ports

GOLDEN = Path(__file__).parent / "golden.json"
START_DEADLINE_S = 120.0


def load_golden() -> dict[str, list[Observation]]:
    """The stored answers, by the name of the case."""
    golden: dict[str, list[Observation]] = json.loads(GOLDEN.read_text())
    return golden


def run(case: Case, port: int) -> list[Observation]:
    """What the server at `port` answers, as it is stored: through JSON and back."""
    try:
        answers = exchange(port, case.request, case.answers)
    except OSError as error:
        raise ConnectionError(f"{case.name}: {error}") from error
    seen = [observe(answer, case.view) for answer in answers]
    stored: list[Observation] = json.loads(json.dumps(seen))
    return stored


@contextlib.contextmanager
def real_server() -> Iterator[int]:
    """The real Triton with the compared models on loopback; gives its HTTP port."""
    with real_triton(write_repository) as (http, _):
        yield http


@contextlib.contextmanager
def real_triton(write: Callable[[Path], None], *options: str) -> Iterator[tuple[int, int]]:
    """The real Triton with models that `write` puts into a folder; gives its HTTP and gRPC port."""
    http, grpc, metrics = free_ports(3)
    with tempfile.TemporaryDirectory() as folder:
        write(Path(folder))
        command = [
            *peers.triton_command(),
            f"--model-repository={folder}",
            "--model-control-mode=explicit",
            "--load-model=*",
            f"--http-port={http}",
            f"--grpc-port={grpc}",
            f"--metrics-port={metrics}",
            "--http-address=127.0.0.1",
            "--grpc-address=127.0.0.1",
            "--metrics-address=127.0.0.1",
            *options,
        ]
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            _wait_until_ready(process, http)
            yield http, grpc
        finally:
            process.terminate()
            process.wait(timeout=START_DEADLINE_S)


def _wait_until_ready(process: subprocess.Popen[bytes], port: int) -> None:
    deadline = time.monotonic() + START_DEADLINE_S
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise RuntimeError(f"the real server ended with {process.returncode} while starting")
        with contextlib.suppress(OSError):
            if exchange(port, request_bytes("GET", "/v2/health/ready"))[0].status == 200:
                return
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(timeout=0.2)
    raise TimeoutError(f"the real server was not ready after {START_DEADLINE_S} s")


def main() -> int:
    """Ask the real server everything and write the answers down."""
    reason = peers.missing()
    if reason:
        sys.stderr.write(f"{reason}\n")
        return 1
    with real_server() as port:
        golden = {case.name: run(case, port) for case in CASES if not case.only_ours}
    return recorded_json.write(GOLDEN, golden)


if __name__ == "__main__":
    sys.exit(main())
