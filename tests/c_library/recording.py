# SPDX-License-Identifier: Apache-2.0
"""Records what the programs print with the real library: python -m tests.c_library.recording."""

from __future__ import annotations

from tests.c_library.building import FOLDER, MODELS, SECOND_MODELS, printed_by_real, real_backends

RECORDINGS = FOLDER / "recordings"
# The further arguments of each program that both libraries run.
COMPARED = {"requests": (), "servers": (SECOND_MODELS,), "traces": ()}


def recorded(name: str) -> str:
    return (RECORDINGS / f"{name}.txt").read_text()


def real_print(name: str) -> str:
    """What it prints with the real library now."""
    return printed_by_real(name, MODELS, real_backends(), *COMPARED[name])


def main() -> None:
    RECORDINGS.mkdir(exist_ok=True)
    for name in COMPARED:
        (RECORDINGS / f"{name}.txt").write_text(real_print(name))


if __name__ == "__main__":
    main()
