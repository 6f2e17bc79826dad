# SPDX-License-Identifier: Apache-2.0
"""Instances in processes that connect to the server: they run, crash, hang, are lost, and end."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys

import numpy as np
import psutil
import pytest
from msgspec import structs

from pytriton.base.dtypes import FP32
from pytriton.base.errors import InternalError, UnavailableError
from pytriton.base.messages import InferTensor
from pytriton.runtime.cluster import child
from pytriton.runtime.executor.remote import remote_launcher
from pytriton.runtime.executor.remote.instance_port import Ticket
from pytriton.runtime.executor.worker import InstanceUnavailableError
from pytriton.runtime.transport.rendezvous import CONNECTION_LOST
from tests.executor.remote import plain_starter
from tests.executor.remote.remote_rig import run
from tests.executor.test_workers import is_over
from tests.executor.worker_rig import until
from tests.fakes import RecordingSink, inference

WAYS = {"tcp": "tcp:", "unix": "unix:"}


@pytest.fixture(params=WAYS)
def way(request):
    return WAYS[request.param]


async def freeze(instance):
    """Stop a process, as if its machine were out of reach: it cannot end."""
    os.kill(instance.pid, signal.SIGSTOP)
    await until(lambda: psutil.Process(instance.pid).status() == psutil.STATUS_STOPPED)


def large(instance, size):
    array = np.arange(size, dtype=np.float32).reshape(1, size)
    sink = RecordingSink()
    tensor = InferTensor("x", FP32, array.shape, array.tobytes())
    instance.execute([inference(sink, inputs={"x": tensor})], 0)
    return sink, array.tobytes()


def test_model_answers_and_finalizes(way, tmp_path):
    async def scenario(owner):
        instance = await owner.launch(mark=str(tmp_path / "finalized"))
        (order,) = owner.starter.orders
        assert order.name.startswith("m_0_0-")
        assert instance.node == "node-a"
        assert psutil.Process(instance.pid).is_running()
        assert await owner.output(instance) == np.array([1, 2], np.float32).tobytes()
        for _ in range(3):
            sink, sent = large(instance, 4 << 20)  # 16 MiB
            await until(lambda sink=sink: sink.final_count)
            assert bytes(sink.responses[0].outputs[0].data) == sent
            sink.responses.clear()
        # Nothing that only the server may know is in the model's hands.
        assert await owner.output(instance, variable="CUDA_VISIBLE_DEVICES") == bytes(4)
        sink = await owner.infer(instance, variable="PYTRITON_WORKER_TOKEN")
        assert "KeyError" in sink.errors[0].message
        instance.stop()
        await instance.ended

        assert (tmp_path / "finalized").exists()
        assert owner.deaths == [("m_0_0", "the model was unloaded")]
        assert owner.unavailable == []  # nothing follows the news of its death

    run(scenario, way)


def test_model_that_was_finalized_has_time_for_what_it_does_at_exit(tmp_path):
    async def scenario(owner):
        instance = await owner.launch(mark_at_exit=str(tmp_path / "left"))
        instance.stop()
        await instance.ended

        assert (tmp_path / "left").exists()
        assert await owner.starter.processes[0].exited == "exited with code 0"

    run(scenario)


CAUSES = {
    "kill": "Killed by SIGKILL (9)",
    "crash": "Killed by SIGSEGV (11)",
    "leave": "Exited with code 3",
}


def test_crash_fails_its_requests_with_the_cause_and_nobody_elses():
    async def scenario(owner):
        other = await owner.launch("m_0_9")
        for number, (action, cause) in enumerate(CAUSES.items()):
            victim = await owner.launch(f"m_0_{number}")
            (error,) = (await owner.infer(victim, action=action)).errors

            where = f"(node node-a, process {victim.pid})"
            assert isinstance(error, UnavailableError)
            assert error.message == f"Stub process '{victim.name}' is not healthy. {cause} {where}."
            assert victim.is_to_blame
            await victim.ended
            assert owner.deaths[-1] == (victim.name, f"{cause[0].lower()}{cause[1:]} {where}")
            assert not await victim.check_ready()
        assert await owner.output(other)

    run(scenario)


def test_frozen_process_keeps_its_requests(way):
    async def scenario(owner):
        instance = await owner.launch()
        await owner.output(instance)
        await freeze(instance)
        sink = owner.execute(instance)
        await asyncio.sleep(0.2)
        assert (sink.final_count, owner.deaths) == (0, [])
        os.kill(instance.pid, signal.SIGCONT)
        await until(lambda: sink.final_count)

        assert len(sink.responses) == 1

    run(scenario, way)


def test_process_ends_with_its_connection_even_in_a_long_call(way):
    async def scenario(owner):
        instance = await owner.launch()
        owner.execute(instance, action="hang")
        (process,) = owner.starter.processes
        if instance._fork_listener is not None:
            instance._fork_listener.close()
        instance._channel.close()  # as if the server had ended

        assert await process.exited == f"exited with code {CONNECTION_LOST}"

    run(scenario, way)


def test_process_ends_with_what_has_started_it():
    async def scenario(owner):
        instance = await owner.launch()
        sink = owner.execute(instance, action="hang")
        (process,) = owner.starter.processes
        process.children[0].stdin.close()
        await until(lambda: sink.final_count)

        assert "Its connection was lost (node node-a" in sink.errors[0].message
        assert not instance.is_to_blame

    run(scenario)


def test_model_calls_other_models(way):
    async def scenario(owner):
        instance = await owner.launch()

        assert np.frombuffer(await owner.output(instance, call=7), np.float32) == [70]

    run(scenario, way)


def test_processes_that_a_model_forks_can_call_only_from_the_servers_machine(way):
    async def scenario(owner):
        instance = await owner.launch()
        sink = await owner.infer(instance, calls=3)

        if way == "unix:":
            values = np.frombuffer(sink.responses[0].outputs[0].data, np.float32)
            assert values.tolist() == [0, 10, 20]
        else:
            assert "A process that 'm_0_0' forked cannot use the server" in sink.errors[0].message
            assert await owner.output(instance)

    run(scenario, way)


class CuttingProxy:
    """Stands between a process and the port, and cuts their connection after some bytes."""

    def __init__(self, address):
        self._host, self._port = address.removeprefix("tcp:").split(":")
        self.bytes_left = float("inf")
        self._tasks = set()

    async def start(self):
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        return f"tcp:127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    async def _serve(self, reader, writer):
        far_reader, far_writer = await asyncio.open_connection(self._host, self._port)
        self._writers = [writer, far_writer]
        for source, sink in ((reader, far_writer), (far_reader, writer)):
            self._tasks.add(asyncio.ensure_future(self._pass(source, sink)))

    async def _pass(self, reader, writer):
        try:
            while data := await reader.read(1 << 16):
                if self.bytes_left < len(data):
                    writer.write(data[: int(self.bytes_left)])
                    break
                self.bytes_left -= len(data)
                writer.write(data)
                await writer.drain()
        except ConnectionError:
            pass
        for each in self._writers:
            each.close()

    async def close(self):
        self._server.close()
        await asyncio.wait(self._tasks)
        for each in self._writers:
            with contextlib.suppress(ConnectionError):
                await each.wait_closed()
        await self._server.wait_closed()


def test_connection_cut_in_the_middle_of_a_message_fails_what_runs_and_ends_the_process():
    async def scenario(owner):
        proxy = CuttingProxy(owner.port.addresses[0])
        owner.port.others = (await proxy.start(),)
        instance = await owner.launch()
        await owner.output(instance)
        proxy.bytes_left = (4 << 20) + 1000  # within the answer
        sink, _ = large(instance, 1 << 20)
        await until(lambda: sink.final_count)

        (error,) = sink.errors
        assert isinstance(error, UnavailableError)
        await instance.ended
        assert is_over(instance.pid)
        await proxy.close()

    run(scenario)


def test_lost_connection_is_told_with_the_place_and_blames_nobody(monkeypatch):
    async def scenario(owner):
        instance = await owner.launch()
        await freeze(instance)
        sink = owner.execute(instance)
        instance._channel._report_lost(EOFError())
        await until(lambda: sink.final_count)

        where = f"(node node-a, process {instance.pid})"
        assert sink.errors[0].message == (
            f"Stub process 'm_0_0' is not healthy. Its connection was lost {where}."
        )
        assert isinstance(sink.errors[0], InstanceUnavailableError)
        assert not instance.is_to_blame
        await instance.ended

    run(scenario)


def test_machine_that_answers_no_more_loses_its_instances(monkeypatch):
    async def scenario(owner):
        instance = await owner.launch()
        sink = owner.execute(instance, action="hang")
        monkeypatch.setattr(remote_launcher, "is_peer_gone", lambda sock: True)
        await until(lambda: sink.final_count)

        assert isinstance(sink.errors[0], UnavailableError)
        await instance.ended

    run(scenario)


def test_killed_process_that_cannot_be_reached_counts_as_ended_after_a_while(monkeypatch):
    monkeypatch.setattr(remote_launcher, "END_TIMEOUT_S", 0.05)

    async def scenario(owner):
        instance = await owner.launch()
        (process,) = owner.starter.processes
        monkeypatch.setattr(process, "kill", lambda: None)
        await freeze(instance)
        instance._abandon()
        await instance.ended

        assert not is_over(instance.pid)
        monkeypatch.undo()

    run(scenario)


def test_start_that_is_given_up_leaves_nothing(tmp_path):
    async def scenario(owner):
        task = asyncio.ensure_future(
            owner.launch(initialize="hang", folder=str(tmp_path), count="1")
        )
        await until(lambda: list(tmp_path.iterdir()))
        owner.starter.before_told.clear()
        unplaced = asyncio.ensure_future(owner.launch("m_0_1"))
        await until(lambda: len(owner.starter.processes) == 2)
        for each in (task, unplaced):
            each.cancel()
            with pytest.raises(asyncio.CancelledError):
                await each

        for process in owner.starter.processes:
            await process.exited

    run(scenario)


def test_launcher_that_is_closed_gives_up_starts_that_are_under_way():
    async def scenario(owner):
        task = asyncio.ensure_future(owner.launch())
        await until(lambda: owner.starter.processes)
        (process,) = owner.starter.processes
        await freeze(process.children[0])
        await owner.launcher.close()

        with pytest.raises(UnavailableError, match="Server is stopping"):
            await task
        await process.exited
        with pytest.raises(UnavailableError, match="Server is stopping"):
            await owner.launch()

    run(scenario)


def test_process_that_cannot_connect_is_told_with_its_words():
    async def scenario(owner):
        owner.port.others = ("tcp:127.0.0.1:1",)
        with pytest.raises(InternalError) as raised:
            await owner.launch()

        message = raised.value.message
        assert "of node node-a ended before it was connected to the server" in message
        assert "exited with code 1: 'm_0_0-" in message
        assert "cannot connect to the server. tcp:127.0.0.1:1: [Errno " in message

    run(scenario)


def test_process_that_does_not_connect_is_given_up(monkeypatch):
    monkeypatch.setattr(remote_launcher, "CONNECT_TIMEOUT_S", 0.05)
    idle = [sys.executable, "-c", "import time; time.sleep(600)"]  # a worker might be quicker
    monkeypatch.setattr(plain_starter, "worker_command", lambda *_: (idle, {}))

    async def scenario(owner):
        with pytest.raises(InstanceUnavailableError, match=r"did not connect .* has to reach tcp:"):
            await owner.launch()
        (process,) = owner.starter.processes
        await process.exited

    run(scenario)


def test_process_at_another_place_than_the_starter_told_is_refused(way):
    async def scenario(owner):
        with pytest.raises(InternalError) as raised:
            await owner.launch()

        assert "' is process 1 of node node-a, not process " in raised.value.message

    run(scenario, way, told=lambda place: structs.replace(place, pid=1))


def test_other_version_on_a_node_is_refused_in_words(monkeypatch):
    monkeypatch.setattr(child, "pytriton_version", lambda: "0.0.1")

    async def scenario(owner):
        with pytest.raises(UnavailableError, match=r"node node-a has pytriton 0.0.1 .* the server"):
            await owner.launch()

    run(scenario)


def test_unix_socket_that_is_not_there_is_passed_over():
    async def scenario(owner):
        owner.port.others = ("unix:@nobody", *owner.port.addresses)
        instance = await owner.launch()

        assert await owner.output(instance)

    run(scenario)


def test_launcher_that_is_closed_when_a_process_connects_ends_it(monkeypatch, way):
    async def scenario(owner):
        add, closing = Ticket.add, []

        def add_and_close(*arguments):
            add(*arguments)
            closing.append(asyncio.ensure_future(owner.launcher.close()))

        monkeypatch.setattr(Ticket, "add", add_and_close)
        with pytest.raises(UnavailableError, match="Server is stopping"):
            await owner.launch()
        await closing[0]

        await owner.starter.processes[0].exited

    run(scenario, way)
