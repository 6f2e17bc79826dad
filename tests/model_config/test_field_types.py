# SPDX-License-Identifier: Apache-2.0
"""Settings of a wrong type are refused where they are written, with what was expected."""

from __future__ import annotations

import numpy as np
import pytest

from pytriton.exceptions import PyTritonBadParameterError
from pytriton.model_config import (
    DynamicBatcher,
    ModelConfig,
    QueuePolicy,
    RateLimiter,
    RateLimiterResource,
)
from pytriton.model_config.common import ModelWarmup, WarmupInput

DATA = WarmupInput(np.float32, (1,), zero_data=True)


@pytest.mark.parametrize(
    "make, expected, got",
    [
        (lambda: ModelConfig(max_batch_size="8"), "an integer as max_batch_size of", "'8'"),
        (lambda: ModelConfig(max_batch_size=8.0), "an integer as max_batch_size of", "8.0"),
        (lambda: ModelConfig(max_batch_size=None), "an integer as max_batch_size of", "None"),
        (lambda: ModelConfig(max_batch_size=True), "an integer as max_batch_size of", "True"),
        (lambda: ModelConfig("yes"), "True or False as batching of ModelConfig", "'yes'"),
        (lambda: ModelConfig(decoupled="no"), "True or False as decoupled of", "'no'"),
        (lambda: ModelConfig(response_cache=2), "True or False as response_cache of", "2"),
        (lambda: ModelConfig(batcher=True), "DynamicBatcher as batcher of ModelConfig", "True"),
        (lambda: ModelConfig(batcher=DynamicBatcher), "DynamicBatcher as batcher", "<class"),
        (lambda: ModelConfig(model_warmup=5), "a list of ModelWarmup as model_warmup", "5"),
        (lambda: ModelConfig(model_warmup=["w"]), "a list of ModelWarmup as", r"\['w'\]"),
        (lambda: ModelConfig(sequence=True), "SequenceBatcher as sequence", "True"),
        (lambda: ModelConfig(rate_limiter=1), "RateLimiter as rate_limiter", "1"),
        (lambda: ModelConfig(openai=5), "", "5"),
        (
            lambda: DynamicBatcher("1000"),
            "an integer as max_queue_delay_microseconds of DynamicBatcher",
            "'1000'",
        ),
        (lambda: DynamicBatcher(0.5), "an integer as max_queue_delay_microseconds of", "0.5"),
        (lambda: DynamicBatcher(preferred_batch_size=4), "a list of integers as preferred", "4"),
        (lambda: DynamicBatcher(preferred_batch_size="48"), "a list of integers as", "'48'"),
        (lambda: DynamicBatcher(preferred_batch_size=[4.5]), "a list of integers", r"\[4.5\]"),
        (lambda: DynamicBatcher(default_queue_policy={}), "QueuePolicy as default_q", "{}"),
        (lambda: DynamicBatcher(priority_queue_policy=[]), "dict as priority_queue", r"\[\]"),
        (lambda: DynamicBatcher(priority_queue_policy={1: 2}), "QueuePolicy as policy of", "2"),
        (lambda: QueuePolicy("REJECT"), "TimeoutAction as timeout_action", "'REJECT'"),
        (lambda: QueuePolicy(max_queue_size="9"), "an integer as max_queue_size of", "'9'"),
        (lambda: ModelWarmup("w", "1", {}, 1), "an integer as batch_size of ModelWarmup", "'1'"),
        (lambda: ModelWarmup("w", 1, [DATA], 1), "dict as inputs of a warm-up", r"\["),
        (lambda: ModelWarmup("w", 1, {"x": 1}, 1), "WarmupInput as data of an input", "1"),
        (lambda: RateLimiterResource("r", "2"), "an integer as count of", "'2'"),
        (lambda: RateLimiter(priority="2"), "an integer as priority of RateLimiter", "'2'"),
    ],
)
def test_setting_of_a_wrong_type_names_field_expectation_and_value(make, expected, got):
    with pytest.raises(PyTritonBadParameterError, match=f"{expected}.*got {got}"):
        make()


def test_settings_may_be_numpys_and_tuples():
    config = ModelConfig(
        np.True_,
        np.int64(8),
        DynamicBatcher(np.uint32(5), preferred_batch_size=(np.int32(4), 8)),
        decoupled=1,
        model_warmup=(ModelWarmup("w", np.int8(1), {"x": DATA}, 2),),
    )

    assert config.batching is config.decoupled is True
    assert type(config.max_batch_size) is type(config.batcher.max_queue_delay_microseconds) is int
    assert ModelConfig(batcher=None, model_warmup=None).batcher is None
