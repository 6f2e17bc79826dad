# SPDX-License-Identifier: Apache-2.0
from pytriton.triton import (
    DefaultTritonLifecyclePolicy,
    TritonLifecyclePolicy,
    VertextAILifecyclePolicy,
)


def test_default_policy_starts_at_once_and_sends_models():
    assert TritonLifecyclePolicy(True, False) == DefaultTritonLifecyclePolicy


def test_vertex_ai_policy_starts_later_and_stores_models():
    assert TritonLifecyclePolicy(False, True) == VertextAILifecyclePolicy
