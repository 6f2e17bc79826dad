# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args: dict[str, str]) -> None:
        labels = {"model": args["model_name"], "version": args["model_version"]}
        # A family ends with the object that it is: a model keeps them for as long as it counts.
        self.words_family = pb_utils.MetricFamily(
            name="words_total",
            description="Words that were counted",
            kind=pb_utils.MetricFamily.COUNTER,
        )
        self.words = self.words_family.Metric(labels=labels)
        self.length_family = pb_utils.MetricFamily(
            name="text_length_words",
            description="Words of a text",
            kind=pb_utils.MetricFamily.HISTOGRAM,
        )
        self.length = self.length_family.Metric(labels=labels, buckets=[1.0, 10.0, 100.0])

    def execute(
        self, requests: list[pb_utils.InferenceRequest]
    ) -> list[pb_utils.InferenceResponse]:
        return [self.answer(request) for request in requests]

    def answer(self, request: pb_utils.InferenceRequest) -> pb_utils.InferenceResponse:
        text: bytes = request.inputs()[0].as_numpy().item()
        count = len(text.split())
        self.words.increment(count)
        self.length.observe(count)
        return pb_utils.InferenceResponse([pb_utils.Tensor("WORDS", np.array([count], np.int32))])
