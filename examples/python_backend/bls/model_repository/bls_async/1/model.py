# SPDX-License-Identifier: Apache-2.0
"""Asks two models at the same time."""

from __future__ import annotations

import asyncio

import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    async def execute(
        self, requests: list[pb_utils.InferenceRequest]
    ) -> list[pb_utils.InferenceResponse]:
        return list(await asyncio.gather(*(summarize(request) for request in requests)))


async def summarize(request: pb_utils.InferenceRequest) -> pb_utils.InferenceResponse:
    calls = (
        pb_utils.InferenceRequest(
            model_name=name, inputs=request.inputs(), requested_output_names=["RESULT"]
        )
        for name in ("mean", "median")
    )
    answers = await asyncio.gather(*(call.async_exec() for call in calls))
    for answer in answers:
        if answer.has_error():
            return pb_utils.InferenceResponse(error=answer.error())
    mean, median = (answer.output_tensors()[0].as_numpy() for answer in answers)
    return pb_utils.InferenceResponse(
        [pb_utils.Tensor("MEAN", mean), pb_utils.Tensor("MEDIAN", median)]
    )
