# SPDX-License-Identifier: Apache-2.0
"""`pytriton tune` without a server: configurations, trials, texts, options."""

from __future__ import annotations

import json

import pytest

from pytriton.tools.commands.perf.session import PerfTarget
from pytriton.tools.commands.tune.command import run
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
    Trial,
    can_batch,
    changed_config,
    pbtxt_text,
    present_candidate,
    python_text,
)
from pytriton.tools.commands.tune.trials import Interrupted, RepositoryModel, Trials
from pytriton.tools.perf.data.settings import InputData
from pytriton.tools.perf.errors import PerfError
from pytriton.tools.perf.load.plan import LoadPlan, LoadProtocol
from pytriton.tools.perf.model_description import MeasuredModel
from pytriton.tools.perf.server_state import QuestionError, ServerAddress
from pytriton.tools.plots.page import page_html
from pytriton.tools.plots.pictures import draw
from tests.perf.load.fake_load import FakeLoad

CONFIG = {
    "name": "M",
    "max_batch_size": 8,
    "dynamic_batching": {"max_queue_delay_microseconds": 100, "preferred_batch_size": [4, 8]},
    "instance_group": [{"kind": "KIND_GPU", "count": 2, "gpus": [0]}],
}


def test_present_configuration_is_read():
    assert present_candidate(CONFIG) == Candidate(2, 8, 100)
    assert present_candidate({"max_batch_size": 8}) == Candidate(1, 1, 0)
    assert present_candidate({}) == Candidate(1, 0, 0)


def test_candidate_changes_only_what_is_tuned():
    changed = json.loads(changed_config(CONFIG, Candidate(3, 4, 500)))

    assert changed == {
        "name": "M",
        "max_batch_size": 4,
        "dynamic_batching": {"max_queue_delay_microseconds": 500, "preferred_batch_size": [4]},
        "instance_group": [{"kind": "KIND_GPU", "count": 3, "gpus": [0]}],
    }


def test_batch_of_one_needs_no_batcher_and_keeps_what_clients_may_send():
    changed = json.loads(changed_config(CONFIG, Candidate(1, 1, 0)))

    assert "dynamic_batching" not in changed
    assert changed["max_batch_size"] == 8


@pytest.mark.parametrize(
    "config, expected",
    [
        (CONFIG, True),
        ({"max_batch_size": 0}, False),
        ({"max_batch_size": 4, "sequence_batching": {}}, False),
        ({"max_batch_size": 4, "ensemble_scheduling": {}}, False),
    ],
)
def test_some_models_cannot_batch(config, expected):
    assert can_batch(config) == expected


def test_recommendation_can_be_pasted():
    assert pbtxt_text(CONFIG, Candidate(3, 32, 500)) == (
        "max_batch_size: 32\n"
        "dynamic_batching { max_queue_delay_microseconds: 500 }\n"
        "instance_group [ { kind: KIND_GPU count: 3 } ]"
    )
    assert python_text(CONFIG, Candidate(1, 32, 500)) == (
        "triton.bind(..., infer_func=infer_func, config=ModelConfig(max_batch_size=32, "
        "batcher=DynamicBatcher(max_queue_delay_microseconds=500)))"
    )
    assert "[infer_func] * 2" in python_text({}, Candidate(2, 0, 0))


class FakeServer:
    """Remembers which configurations were loaded."""

    def __init__(self, refuse: str = "", of_file: dict | None = None) -> None:
        self.config = dict(CONFIG)
        self._of_file = of_file or dict(CONFIG)
        self.loads: list[dict | None] = []
        self._refuse = refuse

    def load(self, model, config=None):
        changed = None if config is None else json.loads(config)
        if self._refuse and (
            not config or changed["max_batch_size"] > 8 or "never" in self._refuse
        ):
            raise QuestionError(self._refuse)
        self.loads.append(changed)
        self.config = changed or self._of_file

    def model_config(self, model, version=""):
        return self.config


def trials_on(server: FakeServer, load: FakeLoad | None = None, *, stop: bool = False) -> Trials:
    target = PerfTarget(
        address=ServerAddress("h:1"),
        questions=server,  # type: ignore[arg-type]
        server="fake",
        model=MeasuredModel("M", "", (), ()),
        statistics=None,
        inputs=InputData(()),
        plan=LoadPlan("h:1", LoadProtocol.HTTP, "M", []),
        is_async=False,
    )
    return Trials(target, model_on(server), 4, 1.0, lambda _plan: load or FakeLoad(), lambda: stop)


def model_on(server: FakeServer) -> RepositoryModel:
    return RepositoryModel(server, "M", CONFIG)  # type: ignore[arg-type]


def ignore(_live) -> None:
    """Nobody looks."""


def test_trial_loads_a_candidate_and_measures_it():
    server = FakeServer()
    trials = trials_on(server)

    trial = trials.measure(Candidate(1, 4, 0), ignore)

    assert server.loads[0] is not None
    assert server.loads[0]["max_batch_size"] == 4
    assert trial.throughput == pytest.approx(4000, rel=0.01)
    assert trial.p99_us == pytest.approx(1000)
    assert not trial.problem


def test_configuration_is_restored():
    server = FakeServer()
    model = model_on(server)
    model.load(Candidate(1, 4, 0))

    model.restore()
    model.restore()  # nothing more to do

    assert server.config == CONFIG
    assert server.loads[1:] == [None]


def test_configuration_that_is_not_the_files_is_restored_by_its_values():
    server = FakeServer(of_file={"of": "file"})
    model = model_on(server)
    model.load(Candidate(1, 4, 0))

    model.restore()

    assert server.config == CONFIG


def test_candidate_that_the_server_refuses_is_a_problem():
    trial = trials_on(FakeServer("no memory")).measure(Candidate(1, 16, 0), ignore)

    assert trial.problem == "no memory"


def test_model_that_only_fails_is_a_problem():
    load = FakeLoad(fail=lambda _number: True)

    trial = trials_on(FakeServer(), load).measure(Candidate(1, 4, 0), ignore)

    assert trial.problem == "it failed"


def test_interrupt_ends_a_trial():
    with pytest.raises(Interrupted):
        trials_on(FakeServer(), stop=True).measure(Candidate(1, 4, 0), ignore)


def test_server_that_loads_nothing_is_explained():
    with pytest.raises(PerfError, match=r"never\. Let this command start a server: FILE.py:func"):
        model_on(FakeServer("never")).check_control()


NOW = Trial(Candidate(1, 8, 0), 1000.0, 500.0, 1000.0, 0.02, 4.0)
BEST = Trial(Candidate(2, 4, 100), 2000.0, 250.0, 900.0, 0.02, 3.0)

BROKEN = Trial(Candidate(1, 64, 0), problem="too large")


def finding(chosen: Trial | None = BEST, gain: Gain | None = None, **fields) -> TuningResult:
    trials = fields.pop("trials", [NOW, BEST, BROKEN])
    return TuningResult("M", CONFIG, 16, fields.pop("goal", Goal()), trials, chosen, gain, **fields)


def test_rows_are_below_their_heading():
    rows = [row_text(NOW, Goal(), is_present=True), row_text(BEST, Goal(limit_us=1))]

    assert heading_text().split("  ")[0] == "max batch"
    assert rows[0].split() == ["8", "0", "1", "1,000", "0.50", "1.00", "4.00", "now"]
    assert rows[1].endswith("over the limit")
    assert row_text(Trial(Candidate(1, 64, 0), problem="too large"), Goal()).endswith("too large")


def test_recommendation_says_what_it_gains():
    gain = Gain(1.9, 1.1, 0.05, Objective.THROUGHPUT)

    text = recommendation_text(finding(gain=gain))

    assert text.startswith(
        "Recommended: batch 4, delay 100 µs, 2 instances. It has 1.90x the throughput and 0.91x "
        "the p99 latency of the present one (batch 8, delay 0 µs, 1 instance)"
    )
    assert "  max_batch_size: 4\n" in text
    assert "A request may then have 4 rows at most" in text


def test_difference_within_the_noise_is_not_recommended():
    found = finding(gain=Gain(1.03, 1.0, 0.05, Objective.THROUGHPUT))

    assert recommendation_text(found).startswith("Keep the present configuration. The best other")
    assert "within the noise of 5%" in recommendation_text(found)
    assert not found.is_change


def test_configuration_that_is_worse_the_second_time_is_not_recommended():
    found = finding(gain=Gain(0.8, 1.0, 0.05, Objective.THROUGHPUT))

    assert recommendation_text(found).splitlines()[0].endswith("that is not better.")
    assert not found.is_change


def test_present_configuration_may_be_the_best():
    assert recommendation_text(finding(NOW)).startswith("Keep the present configuration (batch 8")


def test_limit_that_nothing_keeps_is_said():
    text = recommendation_text(finding(None, goal=Goal(limit_us=500)))

    assert text.startswith("No configuration keeps p99 below 0.5 ms with 16 requests under way.")


@pytest.mark.parametrize(
    "fields, why",
    [
        ({"trials": [NOW], "is_complete": False}, "There was no time for another one."),
        ({"trials": [NOW]}, "There is no other to try"),
        ({"trials": [NOW, BROKEN]}, "The others could not be run; the table says why."),
    ],
)
def test_nothing_is_recommended_after_one_measurement(fields, why):
    text = recommendation_text(finding(NOW, **fields))

    assert text.startswith("No recommendation: only the present configuration (batch 8")
    assert why in text
    assert "Keep" not in text


def test_limit_that_the_only_measured_configuration_exceeds_is_said():
    text = recommendation_text(finding(None, trials=[NOW], goal=Goal(limit_us=500)))

    assert "was measured, and its latency is over the limit. There is no other to try" in text


@pytest.mark.part("docs")  # matplotlib
def test_page_and_plots_show_the_search():
    found = finding(gain=Gain(1.9, 1.1, 0.05, Objective.THROUGHPUT, 1900.0, 950.0))

    panels = panels_of(found)
    page = page_html(page_of(found, [draw(panels[-1:]).svg()]))

    assert [panel.title for panel in panels] == [
        "Best throughput by max_batch_size",
        "Best throughput by max_queue_delay_microseconds",
        "Every configuration: throughput and latency",
    ]
    assert "1,900/s" in page
    assert "too large" in page


def test_served_file_is_recommended_as_a_command_and_a_decorator():
    text = recommendation_text(finding(gain=Gain(2, 1, 0.02, Objective.THROUGHPUT), file="m.py:f"))

    command = "pytriton serve m.py:f --instances 2 --max-batch-size 4 --batch-delay-us 100"
    assert f"Command:\n  {command}\n" in text
    assert "  @model(max_batch_size=4, batch_delay_us=100, instances=2)" in text


@pytest.mark.parametrize(
    "arguments, error",
    [
        (["m.py:f", "-u", "h:1"], "a file is served by this command: leave out -u"),
        ([], "the following arguments are required: MODEL"),
        (["M", "--concurrency", "0"], "--concurrency: expected a number above 0, got 0"),
        (["M", "-u", "h:1", "--model-repository", "x"], "expected -u for a running server or"),
        (["M", "--no-such-option"], "unrecognized option '--no-such-option'"),
    ],
)
def test_wrong_options_end_with_code_2(arguments, error):
    errors: list[str] = []

    assert run(arguments, print, errors.append) == 2
    assert error in errors[0]


def test_missing_repository_is_named(tmp_path):
    errors: list[str] = []

    assert run(["M", "--model-repository", str(tmp_path / "x")], print, errors.append) == 1
    assert "is no folder" in errors[0]
