# SPDX-License-Identifier: Apache-2.0
"""The process that forks workers, workers that are started without it, and how all of them end."""

from __future__ import annotations

import ast
import os
import pathlib
import signal
import subprocess
import sys

import numpy as np
import pytest

from pytriton.runtime.transport.frames import Finalize, Initialize, Initialized, WorkerLogLine
from pytriton.runtime.transport.link import socket_pair
from pytriton.runtime.worker_process import __main__ as entry
from tests.e2e.waiting import eventually
from tests.python_backend.worker_rig import (
    DEADLINE_S,
    Peer,
    WorkerRig,
    ZygoteRig,
    is_alive,
)

X = np.array([[1.0]], np.float32)

FACTS = """
class TritonPythonModel:
    def execute(self, requests):
        facts = {facts}
        return [
            pb_utils.InferenceResponse([pb_utils.Tensor("y", np.array([[str(facts)]], object))])
        ]
"""


def fact(rig):
    (outputs,) = rig.run({"x": X})
    return outputs["y"].item().decode()


@pytest.fixture
def own_zygote():
    rig = ZygoteRig()
    yield rig
    if rig.process.poll() is None:
        rig.close()


def test_workers_are_processes_of_their_own(start_worker):
    first, second = [start_worker(FACTS.format(facts="os.getpid()")).start() for _ in range(2)]
    assert fact(first) == str(first.pid)
    assert fact(second) == str(second.pid)


def test_workers_do_not_share_random_numbers(start_worker):
    source = FACTS.format(facts="(np.random.random(), __import__('random').random())")
    first, second = [start_worker(source).start() for _ in range(2)]
    assert fact(first) != fact(second)


def test_workers_of_a_zygote_with_numpys_random_numbers_do_not_share_them(tmp_path):
    zygote = ZygoteRig("numpy.random")
    source = FACTS.format(facts="np.random.random()")
    rigs = [WorkerRig(zygote, tmp_path, source).start() for _ in range(2)]
    numbers = [fact(rig) for rig in rigs]
    for rig in rigs:
        rig.close()
    zygote.close()

    assert numbers[0] != numbers[1]


def test_environment_is_the_zygotes_with_changes(start_worker, monkeypatch):
    source = FACTS.format(facts="[os.environ.get('CHANGED'), os.environ.get('PATH')]")
    rig = start_worker(source, environment={"CHANGED": "yes"}).start()
    assert fact(rig) == str(["yes", os.environ["PATH"]])


def test_worker_has_only_its_own_descriptors(start_worker):
    source = FACTS.format(facts="len(os.listdir('/proc/self/fd'))")
    first, second = [start_worker(source).start() for _ in range(2)]
    assert fact(first) == fact(second)
    source = FACTS.format(
        facts="__import__('subprocess').run(['ls', '/proc/self/fd'], capture_output=True)"
        ".stdout.split()"
    )
    assert (
        len(ast.literal_eval(fact(start_worker(source).start()))) == 4
    )  # three, and the folder itself


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signals_do_not_end_workers(worker, zygote, number):
    rig = worker(FACTS.format(facts="1"))
    os.kill(rig.pid, number)
    zygote.process.send_signal(number)
    assert fact(rig) == "1"
    assert is_alive(zygote.process.pid)


def test_killed_worker_is_reported(start_worker, zygote):
    rig = start_worker(FACTS.format(facts="os.kill(os.getpid(), 9)")).start()
    rig.execute({"x": X})
    rig.is_over = True
    assert zygote.wait(rig.pid) == signal.SIGKILL
    assert not pathlib.Path(f"/proc/{rig.pid}").exists()
    with pytest.raises(EOFError):
        rig.hear()


def test_worker_that_exits_is_reported(start_worker, zygote):
    rig = start_worker(FACTS.format(facts="os._exit(3)")).start()
    rig.execute({"x": X})
    rig.is_over = True
    assert zygote.wait(rig.pid) == 3 << 8


BUSY = """
class TritonPythonModel:
    def execute(self, requests):
        pb_utils.Logger.log_info("busy")
        while True:
            pass
"""


def start_busy(zygote, folder):
    rig = WorkerRig(zygote, folder, BUSY).start()
    rig.execute({"x": X})
    rig.hear(WorkerLogLine)
    return rig


def test_workers_end_with_the_server(own_zygote, tmp_path):
    rig = start_busy(own_zygote, tmp_path)
    own_zygote.close()  # as if the server was killed
    assert not is_alive(rig.pid)
    rig.is_over = True
    rig.close()


def test_workers_end_with_the_zygote(own_zygote, tmp_path):
    rig = start_busy(own_zygote, tmp_path)
    own_zygote.process.kill()
    own_zygote.process.wait(DEADLINE_S)
    assert eventually(lambda: not is_alive(rig.pid))
    own_zygote.link.close()
    rig.is_over = True
    rig.close()


def test_idle_worker_ends_when_its_channel_does(start_worker, zygote):
    rig = start_worker(FACTS.format(facts="1")).start()
    rig.channel.close()
    rig.is_over = True
    assert os.waitstatus_to_exitcode(zygote.wait(rig.pid)) == 1


# Workers without a zygote


def spawn(command, *options):
    channel, far_channel = socket_pair()
    fork_socket, far_fork_socket = socket_pair()
    with far_channel, far_fork_socket:
        descriptors = [far_channel.fileno(), far_fork_socket.fileno()]
        process = subprocess.Popen(
            [
                *command,
                "--channel-fd",
                str(descriptors[0]),
                "--fork-fd",
                str(descriptors[1]),
                *options,
            ],
            pass_fds=descriptors,
            stderr=subprocess.PIPE,
            text=True,
        )
    return process, Peer(channel), fork_socket


@pytest.mark.parametrize("way", [["-m", "pytriton.runtime.worker_process"], [entry.__file__]])
def test_worker_is_started_by_itself(tmp_path, way):
    (tmp_path / "1").mkdir()
    (tmp_path / "1" / "model.py").write_text(
        "import sys\nimport triton_python_backend_utils\n"
        "class TritonPythonModel:\n"
        "    def execute(self, requests): ...\n"
        "    def initialize(self, args):\n"
        "        assert not any(path.endswith('worker_process') for path in sys.path)\n"
        "        assert '/fallback' in sys.path\n"
    )
    process, peer, fork_socket = spawn(
        [sys.executable, *way], "--title", "t", "--fallback-path", "/fallback"
    )
    peer.say(Initialize(str(tmp_path / "1" / "model.py"), "1", {"model_name": "m"}, []))
    assert peer.hear(Initialized).frame.error == ""
    peer.say(Finalize())
    with process:
        assert process.wait(DEADLINE_S) == 0
    peer.close()
    fork_socket.close()


def test_python_without_what_a_worker_needs_says_so():
    # -S leaves out all packages that are installed.
    process, peer, fork_socket = spawn([sys.executable, "-S", "-E", entry.__file__])
    _, errors = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 1
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    assert f"The Python {version} at {sys.executable} cannot run models" in errors
    assert "needs the packages numpy and msgspec" in errors
    peer.close()
    fork_socket.close()


def test_spawned_worker_ends_with_the_server(tmp_path):
    (tmp_path / "1").mkdir()
    (tmp_path / "1" / "model.py").write_text(
        "class TritonPythonModel:\n    def execute(self, requests): ...\n"
    )
    process, peer, fork_socket = spawn([sys.executable, "-m", "pytriton.runtime.worker_process"])
    peer.say(Initialize(str(tmp_path / "1" / "model.py"), "1", {"model_name": "m"}, []))
    peer.hear(Initialized)
    peer.close()
    fork_socket.close()
    with process:
        assert process.wait(DEADLINE_S) == 1


def test_worker_of_a_model_file_is_forked_without_what_runs_compiled_backends(start_worker):
    source = FACTS.format(
        facts="'pytriton.runtime.native_backend.worker' in __import__('sys').modules"
    )

    assert fact(start_worker(source).start()) == "False"


@pytest.mark.skipif(sys.platform != "linux", reason="the load of the machine is known on Linux")
@pytest.mark.parametrize("cores, polls", [(0, False), (1, False), (2, True)])
def test_worker_polls_only_if_its_first_message_allows_that(worker, cores, polls):
    rig = worker(FACTS.format(facts="1"), polling_cores=cores)
    files = pathlib.Path(f"/proc/{rig.pid}/fd").iterdir()

    assert ("/proc/loadavg" in [os.path.realpath(file) for file in files]) == polls
    assert fact(rig) == fact(rig) == "1"
