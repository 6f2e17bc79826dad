# SPDX-License-Identifier: Apache-2.0
"""Processes that a template forks are like those that are started, and end like them."""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import resource
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator

import psutil
import pytest

from pytriton.base.package import IMPORT_FOLDER
from pytriton.binding import server_process, template
from pytriton.binding.template import Program, Template
from pytriton.testing import forked_servers
from pytriton.testing.server import _MODULES
from tests.e2e.conftest import new_ports
from tests.e2e.scripts import Script
from tests.e2e.waiting import DEADLINE_S, eventually

pytestmark = [
    pytest.mark.skipif(not template.can_fork(), reason="nothing is forked here"),
    pytest.mark.e2e,
]

ROOT = pathlib.Path(__file__).parents[2]
PROBE = "tests.testing.probe"
LOAD = "load_for_copying"
# As the lines that start a server, for another module.
STARTED = (
    "import gc, sys; sys.path[0] = sys.argv.pop(1); gc.disable(); "
    f"from pytriton.base.openblas import {LOAD}; {LOAD}(); "
    f"from {PROBE} import show; gc.freeze(); gc.enable(); show()"
)
# What the template has for itself.
OF_THE_TEMPLATE = {
    "pytriton.base.errors",
    "pytriton.base.lazy_module",
    "pytriton.base.sandbox",
    "pytriton.binding",
    "pytriton.binding.template_process",
}
RECORD_READS = """
import importlib, os, sys

kind, read = type(os.environ), set()
get = kind.__getitem__

def note(self, name):
    read.add(name)
    return get(self, name)

def contains(self, name):
    read.add(name)
    return self.encodekey(name) in self._data

kind.__getitem__, kind.__contains__ = note, contains
openblas = importlib.import_module("pytriton.base.openblas")
getattr(openblas, sys.argv[1])()
for name in sys.argv[2:]:
    importlib.import_module(name)
print(*read)
"""


@pytest.fixture(scope="module")
def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(ROOT)}


@pytest.fixture(scope="module")
def shared(environment) -> Iterator[Template]:
    made = Template(LOAD, [PROBE], environment)
    yield made
    made.close()


@pytest.fixture
def own(environment) -> Iterator[Template]:
    """One that the test may end."""
    made = Template(LOAD, [PROBE], environment)
    yield made
    made.close()


@pytest.fixture
def fork(environment, tmp_path):
    """Forks `end` with an argument; gives the process and the pipe that it reads a line from."""
    with contextlib.ExitStack() as stack:
        errors = stack.enter_context((tmp_path / "errors").open("wb"))

        def fork_of(made: Template, how="0", **settings):
            reader, writer = os.pipe()
            stack.callback(os.close, writer)
            try:
                process = made.fork(
                    Program(PROBE, "end", ("-c", how)),
                    streams=(reader, errors.fileno(), errors.fileno()),
                    **{"environment": environment, **settings},
                )
            finally:
                os.close(reader)
            return process, writer

        yield fork_of


def template_of(process) -> psutil.Process:
    return psutil.Process(process.pid).parent()


def wake(writer: int) -> None:
    os.write(writer, b"\n")


def seen_by(start, environment, folder, output) -> dict:
    """What a process sees that has a variable, a folder and a descriptor of its own."""
    reader, writer = os.pipe()
    with output.open("wb") as out, pathlib.Path(os.devnull).open("rb") as nothing:
        arguments = ["--pipe", str(writer)]
        streams = (nothing.fileno(), out.fileno(), out.fileno())
        process = start(arguments, streams, writer, {**environment, "OWN": "é\udce9"}, str(folder))
        assert process.wait(DEADLINE_S) == 0, output.read_text()
    os.close(reader)
    os.close(writer)
    return json.loads(output.read_text())


@pytest.mark.parametrize("has_own_session", [False, True])
def test_forked_process_is_as_one_that_is_started(shared, environment, tmp_path, has_own_session):
    def start(arguments, streams, descriptor, variables, folder):
        return subprocess.Popen(
            [sys.executable, "-c", STARTED, IMPORT_FOLDER, *arguments],
            **dict(zip(("stdin", "stdout", "stderr"), streams, strict=True)),
            pass_fds=[descriptor],
            env=variables,
            cwd=folder,
            start_new_session=has_own_session,
        )

    def fork(arguments, streams, descriptor, variables, folder):
        return shared.fork(
            Program(PROBE, "show", ("-c", *arguments)),
            streams=streams,
            inherited=[descriptor],
            environment=variables,
            folder=folder,
            has_own_session=has_own_session,
        )

    output = tmp_path / "output"
    started = seen_by(start, environment, tmp_path, output)
    forked = seen_by(fork, environment, tmp_path, output)

    modules = [set(each.pop("modules")) for each in (started, forked)]
    extra = {name for name in modules[1] - modules[0] if not name.startswith("pytriton.runtime")}
    for each in (started, forked):  # the pipes have other numbers in each run
        each["files"] = [(name, file.partition(":")[0]) for name, file in each["files"]]
        each["status"] = [line for line in each["status"] if not line.startswith("NS")]
    assert forked == started
    assert modules[0] <= modules[1]
    assert extra <= OF_THE_TEMPLATE


@pytest.mark.parametrize("entry", _MODULES)
def test_variables_that_imports_read_are_known(entry):
    command = [sys.executable, "-c", RECORD_READS, server_process.LOAD_OF[entry], *_MODULES[entry]]
    if entry == server_process.FOR_REPOSITORIES:  # what it imports when it has forked its zygote
        command.append("pytriton.serving.server.serving")
    output = subprocess.run(command, capture_output=True, check=True, text=True).stdout
    read = output.split()

    assert "PYTRITON_HOME" in read
    assert [name for name in read if not template._read_at_import({name: ""})] == []


@pytest.mark.parametrize("how, code", [("0", 0), ("7", 7), ("raise", 1)])
def test_exit_code_is_told(shared, fork, how, code):
    process, writer = fork(shared, how)
    assert process.poll() is None
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(0.0)
    wake(writer)

    assert process.wait() == process.wait(0.0) == process.poll() == process.returncode == code


@pytest.mark.parametrize("send, number", [("kill", signal.SIGKILL), ("terminate", signal.SIGTERM)])
def test_signals_reach_the_process_while_it_runs(shared, fork, send, number):
    process, _ = fork(shared)
    getattr(process, send)()
    seen = psutil.Process(process.pid)
    assert eventually(lambda: seen.status() == psutil.STATUS_ZOMBIE)

    assert process.wait(DEADLINE_S) == -number
    assert not psutil.pid_exists(process.pid)
    getattr(process, send)()


def test_several_threads_wait_for_the_same_process(shared, fork):
    process, writer = fork(shared, "3")
    codes = []
    threads = [threading.Thread(target=lambda: codes.append(process.wait())) for _ in range(3)]
    for thread in threads:
        thread.start()
    wake(writer)
    for thread in threads:
        thread.join(DEADLINE_S)

    assert codes == [3, 3, 3]


def test_processes_keep_nothing_of_each_other(shared, fork):
    first, first_writer = fork(shared, "1")
    second, second_writer = fork(shared, "2")
    wake(first_writer)
    assert first.wait(DEADLINE_S) == 1  # though the second runs, which was forked with its pipe
    wake(second_writer)

    assert second.wait(DEADLINE_S) == 2
    of_template = template_of(fork(shared)[0])
    assert eventually(lambda: len(of_template.children()) == 1)
    assert of_template.num_threads() == 1


@pytest.mark.parametrize(
    "name", ["PYTHONWARNINGS", "OPENBLAS_NUM_THREADS", "LD_PRELOAD", "TZ", "PYTRITON_HOME"]
)
def test_nothing_is_forked_with_another_variable_that_imports_read(shared, fork, environment, name):
    assert fork(shared, environment={**environment, name: "1"})[0] is None
    assert fork(shared, environment={**environment, "ANOTHER": "1"})[0] is not None


@contextlib.contextmanager
def umask() -> Iterator[None]:
    before = os.umask(0o77)
    try:
        yield
    finally:
        os.umask(before)


@contextlib.contextmanager
def blocked_signal() -> Iterator[None]:
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextlib.contextmanager
def ignored_signal() -> Iterator[None]:
    before = signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGUSR1, before)


@contextlib.contextmanager
def limit() -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft - 1, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@contextlib.contextmanager
def fewer_cores() -> Iterator[None]:
    before = os.sched_getaffinity(0)
    if len(before) < 2:
        pytest.skip("this process has one core")
    os.sched_setaffinity(0, {min(before)})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


@pytest.mark.parametrize("change", [umask, blocked_signal, ignored_signal, limit, fewer_cores])
def test_nothing_is_forked_while_processes_would_inherit_something_else(shared, fork, change):
    assert fork(shared)[0] is not None
    with change():
        assert fork(shared)[0] is None

    assert fork(shared)[0] is not None


def test_folder_that_is_missing_is_left_to_the_usual_start(shared, fork, tmp_path):
    assert fork(shared, folder=str(tmp_path / "missing"))[0] is None
    assert fork(shared, folder=str(tmp_path))[0] is not None


def test_process_goes_on_without_its_template(own, fork):
    process, writer = fork(own, "7")
    template_of(process).kill()

    assert eventually(lambda: fork(own)[0] is None)
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(0.0)
    assert process.poll() is None
    wake(writer)
    assert process.wait(DEADLINE_S) == 255


def test_closed_template_leaves_no_process_of_its_own(own, fork):
    process, writer = fork(own)
    of_template = template_of(process)
    own.close()

    assert not psutil.pid_exists(of_template.pid)
    assert process.poll() is None
    assert fork(own)[0] is None
    wake(writer)


def test_interrupt_of_all_processes_of_a_terminal_leaves_the_template(own, fork):
    process, _ = fork(own)
    template_of(process).send_signal(signal.SIGINT)

    assert fork(own)[0] is not None


def test_forked_child_of_the_test_leaves_the_template_alone(own, fork):
    first, _ = fork(own)
    if (child := os.fork()) == 0:
        os._exit(fork(own)[0] is not None)

    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert first.poll() is None
    assert fork(own)[0] is not None


@pytest.mark.real_start  # the others are in such a block
def test_server_is_started_as_usual_outside_of_the_block():
    usual = server_process.start_process
    with forked_servers(), forked_servers():
        pass
    assert server_process.ServerProcess.start_process is usual
    with forked_servers():
        with forked_servers():
            pass
        assert server_process.ServerProcess.start_process is not usual


SERVE_FORKED = """
from pytriton.testing import forked_servers

with forked_servers(), Triton() as triton:
    triton.bind("Model", identity, [X], [Y])
    print(triton._triton_server.pid, flush=True)
    threading.Event().wait()
"""


def test_forked_server_ends_with_the_process_that_serves(tmp_path):
    with Script(tmp_path, SERVE_FORKED, new_ports()) as script:
        pid = script.say()
        of_template = psutil.Process(pid).parent()
        assert of_template.ppid() == script.process.pid
        script.process.kill()

        assert eventually(lambda: not psutil.pid_exists(pid))
        assert eventually(lambda: not psutil.pid_exists(of_template.pid))
