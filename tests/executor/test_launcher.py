# SPDX-License-Identifier: Apache-2.0
"""Worker processes are started, watched and ended; none is left, and no descriptor."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import resource
import signal
import stat
import subprocess
import sys
import threading
import time

import psutil
import pytest

from pytriton.base.errors import InternalError, UnavailableError
from pytriton.runtime.executor import python_process
from pytriton.runtime.executor.launcher import (
    START_SETTING,
    RunningZygote,
    WorkerLauncher,
    WorkerSpec,
)
from pytriton.runtime.executor.worker import (
    ForkingProcessEndedError,
    ResourceLackError,
    describe_exit,
)
from pytriton.runtime.transport.memory import PORTABLE_SETTING
from pytriton.serving.server.process.resources import lowest_free
from tests.e2e.waiting import DEADLINE_S
from tests.executor.worker_rig import run_leaving_nothing, until

REFUSING_ZYGOTE = """
import contextlib, socket, sys
sys.path[0] = sys.argv[1]
from pytriton.runtime.transport.zygote import Forked, ZygoteLink
link = ZygoteLink(socket.socket(fileno=int(sys.argv[-1])))
with contextlib.suppress(EOFError):
    while message := link.receive():
        link.send(Forked(message.call, 0, int(message.environment["ERRNO"])))
"""


def run(scenario):
    """Run a scenario with a launcher, and see that nothing is left of it."""

    async def main():
        launcher = WorkerLauncher(asyncio.get_running_loop())
        try:
            await asyncio.wait_for(scenario(launcher), DEADLINE_S)
        finally:
            await launcher.close()

    run_leaving_nothing(main)


def close_sockets(worker):
    worker.channel.close()
    worker.fork_socket.close()


async def end(worker):
    worker.kill()
    await worker.exited
    close_sockets(worker)


@pytest.fixture(params=["zygote", "spawn", "portable"])
def way(request, monkeypatch):
    monkeypatch.setenv(START_SETTING, "spawn" if request.param == "spawn" else "")
    monkeypatch.setenv(PORTABLE_SETTING, "1" if request.param == "portable" else "0")
    return request.param


@pytest.fixture
def interpreter(tmp_path):
    """Makes a program that passes for a Python, and runs a script as its worker."""

    def make(script, version="0 0"):
        path = tmp_path / "python"
        path.write_text(f'#!/bin/sh\nif [ "$1" = -c ]; then echo {version}; exit; fi\n{script}\n')
        path.chmod(path.stat().st_mode | stat.S_IXUSR)
        return str(path)

    return make


@pytest.mark.parametrize(
    "code, text",
    [
        (0, "exited with code 0"),
        (3, "exited with code 3"),
        (-signal.SIGKILL, "killed by SIGKILL (9)"),
        (-signal.SIGSEGV, "killed by SIGSEGV (11)"),
        (-250, "killed by a signal (250)"),
    ],
)
def test_end_of_a_process_is_told_in_words(code, text):
    assert describe_exit(code) == text


def test_worker_lives_until_it_is_killed(way):
    async def scenario(launcher):
        worker = await launcher.launch(WorkerSpec("m_0_0", "m_0_0 worker"))
        assert psutil.Process(worker.pid).is_running()
        worker.kill()

        assert await worker.exited == "killed by SIGKILL (9)"
        worker.kill()
        assert not psutil.pid_exists(worker.pid)
        close_sockets(worker)

    run(scenario)


def test_worker_that_nobody_wants_any_more_ends_by_itself(way):
    async def scenario(launcher):
        worker = await launcher.launch(WorkerSpec("m_0_0", "m_0_0 worker"))
        close_sockets(worker)

        assert await worker.exited

    run(scenario)


def test_many_workers_are_started_together(way):
    async def scenario(launcher):
        specs = [WorkerSpec(f"m_0_{number}", "worker") for number in range(4)]
        workers = await asyncio.gather(*map(launcher.launch, specs))

        assert len({worker.pid for worker in workers}) == 4
        assert [worker.instance_name for worker in workers] == [
            each.instance_name for each in specs
        ]
        for worker in workers:
            close_sockets(worker)

    run(scenario)


def test_launcher_that_is_closed_ends_its_workers_and_starts_no_more(way):
    kept = []

    async def scenario(launcher):
        worker = await launcher.launch(WorkerSpec("m_0_0", "m_0_0 worker"))
        kept.append(worker)
        await launcher.close()

        assert worker.exited.done()
        with pytest.raises(UnavailableError, match="Server is stopping"):
            await launcher.launch(WorkerSpec("m_0_1", "m_0_1 worker"))
        close_sockets(worker)

    run(scenario)


@pytest.mark.skipif(sys.platform != "linux", reason="other kernels do not end processes so")
def test_worker_outlives_the_thread_that_ran_the_loop(monkeypatch):
    """The kernel ends a worker with the thread that has started it."""
    monkeypatch.setenv(START_SETTING, "spawn")
    loop = asyncio.new_event_loop()
    launcher = WorkerLauncher(loop)
    workers = []

    def launch():
        worker = loop.run_until_complete(launcher.launch(WorkerSpec("m_0_0", "lasting worker")))
        workers.append(worker)
        end = time.monotonic() + DEADLINE_S
        # It has asked the kernel for that before it takes its title.
        while psutil.Process(worker.pid).cmdline()[:1] != ["lasting worker"]:
            assert time.monotonic() < end
            time.sleep(0.01)

    with contextlib.closing(loop):
        thread = threading.Thread(target=launch)
        thread.start()
        thread.join()
        loop.run_until_complete(asyncio.sleep(0.1))
        has_ended = workers[0].exited.done()
        loop.run_until_complete(launcher.close())
        close_sockets(workers[0])

    assert not has_ended


def test_launch_that_is_given_up_leaves_nothing(way):
    async def scenario(launcher):
        first = await launcher.launch(WorkerSpec("m_0_0", "m_0_0 worker"))
        task = asyncio.ensure_future(launcher.launch(WorkerSpec("m_0_1", "m_0_1 worker")))
        await asyncio.sleep(0)
        task.cancel()
        (result,) = await asyncio.gather(task, return_exceptions=True)
        if not isinstance(result, asyncio.CancelledError):  # it was quicker
            close_sockets(result)
        close_sockets(first)

    run(scenario)


def test_worker_that_is_forked_when_its_launch_is_given_up_ends(monkeypatch):
    pids = []

    async def scenario(launcher):
        first = await launcher.launch(WorkerSpec("m_0_0", "m_0_0 worker"))
        task = asyncio.ensure_future(launcher.launch(WorkerSpec("m_0_1", "m_0_1 worker")))
        on_forked = RunningZygote._on_forked

        def on_forked_and_given_up(zygote, message):
            on_forked(zygote, message)
            pids.append(message.pid)
            task.cancel()

        monkeypatch.setattr(RunningZygote, "_on_forked", on_forked_and_given_up)
        (result,) = await asyncio.gather(task, return_exceptions=True)

        assert isinstance(result, asyncio.CancelledError)
        await until(lambda: not psutil.pid_exists(pids[0]))
        close_sockets(first)

    run(scenario)


@pytest.fixture
def slow_start(monkeypatch):
    """Lets threads that start a process wait; returns the events that they came and may go on.

    They pass their sockets on then, by numbers that others may have if these are closed.
    """
    begun, may_go_on = threading.Event(), threading.Event()

    class SlowPopen(subprocess.Popen):
        def __init__(self, *arguments, pass_fds, **named):
            begun.set()
            assert may_go_on.wait(DEADLINE_S)
            began_with.extend(map(is_open, pass_fds))
            super().__init__(*arguments, pass_fds=pass_fds, **named)

    def is_open(descriptor):
        with contextlib.suppress(OSError):
            return stat.S_ISSOCK(os.fstat(descriptor).st_mode)
        return False

    began_with = []

    monkeypatch.setenv(START_SETTING, "spawn")
    monkeypatch.setattr(subprocess, "Popen", SlowPopen)
    return begun, may_go_on, began_with


def test_launch_that_is_given_up_twice_leaves_nothing_and_waits_for_its_thread(slow_start):
    begun, may_go_on, began_with = slow_start

    async def scenario(launcher):
        task = asyncio.ensure_future(launcher.launch(WorkerSpec("m_0_0", "m_0_0 worker")))
        await asyncio.to_thread(begun.wait, DEADLINE_S)
        for _ in range(2):
            task.cancel()
            await asyncio.sleep(0.01)
        may_go_on.set()
        (result,) = await asyncio.gather(task, return_exceptions=True)

        assert isinstance(result, asyncio.CancelledError)

    run(scenario)

    assert began_with == [True, True]


def test_launch_that_is_given_up_and_fails_is_cancelled(slow_start, tmp_path):
    begun, may_go_on, _ = slow_start

    async def scenario(launcher):
        missing = str(tmp_path / "python")
        launcher._fallback_paths[missing] = ()
        spec = WorkerSpec("m_0_0", "m_0_0 worker", interpreter=missing)
        task = asyncio.ensure_future(launcher.launch(spec))
        await asyncio.to_thread(begun.wait, DEADLINE_S)
        task.cancel()
        await asyncio.sleep(0)
        may_go_on.set()
        (result,) = await asyncio.gather(task, return_exceptions=True)

        assert isinstance(result, asyncio.CancelledError)

    run(scenario)


def test_variables_reach_the_worker(way):
    async def scenario(launcher):
        # With the second, setproctitle does not write over what the system shows of them.
        variables = {"CUDA_VISIBLE_DEVICES": "3", "SPT_NOENV": "1"}
        spec = WorkerSpec("m_0_0", "m_0_0 worker", variables)
        worker = await launcher.launch(spec)
        if way != "zygote":  # a fork changes its own copy, which the system does not show
            environment = psutil.Process(worker.pid).environ
            # The process may be there before it has begun to run the interpreter.
            await until(lambda: environment().get("CUDA_VISIBLE_DEVICES") == "3")
        close_sockets(worker)

    run(scenario)


@pytest.mark.skipif(sys.platform != "linux", reason="workers are forked on Linux only")
def test_modules_are_preloaded_once_for_their_workers(tmp_path, monkeypatch):
    imports = tmp_path / "imports"
    code = (
        f"import os, pathlib\nwith open({str(imports)!r}, 'a') as f: print(os.getpid(), file=f)\n"
    )
    (tmp_path / "heavy_module.py").write_text(code + "raise ValueError('this does not matter')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setenv(START_SETTING, "")
    preload = ("heavy_module", "a_module_that_is_missing")

    async def scenario(launcher):
        specs = [WorkerSpec(f"m_0_{number}", "worker", preload=preload) for number in range(2)]
        workers = await asyncio.gather(*map(launcher.launch, specs))
        other = await launcher.launch(WorkerSpec("n_0_0", "worker"))
        parents = [psutil.Process(each.pid).ppid() for each in (*workers, other)]

        assert [int(pid) for pid in imports.read_text().split()] == parents[:1]
        assert parents[0] == parents[1] != parents[2]
        for worker in (*workers, other):
            close_sockets(worker)

    run(scenario)


def test_dead_zygote_is_replaced_and_its_workers_are_gone(monkeypatch):
    monkeypatch.setenv(START_SETTING, "")

    async def scenario(launcher):
        first = await launcher.launch(WorkerSpec("m_0_0", "m_0_0 worker"))
        psutil.Process(first.pid).parent().kill()
        assert await first.exited == "killed, as the process that had forked it ended"
        second = await launcher.launch(WorkerSpec("m_0_0", "m_0_0 worker"))

        assert second.pid != first.pid
        close_sockets(first)
        close_sockets(second)

    run(scenario)


@pytest.mark.parametrize("program", ["raise SystemExit(1)", ""], ids=["fails", "ends"])
def test_zygotes_that_end_again_and_again_are_no_crash_of_the_model(monkeypatch, program):
    monkeypatch.setenv(START_SETTING, "")
    monkeypatch.setattr(python_process, "_ZYGOTE_BOOTSTRAP", program)

    async def scenario(launcher):
        text = "the process that forks workers ended 2 times"
        with pytest.raises(ForkingProcessEndedError, match=text):
            await launcher.launch(WorkerSpec("m_0_0", "m_0_0 worker"))

    run(scenario)


@pytest.mark.parametrize(
    "number, kind, cause",
    [
        (errno.EAGAIN, ResourceLackError, "the server has no processes or threads left"),
        (errno.EMFILE, ResourceLackError, "the server has no file descriptors left"),
        (errno.EPERM, InternalError, "no process could be forked: Operation not permitted"),
    ],
)
def test_zygote_that_cannot_fork_says_why(monkeypatch, number, kind, cause):
    monkeypatch.setenv(START_SETTING, "")
    monkeypatch.setattr(python_process, "_ZYGOTE_BOOTSTRAP", REFUSING_ZYGOTE)

    async def scenario(launcher):
        for _ in range(2):
            with pytest.raises(kind, match=f"Cannot start the process of 'm_0_0': .*{cause}"):
                await launcher.launch(WorkerSpec("m_0_0", "m", {"ERRNO": str(number)}))

    run(scenario)


@pytest.mark.parametrize("start", ["", "spawn"])
def test_lack_of_descriptors_is_told_as_such_and_leaves_none_open(monkeypatch, start):
    monkeypatch.setenv(START_SETTING, start)

    async def scenario(launcher):
        worker = await launcher.launch(WorkerSpec("m_0_0", "m"))  # what later starts use is there
        limits = resource.getrlimit(resource.RLIMIT_NOFILE)
        for spare in range(4):  # two pairs of sockets need four
            free = lowest_free(0)
            resource.setrlimit(resource.RLIMIT_NOFILE, (free + spare, limits[1]))
            try:
                with pytest.raises(ResourceLackError, match="no file descriptors left"):
                    await launcher.launch(WorkerSpec("m_0_1", "m"))
            finally:
                resource.setrlimit(resource.RLIMIT_NOFILE, limits)
            assert lowest_free(0) == free
        await end(await launcher.launch(WorkerSpec("m_0_1", "m")))
        await end(worker)

    run(scenario)


# Another interpreter


def test_end_of_another_python_is_told(interpreter):
    async def scenario(launcher):
        for script, cause in {
            "exit 3": "exited with code 3",
            "kill -SEGV $$": "killed by SIGSEGV (11)",
        }.items():
            spec = WorkerSpec("m_0_0", "title", {}, interpreter(script))
            worker = await launcher.launch(spec)

            assert await worker.exited == cause
            close_sockets(worker)

    run(scenario)


def test_another_python_gets_our_packages_only_if_they_fit(interpreter):
    ours = "{} {}".format(*sys.version_info[:2])

    assert python_process.fallback_paths(interpreter("", "2 7")) == []
    assert python_process.fallback_paths(interpreter("", ours)) == [
        path for path in sys.path if path.endswith("-packages")
    ]


def test_another_python_gets_its_variables_and_not_our_home(interpreter, tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONHOME", "/nowhere")
    seen = tmp_path / "seen"

    async def scenario(launcher):
        script = f'echo "$VIRTUAL_ENV,$PYTHONHOME,$*" > {seen}'
        spec = WorkerSpec("m_0_0", "the title", {"VIRTUAL_ENV": "/env"}, interpreter(script))
        worker = await launcher.launch(spec)
        await worker.exited
        close_sockets(worker)

    run(scenario)
    variable, home, arguments = seen.read_text().split(",")
    assert (variable, home) == ("/env", "")
    assert "worker_process/__main__.py --channel-fd " in arguments
    assert "--title the title" in arguments


def test_what_a_worker_started_ends_with_it(interpreter, tmp_path):
    seen = tmp_path / "seen"

    async def scenario(launcher):
        script = f"sleep 1000 & echo $! > {seen}"
        worker = await launcher.launch(WorkerSpec("m_0_0", "title", {}, interpreter(script)))
        await worker.exited
        close_sockets(worker)

    run(scenario)
    _wait_until_gone(int(seen.read_text()))


def _wait_until_gone(pid):
    try:
        psutil.Process(pid).wait(DEADLINE_S)
    except psutil.NoSuchProcess:
        return


@pytest.mark.parametrize(
    "content, text",
    [("#!/bin/sh\necho no >&2; exit 1\n", "does not run: no"), ("no program", "does not run: ")],
)
def test_python_that_does_not_run_is_named(tmp_path, content, text):
    path = tmp_path / "python"
    path.write_text(content)
    path.chmod(0o755)

    async def scenario(launcher):
        with pytest.raises(InternalError, match=f"The Python '{path}' {text}"):
            await launcher.launch(WorkerSpec("m_0_0", "title", {}, str(path)))

    run(scenario)
