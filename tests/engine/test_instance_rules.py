# SPDX-License-Identifier: Apache-2.0
"""The parameters for requests whose instance is lost, or that have no instance."""

from __future__ import annotations

import pytest

from pytriton.base.errors import InvalidArgumentError
from pytriton.base.sent_specs import decode_spec, encode_spec
from pytriton.serving.engine.config import config_from_text, normalise_config, spec_from_config

SEQUENCES = "sequence_batching { }"


def spec(parameters, more=""):
    text = f'name: "m" backend: "python" {more}' + "".join(
        f' parameters {{ key: "{key}" value {{ string_value: "{value}" }} }}'
        for key, value in parameters.items()
    )
    return spec_from_config(normalise_config(config_from_text(text, "config.pbtxt")), 1)


def test_model_without_parameters_executes_nothing_again_and_waits_for_any_time():
    one = spec({})

    assert (one.is_idempotent, one.no_instance_timeout_s) == (False, 0.0)


@pytest.mark.parametrize("text, expected", [("true", True), ("False", False), (" TRUE ", True)])
def test_parameter_says_whether_requests_may_run_again(text, expected):
    assert spec({"IDEMPOTENT": text}).is_idempotent is expected


def test_parameter_says_how_long_requests_wait_without_an_instance():
    one = spec({"RAY_NO_INSTANCE_TIMEOUT_S": "2.5"})

    assert one.no_instance_timeout_s == 2.5
    assert decode_spec(encode_spec(one)) == one


ANSWER = "expected 'true' or 'false' as parameter IDEMPOTENT of model 'm', got '{}'"
SECONDS = (
    "expected a number of seconds as parameter RAY_NO_INSTANCE_TIMEOUT_S of model 'm', got '{}'"
)


@pytest.mark.parametrize(
    "name, text, words",
    [
        ("IDEMPOTENT", "yes", ANSWER),
        ("IDEMPOTENT", "", ANSWER),
        ("RAY_NO_INSTANCE_TIMEOUT_S", "soon", SECONDS),
        ("RAY_NO_INSTANCE_TIMEOUT_S", "-1", SECONDS),
        ("RAY_NO_INSTANCE_TIMEOUT_S", "inf", SECONDS),
    ],
)
def test_wrong_parameter_is_refused_in_words(name, text, words):
    with pytest.raises(InvalidArgumentError) as refusal:
        spec({name: text})

    assert refusal.value.message == words.format(text)


def test_model_with_sequences_cannot_be_idempotent():
    with pytest.raises(InvalidArgumentError) as refusal:
        spec({"IDEMPOTENT": "true"}, SEQUENCES)

    assert refusal.value.message == (
        "parameter IDEMPOTENT of model 'm' cannot be 'true': its requests belong to sequences, "
        "and the state of a sequence ends with its instance"
    )
    assert not spec({"IDEMPOTENT": "false"}, SEQUENCES).is_idempotent
