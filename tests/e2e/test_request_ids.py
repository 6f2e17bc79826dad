# SPDX-License-Identifier: Apache-2.0
"""The ids of requests on the records that bound callables log in the user's process."""

from __future__ import annotations

import asyncio
import logging
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import tritonclient.grpc as triton_grpc
from tritonclient.utils import InferenceServerException

from pytriton.decorators import batch
from pytriton.model_config import ModelConfig, Tensor
from pytriton.triton import Triton, TritonConfig, TritonSecurityConfig
from tests.e2e.conftest import new_ports

COUNT = 64
ROW = {"dtype": np.float32, "shape": (-1,)}
logger = logging.getLogger("user.code")


class Records(logging.Handler):
    """Keeps what is logged."""

    def __init__(self):
        super().__init__()
        self.kept = []

    def emit(self, record):
        self.kept.append(record)


@pytest.fixture
def records():
    handler = Records()
    root = logging.getLogger()
    level = root.level
    root.addHandler(handler)
    root.setLevel(logging.INFO)
    yield handler.kept
    root.removeHandler(handler)
    root.setLevel(level)


def whole(requests):
    for request in requests:
        number = int(request["x"].flat[0])
        logger.info("r%d", number)
        if number < 0:
            raise ValueError("below zero")
    return [{"y": request["x"]} for request in requests]


@batch
def decorated(x):
    logger.info("r%d", int(x.flat[0]))
    return {"y": x}


async def later(requests):
    for request in requests:
        await asyncio.sleep(0.01)
        await asyncio.create_task(say(int(request["x"].flat[0])))
    return [{"y": request["x"]} for request in requests]


async def say(number):
    await asyncio.sleep(0.01)
    logger.info("r%d", number)


def stream(requests):
    for _ in range(3):
        logger.info("r%d", int(requests[0]["x"].flat[0]))
        yield [{"y": request["x"]} for request in requests]


async def async_stream(requests):
    for _ in range(3):
        await asyncio.sleep(0.005)
        logger.info("r%d", int(requests[0]["x"].flat[0]))
        yield [{"y": request["x"]} for request in requests]


@pytest.fixture(scope="module")
def address():
    ports = new_ports()
    alone = ModelConfig(max_batch_size=1)
    decoupled = ModelConfig(max_batch_size=1, decoupled=True)
    with Triton(config=TritonConfig(**ports)) as triton:
        for infer_func, config in (
            (whole, alone),
            (decorated, alone),
            (later, alone),
            (stream, decoupled),
            (async_stream, decoupled),
        ):
            triton.bind(
                infer_func.__name__,
                infer_func,
                [Tensor(name="x", **ROW)],
                [Tensor(name="y", **ROW)],
                config=config,
            )
        triton.bind(
            "joined",
            whole,
            [Tensor(name="x", **ROW)],
            [Tensor(name="y", **ROW)],
            config=ModelConfig(max_batch_size=COUNT),
        )
        yield f"127.0.0.1:{ports['grpc_port']}"


def tensor(number):
    made = triton_grpc.InferInput("x", [1, 1], "FP32")
    made.set_data_from_numpy(np.full((1, 1), number, np.float32))
    return [made]


def of_user(records):
    return [each for each in records if each.name == "user.code"]


@pytest.mark.parametrize("model", ["whole", "decorated", "later"])
def test_records_of_many_requests_have_only_their_own_ids(address, records, model):
    with triton_grpc.InferenceServerClient(address) as client, ThreadPoolExecutor(COUNT) as pool:
        list(pool.map(lambda n: client.infer(model, tensor(n), request_id=f"r{n}"), range(COUNT)))

    seen = of_user(records)
    assert sorted(each.triton_request_id for each in seen) == sorted(f"r{n}" for n in range(COUNT))
    assert [each.getMessage() for each in seen] == [each.triton_request_id for each in seen]


@pytest.mark.parametrize("model", ["stream", "async_stream"])
def test_records_of_streams_have_only_their_own_ids(address, records, model):
    with triton_grpc.InferenceServerClient(address) as client:
        client.start_stream(lambda result, error: None)
        for number in range(COUNT):
            client.async_stream_infer(model, tensor(number), request_id=f"r{number}")
        client.stop_stream()

    seen = of_user(records)
    assert len(seen) == 3 * COUNT
    assert [each.getMessage() for each in seen] == [each.triton_request_id for each in seen]


def test_records_of_a_batch_have_the_ids_of_its_requests(address, records):
    with triton_grpc.InferenceServerClient(address) as client, ThreadPoolExecutor(COUNT) as pool:
        list(
            pool.map(lambda n: client.infer("joined", tensor(n), request_id=f"r{n}"), range(COUNT))
        )

    seen = of_user(records)
    assert len(seen) == COUNT
    for each in seen:
        assert len(each.triton_request_ids) <= 9
        assert each.getMessage() in each.triton_request_ids or "more" in each.triton_request_ids[-1]


def test_records_without_an_id_have_none(address, records):
    with triton_grpc.InferenceServerClient(address) as client:
        for _ in range(40):  # some of them travel as columns
            client.infer("whole", tensor(1))
    logger.info("not caused by a request")

    assert {each.triton_request_id for each in of_user(records)} == {""}


def test_our_own_lines_have_the_id_too(address, records):
    with (
        triton_grpc.InferenceServerClient(address) as client,
        pytest.raises(InferenceServerException),
    ):
        client.infer("whole", tensor(-1), request_id="bad\n\x1b[0m")

    (ours,) = [each for each in records if each.name.startswith("pytriton.")]
    assert ours.getMessage() == (
        "[request id: bad\\n\\u001b[0m] model 'whole': ValueError: below zero "
        f"at test_request_ids.py:{ours.lineno} in whole"
    )
    assert ours.triton_request_id == "bad\\n\\u001b[0m"


def test_settings_leave_the_log_of_the_users_process_alone(records):
    level = logging.getLogger().level
    ports = new_ports()
    security = TritonSecurityConfig(access_token="secret")
    token = {"triton-grpc-protocol-triton-access-token": "secret"}
    with Triton(config=TritonConfig(**ports), security_config=security) as triton:
        triton.bind("m", whole, [Tensor(name="x", **ROW)], [Tensor(name="y", **ROW)])
        with triton_grpc.InferenceServerClient(f"127.0.0.1:{ports['grpc_port']}") as client:
            with pytest.raises(InferenceServerException, match="restricted"):
                client.get_log_settings()
            changed = client.update_log_settings({"log_info": False}, headers=token)
            client.infer("m", tensor(5), request_id="r5")

    assert changed.settings["log_info"].bool_param is False
    assert logging.getLogger().level == level
    assert [each.triton_request_id for each in of_user(records)] == ["r5"]
