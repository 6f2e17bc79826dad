# SPDX-License-Identifier: Apache-2.0
"""Answers with what a model sees of `triton_python_backend_utils`, one group at a time."""

import json

import numpy as np
import triton_python_backend_utils as pb_utils

from . import (
    bls_facts,
    control_facts,
    helper_facts,
    life_facts,
    metric_facts,
    request_facts,
    response_facts,
    tensor_facts,
)
from .observing import observe

MODULES = (
    bls_facts,
    control_facts,
    helper_facts,
    life_facts,
    metric_facts,
    request_facts,
    response_facts,
    tensor_facts,
)
GROUPS = {name: group for module in MODULES for name, group in module.GROUPS.items()}


class TritonPythonModel:
    """Runs the group of facts that a request names."""

    def initialize(self, args):
        life_facts.seen_args.update(args)

    def execute(self, requests):
        return [self._answer(request) for request in requests]

    def _answer(self, request):
        group = pb_utils.get_input_tensor_by_name(request, "GROUP").as_numpy()[0].decode()
        left_out = pb_utils.get_input_tensor_by_name(request, "LEFT_OUT").as_numpy().tolist()
        facts = {
            name: observe(fact)
            for name, fact in GROUPS[group](request).items()
            if name.encode() not in left_out
        }
        text = np.array([json.dumps(facts)], dtype=object)
        return pb_utils.InferenceResponse([pb_utils.Tensor("FACTS", text)])
