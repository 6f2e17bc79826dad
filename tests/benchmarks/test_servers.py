# SPDX-License-Identifier: Apache-2.0
"""How the measured systems are started, and the repository of many models."""

from __future__ import annotations

import pathlib
import subprocess

from benchmarks import many_models, servers
from benchmarks.__main__ import COMPARISONS, SYSTEMS

PORTS = ["--http-port=9000", "--grpc-port=9001", "--metrics-port=9002"]


def known_with_peers(folder: pathlib.Path, monkeypatch) -> dict[str, servers.System]:
    """All systems, with peers that are empty files."""
    python = folder / "venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.touch()
    packages = subprocess.CompletedProcess([], 0, stdout="/site-packages\n")
    monkeypatch.setattr(servers.subprocess, "run", lambda *_, **__: packages)
    return {system.key: system for system in servers.known_systems(folder, 9000)}


def test_both_tritonservers_get_the_same_options(tmp_path, monkeypatch):
    systems = known_with_peers(tmp_path, monkeypatch)

    options = [
        *PORTS,
        f"--model-repository={servers.HERE / 'model_repository'}",
        "--model-control-mode=explicit",
        *(f"--load-model={model}" for model in servers.MODELS),
    ]
    ours, theirs = systems["repository"].arguments, systems["triton"].arguments
    assert ours[1:] == options
    assert theirs[1:] == [f"--backend-directory={tmp_path / 'backends'}", *options]


def test_without_peers_only_ours_are_known(tmp_path):
    assert [system.key for system in servers.known_systems(None, 1)] == ["ours", "repository"]
    assert [system.key for system in servers.known_systems(tmp_path, 1)] == ["ours", "repository"]


def test_every_system_is_measured_and_compared_by_default(tmp_path, monkeypatch):
    systems = known_with_peers(tmp_path, monkeypatch)

    compared = {title for table in COMPARISONS for title in (table.subject, *table.peers)}
    assert set(systems) == set(SYSTEMS.split(","))
    assert {system.title for system in systems.values()} == compared


def test_copies_of_a_model_have_a_name_each_and_nothing_compiled(tmp_path):
    names = many_models.copy_model(tmp_path, 3)

    files = {path.relative_to(tmp_path) for path in tmp_path.rglob("*") if path.is_file()}
    assert names == ("AddSub0", "AddSub1", "AddSub2")
    assert files == {
        pathlib.Path(name, file) for name in names for file in ("config.pbtxt", "1/model.py")
    }
    for name in names:
        config = (tmp_path / name / "config.pbtxt").read_text()
        assert config.startswith(f'name: "{name}"\n')
