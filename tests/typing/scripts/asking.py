# SPDX-License-Identifier: Apache-2.0
"""A user's program with every client."""

from concurrent.futures import Future

import numpy as np
import numpy.typing as npt

from pytriton.client import (
    AsyncioDecoupledModelClient,
    AsyncioModelClient,
    DecoupledModelClient,
    FuturesModelClient,
    ModelClient,
)
from pytriton.client.exceptions import (
    PyTritonClientError,
    PyTritonClientInferenceServerError,
    PyTritonClientTimeoutError,
)

VALUES = np.array([[1.0, 2.0]], np.float32)


def ask() -> npt.NDArray[np.float32]:
    with ModelClient("http://localhost:8000", "Doubled", inference_timeout_s=5.0) as client:
        client.wait_for_model(timeout_s=10.0)
        rows: int = client.model_config.max_batch_size
        print(rows, client.is_batching_supported)
        by_position = client.infer_batch(VALUES)
        by_name = client.infer_batch(values=VALUES, parameters={"factor": 2}, headers={"x": "y"})
        sample: dict[str, npt.NDArray[np.float32]] = client.infer_sample(VALUES[0])
        return by_position["doubled"] + by_name["doubled"] + sample["doubled"]


def ask_later() -> None:
    with FuturesModelClient("localhost", "Doubled", max_workers=2, max_queue_size=8) as client:
        future: Future[dict[str, npt.NDArray[np.float32]]] = client.infer_batch(VALUES)
        print(future.result(timeout=1)["doubled"].shape)


def stream() -> list[float]:
    numbers: list[float] = []
    try:
        with DecoupledModelClient("grpc://localhost:8001", "Streamed") as client:
            for response in client.infer_batch(VALUES):
                numbers.append(float(response["doubled"][0, 0]))
    except PyTritonClientTimeoutError as error:
        print(error.message)
    except PyTritonClientInferenceServerError:
        raise
    except PyTritonClientError as error:
        print(error)
    return numbers


async def ask_asynchronously() -> None:
    async with AsyncioModelClient("localhost", "Doubled", access_token="secret") as client:
        answer = await client.infer_sample(VALUES[0])
        print(answer["doubled"].dtype)


async def stream_asynchronously() -> None:
    async with AsyncioDecoupledModelClient("grpc://localhost:8001", "Streamed") as client:
        async for response in client.infer_sample(VALUES[0]):
            print(response["doubled"].sum())
