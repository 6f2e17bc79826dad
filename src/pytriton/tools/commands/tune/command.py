# SPDX-License-Identifier: Apache-2.0
"""The command `pytriton tune`: finds batch size, delay and instances for a model."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import os
import pathlib
import secrets
import time
from collections.abc import Callable, Sequence

from rich.console import Console

from pytriton.base.security import TRITON_ACCESS_HEADER
from pytriton.tools.commands.perf.arguments import PerfParser, make_parser
from pytriton.tools.commands.perf.options import PerfOptions, options_of
from pytriton.tools.commands.perf.session import Interrupts, MakeLoad, PerfTarget, find_target
from pytriton.tools.commands.tune.report import (
    TuningResult,
    heading_text,
    page_of,
    panels_of,
    recommendation_text,
    row_text,
)
from pytriton.tools.commands.tune.search import (
    Candidate,
    Gain,
    Goal,
    Objective,
    Space,
    Trial,
    can_batch,
    gain_of,
    next_candidate,
    present_candidate,
    recommend,
    space_of,
)
from pytriton.tools.commands.tune.trials import (
    Changeable,
    Interrupted,
    OwnServer,
    RepositoryModel,
    ServedFile,
    Trials,
    repository_command,
    serve_command,
)
from pytriton.tools.perf.errors import GeneratorError, PerfError
from pytriton.tools.perf.load.process_load import ProcessLoad
from pytriton.tools.perf.measuring.results import Live
from pytriton.tools.plots.page import page_html
from pytriton.tools.plots.pictures import PlotError, check_available, draw

_FAILED, _WRONG_OPTIONS, _INTERRUPTED = 1, 2, 130
_ROUNDS = 2  # how often both configurations are measured in turns at the end
_EPILOG = """\
All options of pytriton perf that say what is sent and where can be added: -i, -H, --token,
--shape, --input-data, --string-data, --request-parameter, and those of encryption.

examples:
  pytriton tune AddSub --model-repository models
  pytriton tune AddSub --model-repository models --latency-limit 20 --html tuned.html
  pytriton tune models.py:classify --concurrency 32
  pytriton tune AddSub -u localhost:8000 --concurrency 64 --budget 300
"""


def run(
    arguments: Sequence[str],
    show: Callable[[str], None],
    complain: Callable[[str], None],
    make_load: MakeLoad = ProcessLoad,
) -> int:
    """Search; 1 if that failed, 2 for wrong options, 130 after Ctrl-C."""
    interrupts = Interrupts()
    try:
        parser, perf_parser = make_tune_parser(), make_parser(allow_abbrev=False)
        given, rest = parser.parse_known_args(arguments)
        parser.refuse(perf_parser.parse_known_args(rest)[1], perf_parser)
        _check(given)
        if given.html or given.plot:
            check_available()
        with interrupts.caught(), contextlib.ExitStack() as stack:
            start = _start(given, rest, stack)
            options = options_of(perf_parser.parse_args([start.model, *start.arguments, *rest]))
            finding = Tuning(given, options, start, make_load, interrupts, show).run()
        _write(finding, given, show)
    except (PerfError, GeneratorError, PlotError) as error:
        is_option = getattr(error, "code", 0) == 3
        complain(f"error: {error}")
        return _WRONG_OPTIONS if is_option else _FAILED
    except OSError as error:
        complain(f"error: {error.filename} cannot be written: {error.strerror}")
        return _FAILED
    except KeyboardInterrupt:
        return _INTERRUPTED
    return _INTERRUPTED if interrupts.is_wanted else 0


@dataclasses.dataclass(frozen=True, slots=True)
class TunedModel:
    """Where the model is that is tuned.

    Attributes:
        model: Its name.
        arguments: The options of `pytriton perf` that lead to it.
        served: The file that it is served from; None for a model of a repository.
    """

    model: str
    arguments: Sequence[str]
    served: ServedFile | None = None


def is_file(model: str) -> bool:
    """Whether a function of a file is meant, and not the name of a model."""
    return model.partition(":")[0].endswith(".py")


def _start(
    given: argparse.Namespace, rest: Sequence[str], stack: contextlib.ExitStack
) -> TunedModel:
    """Start a server, if none is named that runs."""
    if not given.model_repository and not is_file(given.model):
        return TunedModel(given.model, ["-u", given.url] if given.url else [])
    token = secrets.token_urlsafe(12)
    server = stack.enter_context(OwnServer([(TRITON_ACCESS_HEADER, token)]))
    port = server.grpc_port if "grpc" in rest else server.http_port
    # With "=": a random token may begin with a dash, as options do.
    arguments = ["-u", f"127.0.0.1:{port}", f"--token={token}"]
    if given.model_repository:
        command = repository_command(pathlib.Path(given.model_repository), given.model)
        return TunedModel(server.start(command), arguments)
    name = server.start(serve_command(given.model, token))
    return TunedModel(name, arguments, ServedFile(server, given.model, token))


class Tuning:
    """One search."""

    def __init__(
        self,
        given: argparse.Namespace,
        options: PerfOptions,
        start: TunedModel,
        make_load: MakeLoad,
        interrupts: Interrupts,
        show: Callable[[str], None],
    ) -> None:
        self._given = given
        self._start = start
        self._options = options
        self._make_load = make_load
        self._interrupts = interrupts
        self._show = show
        self._goal = Goal(Objective(given.objective), given.latency_limit * 1000)
        self._deadline_s = time.monotonic() + given.budget
        console = Console(stderr=True)
        self._status = console.status("starting") if console.is_terminal else None

    def run(self) -> TuningResult:
        """Search, and leave the model as it was.

        Raises:
            PerfError: The server cannot be used for it.
        """
        target = find_target(self._options, self._options.address, self._options.model)
        try:
            config = dict(target.questions.model_config(target.model.name))
            repository = RepositoryModel(target.questions, target.model.name, config)
            model: Changeable = self._start.served or repository
            trials = Trials(
                target,
                model,
                self._given.concurrency,
                self._given.window / 1000,
                self._make_load,
                lambda: self._interrupts.is_wanted,
            )
            try:
                if self._start.served is None:
                    repository.check_control()
                if self._status is not None:
                    self._status.start()
                return self._search(target, config, trials)
            finally:
                if self._status is not None:
                    self._status.stop()
                self._interrupts.is_deaf = True
                model.restore()
                self._interrupts.is_deaf = False
        finally:
            target.questions.close()

    def _search(
        self, target: PerfTarget, config: dict[str, object], trials: Trials
    ) -> TuningResult:
        present = present_candidate(config)
        has_batches = can_batch(config) and not target.model.is_decoupled
        most = self._given.max_batch_size or self._given.concurrency
        space = space_of(present, most, self._given.max_instances, has_batches=has_batches)
        self._show(
            f"{target.model.name} on {target.server}, {self._given.concurrency} requests under "
            f"way, at most {self._given.budget:g} s\n"
        )
        self._show(heading_text())
        found: list[Trial] = []
        gain: Gain | None = None
        is_complete = True
        try:
            self._try(trials, present, found)
            is_complete = self._walk(space, trials, found)
            gain = self._side_by_side(trials, found)
        except Interrupted:
            is_complete = False
        if not found or found[0].problem:
            problem = found[0].problem if found else "interrupted before the first measurement"
            raise PerfError(f"the present configuration cannot be measured: {problem}")
        return TuningResult(
            model=target.model.name,
            config=config,
            concurrency=self._given.concurrency,
            goal=self._goal,
            trials=found,
            chosen=recommend(found, self._goal),
            gain=gain,
            is_complete=is_complete,
            file=self._given.model if self._start.served is not None else "",
        )

    def _try(self, trials: Trials, candidate: Candidate, found: list[Trial]) -> None:
        trial = trials.measure(candidate, self._watch(str(candidate)))
        found.append(trial)
        if self._status is not None:
            self._status.stop()  # so that the row stays above it
        self._show(row_text(trial, self._goal, is_present=len(found) == 1))
        if self._status is not None:
            self._status.start()

    def _watch(self, name: str) -> Callable[[Live], None]:
        """Shows on a terminal what is tried now."""
        if self._status is None:
            return lambda _live: None
        status = self._status

        def watch(live: Live) -> None:
            left_s = max(self._deadline_s - time.monotonic(), 0)
            status.update(
                f"{name}: {live.rate:,.0f} req/s, p99 {live.p99_us / 1000:.2f} ms, at most "
                f"{left_s:.0f} s left"
            )

        return watch

    def _walk(self, space: Space, trials: Trials, found: list[Trial]) -> bool:
        """Try candidates; returns whether nothing is left to try."""
        begun_s = time.monotonic()
        while True:
            candidate = next_candidate(space, found, self._goal)
            if candidate is None:
                return True
            spent_s = time.monotonic() - begun_s
            each_s = spent_s / max(len(found) - 1, 1)
            # The comparison at the end needs its time, too.
            if time.monotonic() + each_s * (2 * _ROUNDS + 1) > self._deadline_s:
                return False
            self._try(trials, candidate, found)

    def _side_by_side(self, trials: Trials, found: list[Trial]) -> Gain | None:
        chosen = recommend(found, self._goal)
        if chosen is None or chosen.candidate == found[0].candidate:
            return None
        old, new = [], []
        for _ in range(_ROUNDS):
            old.append(trials.measure(found[0].candidate, self._watch("once more: now")))
            new.append(trials.measure(chosen.candidate, self._watch("once more: the best")))
        if any(trial.problem for trial in (*old, *new)):
            return None
        return gain_of(old, new, self._goal)


def _write(finding: TuningResult, given: argparse.Namespace, show: Callable[[str], None]) -> None:
    show("")
    show(recommendation_text(finding))
    if given.plot:
        picture = draw(panels_of(finding), title=f"Tuning of {finding.model}")
        pathlib.Path(given.plot).write_bytes(picture.png())
        show(f"\nThe plots are in {given.plot}")
    if given.html:
        drawn = [draw([panel]).svg() for panel in panels_of(finding)]
        pathlib.Path(given.html).write_text(page_html(page_of(finding, drawn)), "utf-8")
        show(f"\nThe page is {given.html}")


def _check(given: argparse.Namespace) -> None:
    parser = make_tune_parser()
    for name in ("concurrency", "budget", "window", "max_instances"):
        if getattr(given, name) <= 0:
            option = f"--{name.replace('_', '-')}"
            parser.error(f"{option}: expected a number above 0, got {getattr(given, name)}")
    if given.latency_limit < 0 or given.max_batch_size < 0:
        parser.error("--latency-limit and --max-batch-size: expected a number above 0")
    if given.url and given.model_repository:
        parser.error("expected -u for a running server or --model-repository for one of its own")
    if is_file(given.model) and (given.url or given.model_repository):
        parser.error("a file is served by this command: leave out -u and --model-repository")


def make_tune_parser() -> PerfParser:
    parser = PerfParser(
        prog="pytriton tune",
        description="Try batch sizes, delays and numbers of instances of a model under load, and "
        "recommend a configuration. The model is left as it was.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("model", metavar="MODEL", help="or FILE.py:function, as for pytriton serve")
    add("--model-repository", metavar="DIR", help="start a server of its own on this folder")
    add("-u", dest="url", metavar="URL",
        help="a running server in the mode explicit (default localhost:8000)")  # fmt: skip
    add("--objective", choices=[each.value for each in Objective], default="throughput",
        help="what is best (default throughput)")  # fmt: skip
    add("--latency-limit", type=float, default=0.0, metavar="MS", help="highest p99 latency")
    add("--concurrency", type=int, default=16, metavar="N", help="requests under way (default 16)")
    add("--budget", type=float, default=120.0, metavar="S", help="seconds in all (default 120)")
    add("--window", type=int, default=700, metavar="MS",
        help="a trial has three such windows after one to warm up (default 700)")  # fmt: skip
    add("--max-batch-size", type=int, default=0, metavar="N",
        help="largest batch to try (default: the concurrency)")  # fmt: skip
    add("--max-instances", type=int, default=min(os.cpu_count() or 1, 8), metavar="N",
        help="most instances to try (default: the processors, at most 8)")  # fmt: skip
    add("--html", metavar="FILE.html", help="a page with plots and the recommendation")
    add("--plot", metavar="FILE.png", help="the plots as a picture")
    return parser
