# SPDX-License-Identifier: Apache-2.0
"""What a bound model tells the rate limiter, as a message and back."""

from __future__ import annotations

import pytest

from pytriton.exceptions import PyTritonBadParameterError
from pytriton.model_config import DeviceKind, ModelConfig, RateLimiter, RateLimiterResource
from pytriton.model_config.generator import ModelConfigGenerator
from pytriton.model_config.parser import ModelConfigParser
from pytriton.model_config.triton_model_config import TritonModelConfig

LIMITER = RateLimiter(
    [RateLimiterResource("memory", 3, is_global=True), RateLimiterResource("lane", 1)], priority=2
)


def config_of(limiter):
    group = {DeviceKind.KIND_CPU: 2}
    return TritonModelConfig(model_name="m", instance_group=group, rate_limiter=limiter)


def test_limiter_is_a_part_of_the_instance_group():
    (group,) = ModelConfigGenerator(config_of(LIMITER)).get_config()["instance_group"]

    assert group == {
        "kind": "KIND_CPU",
        "count": 2,
        "rate_limiter": {
            "resources": [
                {"name": "memory", "count": 3, "global": True},
                {"name": "lane", "count": 1},
            ],
            "priority": 2,
        },
    }


def test_model_without_limiter_has_none_in_its_group():
    (group,) = ModelConfigGenerator(config_of(None)).get_config()["instance_group"]

    assert group == {"kind": "KIND_CPU", "count": 2}
    assert ModelConfigParser.from_dict({"name": "m", "instance_group": [group]}) == (
        TritonModelConfig(
            model_name="m",
            max_batch_size=0,
            batching=False,
            instance_group={DeviceKind.KIND_CPU: 2},
        )
    )


def test_limiter_is_read_back_from_a_file(tmp_path):
    ModelConfigGenerator(config_of(LIMITER)).to_file(tmp_path / "config.pbtxt")

    read = ModelConfigParser.from_file(config_path=tmp_path / "config.pbtxt")

    assert read.rate_limiter == LIMITER


@pytest.mark.parametrize(
    "limiter, message",
    [
        (RateLimiter([RateLimiterResource("R", -1)]), "count of at least 0 for the resource 'R'"),
        (RateLimiter(priority=0), "priority of at least 1 for the rate limiter, got 0"),
    ],
)
def test_values_out_of_range_are_refused(limiter, message):
    with pytest.raises(PyTritonBadParameterError, match=message):
        ModelConfigGenerator(config_of(limiter)).get_config()


@pytest.mark.parametrize(
    "make",
    [
        lambda: RateLimiter("memory"),
        lambda: RateLimiter([("memory", 1)]),
        lambda: ModelConfig(rate_limiter=RateLimiterResource("memory", 1)),
    ],
)
def test_objects_of_another_kind_are_refused_where_they_are_written(make):
    with pytest.raises(PyTritonBadParameterError, match="Expected an object of RateLimiter"):
        make()
