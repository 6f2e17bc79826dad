# SPDX-License-Identifier: Apache-2.0
"""Ensembles and the models of their steps: loaded, replaced and unloaded, without processes."""

from __future__ import annotations

import asyncio
import logging
import shutil

import pytest

from pytriton.base.errors import InternalError, InvalidArgumentError, UnavailableError
from pytriton.serving.engine.client import IndexEntry
from pytriton.serving.engine.model import VersionState
from tests.repository.binding import bind, unbind
from tests.repository.ensemble_files import (
    change_ensemble,
    step_config,
    write_ensemble,
    write_step,
)
from tests.repository.scene import write_code, write_config

MISSING = "ensemble {} contains models that are not available or ambiguous: {}"


@pytest.fixture
def pipeline(scene, repository):
    """A scene in explicit mode with the steps `a`, `b` and `c`, `e` of a and b, `n` of e and c."""
    for name in "abc":
        write_step(repository, name)
    write_ensemble(repository, "e", "a", "b")
    write_ensemble(repository, "n", "e", "c")
    return scene()


def ready(it) -> str:
    return " ".join(sorted(model.spec.name for model in it.engine.models() if model.is_ready))


def state(it, name: str) -> tuple[str, str]:
    (row,) = it.rows(name)
    return row.state, row.reason


# Start


def test_ensembles_are_loaded_after_their_steps_and_hold_up_nobody(scene, repository):
    write_ensemble(repository, "a_first", "slow")
    write_ensemble(repository, "a_quick", "quick")
    write_step(repository, "slow")
    write_step(repository, "quick")
    it = scene(mode="none")
    it.loader.gates["slow"] = asyncio.Event()
    start = it.task(it.models.start())

    it.until(lambda: ready(it) == "a_quick quick")
    it.loader.gates["slow"].set()
    it.run(start)

    assert ready(it) == "a_first a_quick quick slow"


def test_start_loads_nested_ensembles_from_the_bottom_up(scene, repository, caplog):
    caplog.set_level(logging.INFO)
    write_ensemble(repository, "a", "m")
    write_ensemble(repository, "m", "z")
    write_step(repository, "z")
    it = scene(mode="none")

    it.run(it.models.start())

    loads = [line for line in caplog.messages if line.startswith("loading")]
    assert loads == ["loading: z:1", "loading: m:1", "loading: a:1"]


def test_all_selected_versions_of_an_ensemble_are_served(scene, repository):
    write_step(repository, "a")
    write_ensemble(repository, "e", "a", versions=("1", "3"), more="version_policy { all { } }")
    it = scene(mode="none")

    it.run(it.models.start())

    assert [row.version for row in it.rows("e")] == ["1", "3"]


BOOM = "version 1 is at UNAVAILABLE state: Internal: boom;"
NO_VERSION = "at least one version must be available under the version policy of model 'empty'"
MISTAKES = {
    "missing": (["a", "nothere", "nor_this"], MISSING.format("e", "nothere")),
    "unreadable": (["unreadable"], MISSING.format("e", "unreadable")),
    "failing": (
        ["bad"],
        (
            "ensemble 'e' depends on 'bad' which has no loaded version. "
            f"Model 'bad' loading failed with error: {BOOM}"
        ),
    ),
    "without versions": (
        ["empty"],
        (
            "ensemble 'e' depends on 'empty' which has no loaded version. "
            f"Model 'empty' loading failed with error: {NO_VERSION}"
        ),
    ),
    "version": (["a:7"], "ensemble 'e' depends on 'a' whose required version 7 is not loaded."),
    "invalid": (
        ["e_missing"],
        (
            "ensemble 'e' depends on 'e_missing' which is not valid. "
            f"Model 'e_missing' failed with error: {MISSING.format('e_missing', 'x')}"
        ),
    ),
    "types": (
        ["a", "i32"],
        (
            "in ensemble e, ensemble tensor t1: inconsistent data type: TYPE_FP32 is inferred from "
            "model a while TYPE_INT32 is inferred from model i32"
        ),
    ),
    "itself": (["e"], "circular dependency between ensembles: e -> ... -> e -> e"),
    "a cycle": (["cycle"], "circular dependency between ensembles: e -> ... -> cycle -> e"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_ensemble_that_cannot_be_served_says_why(scene, repository, caplog, mistake):
    models, message = MISTAKES[mistake]
    write_step(repository, "a")
    write_step(repository, "bad")
    write_step(repository, "i32", "TYPE_INT32")
    write_step(repository, "empty", versions=())
    write_ensemble(repository, "unreadable", "a", more="instance_group [ { count: 1 } ]")
    write_ensemble(repository, "e_missing", "x")
    write_ensemble(repository, "cycle", "e")
    write_ensemble(repository, "e", *models)
    it = scene()
    it.loader.failures["bad", 1] = [InternalError("boom")] * 2

    error = it.refusal("e")

    assert isinstance(error, InvalidArgumentError)
    assert error.message == f"load failed for model 'e': {message}\n"
    assert it.rows("e") == [IndexEntry("e", "", "UNAVAILABLE", f"Invalid argument: {message}")]
    assert f"Invalid argument: {message}" in caplog.messages
    with pytest.raises(Exception, match="Request for unknown model: 'e' is not found"):
        it.engine.lookup("e")


def test_start_with_a_broken_ensemble_fails_and_serves_the_others(scene, repository):
    write_step(repository, "a")
    write_ensemble(repository, "broken", "x")
    write_ensemble(repository, "e", "a")
    it = scene(mode="none")

    with pytest.raises(InternalError, match="failed to load all models"):
        it.run(it.models.start())

    assert ready(it) == "a e"
    assert not it.models.is_ready()


def test_own_mistake_of_an_ensemble_is_found_when_it_is_read(scene, repository):
    write_ensemble(repository, "e", "a", more="instance_group [ { count: 1 } ]")

    error = scene().refusal("e")

    assert error.message == (
        "failed to load 'e', failed to poll from model repository: "
        "instance group should not be specified for ensemble 'e'"
    )


# Explicit control


def test_load_of_an_ensemble_loads_its_steps_also_nested_ones(pipeline):
    pipeline.load("n")

    assert ready(pipeline) == "a b c e n"
    assert sorted(pipeline.loader.asked) == [("a", 1), ("b", 1), ("c", 1)]


def test_load_of_an_ensemble_loads_changed_steps_again(pipeline, repository):
    pipeline.load("e")
    pipeline.loader.asked.clear()
    write_code(repository / "b")

    pipeline.load("e")

    assert pipeline.loader.asked == [("b", 1)]
    assert len(pipeline.ensembles) == 2


def test_unload_of_a_step_takes_the_ensembles_above_out_of_service_until_it_is_back(pipeline):
    pipeline.load("n")

    pipeline.unload("a")
    pipeline.until(lambda: not pipeline.engine.draining)
    assert ready(pipeline) == "b c"
    assert state(pipeline, "e") == state(pipeline, "n") == ("UNAVAILABLE", "unloaded")
    assert pipeline.models.is_ready()

    pipeline.load("a")
    assert ready(pipeline) == "a b c e n"


def test_model_whose_records_are_dropped_while_it_is_unloaded_is_unloaded(pipeline, monkeypatch):
    pipeline.load("a")
    models = pipeline.models._models

    async def drop_records(_) -> None:
        await models.forget(["a"])

    monkeypatch.setattr(models, "_refresh_all", drop_records)

    pipeline.unload("a")

    assert ready(pipeline) == ""
    assert "a" not in models.lifecycles


def test_ensemble_that_was_unloaded_does_not_come_back_with_its_step(pipeline):
    pipeline.load("e")
    pipeline.unload("a")
    pipeline.unload("e")

    pipeline.load("a")

    assert ready(pipeline) == "a b"


def test_unload_of_an_ensemble_keeps_its_steps(pipeline):
    pipeline.load("n")

    pipeline.unload("n")

    assert ready(pipeline) == "a b c e"


def test_unload_with_dependents_unloads_steps_that_nobody_else_asked_for(pipeline):
    pipeline.load("a")
    pipeline.load("n")

    pipeline.unload("n", unload_dependents=True)

    assert ready(pipeline) == "a"


def test_unload_with_dependents_keeps_steps_of_other_ensembles(pipeline, repository):
    write_ensemble(repository, "other", "b")
    pipeline.load("e")
    pipeline.load("other")

    pipeline.unload("e", unload_dependents=True)

    assert ready(pipeline) == "b other"


def test_replaced_step_replaces_the_ensembles_above_and_unchanged_one_does_not(
    pipeline, repository
):
    pipeline.load("n")
    e, n = pipeline.engine.lookup("e"), pipeline.engine.lookup("n")
    pipeline.load("b")
    assert pipeline.engine.lookup("e") is e

    write_code(repository / "b")
    pipeline.load("b")

    assert pipeline.engine.lookup("e") is not e
    assert pipeline.engine.lookup("n") is not n
    assert ready(pipeline) == "a b c e n"


def test_step_that_cannot_be_replaced_changes_nothing(pipeline, repository):
    pipeline.load("n")
    e = pipeline.engine.lookup("e")
    write_code(repository / "b")
    pipeline.loader.failures["b", 1] = [InternalError("boom")]

    pipeline.refusal("b")

    assert pipeline.engine.lookup("e") is e
    assert ready(pipeline) == "a b c e n"


def test_step_that_no_longer_fits_takes_the_ensemble_out_of_service_with_the_reason(
    pipeline, repository
):
    pipeline.load("n")
    write_config(repository / "b", step_config("TYPE_INT32"))

    pipeline.load("b")

    assert ready(pipeline) == "a b c"
    problem = "in ensemble e, ensemble tensor t1: inconsistent data type: TYPE_FP32 is inferred "
    assert state(pipeline, "e")[1].startswith(problem)
    assert state(pipeline, "n")[1].startswith("ensemble 'n' depends on 'e' which is not valid. ")
    assert not pipeline.models.is_ready()
    with pytest.raises(Exception, match=r"'e' has no available versions .version 1: in ensemble e"):
        pipeline.engine.lookup("e")

    write_config(repository / "b", step_config())
    pipeline.load("b")
    assert ready(pipeline) == "a b c e n"
    assert pipeline.models.is_ready()


def test_load_of_an_ensemble_whose_changed_steps_do_not_fit_takes_it_out_of_service(
    pipeline, repository
):
    pipeline.load("e")
    write_config(repository / "a", step_config("TYPE_INT32"))

    error = pipeline.refusal("e")

    assert "inconsistent data type" in error.message
    assert ready(pipeline) == "a b"


def test_ensemble_whose_new_steps_are_missing_stays_as_it_was_until_they_come(pipeline, repository):
    pipeline.load("n")
    e = pipeline.engine.lookup("e")
    change_ensemble(repository, "e", "a", "late")

    error = pipeline.refusal("e")
    assert error.message == f"load failed for model 'e': {MISSING.format('e', 'late')}\n"
    assert pipeline.engine.lookup("e") is e

    write_step(repository, "late")
    pipeline.load("late")
    assert b"late" in pipeline.engine.lookup("e").config_json
    assert ready(pipeline) == "a b c e late n"


def test_version_policy_of_a_step_decides_over_ensembles_of_its_versions(scene, repository):
    write_step(repository, "c", versions=("1", "2"))
    write_ensemble(repository, "e1", "c:1")
    write_ensemble(repository, "e2", "c:2")
    it = scene()
    it.load("e2")
    it.refusal("e1")

    write_config(repository / "c", step_config(more="version_policy { all { } }"))
    it.load("c")
    assert ready(it) == "c c e1 e2"

    write_config(repository / "c", step_config(more="version_policy { specific { versions: 1 } }"))
    it.load("c")
    assert ready(it) == "c e1"
    message = "ensemble 'e2' depends on 'c' whose required version 2 is not loaded."
    assert state(it, "e2") == ("UNAVAILABLE", message)


def test_ensemble_of_a_clients_configuration_follows_its_steps(pipeline, repository):
    config = """{"platform": "ensemble", "max_batch_size": 8,
      "input": [{"name": "IN", "data_type": "TYPE_FP32", "dims": [-1]}],
      "output": [{"name": "OUT", "data_type": "TYPE_FP32", "dims": [-1]}],
      "ensemble_scheduling": {"step": [{"model_name": "a", "model_version": -1,
        "input_map": {"IN": "IN"}, "output_map": {"OUT": "OUT"}}]}}"""
    pipeline.load("fresh", config, {"1/x": b""})
    assert ready(pipeline) == "a fresh"

    write_code(repository / "a")
    pipeline.load("a")
    pipeline.unload("a")
    pipeline.load("a")
    assert ready(pipeline) == "a fresh"

    pipeline.unload("fresh", unload_dependents=True)
    assert ready(pipeline) == "a"


def test_mistake_in_what_a_client_sends_changes_nothing(pipeline):
    pipeline.load("e")
    config = pipeline.engine.lookup("e").config_json.decode()

    error = pipeline.refusal("e", config.replace('"model_name":"b"', '"model_name":"none"'))

    assert error.message == f"load failed for model 'e': {MISSING.format('e', 'none')}\n"
    pipeline.unload("b")
    pipeline.load("b")
    assert ready(pipeline) == "a b e"
    pipeline.refusal("sent", config.replace('"e"', '"sent"').replace('"b"', '"none"'), {"1/x": b""})
    assert pipeline.rows("sent") == []
    assert pipeline.models.is_ready()


def test_step_is_stopped_only_after_the_last_request_of_the_ensemble(pipeline):
    pipeline.load("e")
    (old,) = [each for each in pipeline.loader.loaded if each.plan.name == "a"]
    sink = pipeline.submit("e")

    pipeline.unload("a")
    pipeline.run(asyncio.sleep(0.01))
    assert not old.is_retired

    pipeline.ensembles[0].stop()
    assert sink.final_count == 1
    pipeline.until(lambda: old.is_retired)
    assert not pipeline.engine.draining


def test_loads_and_unloads_at_the_same_time_end_with_all_in_order(pipeline, repository):
    pipeline.load("n")

    async def change() -> None:
        for _ in range(10):
            write_code(repository / "a")
            await asyncio.gather(
                pipeline.models.load("a", None, {}),
                pipeline.models.unload("b"),
                pipeline.models.load("n", None, {}),
                pipeline.models.load("e", None, {}),
                pipeline.models.unload("e", unload_dependents=True),
                return_exceptions=True,
            )

    pipeline.run(change())
    pipeline.load("n")

    assert ready(pipeline) == "a b c e n"
    pipeline.until(lambda: not pipeline.engine.draining)
    assert len(pipeline.loader.alive) == 3


def test_model_that_loads_an_ensemble_of_itself_while_it_is_loaded_is_refused(pipeline, repository):
    errors = []

    async def load_ensemble(plan) -> None:
        if plan.name == "a" and not errors:
            with pipeline.models.load_dependencies.add("a", "e"):
                try:
                    await pipeline.models.for_models.load("e", None, {})
                except InvalidArgumentError as error:
                    errors.append(error.message)

    pipeline.loader.on_load = load_ensemble
    pipeline.load("a")

    (message,) = errors
    assert message.endswith("waits for its own end: e -> a -> e")


# Polling


def test_poll_lets_ensembles_follow_steps_that_come_change_and_go(scene, repository):
    write_step(repository, "a")
    write_ensemble(repository, "e", "a", "b")
    it = scene(mode="poll")
    with pytest.raises(InternalError):
        it.run(it.models.start())

    write_step(repository, "b")
    it.run(it.models.poll_once())
    assert ready(it) == "a b e"
    e = it.engine.lookup("e")

    write_code(repository / "b")
    it.run(it.models.poll_once())
    assert it.engine.lookup("e") is not e

    shutil.rmtree(repository / "b")
    it.run(it.models.poll_once())
    assert ready(it) == "a"
    assert state(it, "e") == ("UNAVAILABLE", "unloaded") or state(it, "e")[0] == "UNLOADING"

    write_step(repository, "b")
    it.run(it.models.poll_once())
    assert ready(it) == "a b e"


def test_poll_that_changes_ensemble_and_step_together_leaves_no_gap(scene, repository):
    write_step(repository, "a")
    write_ensemble(repository, "e", "a")
    it = scene(mode="poll")
    it.run(it.models.start())
    write_config(repository / "a", step_config("TYPE_INT32"))
    change_ensemble(repository, "e", "a", data_type="TYPE_INT32")
    states = set()
    on_changed = it.engine.on_changed

    def look() -> None:
        states.add(next(each for each in it.engine.models() if each.spec.name == "e").state.value)
        on_changed()

    it.engine.on_changed = look
    it.run(it.models.poll_once())

    assert b"TYPE_INT32" in it.engine.lookup("e").config_json
    assert states <= {"READY", "LOADING"}
    assert ready(it) == "a e"


# Bound models


def test_ensemble_waits_for_a_model_to_be_bound_and_leaves_with_it(scene, repository):
    write_step(repository, "a")
    write_ensemble(repository, "e", "a", "bound")
    write_ensemble(repository, "n", "e")
    it = scene(mode="none", awaits_bound_models=True)
    it.run(it.models.start())
    assert ready(it) == "a"
    assert state(it, "e")[1] == f"Invalid argument: {MISSING.format('e', 'bound')}"
    assert not it.models.is_ready()

    model = bind(it, "bound")
    assert ready(it) == "a bound e n"
    assert it.models.is_ready()

    unbind(it, model)
    assert ready(it) == "a"
    assert state(it, "e") == ("UNAVAILABLE", MISSING.format("e", "bound"))
    assert not it.models.is_ready()

    bind(it, "bound")
    assert ready(it) == "a bound e n"


def test_bound_model_in_place_of_a_step_of_the_repository_is_used(scene, repository):
    write_step(repository, "a")
    write_ensemble(repository, "e", "a")
    it = scene(mode="none")
    it.run(it.models.start())
    (own,) = it.ensembles

    model = bind(it, "a")
    assert it.engine.lookup("e") is not own
    assert ready(it) == "a e"

    unbind(it, model)
    assert ready(it) == "a e"
    assert len(it.ensembles) == 3


def test_bound_model_that_does_not_fit_keeps_the_ensemble_out_of_service(scene, repository):
    write_ensemble(repository, "e", "bound")
    it = scene(mode="none", awaits_bound_models=True)
    it.run(it.models.start())

    bind(it, "bound", step_config("TYPE_INT32"))

    assert ready(it) == "bound"
    assert "inconsistent data type" in state(it, "e")[1]


def test_bound_model_that_a_client_unloads_takes_the_ensemble_with_it(scene, repository):
    write_ensemble(repository, "e", "bound")
    it = scene(mode="none", awaits_bound_models=True)
    it.run(it.models.start())
    model = bind(it, "bound")

    model.become(VersionState.UNLOADING)
    it.run(it.engine.followed())
    assert ready(it) == ""
    assert state(it, "e")[1] == "ensemble 'e' depends on 'bound' which has no loaded version."

    model.become(VersionState.UNAVAILABLE, "unloaded")
    model.become(VersionState.LOADING)
    it.engine.set_ready(model)
    it.run(it.engine.followed())
    assert ready(it) == "bound e"


def test_bound_model_is_stopped_only_after_the_last_request_of_the_ensemble(scene, repository):
    write_ensemble(repository, "e", "bound")
    it = scene(mode="none", awaits_bound_models=True)
    it.run(it.models.start())
    model = bind(it, "bound")
    sink = it.submit("e")

    unloading = it.task(it.engine.unload(model))
    it.run(asyncio.sleep(0.01))
    assert model.state is VersionState.UNLOADING

    it.ensembles[0].stop()
    assert sink.final_count == 1
    it.run(unloading)
    assert model.state is VersionState.UNAVAILABLE


def test_bound_model_is_stopped_in_time_although_an_ensemble_still_runs(scene, repository):
    write_ensemble(repository, "e", "bound")
    it = scene(mode="none", awaits_bound_models=True)
    it.run(it.models.start())
    model = bind(it, "bound")
    it.submit("e")

    it.run(it.engine.unload(model, timeout_s=0.01))

    assert model.state is VersionState.UNAVAILABLE
    it.ensembles[0].stop()


def test_ensemble_that_is_read_while_its_step_is_loaded_by_somebody_else_follows(scene, repository):
    write_step(repository, "a")
    it = scene(mode="poll")
    it.run(it.models.start())
    write_step(repository, "slow")
    it.loader.gates["slow"] = asyncio.Event()
    first = it.task(it.models.poll_once())
    it.until(lambda: it.loader.running["slow"])

    write_ensemble(repository, "e", "a", "slow")
    it.run(it.models.poll_once())
    assert ready(it) == "a"

    it.loader.gates["slow"].set()
    it.run(first)
    assert ready(it) == "a e slow"


# Unloads while an ensemble waits for its steps


def test_unload_of_an_ensemble_that_waits_for_its_steps_is_not_undone(pipeline):
    it = pipeline
    it.loader.gates["b"] = asyncio.Event()
    load = it.task(it.models.load("e", None, {}))
    it.until(lambda: it.loader.running["b"])

    it.unload("e")
    it.loader.gates["b"].set()
    with pytest.raises(UnavailableError, match="load failed for model 'e': it was given up"):
        it.run(load)

    assert ready(it) == "a b"
    assert state(it, "e") == ("", "")


def test_unload_of_a_served_ensemble_that_is_loaded_again_is_not_undone(pipeline, repository):
    it = pipeline
    it.load("n")
    write_code(repository / "b")
    it.loader.gates["b"] = asyncio.Event()
    load = it.task(it.models.load("e", None, {}))
    it.until(lambda: it.loader.running["b"])

    it.unload("e")
    it.loader.gates["b"].set()
    with pytest.raises(UnavailableError):
        it.run(load)

    it.until(lambda: ready(it) == "a b c")
    assert state(it, "e") == state(it, "n") == ("UNAVAILABLE", "unloaded")


def test_ensemble_can_be_loaded_again_after_its_load_was_given_up(pipeline):
    it = pipeline
    it.loader.gates["b"] = asyncio.Event()
    first = it.task(it.models.load("e", None, {}))
    it.until(lambda: it.loader.running["b"])
    it.unload("e")

    second = it.task(it.models.load("e", None, {}))
    it.run(asyncio.sleep(0))
    it.loader.gates["b"].set()
    it.run(second)

    assert isinstance(it.run(asyncio.gather(first, return_exceptions=True))[0], UnavailableError)
    assert ready(it) == "a b e"
