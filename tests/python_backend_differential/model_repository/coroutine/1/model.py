# SPDX-License-Identifier: Apache-2.0
"""A coroutine for execute, coupled or decoupled as its configuration says."""

import asyncio
import json
import threading

import numpy as np
import triton_python_backend_utils as pb_utils


def request_to(model, name, value):
    tensor = pb_utils.Tensor(name, np.array([value], np.int32))
    return pb_utils.InferenceRequest(
        model_name=model, inputs=[tensor], requested_output_names=["OUT"]
    )


def numbers(response):
    if response.has_error():
        return response.error().message()
    return [tensor.as_numpy().tolist() for tensor in response.output_tensors()]


async def one_call():
    return numbers(await request_to("renamed", "NUMBERS", 1).async_exec())


async def gathered():
    calls = [request_to("renamed", "NUMBERS", value).async_exec() for value in range(3)]
    return [numbers(response) for response in await asyncio.gather(*calls)]


async def iterated():
    responses = await request_to("square", "IN", 2).async_exec(decoupled=True)
    return [numbers(response) for response in responses]


async def of_coupled():
    responses = await request_to("renamed", "NUMBERS", 4).async_exec(decoupled=True)
    return [numbers(response) for response in responses]


async def unknown():
    return numbers(await request_to("nowhere", "IN", 2).async_exec())


async def decoupled_wrongly():
    return numbers(await request_to("square", "IN", 2).async_exec())


async def plain_exec():
    return numbers(request_to("renamed", "NUMBERS", 8).exec())


async def nested():
    task = asyncio.create_task(one_call())
    return [await task, await asyncio.wait_for(one_call(), 20)]


async def where():
    return [
        type(asyncio.get_running_loop()).__name__ != "",
        threading.current_thread() is threading.main_thread(),
        threading.current_thread().daemon,
    ]


async def same_loop():
    return asyncio.get_running_loop() is asyncio.get_event_loop()


async def failing():
    await asyncio.sleep(0)
    raise ValueError("in a coroutine")


SCRIPTS = {
    "one call": one_call,
    "gathered": gathered,
    "iterated": iterated,
    "of a coupled model": of_coupled,
    "unknown model": unknown,
    "decoupled without saying so": decoupled_wrongly,
    "exec that waits": plain_exec,
    "nested": nested,
    "where it runs": where,
    "loop": same_loop,
    "failing": failing,
}


class TritonPythonModel:
    """Follows scripts."""

    def initialize(self, args):
        config = json.loads(args["model_config"])
        self.is_decoupled = pb_utils.using_decoupled_model_transaction_policy(config)

    async def execute(self, requests):
        script = requests[0].inputs()[0].as_numpy()[0].decode()
        if script == "wrong return":
            return "text"
        text = json.dumps(await SCRIPTS[script]())
        answer = pb_utils.InferenceResponse(
            [pb_utils.Tensor("OUT", np.array([text], dtype=object))]
        )
        if not self.is_decoupled:
            return [answer]
        requests[0].get_response_sender().send(
            answer, pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL
        )
        return None
