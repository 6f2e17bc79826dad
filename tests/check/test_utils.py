# SPDX-License-Identifier: Apache-2.0
import logging
import signal
import socket
import sys
import threading

import pytest

from pytriton.tools.check.utils import (
    ScriptThread,
    find_free_port,
    get_current_container_version,
    search_warning_on_too_verbose_log_level,
    verify_docker_image_in_readme_same_as_tested,
)
from tests.e2e.waiting import DEADLINE_S, eventually


def _python(script):
    return [sys.executable, "-c", script]


def test_free_port_can_be_bound():
    port = find_free_port()
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", port))

        assert listener.getsockname()[1] == port


def test_script_is_waited_for_and_its_output_kept(caplog):
    with caplog.at_level(logging.INFO):
        script = "import sys; print('out'); print('err', file=sys.stderr); sys.exit(3)"
        with ScriptThread(_python(script), name="script") as thread:
            pass

    assert thread.output == "out\nerr"
    assert thread.returncode == 3
    assert thread.process is None
    assert ("script", logging.INFO, "out") in caplog.record_tuples


def test_script_runs_in_its_folder_and_unbuffered(tmp_path):
    script = "import os; print(os.getcwd()); print(os.environ['PYTHONUNBUFFERED'])"
    with ScriptThread(_python(script), workdir=tmp_path) as thread:
        pass

    assert thread.output == f"{tmp_path.resolve()}\n1"


def test_process_can_be_signalled_while_it_runs():
    with ScriptThread(_python("import signal; signal.pause()")) as thread:
        assert thread.process.is_running()
        thread.process.send_signal(signal.SIGTERM)

    assert thread.returncode == -signal.SIGTERM


def test_script_that_is_started_by_hand_is_stopped_without_waiting():
    thread = ScriptThread(_python("import signal; print('up'); signal.pause()"), name="script")
    is_there = threading.Event()
    thread.start(is_there)
    assert is_there.wait(DEADLINE_S)
    assert thread.process is not None
    assert eventually(lambda: "up" in thread.output)

    thread.stop()
    assert thread.is_alive()
    thread.process.send_signal(signal.SIGTERM)
    thread.join(DEADLINE_S)

    assert thread.returncode == -signal.SIGTERM


def test_command_that_does_not_exist_is_an_error():
    with pytest.raises(FileNotFoundError), ScriptThread(["/no/such/command"]):
        pass


@pytest.mark.parametrize(
    "variables, expected",
    [
        ({}, None),
        ({"NVIDIA_PYTORCH_VERSION": "24.10"}, "24.10"),
        ({"NVIDIA_TENSORFLOW_VERSION": "24.10-tf2"}, "24.10"),
    ],
)
def test_container_version_is_that_of_the_framework(monkeypatch, variables, expected):
    monkeypatch.delenv("NVIDIA_PYTORCH_VERSION", raising=False)
    monkeypatch.delenv("NVIDIA_TENSORFLOW_VERSION", raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)

    assert get_current_container_version() == expected


_IMAGE = "registry/pytorch:{}-py3"


@pytest.mark.parametrize("text", ["no image", _IMAGE.format("24.10"), "registry/jax:23.01-py3"])
def test_readme_with_the_tested_image_or_none_passes(tmp_path, text):
    (tmp_path / "README.md").write_text(text)

    # The check raises for what it refuses.
    verify_docker_image_in_readme_same_as_tested(tmp_path / "README.md", _IMAGE.format("24.10"))


@pytest.mark.parametrize(
    "shown", [_IMAGE.format("24.09"), "registry/pytorch:24.10", "elsewhere/pytorch:24.10-py3"]
)
def test_readme_with_another_image_is_refused(tmp_path, shown):
    (tmp_path / "README.md").write_text(f"docker run {shown} bash")

    with pytest.raises(AssertionError, match=rf"Expected .*24\.10-py3 in .*got {shown}$"):
        verify_docker_image_in_readme_same_as_tested(tmp_path / "README.md", _IMAGE.format("24.10"))


def test_warning_of_verbose_logs_is_found():
    warning = (
        "Triton Inference Server is running with enabled verbose logs. "
        "It may affect inference performance."
    )

    assert search_warning_on_too_verbose_log_level(f"... {warning} ...")
    assert search_warning_on_too_verbose_log_level("all is quiet") is None
