# SPDX-License-Identifier: Apache-2.0
"""The real Triton and PyTriton, in the folder PEERS_DIR that `scripts/setup-peers` made."""

from __future__ import annotations

import os
from pathlib import Path

from benchmarks.servers import real_triton


def missing() -> str:
    """Why the peers cannot be started; empty where they can."""
    folder = os.environ.get("PEERS_DIR", "")
    if not folder:
        return "PEERS_DIR does not name the folder of the peers; scripts/setup-peers installs them"
    return "" if python().exists() else f"no peers in PEERS_DIR, there is no {python()}"


def python() -> Path:
    """The interpreter that has NVIDIA PyTriton."""
    return Path(os.environ["PEERS_DIR"], "venv", "bin", "python")


def triton_command() -> list[str]:
    """The real Triton with its Python backend; its own options follow."""
    command, environment = real_triton(Path(os.environ["PEERS_DIR"]))
    return ["env", *(f"{name}={value}" for name, value in environment.items()), *command]
