# SPDX-License-Identifier: Apache-2.0
"""How long a tritonserver takes until many small models are ready, and what memory they take."""

from __future__ import annotations

import dataclasses
import pathlib
import shutil
import tempfile

from benchmarks import processes, servers
from benchmarks.measurement import Measurement
from benchmarks.servers import System

MODELS = 20
ORIGINAL = servers.HERE / "model_repository" / "AddSub"


def measure(system: System, port: int) -> list[Measurement]:
    """Starts a server of its own, on models that no server has seen before."""
    with tempfile.TemporaryDirectory() as folder:
        repository = pathlib.Path(folder)
        names = copy_model(repository, MODELS)
        many = dataclasses.replace(system, repository=repository, models=names)
        with servers.running(many, port) as server:
            used = processes.memory(server.pid)
    row = f"{MODELS} models of one instance"
    ready_s = server.start_to_ready_s
    return [
        Measurement(f"{row}, ready", ready_s, "s", higher_is_better=False),
        Measurement(f"{row}, memory ready, PSS", used.pss_mib, "MiB", higher_is_better=False),
    ]


def copy_model(repository: pathlib.Path, count: int) -> tuple[str, ...]:
    """Fills the folder with AddSub under other names, without what an earlier start compiled."""
    names = tuple(f"AddSub{number}" for number in range(count))
    for name in names:
        copy = repository / name
        shutil.copytree(ORIGINAL, copy, ignore=shutil.ignore_patterns("__pycache__"))
        config = copy / "config.pbtxt"
        config.write_text(config.read_text().replace('"AddSub"', f'"{name}"'))
    return names
