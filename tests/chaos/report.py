# SPDX-License-Identifier: Apache-2.0
"""Findings, and the account that a run prints. Pure: texts from records."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping, Sequence

from tests.chaos.schedule import Scene
from tests.chaos.timeline import Event


@dataclasses.dataclass(frozen=True, slots=True)
class Finding:
    """Something that must not be, with what was done to the server around it."""

    what: str
    around: tuple[Event, ...] = ()


@dataclasses.dataclass(slots=True)
class SceneReport:
    """What one scene showed."""

    scene: Scene
    account: Mapping[str, Mapping[str, int]]  # numbers of calls, by kind of call and by end
    faults: Mapping[str, int]  # how many of each kind hit something
    findings: Sequence[Finding]
    resources: Sequence[str]  # lines of a table
    facts: Sequence[str] = ()  # what else is worth knowing, one line each


def again(scene: Scene, faults: Sequence[str] = ()) -> str:
    """The command that runs a scene again."""
    chosen = f" --faults {','.join(faults)}" if faults else ""
    return (
        f"scripts/chaos --seed {scene.seed} --minutes {scene.duration_s / 60:g} "
        f"--front-ends {scene.front_ends} --server {scene.server.value}{chosen}"
    )


def scene_text(report: SceneReport, faults: Sequence[str] = ()) -> str:
    """The account of a scene, and its findings if there are any."""
    scene = report.scene
    lines = [f"{scene.name}, seed {scene.seed}, {scene.duration_s:.0f} s", ""]
    lines += _account_lines(report.account)
    hits = ", ".join(f"{count} x {kind}" for kind, count in sorted(report.faults.items()))
    lines += ["", f"  faults: {hits or 'none'}"]
    lines += [f"  {each}" for each in report.facts]
    lines += ["", *report.resources, ""]
    if not report.findings:
        return "\n".join([*lines, "  no findings", ""])
    lines.append(f"  {len(report.findings)} findings; to run it again:")
    lines.append(f"    {again(scene, faults)}")
    return "\n".join([*lines, *_finding_lines(report.findings), ""])


_SHOWN = 3  # of findings that differ in nothing but numbers; the first ones tell the cause
_NUMBERS = re.compile(r"[0-9]+(\.[0-9]+)?")


def _finding_lines(findings: Sequence[Finding]) -> list[str]:
    """The findings, those that are alike together."""
    groups: dict[str, list[tuple[int, Finding]]] = {}
    for number, finding in enumerate(findings, 1):
        groups.setdefault(_NUMBERS.sub("#", finding.what), []).append((number, finding))
    lines = []
    for group in groups.values():
        for number, finding in group[:_SHOWN]:
            lines += ["", f"  {number}. {finding.what}"]
            lines += [f"       {event}" for event in finding.around[-25:]]
        if len(group) > _SHOWN:
            lines.append(f"  and {len(group) - _SHOWN} more like these")
    return lines


def _account_lines(account: Mapping[str, Mapping[str, int]]) -> list[str]:
    columns = list(dict.fromkeys(name for row in account.values() for name in row))
    sums = {name: sum(row.get(name, 0) for row in account.values()) for name in columns}
    first = max([5, *map(len, account)])
    widths = [max(len(name), len(str(sums[name]))) for name in columns]
    heads = "  ".join(name.rjust(width) for name, width in zip(columns, widths, strict=True))
    lines = [f"  {'calls'.ljust(first)}  {heads}"]
    for title, row in [*sorted(account.items()), ("all", sums)]:
        cells = "  ".join(
            str(row.get(name, 0)).rjust(width) for name, width in zip(columns, widths, strict=True)
        )
        lines.append(f"  {title.ljust(first)}  {cells}")
    return lines
