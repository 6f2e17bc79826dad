# SPDX-License-Identifier: Apache-2.0
"""What a model's configuration may say about its metrics."""

from __future__ import annotations

import pytest

from pytriton.base.errors import InvalidArgumentError
from pytriton.serving.engine.config import (
    config_from_text,
    normalise_config,
    spec_from_config,
    validate_config,
)

MODEL = 'name: "m" backend: "python" '
FAMILY = 'metric_identifier { family: "f" } '


def config(text, gpu_ids=()):
    return normalise_config(config_from_text(MODEL + text, "config.pbtxt"), gpu_ids)


def control(text):
    return f"model_metrics {{ metric_control {{ {text} }} }}"


@pytest.mark.parametrize(
    "text,expected",
    [
        (control(""), "metric control must specify 'metric_identifier'"),
        (
            control("metric_identifier { }"),
            "metric identifier must specify non-empty 'family'",
        ),
        (control(FAMILY), "metric control must specify 'histogram_options'"),
        (
            control(FAMILY + "histogram_options { }"),
            "histogram options must specify non-empty 'buckets'",
        ),
        (
            control(FAMILY + "histogram_options { buckets: [ 2, 1 ] }"),
            "the buckets of 'f' must be finite numbers in ascending order for m",
        ),
        (
            control(FAMILY + "histogram_options { buckets: [ 1, inf ] }"),
            "the buckets of 'f' must be finite numbers in ascending order for m",
        ),
    ],
)
def test_wrong_setting_is_refused(text, expected):
    with pytest.raises(InvalidArgumentError) as caught:
        validate_config(config(text))

    assert caught.value.message == expected


@pytest.mark.parametrize("tag", ["a b", "_a", "a-b", "é"])
def test_tag_that_can_be_no_label_is_refused(tag):
    with pytest.raises(InvalidArgumentError) as caught:  # it ends the real Triton's process
        validate_config(config(f'metric_tags {{ key: "{tag}" value: "x" }}'))

    assert caught.value.message == (
        f"metric tag '{tag}' must have only letters, digits and underscores, and must not begin "
        "with an underscore for m"
    )


def test_settings_reach_the_model():
    text = control(FAMILY + "histogram_options { buckets: [ 0.5, 1 ] }")
    good = config(text + ' metric_tags { key: "team" value: "blue" }')
    validate_config(good)
    spec = spec_from_config(good, 1)

    assert spec.histogram_buckets == {"f": (0.5, 1.0)}
    assert spec.metric_tags == {"team": "blue"}


@pytest.mark.parametrize(
    "groups,expected",
    [
        ("", None),
        ("instance_group [ { kind: KIND_GPU gpus: [ 1 ] count: 3 } ]", 1),
        ("instance_group [ { kind: KIND_GPU gpus: [ 0, 1 ] } ]", None),
        ("instance_group [ { kind: KIND_GPU gpus: [ 1 ] }, { kind: KIND_CPU } ]", None),
    ],
)
def test_device_of_a_model_is_known_if_it_is_one(groups, expected):
    gpu_ids = (0, 1) if groups else ()

    assert spec_from_config(config(groups, gpu_ids), 1).gpu == expected
