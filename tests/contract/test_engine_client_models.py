# SPDX-License-Identifier: Apache-2.0
"""Models and questions through an engine's client, in its process and over a front end."""

from __future__ import annotations

import asyncio

import pytest

from pytriton.base.errors import (
    InternalError,
    InvalidArgumentError,
    NotFoundError,
    ServerError,
    UnavailableError,
    resource_error,
)
from pytriton.serving.engine.client import IndexEntry
from pytriton.serving.engine.model import Model, VersionState
from pytriton.serving.server.api.local_client import LocalClient
from tests.column_rig import DoublingInstance
from tests.contract.seam import doubled, doubling_spec
from tests.fakes import FakeInstance, FakeSupervisor

ONES = [[1, 2], [3, 4], [5, 6]]


def error_of(seam, answer):
    with pytest.raises(ServerError) as raised:
        seam.ask(answer() if callable(answer) else answer)
    return type(raised.value), raised.value.message


# Models


def test_lookup_finds_the_newest_ready_version(seam):
    for version in (1, 3, 2):
        seam.doubling(version=version)
    loading = Model(doubling_spec(version=4), seam.loop)
    seam.engine.add(loading)
    seam.run()

    assert seam.client.lookup("m").spec.version == 3
    assert seam.client.lookup("m", "1").spec.version == 1
    assert seam.client.ready_versions("m") == [1, 2, 3]
    assert seam.client.find("m", "4") is None
    assert seam.client.find("n") is None
    text = "Request for unknown model: 'm' version 4 is not at ready state"
    assert error_of(seam, lambda: seam.client.lookup("m", "4"))[1] == text


def test_model_shows_the_same_properties(seam):
    spec = doubling_spec(labels={"x": ("cat", "dog")})
    model = Model(spec, seam.loop, config_json=b'{"a": 1}', is_bound=True)
    seam.serve(model, [FakeInstance("m_0_0", model)])
    found = seam.client.lookup("m")

    assert found.spec == spec
    assert (found.config_json, found.is_bound, found.takes_columns) == (b'{"a": 1}', True, True)
    assert (found.state, found.is_ready, found.reason) == (VersionState.READY, True, "")
    assert not found.is_withdrawn


def test_model_that_lost_an_instance_serves_but_is_not_ready(seam):
    model = Model(doubling_spec(), seam.loop, supervisor=FakeSupervisor(replaces=True))
    instances = [DoublingInstance(f"m_0_{number}", model) for number in range(2)]
    seam.serve(model, instances)
    instances[0].die()
    seam.run()

    assert seam.client.lookup("m").state is VersionState.READY
    assert not seam.client.lookup("m").is_ready
    assert seam.ask(seam.client.ask(LocalClient.is_model_ready, name="m", version="")) is False
    call = seam.infer()
    seam.run()
    seam.finish(instances[1])
    assert call.values == doubled([1, 2])


def test_bound_model_hides_those_of_repositories_until_it_is_unbound(seam):
    seam.doubling(version=1)
    bound = Model(doubling_spec(version=7), seam.loop, is_bound=True)
    seam.serve(bound, [FakeInstance("m_0_0", bound)])
    hidden = seam.client.ready_versions("m")
    seam.engine.remove(bound)
    seam.run()

    assert hidden == [7]
    assert seam.client.ready_versions("m") == [1]


# Models that change while requests are on their way


def replace(seam, model, max_batch_size=8):
    """Replace a model by one that is ready, as a reload does: in one step."""
    new = Model(doubling_spec(max_batch_size), seam.loop)
    instance = DoublingInstance("m_1_0", new)
    new.add_instance(instance)
    seam.engine.add(new)
    seam.engine.set_ready(new)
    draining = seam.loop.create_task(seam.engine.unload(model))
    return instance, draining


def test_requests_on_their_way_get_the_model_that_has_replaced_theirs(seam):
    model, (old,) = seam.doubling()
    accepted = seam.infer([1, 2])
    seam.run()
    on_its_way = seam.infer([3, 4])
    chunk, _ = seam.chunk(ONES)
    new, draining = replace(seam, model)
    seam.run()
    seam.finish(old, new)
    seam.loop.run_until_complete(draining)

    assert accepted.values == doubled([1, 2])
    assert on_its_way.values == doubled([3, 4])
    assert seam.ends.of(chunk) == [doubled(each) for each in ONES]
    assert len(new.frames) == (1 if seam.is_remote else 0)


def test_members_of_other_rows_priority_and_outputs_are_submitted_again(seam):
    model, (old,) = seam.doubling()
    values = [[1, 2, 3, 4], [5, 6]]
    chunk, members = seam.chunk(values, details=[{}, {"priority": 1}], wanted=("y",))
    kept = [(each.request.fields.priority, each.request.rows) for each in members]
    new, draining = replace(seam, model)
    seam.run()
    seam.finish(old, new)
    seam.loop.run_until_complete(draining)

    assert seam.ends.of(chunk) == [doubled(each, ("y",)) for each in values]
    assert [(each.request.fields.priority, each.request.rows) for each in members] == kept


def test_request_on_its_way_that_the_new_model_does_not_take_is_refused(seam):
    model, (old,) = seam.doubling()
    call = seam.infer([1, 2, 3, 4])
    chunk, _ = seam.chunk([[1, 2, 3, 4]])
    new, draining = replace(seam, model, max_batch_size=1)
    seam.run()
    seam.finish(old, new)
    seam.loop.run_until_complete(draining)

    if not seam.is_remote:
        assert call.is_over
        return
    text = "[request id: <id_unknown>] inference request batch-size must be <= 1 for 'm'"
    assert call.error == f"refused: {text}"
    assert seam.ends.of(chunk) == [("refused", text)]


def test_requests_on_their_way_to_an_unloaded_model_are_refused(seam):
    model, (old,) = seam.doubling()
    call = seam.infer()
    chunk, _ = seam.chunk(ONES)
    unloading = seam.loop.create_task(seam.engine.unload(model))
    seam.run()
    seam.finish(old)
    seam.loop.run_until_complete(unloading)

    if seam.is_remote:
        text = "Request for unknown model: 'm' is not found"
        assert call.error == f"refused: {text}"
        assert seam.ends.of(chunk) == [("refused", text)] * 3
    assert seam.client.find("m") is None


def test_requests_on_their_way_to_a_model_that_broke_hear_why(seam):
    model, _ = seam.doubling()
    call = seam.infer(model_version="1")
    chunk, _ = seam.chunk(ONES)
    model.give_up("it broke")
    seam.run()

    if seam.is_remote:
        error = "Request for unknown model: 'm' version 1 is not at ready state"
        assert call.error == f"refused: {error} (version 1: it broke)"
        assert {kind for kind, _ in seam.ends.of(chunk)} == {"refused"}
    assert call.is_over


def test_cancelled_requests_on_their_way_are_not_submitted_again(seam):
    model, (old,) = seam.doubling()
    call = seam.infer()
    chunk, members = seam.chunk(ONES)
    new, draining = replace(seam, model)
    call.inference.cancel()
    members[1].cancel()
    seam.run()
    seam.finish(old, new)
    seam.loop.run_until_complete(draining)

    assert (call.error, seam.ends.of(chunk)[1]) == ("", ("failed", ""))
    assert seam.ends.of(chunk)[::2] == [doubled(each) for each in ONES[::2]]


def test_member_that_was_submitted_again_can_be_cancelled(seam):
    model, (old,) = seam.doubling(max_batch_size=1)
    _, members = seam.chunk(ONES)
    new, draining = replace(seam, model, max_batch_size=1)
    seam.run()
    members[2].cancel()
    seam.run()
    instance = new if seam.is_remote else old

    assert members[2].is_over
    seam.finish(instance)
    seam.loop.run_until_complete(draining)


def test_signature_of_a_model_that_was_replaced_is_forgotten(seam):
    model, (old,) = seam.doubling()
    seam.chunk(ONES)
    seam.run()
    seam.finish(old)
    new, draining = replace(seam, model)
    seam.loop.run_until_complete(draining)
    seam.run()
    if seam.is_remote:
        assert seam.front_ends[0].session._signatures == {}
    chunk, _ = seam.chunk(ONES)
    seam.run()
    seam.finish(new)

    assert seam.ends.of(chunk) == [doubled(each) for each in ONES]


# Questions


def test_statistics_are_those_of_the_engine(seam):
    _, (instance,) = seam.doubling()
    seam.doubling(version=2)
    seam.infer(model_version="1")
    seam.run()
    seam.finish(instance)
    every = seam.ask(seam.client.ask(LocalClient.statistics))
    (first,) = seam.ask(seam.client.ask(LocalClient.statistics, name="m", version="1"))

    assert [entry["version"] for entry in every] == ["1", "2"]
    assert every == seam.local.statistics()
    assert int(first["inference_stats"]["success"]["count"]) == 1


@pytest.mark.parametrize(
    "arguments, text",
    [
        ({"name": "n"}, "requested model 'n' is not available"),
        ({"name": "m", "version": "9"}, "requested model version is not available for model 'm'"),
    ],
)
def test_statistics_of_unknown_models_are_an_error(seam, arguments, text):
    seam.doubling()

    found = error_of(seam, lambda: seam.client.ask(LocalClient.statistics, **arguments))
    assert found == (InvalidArgumentError, text)


def test_clients_may_ask_for_any_bytes(seam):
    seam.doubling(name="größe")
    seam.run()

    assert seam.ask(seam.client.ask(LocalClient.is_model_ready, name="größe", version="")) is True
    assert (
        seam.ask(seam.client.ask(LocalClient.is_model_ready, name="gr\udcff\udcc3e", version=""))
        is False
    )


def test_readiness_is_that_of_the_engine(seam):
    model, _ = seam.doubling()
    assert seam.client.is_serving()
    assert seam.ask(seam.client.ask(LocalClient.is_ready)) is True
    assert seam.ask(seam.client.ask(LocalClient.problem)) == ""
    assert seam.ask(seam.client.ask(LocalClient.is_model_ready, name="m", version="1")) is True
    assert seam.ask(seam.client.ask(LocalClient.is_model_ready, name="n", version="")) is False
    seam.control.entries = [IndexEntry("m", "1", "UNAVAILABLE", "it broke")]
    model.give_up("it broke")
    seam.run()

    assert not seam.client.is_serving()
    assert seam.ask(seam.client.ask(LocalClient.is_ready)) is False
    assert "it broke" in seam.ask(seam.client.ask(LocalClient.problem))
    assert seam.ask(seam.client.ask(LocalClient.is_model_ready, name="m", version="1")) is False
    found = error_of(
        seam, lambda: seam.client.ask(LocalClient.is_model_ready, name="m", version="x")
    )
    assert found[0] is InvalidArgumentError


def test_server_that_will_exit_is_not_ready_and_still_serves(seam):
    _, (instance,) = seam.doubling()
    seam.engine.begin_exit()
    seam.run()
    call = seam.infer()
    seam.run()
    seam.finish(instance)

    assert not seam.client.is_serving()
    assert seam.ask(seam.client.ask(LocalClient.is_ready)) is False
    assert call.values == doubled([1, 2])


def test_readiness_check_of_a_model_is_asked(seam):
    answers = [True, False]

    async def check():
        await asyncio.sleep(0)
        return answers.pop(0)

    model = Model(doubling_spec(), seam.loop, supervisor=FakeSupervisor(check))
    seam.serve(model, [FakeInstance("m_0_0", model)])

    assert seam.ask(seam.client.ask(LocalClient.is_model_ready, name="m", version="")) is True
    assert seam.ask(seam.client.lookup("m").check_ready()) is False


def test_readiness_that_only_the_control_knows_is_told_at_the_second_question(seam):
    seam.doubling()
    seam.control.is_serving = False
    seam.client.is_serving()
    seam.run()

    assert not seam.client.is_serving()
    seam.run()


def test_index_is_that_of_the_control(seam):
    seam.control.entries = [
        IndexEntry("a", "1", "READY"),
        IndexEntry("b", "1", "UNAVAILABLE", "no"),
        IndexEntry("never"),
    ]

    assert seam.ask(seam.client.ask(LocalClient.index)) == seam.control.entries
    assert seam.ask(seam.client.ask(LocalClient.index, ready=True)) == seam.control.entries[:1]


def test_answer_that_cannot_be_sent_is_an_error_and_others_are_answered(seam):
    if not seam.is_remote:
        pytest.skip("nothing is sent")
    seam.control.entries = [IndexEntry("a", "1", "UNAVAILABLE", "no file '\udcff'")]

    assert error_of(seam, seam.client.ask(LocalClient.index))[0] is InternalError
    assert seam.ask(seam.client.ask(LocalClient.is_ready)) is True


def test_long_index_is_answered(seam):
    seam.control.entries = [IndexEntry(f"model {n}", "1", "READY", "r" * 50) for n in range(5000)]

    assert seam.ask(seam.client.ask(LocalClient.index)) == seam.control.entries


def test_trace_settings_are_changed_and_told(seam):
    seam.doubling()
    changed = seam.ask(
        seam.client.ask(
            LocalClient.change_trace_settings, model_name="m", changes={"trace_rate": ["7"]}
        )
    )
    every = seam.ask(seam.client.ask(LocalClient.change_trace_settings, model_name="", changes={}))

    assert changed["trace_rate"] == ["7"]
    assert every["trace_rate"] == ["0"]
    assert error_of(
        seam, lambda: seam.client.ask(LocalClient.change_trace_settings, model_name="n", changes={})
    ) == (
        InvalidArgumentError,
        "Request for unknown model : n",
    )


def test_load_and_unload_reach_the_control(seam):
    files = {"1/model.py": b"x" * 200_000, "config.pbtxt": b""}
    seam.ask(seam.client.ask(LocalClient.load, name="m", config='{"name": "m"}', files=files))
    seam.ask(seam.client.ask(LocalClient.unload, name="m", unload_dependents=True))
    seam.ask(seam.client.ask(LocalClient.load, name="n", config=None, files={}))

    assert seam.control.calls == [
        ("load", "m", '{"name": "m"}', files),
        ("unload", "m", True),
        ("load", "n", None, {}),
    ]


@pytest.mark.parametrize(
    "failure", [NotFoundError("no \udcff model"), InternalError("broken"), ValueError("odd")]
)
def test_load_that_fails_reports_the_error(seam, failure):
    def fail():
        raise failure

    seam.control.work = fail
    if isinstance(failure, ServerError):
        kind, text = error_of(
            seam, seam.client.ask(LocalClient.load, name="m", config=None, files={})
        )
        assert kind is type(failure)
        assert text.replace("\\udcff", "\udcff") == failure.message
    else:
        with pytest.raises((ValueError, InternalError), match=r"odd|its log says more"):
            seam.ask(seam.client.ask(LocalClient.load, name="m", config=None, files={}))


def test_load_without_a_thread_for_it_is_a_lack_of_resources(seam, caplog):
    def fail():
        raise RuntimeError("can't start new thread")

    seam.control.work = fail
    with pytest.raises((RuntimeError, UnavailableError)) as caught:
        seam.ask(seam.client.ask(LocalClient.load, name="m", config=None, files={}))

    # The protocols answer both alike; the traceback of the first is no news for a log.
    error = resource_error(caught.value) or caught.value
    assert isinstance(error, UnavailableError)
    assert error.message == "the server has no threads left"
    assert not caplog.records


def test_answered_load_means_that_every_front_end_serves_the_model(seam):
    others = [seam.add_front_end().client for _ in range(2)] if seam.is_remote else []

    def load():
        model = Model(doubling_spec(), seam.loop)
        seam.engine.add(model)
        model.add_instance(FakeInstance("m_0_0", model))
        seam.engine.set_ready(model)

    def unload():
        seam.engine.remove(next(seam.engine.models()))

    seam.control.work = load
    seam.ask(seam.client.ask(LocalClient.load, name="m", config=None, files={}))
    assert all(client.find("m") is not None for client in [seam.client, *others])
    seam.control.work = unload
    seam.ask(seam.client.ask(LocalClient.unload, name="m"))
    assert all(client.find("m") is None for client in [seam.client, *others])


def test_front_end_that_ends_does_not_keep_a_load_from_its_answer(seam):
    if not seam.is_remote:
        pytest.skip("there is no front end")
    other = seam.add_front_end()
    seam.run()
    other.link._channel.stop_watching()  # it takes no registry any more

    def load():
        model = Model(doubling_spec(), seam.loop)
        seam.engine.add(model)

    seam.control.work = load
    loading = seam.loop.create_task(
        seam.client.ask(LocalClient.load, name="m", config=None, files={})
    )
    seam.run()
    assert not loading.done()
    other.close()
    seam.front_ends.remove(other)
    seam.run()

    assert loading.done()
    loading.result()
