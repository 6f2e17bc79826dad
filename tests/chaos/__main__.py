# SPDX-License-Identifier: Apache-2.0
"""`python -m tests.chaos`: reads the options, runs the scenes and prints their accounts."""

from __future__ import annotations

from tests.chaos import surroundings

# Before anything is imported that starts threads, which a process that enters may not have.
SURROUNDINGS = surroundings.enter() if __name__ == "__main__" else None

import argparse  # noqa: E402
import random  # noqa: E402
import shutil  # noqa: E402
import sys  # noqa: E402
import tempfile  # noqa: E402
from pathlib import Path  # noqa: E402

from tests.chaos.report import scene_text  # noqa: E402
from tests.chaos.run import run_scene  # noqa: E402
from tests.chaos.schedule import Kind, ServerKind, scenes  # noqa: E402


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="scripts/chaos", description="Real servers under load while faults hit them."
    )
    parser.add_argument("--minutes", type=float, default=4.0, help="time of all scenes together")
    parser.add_argument("--seed", type=int, help="of faults and clients; default is a random one")
    parser.add_argument(
        "--front-ends", type=int, help="only with this number of processes; default is 0, then 2"
    )
    parser.add_argument("--server", choices=[each.value for each in ServerKind], help="only this")
    parser.add_argument("--clients", type=int, default=24, help="how many are there at a time")
    parser.add_argument(
        "--faults", default="", help="only these, as the time line names them, with commas between"
    )
    parser.add_argument("--keep", action="store_true", help="keep the folders of the servers")
    return parser


def _say(text: str) -> None:
    print(text, flush=True)  # noqa: T201  a person reads it


def main(arguments: list[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    seed = random.SystemRandom().randrange(1 << 31) if options.seed is None else options.seed
    front_ends = [0, 2] if options.front_ends is None else [options.front_ends]
    servers = [ServerKind(options.server)] if options.server else list(ServerKind)
    names = [each.strip() for each in options.faults.split(",") if each.strip()]
    can_mount = SURROUNDINGS is not None and SURROUNDINGS.has_mounts
    if SURROUNDINGS is not None and not can_mount:
        _say(f"no disk will be full: {SURROUNDINGS.reason}")
    count = 0
    for scene in scenes(options.minutes, seed, front_ends, servers, can_fill_disk=can_mount):
        _say(f"{scene.name}: {scene.duration_s:.0f} s, seed {seed}")
        folder = Path(tempfile.mkdtemp(prefix="chaos-"))
        report = run_scene(scene, folder, [Kind(name) for name in names], options.clients)
        _say(scene_text(report, names))
        count += len(report.findings)
        if report.findings or options.keep:
            _say(f"  the files of this server are in {folder}\n")
        else:
            shutil.rmtree(folder)
    return 1 if count else 0


if __name__ == "__main__":
    sys.exit(main())
