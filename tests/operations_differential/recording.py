# SPDX-License-Identifier: Apache-2.0
"""The answers of both servers about a surface, taken once and kept.

`python -m tests.operations_differential.recording SURFACE ...` records the real server's, which
needs the peers (`tests/differential/recording.py` says more), and then ours as `... ours`. Where
ours differ, `known/SURFACE.json` has them; write the reason of each into its "reason".
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from tests import peers, recorded_json
from tests.operations_differential.server import Observation, Server
from tests.operations_differential.servers import running
from tests.operations_differential.surface import Case, Surface, load, surfaces

RAISED = "raised"


def asked(case: Case, server: Server) -> Observation:
    """The answer as it is stored: through JSON and back. One that fails does not stop the rest."""
    try:
        return json.loads(json.dumps(case.ask(server)))
    except Exception as error:  # noqa: BLE001 - compared like an answer, which it never equals
        return {RAISED: f"{type(error).__name__}: {error}"}


def answers(surface: Surface, *, is_real: bool) -> dict[str, Observation]:
    """Everything that a server answers about a surface."""
    seen: dict[str, Observation] = {}
    for setup, cases in surface.setups().items():
        with running(setup, is_real=is_real) as server:
            seen.update({case.name: asked(case, server) for case in cases})
    return seen


def record_real(surface: Surface) -> str:
    """Ask the real server everything and write the answers down; what went wrong is returned."""
    seen = answers(surface, is_real=True)
    failed = {name: seen[name] for name in seen if RAISED in (seen[name] or ())}
    if failed:
        return f"nothing is recorded, because these cases failed: {json.dumps(failed, indent=1)}"
    _write(surface.golden, seen)
    return ""


def record_ours(surface: Surface) -> str:
    """Write down where our server answers otherwise, and keep the reasons that are there."""
    golden, known = load(surface.golden), load(surface.known)
    seen = answers(surface, is_real=False)
    different = {name: seen[name] for name in seen if seen[name] != golden.get(name)}
    if not different:
        surface.known.unlink(missing_ok=True)
        return ""
    _write(
        surface.known,
        {
            name: {"reason": known.get(name, {}).get("reason", ""), "ours": answer}
            for name, answer in different.items()
        },
    )
    return ""


def _write(path: Path, seen: dict[str, Observation]) -> None:
    path.parent.mkdir(exist_ok=True)
    recorded_json.write(path, seen)


def main(names: list[str]) -> int:
    is_ours = "ours" in names
    wanted = [name for name in names if name != "ours"] or list(surfaces())
    if not is_ours and peers.missing():
        sys.stderr.write(f"{peers.missing()}\n")
        return 1
    wrong = [(record_ours if is_ours else record_real)(surfaces()[name]) for name in wanted]
    sys.stderr.write("".join(f"{text}\n" for text in wrong if text))
    return int(any(wrong))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
