# SPDX-License-Identifier: Apache-2.0
"""Which numbers and resources `Ray` accepts, and what it says of others."""

from __future__ import annotations

import pytest

from pytriton.exceptions import PyTritonBadParameterError
from pytriton.model_config import Ray


@pytest.mark.parametrize(
    "settings, minimum, maximum",
    [
        ({}, 1, 1),
        ({"count": 8}, 8, 8),
        ({"min": 2, "max": 8}, 2, 8),
        ({"max": 3}, 1, 3),
        ({"min": 4, "max": 4}, 4, 4),
    ],
)
def test_numbers_of_instances(settings, minimum, maximum):
    ray = Ray(**settings)

    assert (ray.minimum, ray.maximum) == (minimum, maximum)
    assert ray.is_scaled == (minimum != maximum)


@pytest.mark.parametrize("amount", [0, 0.25, 0.0001, 1, 1.0, 4])
def test_gpus_are_a_fraction_of_one_or_whole(amount):
    assert Ray(num_gpus=amount).num_gpus == amount


@pytest.mark.parametrize(
    "settings, problem",
    [
        ({"count": 0}, "count to be a whole number of at least 1, got 0"),
        ({"count": True}, "count to be a whole number of at least 1, got True"),
        ({"count": 2.0}, "count to be a whole number of at least 1, got 2.0"),
        ({"count": 2, "max": 3}, "either count, or min and max"),
        ({"min": 2}, "max together with min=2"),
        ({"min": 3, "max": 2}, "min to be at most max, got min=3 and max=2"),
        ({"group_size": 0}, "group_size to be a whole number of at least 1, got 0"),
        ({"group_size": None}, "group_size to be a whole number of at least 1, got None"),
        ({"num_gpus": 1.5}, "num_gpus to be a fraction below 1, or a whole number, got 1.5"),
        ({"num_gpus": -1}, "num_gpus to be a number that is 0 or at least 0.0001, got -1"),
        ({"num_gpus": 0.00001}, "num_gpus to be a number that is 0 or at least 0.0001"),
        ({"num_cpus": "2"}, "num_cpus to be a number that is 0 or at least 0.0001, got '2'"),
        ({"num_cpus": float("nan")}, "num_cpus to be a number"),
        ({"resources": ["big"]}, "resources to be a dict with amounts by name, got"),
        ({"resources": {"big": -1}}, "the resource 'big' to be a number"),
        ({"resources": {"": 1}}, "name in resources to be text that is not empty, got ''"),
        ({"resources": {"memory": 1e9}}, "resources that nodes declare with 'ray start"),
        ({"resources": {"GPU": 1}}, "num_gpus=1 in place of the resource 'GPU'"),
        ({"idempotent": "yes"}, "idempotent to be True or False, got 'yes'"),
        ({"start_timeout_s": 0}, "start_timeout_s to be a number above 0, got 0"),
        ({"target": -1}, "target to be a number above 0, got -1"),
        ({"no_instance_timeout_s": -1}, "no_instance_timeout_s to be a number of seconds"),
    ],
)
def test_other_values_are_refused_in_words(settings, problem):
    with pytest.raises(PyTritonBadParameterError) as caught:
        Ray(**settings)

    assert problem in str(caught.value)
