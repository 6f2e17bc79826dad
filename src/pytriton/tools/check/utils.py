# SPDX-License-Identifier: Apache-2.0
"""Helpers for tests of programs that serve models: running scripts, free ports, log searches."""

from __future__ import annotations

import logging
import os
import pathlib
import re
import socket
import subprocess
import threading
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import Any

import psutil

from pytriton.tools.check.monitoring import (
    DEFAULT_LOG_FORMAT,
    ProcessMonitoring,
    ProcessMonitoringThread,
    TestMonitoringContext,
)

__all__ = [
    "DEFAULT_LOG_FORMAT",
    "ProcessMonitoring",
    "ProcessMonitoringThread",
    "ScriptThread",
    "TestMonitoringContext",
    "find_free_port",
    "get_current_container_version",
    "search_warning_on_too_verbose_log_level",
    "verify_docker_image_in_readme_same_as_tested",
]

_VERBOSE_LOG_WARNING = re.compile(
    r"Triton Inference Server is running with enabled verbose logs.*"
    r"It may affect inference performance."
)


def find_free_port() -> int:
    """Ask the system for a port.

    Returns:
        A free port.
    """
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.bind(("", 0))
        port: int = probe.getsockname()[1]
        return port


def get_current_container_version() -> str | None:
    """Look up the release of the framework container that this process runs in.

    Returns:
        The part of the version before its first dash; None outside such a container.
    """
    for variable in ("NVIDIA_PYTORCH_VERSION", "NVIDIA_TENSORFLOW_VERSION"):
        version = os.environ.get(variable)
        if version:
            return version.partition("-")[0]
    return None


def verify_docker_image_in_readme_same_as_tested(
    readme_path: str | pathlib.Path, image_name_with_version: str
) -> None:
    """Check that a README names only the tested framework image.

    Args:
        readme_path: file to read.
        image_name_with_version: image as in `docker run`, with its tag.

    Raises:
        AssertionError: if the README names an image of that framework from another registry or
            with another tag.
    """
    framework = image_name_with_version.rpartition(":")[0].rpartition("/")[2]
    text = pathlib.Path(readme_path).read_text(encoding="utf-8")
    for shown in re.findall(rf"[\w/.:-]+/{re.escape(framework)}:[\w.-]+", text):
        if shown != image_name_with_version:
            raise AssertionError(
                f"Expected {image_name_with_version} in {readme_path}, got {shown}"
            )


def search_warning_on_too_verbose_log_level(logs: str) -> re.Match[str] | None:
    """Search a log for the warning that verbose logging reduces performance.

    Args:
        logs: text of the log.

    Returns:
        The match, or None.
    """
    return _VERBOSE_LOG_WARNING.search(logs)


class ScriptThread(threading.Thread):
    """Runs a command and collects its output; a context manager that waits for its end.

    Args:
        cmd: command and arguments.
        workdir: folder to run it in; by default the current one.
        group: as in `threading.Thread`.
        target: as in `threading.Thread`.
        name: name of the thread, and of the logger for the lines.
        args: as in `threading.Thread`.
        kwargs: as in `threading.Thread`.
    """

    def __init__(
        self,
        cmd: Sequence[str],
        workdir: str | pathlib.Path | None = None,
        group: None = None,
        target: Callable[..., object] | None = None,
        name: str | None = None,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(group, target, name, args, kwargs, daemon=True)
        self.cmd = cmd
        self.workdir = workdir
        self.returncode: int | None = None
        self._process: psutil.Popen | None = None
        self._lines: list[str] = []
        self._spawned = threading.Event()
        self._spawn_error: OSError | None = None

    def start(self, flag: threading.Event | None = None) -> None:
        """Start the command.

        Args:
            flag: set when the process has started, or could not be started.
        """
        self._spawned = flag or self._spawned
        super().start()

    def __enter__(self) -> ScriptThread:  # noqa: PYI034  Self came with 3.11
        self.start()
        self._spawned.wait()
        if self._spawn_error is not None:
            raise self._spawn_error
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.stop()
        self.join()

    @property
    def process(self) -> psutil.Popen | None:
        """The process; None if it is not running."""
        return self._process

    @property
    def output(self) -> str:
        """The output of the command so far, stdout and stderr together."""
        return "\n".join(self._lines)

    def stop(self) -> None:
        """Announce that the process will end; this sends no signal, the caller has to do that."""
        logging.getLogger(self.name).info("Waiting for the end of %s", self.cmd)

    def run(self) -> None:
        """Run the command to its end."""
        try:
            process = psutil.Popen(
                self.cmd,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                cwd=self.workdir,
                env=os.environ | {"PYTHONUNBUFFERED": "1"},
                text=True,
                errors="replace",
            )
        except OSError as error:
            logging.getLogger(self.name).exception("Could not start %s", self.cmd)
            self._spawn_error = error
            self.returncode = -1
            self._spawned.set()
            return
        self._process = process
        self._spawned.set()
        script_logger = logging.getLogger(self.name)
        with process.stdout:
            for line in process.stdout:
                self._lines.append(line.rstrip("\n"))
                script_logger.info(self._lines[-1])
        self.returncode = process.wait()
        self._process = None
