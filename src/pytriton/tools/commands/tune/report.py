# SPDX-License-Identifier: Apache-2.0
"""What a search found: rows, the recommendation as text and as a page, and plots."""

from __future__ import annotations

import dataclasses
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from pytriton.tools.commands.tune.search import (
    Candidate,
    Gain,
    Goal,
    Objective,
    Trial,
    can_batch,
    decorator_text,
    pbtxt_text,
    python_text,
)
from pytriton.tools.commands.tune.trials import serve_options
from pytriton.tools.plots.page import Cell, Page, Section, Table
from pytriton.tools.plots.pictures import Line, Panel

HEADING = ("max batch", "delay µs", "instances", "infer/s", "p50 ms", "p99 ms", "mean batch")
_WIDTHS = (9, 8, 9, 10, 8, 8, 10)
_LINES = 4  # instance counts of a plot


@dataclasses.dataclass(frozen=True, slots=True)
class TuningResult:
    """The result of a search.

    Attributes:
        config: The configuration before.
        trials: Everything that was tried, the present configuration first.
        chosen: The best trial; None if none keeps the limit.
        gain: The best one beside the present one; None if they are the same.
        file: The file and function that were served; empty for a model of a repository.
    """

    model: str
    config: Mapping[str, Any]
    concurrency: int
    goal: Goal
    trials: Sequence[Trial]
    chosen: Trial | None
    gain: Gain | None
    is_complete: bool = True
    file: str = ""

    @property
    def present(self) -> Candidate:
        return self.trials[0].candidate

    @property
    def is_change(self) -> bool:
        """Whether another configuration is recommended."""
        return (
            self.chosen is not None
            and self.chosen.candidate != self.present
            and (self.gain is None or not self.gain.is_noise)
        )


def heading_text() -> str:
    return "  ".join(name.rjust(width) for name, width in zip(HEADING, _WIDTHS, strict=True))


def cells_of(trial: Trial) -> list[str]:
    candidate = trial.candidate
    cells = [str(candidate.batch), str(candidate.delay_us), str(candidate.instances)]
    if trial.problem:
        return [*cells, "-", "-", "-", "-"]
    return [
        *cells,
        f"{trial.throughput:,.0f}",
        f"{trial.p50_us / 1000:.2f}",
        f"{trial.p99_us / 1000:.2f}",
        f"{trial.mean_batch:.2f}" if trial.mean_batch else "-",
    ]


def row_text(trial: Trial, goal: Goal, *, is_present: bool = False) -> str:
    """A row of the table, with a note if there is something to say."""
    row = "  ".join(text.rjust(width) for text, width in zip(cells_of(trial), _WIDTHS, strict=True))
    return f"{row}  {note_of(trial, goal, is_present=is_present)}".rstrip()


def note_of(trial: Trial, goal: Goal, *, is_present: bool) -> str:
    if trial.problem:
        return trial.problem
    if not goal.is_allowed(trial):
        return "over the limit"
    return "now" if is_present else ""


def recommendation_text(finding: TuningResult) -> str:
    """The recommendation with lines that can be pasted."""
    chosen = finding.chosen
    if chosen is None and not _is_alone(finding):
        return (
            f"No configuration keeps p99 below {finding.goal.limit_us / 1000:g} ms with "
            f"{finding.concurrency} requests under way. Try a lower --concurrency, or a higher "
            "--latency-limit."
        )
    lines = [verdict(finding)]
    if chosen is not None and finding.is_change:
        for name, code in codes_of(finding):
            lines += ["", f"{name}:", *(f"  {line}" for line in code.splitlines())]
        if chosen.candidate.batch < finding.present.batch:
            lines.append(
                f"A request may then have {chosen.candidate.batch} rows at most; look whether your "
                "clients send larger ones."
            )
    if not finding.is_complete:
        lines.append("The search was ended before it was done; --budget gives it more time.")
    return "\n".join(lines)


def codes_of(finding: TuningResult) -> list[tuple[str, str]]:
    """The recommended configuration in forms that can be pasted, each with its name."""
    assert finding.chosen is not None
    candidate = finding.chosen.candidate
    if finding.file:
        command = ["pytriton", "serve", finding.file, *serve_options(candidate)]
        return [("Command", shlex.join(command)), ("Python", decorator_text(candidate))]
    return [
        ("config.pbtxt", pbtxt_text(finding.config, candidate)),
        ("Python", python_text(finding.config, candidate)),
    ]


def _is_alone(finding: TuningResult) -> bool:
    """Whether nothing was measured that the present configuration could be compared with."""
    return all(trial.problem for trial in finding.trials[1:])


def _why_alone(finding: TuningResult) -> str:
    if len(finding.trials) > 1:
        return "The others could not be run; the table says why."
    if finding.is_complete:
        return "There is no other to try: its batches are fixed, and --max-instances is too low."
    return "There was no time for another one."


def verdict(finding: TuningResult) -> str:
    """One or two sentences."""
    if _is_alone(finding):
        limit = "" if finding.chosen is not None else ", and its latency is over the limit"
        return (
            f"No recommendation: only the present configuration ({finding.present}) was "
            f"measured{limit}. {_why_alone(finding)}"
        )
    assert finding.chosen is not None
    gain = finding.gain
    if finding.chosen.candidate == finding.present:
        return f"Keep the present configuration ({finding.present}): nothing better was found."
    if gain is None:
        return f"Recommended: {finding.chosen.candidate}. It was not measured a second time."
    measured = (
        f"{gain.throughput:.2f}x the throughput and {1 / gain.latency:.2f}x the p99 latency of the "
        f"present one ({finding.present}), measured side by side"
    )
    if gain.is_noise:
        why = f"within the noise of {gain.noise:.0%}" if gain.ratio > 1 else "not better"
        return (
            f"Keep the present configuration. The best other one, {finding.chosen.candidate}, has "
            f"{measured}: that is {why}."
        )
    return f"Recommended: {finding.chosen.candidate}. It has {measured} (noise {gain.noise:.0%})."


def panels_of(finding: TuningResult) -> list[Panel]:
    """Throughput by batch size, and what each configuration costs in latency."""
    good = [trial for trial in finding.trials if not trial.problem]
    panels = []
    if can_batch(finding.config) and len({trial.candidate.batch for trial in good}) > 1:
        panels.append(_by(good, "max_batch_size", lambda each: each.batch, log=True))
        if len({trial.candidate.delay_us for trial in good}) > 1:
            panels.append(_by(good, "max_queue_delay_microseconds", lambda each: each.delay_us))
    elif len({trial.candidate.instances for trial in good}) > 1:
        panels.append(_by_instances(good))
    panels.append(_trade(finding, good))
    return panels


def _by(good: Sequence[Trial], name: str, value: Any, *, log: bool = False) -> Panel:
    """The best throughput for each value of an axis, a line for each number of instances."""
    lines = []
    for count in sorted({trial.candidate.instances for trial in good})[:_LINES]:
        best: dict[int, float] = {}
        for trial in good:
            if trial.candidate.instances == count:
                at = value(trial.candidate)
                best[at] = max(best.get(at, 0.0), trial.throughput)
        label = f"{count} instance{'s' if count > 1 else ''}"
        lines.append(Line(label, sorted(best), [best[at] for at in sorted(best)]))
    ticks = sorted({value(trial.candidate) for trial in good})
    return Panel(
        title=f"Best throughput by {name}", x_label=name, y_label="inferences per second",
        lines=lines, is_log_x=log, x_ticks=ticks,
    )  # fmt: skip


def _by_instances(good: Sequence[Trial]) -> Panel:
    ordered = sorted(good, key=lambda trial: trial.candidate.instances)
    counts = [trial.candidate.instances for trial in ordered]
    rates = [trial.throughput for trial in ordered]
    return Panel(
        title="Throughput by instances", x_label="instances", y_label="inferences per second",
        lines=[Line("", counts, rates)], x_ticks=counts,
    )  # fmt: skip


def _trade(finding: TuningResult, good: Sequence[Trial]) -> Panel:
    def points(label: str, trials: Sequence[Trial], colour: int) -> Line:
        notes = [
            (trial.throughput, trial.p99_us / 1000, label) for trial in trials if label != "tried"
        ]
        return Line(
            label,
            [trial.throughput for trial in trials],
            [trial.p99_us / 1000 for trial in trials],
            is_points=True,
            notes=notes,
            colour=colour,
        )

    marked = {finding.present} | ({finding.chosen.candidate} if finding.chosen else set())
    lines = [points("tried", [each for each in good if each.candidate not in marked], 6)]
    lines.append(points("now", [each for each in good[:1] if not each.problem], 1))
    if finding.chosen is not None and finding.chosen.candidate != finding.present:
        lines.append(points("best", [finding.chosen], 2))
    limit = finding.goal.limit_us / 1000
    return Panel(
        title="Every configuration: throughput and latency",
        x_label="inferences per second",
        y_label="p99 latency, ms",
        lines=lines,
        limits=[(limit, "limit")] if limit else [],
    )


def page_of(finding: TuningResult, pictures: Sequence[str]) -> Page:
    """The page of a search."""
    sections = [Section("Recommendation", texts=[recommendation_text(finding).splitlines()[0]])]
    if finding.is_change:
        sections += [Section(name, code=code) for name, code in codes_of(finding)]
    sections.append(Section("Plots", pictures=pictures))
    rows: list[list[str | Cell]] = []
    for index, trial in enumerate(finding.trials):
        note = note_of(trial, finding.goal, is_present=index == 0)
        is_best = finding.chosen is not None and trial.candidate == finding.chosen.candidate
        rows.append(
            [*cells_of(trial), Cell("best" if is_best else note, "good" if is_best else "")]
        )
    sections.append(Section("What was tried", table=Table([*HEADING, ""], rows)))
    wanted = (
        "most throughput" if finding.goal.objective is Objective.THROUGHPUT else "least latency"
    )
    limit = f", p99 below {finding.goal.limit_us / 1000:g} ms" if finding.goal.limit_us else ""
    return Page(
        title=f"Tuning of {finding.model}",
        subtitle=f"{wanted}{limit}, {finding.concurrency} requests under way",
        tiles=_tiles(finding),
        sections=sections,
    )


def _tiles(finding: TuningResult) -> list[tuple[str, str]]:
    """The numbers of the last comparison, which are surer than those of the search."""
    chosen, gain = finding.chosen, finding.gain
    if chosen is None:
        return []
    rate = chosen.throughput if gain is None else gain.new_throughput
    p99_us = chosen.p99_us if gain is None else gain.new_p99_us
    tiles = [
        (f"{rate:,.0f}/s", f"with {chosen.candidate}"),
        (f"{p99_us / 1000:.2f} ms", "p99 latency there"),
    ]
    if gain is not None:
        tiles.append((f"{gain.ratio:.2f}x", "gain, measured side by side"))
    return tiles
