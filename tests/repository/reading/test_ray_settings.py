# SPDX-License-Identifier: Apache-2.0
"""What a model's parameters and instance groups mean on a Ray cluster."""

from __future__ import annotations

import pytest

from pytriton.base.errors import InvalidArgumentError
from pytriton.runtime.executor.worker import Placement
from pytriton.serving.engine.config import config_from_text, normalise_config
from pytriton.serving.repository.loading.instance_scaler import ScalingSettings
from pytriton.serving.repository.reading.backend_choice import runs_on_ray
from pytriton.serving.repository.reading.instances import (
    choose_kinds,
    completion_placement,
    ineffective_parameters,
    plan_ray_instances,
    read_scaling,
)


def config_of(text: str = "", **parameters: str):
    entries = (
        f'parameters {{ key: "{name}" value {{ string_value: "{value}" }} }}\n'
        for name, value in parameters.items()
    )
    config = config_from_text(f'name: "m" backend: "python"\n{text}\n{"".join(entries)}', "test")
    choose_kinds(config)
    return normalise_config(config)


def groups(*texts: str) -> str:
    return "instance_group [" + ",".join(f"{{ {text} }}" for text in texts) + "]"


def placements(text: str = "", **parameters: str) -> list[Placement]:
    return [plan.placement for plan in plan_ray_instances(config_of(text, **parameters))]


def refusal(text: str = "", **parameters: str) -> str:
    with pytest.raises(InvalidArgumentError) as caught:
        plan_ray_instances(config_of(text, **parameters))
    return caught.value.message


def test_count_is_the_number_of_actors():
    plans = plan_ray_instances(config_of(groups("count: 3", 'count: 1 name: "more"')))

    assert [plan.name for plan in plans] == ["m_0_0", "m_0_1", "m_0_2", "more_0"]
    assert {plan.device_id for plan in plans} == {0}


@pytest.mark.parametrize(
    "group, parameters, kind, gpus",
    [
        ("", {}, "CPU", 0.0),
        ("", {"RAY_NUM_GPUS": "2"}, "GPU", 2.0),
        ("kind: KIND_CPU", {}, "CPU", 0.0),
        ("kind: KIND_GPU", {}, "GPU", 1.0),
        ("kind: KIND_GPU", {"RAY_NUM_GPUS": "0.25"}, "GPU", 0.25),
        ("kind: KIND_MODEL", {}, "MODEL", 0.0),
        ("kind: KIND_MODEL", {"RAY_NUM_GPUS": "4"}, "MODEL", 4.0),
    ],
)
def test_kind_decides_on_gpus(group, parameters, kind, gpus):
    (plan,) = plan_ray_instances(config_of(groups(group) if group else "", **parameters))

    assert (plan.kind, plan.placement.num_gpus) == (kind, gpus)


def test_gpus_of_a_model_are_for_its_groups_that_want_them():
    text = groups("kind: KIND_CPU", "kind: KIND_GPU")

    assert [each.num_gpus for each in placements(text, RAY_NUM_GPUS="0.5")] == [0.0, 0.5]


def test_parameters_say_what_an_actor_takes():
    (placement,) = placements(
        RAY_NUM_CPUS="0.5",
        RAY_RESOURCES="disk=2, rack7=0.1",
        RAY_GROUP_SIZE="4",
        RAY_SPREAD="false",
        RAY_START_TIMEOUT_S="7.5",
    )

    assert placement == Placement(
        num_cpus=0.5,
        resources={"disk": 2.0, "rack7": 0.1},
        group_size=4,
        is_spread=False,
        start_timeout_s=7.5,
    )


def test_start_timeout_of_the_server_is_the_default():
    (plan,) = plan_ray_instances(config_of(), 33.0)

    assert plan.placement == Placement(start_timeout_s=33.0)


def test_configuration_is_completed_without_gpus_where_the_model_may_run():
    (placement,) = placements(
        RAY_NUM_GPUS="2", RAY_NUM_CPUS="8", RAY_RESOURCES="a=1", RAY_GROUP_SIZE="2"
    )

    assert completion_placement(placement) == Placement(resources={"a": 1.0})


def test_rate_limiter_and_passive_groups_are_as_ever():
    text = groups('passive: true rate_limiter { resources { name: "R" count: 2 } priority: 3 }')
    (plan,) = plan_ray_instances(config_of(text))

    assert plan.is_passive
    assert plan.limits.priority == 3


@pytest.mark.parametrize(
    "text, parameters, part",
    [
        ("", {"RAY_NUM_CPUS": "many"}, "a number of at least 0 as parameter RAY_NUM_CPUS of model"),
        ("", {"RAY_NUM_GPUS": "-1"}, "a number of at least 0 as parameter RAY_NUM_GPUS"),
        ("", {"RAY_NUM_GPUS": "1.5"}, "a whole number or one below 1 as parameter RAY_NUM_GPUS"),
        (groups("kind: KIND_GPU"), {"RAY_NUM_GPUS": "0"}, "as its instances are KIND_GPU,"),
        (groups("kind: KIND_CPU"), {"RAY_NUM_GPUS": "1"}, "have kind KIND_CPU; give them KIND_GPU"),
        (groups("kind: KIND_GPU gpus: [0, 3]"), {}, "names GPUs (0, 3), but it runs on Ray"),
        ("", {"RAY_NUM_CPUS": "0.00001"}, "0 or at least 0.0001 as parameter RAY_NUM_CPUS"),
        ("", {"RAY_RESOURCES": "disk"}, "<name>=<amount>,... with each name once and amounts"),
        ("", {"RAY_RESOURCES": "a=0.00001"}, "amounts of at least 0.0001 as parameter"),
        ("", {"RAY_RESOURCES": "a=1,a=2"}, "each name once"),
        ("", {"RAY_RESOURCES": "GPU=1"}, "not GPU; use RAY_NUM_GPUS,"),
        ("", {"RAY_GROUP_SIZE": "0"}, "an integer of at least 1 as parameter RAY_GROUP_SIZE"),
        ("", {"RAY_SPREAD": "maybe"}, "'true' or 'false' as parameter RAY_SPREAD"),
        ("", {"RAY_START_TIMEOUT_S": "0"}, "greater than 0 as parameter RAY_START_TIMEOUT_S"),
        ("", {"RAY_MIN_INSTANCES": "0"}, "at least 1 as parameter RAY_MIN_INSTANCES"),
        ("", {"RAY_MIN_INSTANCES": "3"}, "at least 3 instances, but at most 1"),
        ("", {"RAY_MIN_INSTANCES": "3"}, "the one that is missing is the count"),
        (groups("", ""), {"RAY_MAX_INSTANCES": "3"}, "need one instance group"),
        ("", {"RAY_MAX_INSTANCES": "3", "RAY_TARGET": "0"}, "as parameter RAY_TARGET"),
        (
            "max_batch_size: 4 sequence_batching { }",
            {"RAY_MAX_INSTANCES": "3"},
            "cannot be scaled from 1 to 3 instances: it has sequence batching",
        ),
    ],
)
def test_mistake_is_refused_with_what_was_expected(text, parameters, part):
    message = refusal(text, **parameters)

    assert part in message
    assert all(value in message for value in parameters.values() if value not in ("3", "1"))


def test_model_is_scaled_between_two_numbers():
    config = config_of(
        RAY_MIN_INSTANCES="2",
        RAY_MAX_INSTANCES="8",
        RAY_TARGET="1.5",
        RAY_UP_AFTER_S="0",
        RAY_DOWN_AFTER_S="30",
    )

    assert read_scaling(config) == ScalingSettings(
        minimum=2, maximum=8, target=1.5, up_after_s=0.0, down_after_s=30.0
    )
    assert [plan.name for plan in plan_ray_instances(config)] == ["m_0", "m_1"]


@pytest.mark.parametrize(
    "parameters, expected",
    [
        ({}, None),
        ({"RAY_MAX_INSTANCES": "5"}, (3, 5)),
        ({"RAY_MIN_INSTANCES": "1"}, (1, 3)),
        ({"RAY_MIN_INSTANCES": "3"}, None),
        ({"RAY_MIN_INSTANCES": "4", "RAY_MAX_INSTANCES": "4"}, (4, 4)),
    ],
)
def test_count_stands_for_the_number_that_is_not_given(parameters, expected):
    scaling = read_scaling(config_of(groups("count: 3"), **parameters))

    assert (scaling and (scaling.minimum, scaling.maximum)) == expected


def test_sequences_need_a_fixed_number_of_instances():
    text = "max_batch_size: 4 sequence_batching { }"
    plans = plan_ray_instances(config_of(text, RAY_MIN_INSTANCES="2", RAY_MAX_INSTANCES="2"))

    assert len(plans) == 2


def test_two_numbers_that_contradict_are_named_alone():
    message = refusal(RAY_MIN_INSTANCES="3", RAY_MAX_INSTANCES="2")

    assert message.endswith("at most 2: expected RAY_MIN_INSTANCES <= RAY_MAX_INSTANCES")


def test_unknown_executor_is_refused():
    text = "^expected 'local' or 'ray' as parameter EXECUTOR of model 'm', got 'slurm'$"
    with pytest.raises(InvalidArgumentError, match=text):
        runs_on_ray(config_of(EXECUTOR="slurm"), "local")


def test_misspelt_parameter_is_found_with_the_one_that_was_meant():
    config = config_of(
        RAY_NUM_GPU="1", ray_spread="true", RAY_COLOUR="x", RAY_NUM_CPUS="1", OTHER="x"
    )

    assert ineffective_parameters(config) == [
        "parameter RAY_COLOUR of model 'm' has no meaning",
        "parameter RAY_NUM_GPU of model 'm' has no meaning; RAY_NUM_GPUS has one",
        "parameter ray_spread of model 'm' has no meaning; RAY_SPREAD has one",
    ]


def test_parameter_for_scaling_needs_a_model_that_is_scaled():
    (remark,) = ineffective_parameters(config_of(RAY_TARGET="0.5"))

    assert "RAY_TARGET of model 'm' has no effect without RAY_MIN_INSTANCES" in remark
    assert not ineffective_parameters(config_of(RAY_TARGET="0.5", RAY_MAX_INSTANCES="2"))


@pytest.mark.parametrize(
    "parameters, default, expected",
    [
        ({}, "local", False),
        ({}, "ray", True),
        ({"EXECUTOR": "local"}, "ray", False),
        ({"EXECUTOR": "ray"}, "local", True),
    ],
)
def test_parameter_of_a_model_chooses_the_executor(parameters, default, expected):
    assert runs_on_ray(config_of(**parameters), default) is expected


def test_ensemble_has_no_instances_on_ray():
    assert not runs_on_ray(config_from_text('name: "e" platform: "ensemble"', "test"), "ray")
