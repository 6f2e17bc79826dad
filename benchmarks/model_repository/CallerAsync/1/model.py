# SPDX-License-Identifier: Apache-2.0
"""Lets AddSub compute: calls of another model at the same time, as a Python-backend model."""

import asyncio

import triton_python_backend_utils as pb_utils


async def call_add_sub(request):
    call = pb_utils.InferenceRequest(
        model_name="AddSub",
        requested_output_names=["add", "sub"],
        inputs=[pb_utils.get_input_tensor_by_name(request, name) for name in ("a", "b")],
    )
    answer = await call.async_exec()
    if answer.has_error():
        return pb_utils.InferenceResponse(error=answer.error())
    return pb_utils.InferenceResponse(output_tensors=answer.output_tensors())


class TritonPythonModel:
    """What the Python backend looks for."""

    async def execute(self, requests):
        return await asyncio.gather(*(call_add_sub(request) for request in requests))
