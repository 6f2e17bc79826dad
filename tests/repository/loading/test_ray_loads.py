# SPDX-License-Identifier: Apache-2.0
"""Models that run on Ray: what is planned for them, and what failed loads say."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from pytriton.base.errors import InvalidArgumentError
from pytriton.runtime.executor.worker import InstanceUnavailableError, Placement
from pytriton.serving.engine.config import normalise_config
from pytriton.serving.repository.loading.python_loader import (
    check_completed,
    code_path,
    limits_of,
    with_deadline,
)
from pytriton.serving.repository.reading.backend_choice import BackendCode, CodeKind
from tests.fakes import model_spec
from tests.repository.scene import CONFIG, Scene, write_code, write_model

ON_RAY = CONFIG + 'parameters { key: "EXECUTOR" value { string_value: "ray" } }\n'
NO_ROOM = "no node had 1 GPU free within 9 s."


def plan_of(it, name="m"):
    it.load(name)
    return it.loader.loaded[-1].plan


def test_model_is_planned_for_ray_without_a_gpu_in_the_server(scene, repository):
    write_model(repository, config=CONFIG + "instance_group [ { kind: KIND_GPU count: 2 } ]")

    plan = plan_of(scene(executor="ray", ray_start_timeout_s=9.0))

    assert plan.on_ray
    assert [each.name for each in plan.instances] == ["m_0_0", "m_0_1"]
    assert {(each.kind, each.device_id) for each in plan.instances} == {("GPU", 0)}
    assert plan.instances[0].placement == Placement(num_gpus=1.0, start_timeout_s=9.0)
    assert not plan.config.instance_group[0].gpus
    assert "a folder that all nodes share" in plan.sharing


def test_gpus_of_the_server_are_not_for_models_on_ray(scene, repository):
    write_model(repository)

    plan = plan_of(scene(executor="ray", gpu_ids=(0, 1)))

    assert [each.kind for each in plan.instances] == ["CPU"]


@pytest.mark.parametrize("executor", ["local", "ray"])
def test_model_chooses_for_itself(scene, repository, executor):
    write_model(repository, config=ON_RAY)
    write_model(repository, "here", config=ON_RAY.replace('"ray"', '"local"'))
    it = scene(executor=executor)

    assert plan_of(it).on_ray
    assert plan_of(it, "here").instances[0].placement is None


def test_mistake_in_a_parameter_is_the_reason_of_the_version(scene, repository):
    config = 'parameters { key: "RAY_NUM_CPUS" value { string_value: "all" } }'
    write_model(repository, config=ON_RAY + config)

    message = scene().refusal().message

    assert (
        "Invalid argument: expected a number of at least 0 as parameter RAY_NUM_CPUS of model "
        "'m', got 'all'"
    ) in message


def test_misspelt_parameter_is_warned_about(scene, repository, caplog):
    config = 'parameters { key: "RAY_NUM_GPU" value { string_value: "1" } }'
    write_model(repository, config=ON_RAY + config)

    scene().load()

    words = "parameter RAY_NUM_GPU of model 'm' has no meaning; RAY_NUM_GPUS has one"
    assert words in caplog.messages


def test_files_of_a_client_are_known_to_be_on_this_machine_only(scene, repository):
    it = scene(executor="ray")
    it.load("m", '{"backend": "python"}', {"1/model.py": b"class TritonPythonModel: ..."})

    assert "files that a client sends" in it.loader.loaded[-1].plan.sharing


def test_reload_without_room_says_what_to_do_and_the_old_one_serves_on(scene, repository):
    directory = write_model(repository, config=ON_RAY)
    it = scene()
    it.load()
    write_code(directory)
    it.loader.failures["m", 1] = [InstanceUnavailableError(NO_ROOM)]

    message = it.refusal().message

    assert "Unavailable: no node had 1 GPU free within 9 s. What was loaded before serves on. " in (
        message
    )
    assert "needs as much room again; unload the model first" in message
    assert it.models.is_ready()


def test_first_load_without_room_speaks_of_no_reload(scene, repository):
    write_model(repository, config=ON_RAY)
    it = scene()
    it.loader.failures["m", 1] = [InstanceUnavailableError(NO_ROOM)]

    assert it.refusal().message.endswith(f"Unavailable: {NO_ROOM};\n")


def test_model_that_waits_for_room_does_not_keep_others_from_loading(scene, repository):
    write_model(repository, "waits", config=ON_RAY)
    write_model(repository, "other")
    it = scene(load_limit=1)
    it.loader.gates["waits"] = asyncio.Event()
    waiting = it.task(it.models.load("waits", None, {}))
    it.until(lambda: it.loader.running["waits"])

    it.load("other")

    assert it.engine.is_model_ready("other")
    assert not waiting.done()
    it.loader.gates["waits"].set()
    it.run(waiting)


def test_paths_are_absolute_as_nodes_have_other_working_directories(scene, repository, monkeypatch):
    write_model(repository, config=ON_RAY)
    monkeypatch.chdir(repository.parent)
    it = Scene(Path(repository.name))
    plan = plan_of(it)
    it.close()

    assert plan.model_directory == repository / "m"
    assert plan.version_directory == repository / "m" / "1"
    assert code_path(plan, plan.code) == str(repository / "m" / "1" / "model.py")


def test_request_does_not_wait_for_ever_for_an_instance_on_ray(scene, repository):
    own = 'parameters { key: "RAY_NO_INSTANCE_TIMEOUT_S" value { string_value: "0" } }'
    write_model(repository, config=ON_RAY)
    write_model(repository, "patient", config=ON_RAY + own)
    write_model(repository, "here")
    it = scene()
    spec = model_spec(batches=False)

    assert with_deadline(plan_of(it), spec).no_instance_timeout_s == 30.0
    assert with_deadline(plan_of(it, "patient"), spec) is spec
    assert with_deadline(plan_of(it, "here"), spec) is spec


def test_rate_limiter_knows_all_instances_that_a_model_may_have(scene, repository):
    needs = 'rate_limiter { resources { name: "R" count: 2 } }'
    scaled = 'parameters { key: "RAY_MAX_INSTANCES" value { string_value: "3" } }'
    write_model(repository, config=f"{ON_RAY}{scaled} instance_group [ {{ {needs} }} ]")
    plan = plan_of(scene())
    scaling = check_completed(plan, plan.config)

    assert [each.needs() for each in limits_of(plan, scaling)] == [{("R", 0): 2}] * 3
    assert len(limits_of(plan, None)) == len(plan.instances) == 1


def test_completed_configuration_may_still_be_refused(scene, repository):
    scaled = 'parameters { key: "RAY_MAX_INSTANCES" value { string_value: "3" } }'
    write_model(repository, config=ON_RAY + scaled)
    plan = plan_of(scene())
    completed = normalise_config(plan.config)
    completed.sequence_batching.SetInParent()

    with pytest.raises(InvalidArgumentError, match="it has sequence batching"):
        check_completed(plan, completed)


def test_code_of_a_user_has_the_same_path_on_a_node(scene, repository):
    write_model(repository, config=ON_RAY)
    plan = plan_of(scene())
    path = repository / "b" / "model.py"
    backend = BackendCode(kind=CodeKind.PYTHON, backend="b", path=path)

    assert code_path(plan, backend) == str(repository / "b" / "model.py")
    assert code_path(plan, plan.code) == str(repository / "m" / "1" / "model.py")


def test_backend_of_ours_is_found_within_the_package(scene, repository):
    directory = write_model(repository, config='backend: "onnxruntime"', versions=())
    (directory / "1").mkdir()
    (directory / "1" / "model.onnx").write_bytes(b"")
    plan = plan_of(scene(executor="ray"))

    assert code_path(plan, plan.code) == "pytriton:runtime/framework_backends/onnxruntime/model.py"
