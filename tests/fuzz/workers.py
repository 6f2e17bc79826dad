# SPDX-License-Identifier: Apache-2.0
"""`python -m tests.fuzz.workers` plays broken and hostile workers against a server, by seeds.

`worker_story` says what they do, `worker_play` what the server has to do about it. A finding is
printed as the shortest story that shows it. Its seed then belongs into `test_workers_fuzz.py`.
"""

from __future__ import annotations

import argparse
import dataclasses
import gc
import json
import random
import re
import resource
import subprocess
import sys
import time
import traceback
from collections import Counter

from tests.fuzz.fuzzing import Case, shrink
from tests.fuzz.worker_play import Outcome, play
from tests.fuzz.worker_story import make_story

_PROGRESS_S = 60.0
_MOST_SHOWN = 5  # findings, of each process
# Of processor time, for one turn of the loop: what a turn takes is a few milliseconds.
_MAX_TURN_S = 1.0
# What a process may grow by after its first seeds, as all that a worker was given comes back.
_MAX_GROWTH_KIB = 150 << 10
_FIRST_SEEDS = 200


def story_of(seed: int) -> Case:
    """Returns the story of a seed."""
    return make_story(random.Random(f"workers {seed}"))


def check(story: Case) -> None:
    """Play a story; raises what is wrong."""
    outcome = play(story)
    took_s = outcome.longest_ns / 1e9
    assert took_s < _MAX_TURN_S, f"a turn of the loop took {took_s:.1f} s of processor time"


@dataclasses.dataclass
class Account:
    """What a campaign has done and seen."""

    seeds: int = 0
    messages: Counter[str] = dataclasses.field(default_factory=Counter)
    ends: Counter[str] = dataclasses.field(default_factory=Counter)  # of workers, by the reason
    turns: int = 0
    slowest_probe: int = 0  # in turns
    longest_turn_ms: float = 0.0  # of processor time
    longest_seed: int = 0
    growth_kib: int = 0
    findings: list[str] = dataclasses.field(default_factory=list)

    def add(self, seed: int, outcome: Outcome) -> None:
        """Add what a story has shown."""
        self.messages.update(outcome.kinds)
        self.ends.update(_reason(text) for text in outcome.breaches)
        self.turns += outcome.turns
        self.slowest_probe = max(self.slowest_probe, outcome.slowest_probe)
        if outcome.longest_ns / 1e6 > self.longest_turn_ms:
            self.longest_turn_ms, self.longest_seed = outcome.longest_ns / 1e6, seed

    def join(self, other: Account) -> None:
        """Add the account of another process."""
        self.seeds += other.seeds
        self.messages.update(other.messages)
        self.ends.update(other.ends)
        self.turns += other.turns
        self.slowest_probe = max(self.slowest_probe, other.slowest_probe)
        if other.longest_turn_ms > self.longest_turn_ms:
            self.longest_turn_ms, self.longest_seed = other.longest_turn_ms, other.longest_seed
        self.growth_kib = max(self.growth_kib, other.growth_kib)
        self.findings += other.findings

    def __str__(self) -> str:
        kinds = ", ".join(f"{kind} {count}" for kind, count in sorted(self.messages.items()))
        ends = "\n".join(f"  {count} {reason}" for reason, count in self.ends.most_common(40))
        return (
            f"{self.seeds} seeds, {sum(self.messages.values())} messages, {self.turns} turns, "
            f"{len(self.findings)} findings\n"
            f"another model answered after {self.slowest_probe} turns at most; the longest turn "
            f"took {self.longest_turn_ms:.0f} ms of processor time (seed {self.longest_seed}); the "
            f"process grew by {self.growth_kib >> 10} MiB\n"
            f"messages: {kinds}\n"
            f"{self.ends.total()} workers were ended, for:\n{ends}"
        )


def _reason(text: str) -> str:
    """Returns the kind of a sentence of the log, without values."""
    reason = text.partition("which ends it: ")[2].partition(", got")[0].partition(" - at ")[0]
    return re.sub(r"\d+", "#", re.sub(r"'.*'", "'…'", reason, flags=re.DOTALL))[:70]


def run(first: int, step: int, seconds: float, cases: int | None) -> Account:
    """Play the stories of seeds until the time is over, or so many were played."""
    account = Account()
    end_s = said_s = time.monotonic()
    end_s += seconds
    grown_from = 0
    seed = first
    while account.seeds != cases if cases is not None else time.monotonic() < end_s:
        try:
            outcome = play(story_of(seed))
            took_s = outcome.longest_ns / 1e9
            assert took_s < _MAX_TURN_S, f"a turn of the loop took {took_s:.1f} s"
            account.add(seed, outcome)
        except Exception as failure:  # noqa: BLE001  any failure is a finding
            account.findings.append(_finding(seed, failure, len(account.findings)))
            sys.stderr.write(account.findings[-1] + "\n")
        account.seeds += 1
        seed += step
        if account.seeds == _FIRST_SEEDS:
            grown_from = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        if time.monotonic() - said_s > _PROGRESS_S:
            said_s = time.monotonic()
            found = len(account.findings)
            sys.stderr.write(f"{account.seeds} seeds up to {seed - step}, {found} findings\n")
    if grown_from:
        account.growth_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - grown_from
        if account.growth_kib > _MAX_GROWTH_KIB:
            account.findings.append(f"the process has grown by {account.growth_kib >> 10} MiB")
    return account


def _finding(seed: int, failure: Exception, earlier: int) -> str:
    text = "".join(traceback.format_exception(failure)[-3:])
    if earlier >= _MOST_SHOWN:
        return f"seed {seed}: {type(failure).__name__}: {failure}"
    frame = failure.__traceback__
    while frame is not None and frame.tb_next is not None:
        frame = frame.tb_next
    place = (type(failure), frame.tb_frame.f_code.co_filename, frame.tb_lineno) if frame else ()
    smallest = shrink(story_of(seed), check, place)
    steps = "".join(f"    {step!r:.600},\n" for step in smallest)
    return f"seed {seed}: {text}The shortest story that fails there:\n[\n{steps}]"


def _parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz.workers", description=__doc__)
    parser.add_argument("--seed", type=int, default=0, help="the first one")
    parser.add_argument("--seconds", type=float, default=60.0, help="for how long")
    parser.add_argument("--cases", type=int, help="so many stories, however long they take")
    parser.add_argument("--processes", type=int, default=1, help="side by side")
    parser.add_argument("--step", type=int, default=1, help=argparse.SUPPRESS)
    parser.add_argument("--json", action="store_true", help="print the account as JSON")
    return parser.parse_args(arguments)


def _run_processes(options: argparse.Namespace) -> Account:
    command = [sys.executable, "-m", "tests.fuzz.workers", "--json"]
    command += ["--seconds", str(options.seconds), "--step", str(options.processes)]
    if options.cases is not None:
        command += ["--cases", str(-(-options.cases // options.processes))]
    processes = [
        subprocess.Popen([*command, "--seed", str(options.seed + at)], stdout=subprocess.PIPE)
        for at in range(options.processes)
    ]
    account = Account()
    for process in processes:
        output, _ = process.communicate()
        account.join(Account(**json.loads(output)))
    return account


def main(arguments: list[str] | None = None) -> int:
    """Run a campaign; returns 1 if there was a finding."""
    options = _parse(arguments)
    gc.freeze()  # each story collects garbage, for which it need not look at what was imported
    if options.processes > 1:
        account = _run_processes(options)
    else:
        account = run(options.seed, options.step, options.seconds, options.cases)
    text = json.dumps(vars(account)) if options.json else str(account)
    sys.stdout.write(f"{text}\n")
    return bool(account.findings)


if __name__ == "__main__":
    sys.exit(main())
