# SPDX-License-Identifier: Apache-2.0
"""What the page on deploying models promises, asked of a real server."""

from __future__ import annotations

import os
import pathlib
import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import psutil
import pytest

from pytriton.decorators import batch
from pytriton.exceptions import PyTritonBadParameterError
from pytriton.model_config import DynamicBatcher, ModelConfig, Tensor
from pytriton.triton import Triton, TritonConfig
from tests.free_ports import free_ports
from tests.guides import http_calls
from tests.guides.conftest import REPOSITORY

pytestmark = [pytest.mark.guide, pytest.mark.e2e]

SCALAR = Tensor(dtype=np.float32, shape=(1,))
ONE = np.ones((1, 1), np.float32)
READY = "/v2/health/ready"


@batch
def double(INPUT_1):  # noqa: N803  the name that the server gives an unnamed input
    return {"OUTPUT_1": INPUT_1 * 2}


def bind(triton, infer_func=double, name="Model", config=None):
    config = config or ModelConfig(max_batch_size=8)
    triton.bind(
        model_name=name, infer_func=infer_func, inputs=[SCALAR], outputs=[SCALAR], config=config
    )


def test_object_alone_starts_nothing(ports):
    triton = Triton(config=TritonConfig(**ports))

    assert not triton.is_alive()
    assert not http_calls.answers(ports["http_port"])


def test_context_starts_and_stops_the_server(ports):
    with Triton(config=TritonConfig(**ports)) as triton:
        assert triton.is_alive()
        assert http_calls.get(ports["http_port"], READY)[0] == 200

    assert not triton.is_alive()
    assert not http_calls.answers(ports["http_port"])


def test_log_file_takes_the_servers_log(ports, tmp_path):
    log = tmp_path / "triton.log"

    with Triton(config=TritonConfig(log_file=log, **ports)):
        pass

    assert "Started HTTP" in log.read_text()


def test_argument_wins_over_environment_and_environment_over_default(ports, monkeypatch):
    from_environment = free_ports(1)[0]
    monkeypatch.setenv("PYTRITON_TRITON_CONFIG_HTTP_PORT", str(from_environment))
    for name in ("grpc_port", "metrics_port"):
        monkeypatch.setenv(f"PYTRITON_TRITON_CONFIG_{name.upper()}", str(ports[name]))

    with Triton():
        assert http_calls.get(from_environment, READY)[0] == 200
    with Triton(config=TritonConfig(http_port=ports["http_port"])):
        assert http_calls.get(ports["http_port"], READY)[0] == 200
        assert not http_calls.answers(from_environment)


def test_environment_sets_the_verbosity_as_the_page_spells_it(monkeypatch):
    monkeypatch.setenv("PYTRITON_TRITON_CONFIG_LOG_VERBOSITY", "4")

    assert TritonConfig.from_env().log_verbose == 4


@pytest.fixture(scope="module")
def default_ports():
    """What a server listens on that was told nothing."""
    if any(http_calls.answers(port) for port in (8000, 8001, 8002)):
        pytest.skip("something else listens on one of the default ports")
    with pytest.MonkeyPatch.context() as environment:
        for name in list(os.environ):
            if name.startswith("PYTRITON_TRITON_CONFIG_"):
                environment.delenv(name)
        with Triton():
            return {
                connection.laddr.port
                for process in psutil.Process().children(recursive=True)
                for connection in process.net_connections("tcp")
                if connection.status == psutil.CONN_LISTEN
            }


@pytest.mark.parametrize(
    "port",
    [
        pytest.param(8000, id="http"),
        pytest.param(8001, id="grpc"),
        pytest.param(8002, id="metrics"),
    ],
)
def test_default_port(default_ports, port):
    assert port in default_ports


def test_blocking_mode_serves_until_stopped(ports):
    triton = Triton(config=TritonConfig(**ports))
    bind(triton)
    thread = threading.Thread(target=triton.serve)
    thread.start()
    try:
        assert http_calls.eventually(lambda: http_calls.answers(ports["http_port"]))
        assert http_calls.eventually(triton.is_connected)
        assert thread.is_alive()
    finally:
        triton.stop()
        thread.join(http_calls.DEADLINE_S)

    assert not thread.is_alive()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=lambda item: item.name)
def test_signal_ends_a_serving_script_and_all_its_processes(ports, number):
    settings = {f"PYTRITON_TRITON_CONFIG_{name.upper()}": str(port) for name, port in ports.items()}
    command = [sys.executable, "-m", "tests.guides.serving_script"]
    with subprocess.Popen(
        command, cwd=REPOSITORY, env={**os.environ, **settings}, stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            assert any(line == "serving\n" for line in process.stdout)
            family = psutil.Process(process.pid).children(recursive=True)
            process.send_signal(number)
            process.wait(http_calls.DEADLINE_S)
        finally:
            process.kill()

    _, alive = psutil.wait_procs(family, timeout=http_calls.DEADLINE_S)
    assert alive == []
    if number == signal.SIGINT:
        assert process.returncode == 0


def test_background_mode_does_not_block(ports):
    triton = Triton(config=TritonConfig(**ports))
    bind(triton)
    triton.run()
    try:
        assert http_calls.infer(ports["http_port"], "Model", INPUT_1=ONE)[0] == 200
    finally:
        triton.stop()

    assert not http_calls.answers(ports["http_port"])


def test_stop_leaves_no_process_behind(ports):
    before = {child.pid for child in psutil.Process().children(recursive=True)}

    with Triton(config=TritonConfig(**ports)) as triton:
        bind(triton)

    assert {child.pid for child in psutil.Process().children(recursive=True)} <= before


def test_requests_of_several_clients_become_one_batch(ports):
    sizes = []

    @batch
    def record(INPUT_1):  # noqa: N803
        sizes.append(len(INPUT_1))
        return {"OUTPUT_1": INPUT_1}

    # The delay is longer than the test may take: only a full batch can be what ends the wait.
    batcher = DynamicBatcher(max_queue_delay_microseconds=60_000_000, preferred_batch_size=[4])
    with Triton(config=TritonConfig(**ports)) as triton:
        bind(triton, record, config=ModelConfig(max_batch_size=4, batcher=batcher))
        with ThreadPoolExecutor(4) as pool:
            calls = [
                pool.submit(http_calls.infer, ports["http_port"], "Model", INPUT_1=ONE * value)
                for value in range(4)
            ]
        answers = [call.result() for call in calls]

    assert sizes == [4]
    assert answers == [(200, {"OUTPUT_1": [float(value)]}) for value in range(4)]


def test_batching_can_be_switched_off(ports):
    shapes = []

    def record(requests):
        shapes.extend(request["INPUT_1"].shape for request in requests)
        return [{"OUTPUT_1": request["INPUT_1"]} for request in requests]

    with Triton(config=TritonConfig(**ports)) as triton:
        bind(triton, record, config=ModelConfig(batching=False))
        status, _ = http_calls.infer(ports["http_port"], "Model", INPUT_1=np.ones(1, np.float32))

    assert status == 200
    assert shapes == [(1,)]


def test_batch_size_is_limited_by_its_maximum(ports):
    with Triton(config=TritonConfig(**ports)) as triton:
        bind(triton, config=ModelConfig(max_batch_size=2))
        status, error = http_calls.infer(
            ports["http_port"], "Model", INPUT_1=np.ones((3, 1), np.float32)
        )

    assert status == 400
    assert "2" in error


def test_maximal_batch_size_below_one_is_refused(ports):
    with (
        Triton(config=TritonConfig(**ports)) as triton,
        pytest.raises(PyTritonBadParameterError, match="greater or equal to 1"),
    ):
        bind(triton, config=ModelConfig(max_batch_size=0))


def test_response_cache_calls_the_function_once(ports):
    calls = []

    @batch
    def record(INPUT_1):  # noqa: N803
        calls.append(INPUT_1)
        return {"OUTPUT_1": INPUT_1 * 2}

    config = TritonConfig(response_cache_byte_size=1024 * 1024, **ports)
    with Triton(config=config) as triton:
        bind(triton, record, config=ModelConfig(max_batch_size=8, response_cache=True))
        answers = [http_calls.infer(ports["http_port"], "Model", INPUT_1=ONE) for _ in range(3)]
        http_calls.infer(ports["http_port"], "Model", INPUT_1=ONE * 5)

    assert answers == [(200, {"OUTPUT_1": [2.0]})] * 3
    assert len(calls) == 2


@pytest.mark.skipif(not pathlib.Path("/dev/shm").is_dir(), reason="this system has no /dev/shm")
def test_small_shared_memory_of_a_container_is_enough(ports):
    """Nothing of ours lies in /dev/shm, so its size does not matter."""
    mine = ("pytriton", "triton", "psm_", "pytrtion")

    with Triton(config=TritonConfig(**ports)) as triton:
        bind(triton)
        http_calls.infer(ports["http_port"], "Model", INPUT_1=ONE)
        user = psutil.Process()
        mapped = [
            region.path
            for process in (user, *user.children(recursive=True))
            for region in process.memory_maps()
        ]

    named = [path for path in mapped if path.startswith("/dev/shm/")]
    assert [path for path in named if pathlib.Path(path).name.startswith(mine)] == []
