# SPDX-License-Identifier: Apache-2.0
import argparse
import gzip
import logging
import os
import shutil
import subprocess
import sys
import threading

import psutil
import pytest

from pytriton.tools.check.utils import (
    ProcessMonitoring,
    ProcessMonitoringThread,
    TestMonitoringContext,
)
from tests.e2e.waiting import DEADLINE_S


@pytest.fixture(autouse=True)
def _no_py_spy(monkeypatch):
    monkeypatch.setattr(shutil, "which", lambda name: None)


@pytest.fixture
def child():
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    yield process
    process.communicate(b"\n", timeout=DEADLINE_S)


def _args(*options):
    parser = argparse.ArgumentParser()
    TestMonitoringContext.extend_args(parser)
    return parser.parse_args(options)


def test_state_names_the_process_and_its_children(caplog, child):
    monitoring = ProcessMonitoring(os.getpid())
    seen = []
    monitoring.register_custom_monitor(seen.append)

    with caplog.at_level(logging.INFO):
        monitoring.dump_state()

    assert child.pid in [process.pid for process in monitoring.children]
    assert f"pid={child.pid}" in caplog.text
    assert seen[0] == os.getpid()
    assert child.pid in seen
    assert "num_threads" in caplog.text


def test_state_of_a_process_that_ended_is_said(caplog, child):
    monitoring = ProcessMonitoring(child.pid)
    child.kill()
    child.wait()

    with caplog.at_level(logging.INFO):
        monitoring.dump_state()

    assert f"Process {child.pid} has ended" in caplog.text


def test_process_that_ends_meanwhile_does_not_end_the_dump(caplog, child):
    monitoring = ProcessMonitoring(os.getpid())

    def monitor(pid):
        if pid != os.getpid():
            raise psutil.NoSuchProcess(pid)

    monitoring.register_custom_monitor(monitor)

    with caplog.at_level(logging.INFO):
        monitoring.dump_state()

    assert f"Process {child.pid} has ended" in caplog.text


def test_stacks_come_from_py_spy_without_their_colours(caplog, monkeypatch, tmp_path):
    py_spy = tmp_path / "py-spy"
    py_spy.write_text("#!/bin/sh\nprintf '\\033[32mstack of %s\\033[0m' $4\n")
    py_spy.chmod(0o755)
    monkeypatch.setattr(shutil, "which", lambda name: str(py_spy))

    with caplog.at_level(logging.INFO):
        ProcessMonitoring(os.getpid(), remove_color=True).dump_state()

    assert f"stack of {os.getpid()}" in caplog.messages


def test_thread_dumps_again_and_again_until_stopped():
    dumps = threading.Semaphore(0)

    class Monitoring:
        def dump_state(self):
            dumps.release()

    with ProcessMonitoringThread(Monitoring(), interval=0.001) as thread:
        assert all(dumps.acquire(timeout=DEADLINE_S) for _ in range(3))

    assert thread._thread is None


def test_context_without_options_only_logs():
    with TestMonitoringContext(_args()):
        handlers = list(logging.getLogger().handlers)

    assert logging.getLogger().handlers == handlers


def test_context_writes_and_rotates_compressed_logs(tmp_path):
    path = tmp_path / "test.log"
    args = _args("--log-path", str(path), "--compress-logs", "--maximum-log-file", "200")
    logger = logging.getLogger("long-test")

    with TestMonitoringContext(args):
        for number in range(5):
            logger.warning("message number %d", number)

    assert "message number 4" in path.read_text()
    with gzip.open(f"{path}.1.gz", "rt") as rotated:
        assert "message number 3" in rotated.read()
    logger.warning("after the context")
    assert "after the context" not in path.read_text()


def test_context_watches_its_own_process(caplog):
    with caplog.at_level(logging.INFO):
        args = _args("--process-monitoring-interval", "60", "--faulthandler-interval", "600")
        with TestMonitoringContext(args):
            pass

    assert f"pid={os.getpid()}" in caplog.text
