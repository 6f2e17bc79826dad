# SPDX-License-Identifier: Apache-2.0
"""A user's tests of a model.py, of functions, of time, and of a real server."""

import asyncio
from pathlib import Path

import numpy as np
import numpy.typing as npt

from pytriton.decorators import batch
from pytriton.model_config import ModelConfig, Tensor
from pytriton.testing import (
    FakeClock,
    FakeEventLoop,
    FakeTimer,
    FunctionHarness,
    LogLine,
    ModelHarness,
    Request,
    Response,
    RuleError,
    RunningServer,
    StartServer,
)


def test_model(tmp_path: Path) -> None:
    with ModelHarness(tmp_path / "model.py", config={"name": "scale"}) as model:
        response: Response = model.execute({"IN": np.ones((1,), np.float32)})
        (first,), *_ = model.execute_batch([Request({"IN": [1.0]}, parameters={"factor": 2})])
        lines: list[LogLine] = list(model.logs)
        number: float = model.metrics["n"]

        assert response["OUT"].tolist() == first["OUT"].tolist()
        assert lines[0].level == "INFO"
        assert number == 1


def test_stream() -> None:
    class Model:
        pass

    try:
        with ModelHarness(Model) as model:
            assert [each["OUT"].item() for each in model.stream({"IN": [1]}, cancel_after=1)]
    except RuleError as error:
        print(error)


@batch
def doubled(a: npt.NDArray[np.float32]) -> dict[str, npt.NDArray[np.float32]]:
    return {"b": a * 2}


def twice(x: float) -> float:
    return 2 * x


def test_functions() -> None:
    inputs = [Tensor(name="a", dtype=np.float32, shape=(1,))]
    outputs = [Tensor(name="b", dtype=np.float32, shape=(1,))]
    settings = ModelConfig(max_batch_size=4)
    with FunctionHarness(doubled, inputs, outputs, config=settings, strict=True) as model:
        response: Response = model.execute({"a": [[1]]}, parameters={"x": 1})
        streams: list[list[Response]] = model.execute_batch([Request({"a": [[1]]})])

        assert response["b"].shape == streams[0][0]["b"].shape
    with FunctionHarness(twice) as model:
        assert model.execute({"x": 3})["output"].item() == 6


def test_time() -> None:
    async def wait(seconds: float) -> str:
        await asyncio.sleep(seconds)
        return "waited"

    clock = FakeClock(start_s=0)
    timer: FakeTimer = clock.call_later(60, print, "a minute")
    timer.cancel()
    text: str = clock.run(wait(3600))
    loop = FakeEventLoop(clock)
    task: asyncio.Task[str] = loop.create_task(wait(1))
    loop.advance(1)
    loop.close()
    seconds: float = clock() + clock.monotonic() + clock.time()
    nanoseconds: int = clock.now_ns + clock.time_ns()

    assert (text, task.result()) == ("waited", "waited")
    assert seconds * 1e9 > nanoseconds


def test_server(pytriton_server: StartServer) -> None:
    server: RunningServer = pytriton_server(twice, log_verbose=1)
    client = server.client("twice", grpc=True, inference_timeout_s=5.0)

    assert client.infer_sample(np.ones(1))["output"].item() == 2
    assert list(server.stream_client("twice").infer_sample(np.ones(1)))
    assert server.http_url.startswith("http://")
    assert "error" not in server.log
