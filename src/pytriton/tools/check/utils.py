# SPDX-License-Identifier: Apache-2.0
"""Helpers for tests of programs that serve models: scripts, process monitors, ports, logs."""

from __future__ import annotations

import argparse
import contextlib
import faulthandler
import gzip
import logging
import logging.handlers
import os
import pathlib
import re
import shutil
import socket
import subprocess
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import psutil

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

DEFAULT_LOG_FORMAT = (
    "%(asctime)s - %(levelname)8s - %(process)8d - %(threadName)s - %(name)s: %(message)s"
)

_COLOR = re.compile(r"\x1b\[[0-9;]*m")
_STACK_TIMEOUT_S = 30.0
_DEFAULT_LOG_BYTES = 10 * 1024 * 1024
_LOG_FILES = 100

_VERBOSE_LOG_WARNING = re.compile(
    r"Triton Inference Server is running with enabled verbose logs.*"
    r"It may affect inference performance."
)


class ProcessMonitoring:
    """Logs the state of a process and its children, for tests that hang.

    Args:
        pid: process to watch.
        logger: the logger to use; by default this module's.
        loglevel: level to log at.
        remove_color: whether to strip the colours of the stacks.
    """

    def __init__(
        self,
        pid: int,
        logger: logging.Logger | None = None,
        loglevel: int = logging.INFO,
        remove_color: bool = False,
    ) -> None:
        self._process = psutil.Process(pid)
        self._logger = logger or logging.getLogger(__name__)
        self._level = loglevel
        self._remove_color = remove_color
        self._custom_monitors: list[Callable[[int], None]] = []

    @property
    def children(self) -> list[psutil.Process]:
        """The child processes of the watched process."""
        children: list[psutil.Process] = self._process.children(recursive=True)
        return children

    def register_custom_monitor(self, custom_monitor: Callable[[int], None]) -> None:
        """Add a function that is called with the id of each process at each dump.

        Args:
            custom_monitor: function to call.
        """
        self._custom_monitors.append(custom_monitor)

    def dump_state(self) -> None:
        """Log the process tree and, if py-spy is installed, the stacks of its Python threads."""
        try:
            processes = [self._process, *self.children]
        except psutil.NoSuchProcess:
            self._log("Process %d has ended", self._process.pid)
            return
        for process in processes:
            self._dump(process)

    def _dump(self, process: psutil.Process) -> None:
        try:
            self._log("%s", process)
            usage = process.as_dict(["memory_info", "num_fds", "num_threads", "cpu_times"])
            self._log("Process %d uses %s", process.pid, usage)
            self._dump_stack(process.pid)
            for custom_monitor in self._custom_monitors:
                custom_monitor(process.pid)
        except psutil.NoSuchProcess:
            self._log("Process %d has ended", process.pid)

    def _dump_stack(self, pid: int) -> None:
        py_spy = shutil.which("py-spy")
        if py_spy is None:
            return
        try:
            result = subprocess.run(
                [py_spy, "dump", "--nonblocking", "--pid", str(pid)],
                capture_output=True,
                text=True,
                timeout=_STACK_TIMEOUT_S,
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            self._log("%s", error)
            return
        text = result.stdout or result.stderr
        self._log("%s", _COLOR.sub("", text) if self._remove_color else text)

    def _log(self, message: str, *arguments: object) -> None:
        self._logger.log(self._level, message, *arguments)


class ProcessMonitoringThread:
    """Logs the state of a process at intervals; a context manager.

    Args:
        monitoring: logs the state.
        interval: seconds between two dumps.
    """

    def __init__(self, monitoring: ProcessMonitoring, interval: float = 60) -> None:
        self._monitoring = monitoring
        self._interval = interval
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Start to dump."""
        self._stopped.clear()
        self._thread = threading.Thread(target=self._run, name="process-monitoring", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Stop, and wait for a running dump."""
        self._stopped.set()
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def __enter__(self) -> ProcessMonitoringThread:  # noqa: PYI034  Self came with 3.11
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _run(self) -> None:
        self._monitoring.dump_state()
        while not self._stopped.wait(self._interval):
            self._monitoring.dump_state()


class TestMonitoringContext:
    """Sets up logging and monitoring of the current process, by the arguments of a long test.

    Args:
        args: parsed arguments of a parser that `extend_args` extended.
    """

    __test__ = False  # it contains no tests, although its name begins with Test

    def __init__(self, args: argparse.Namespace) -> None:
        self._args = args
        self._undo = contextlib.ExitStack()

    @staticmethod
    def extend_args(parser: argparse.ArgumentParser) -> None:
        """Add the arguments that the context reads.

        Args:
            parser: parser of the test.
        """
        add = parser.add_argument
        add("--verbose", action="store_true", help="Log debug messages.")
        add("--log-path", help="File to log to; it is rotated.")
        add("--compress-logs", action="store_true", help="Compress rotated log files.")
        add(
            "--maximum-log-file",
            type=int,
            default=_DEFAULT_LOG_BYTES,
            help="Bytes after which the log file is rotated.",
        )
        add("--enable-fault-handler", action="store_true", help="Print stacks on a crash.")
        add("--faulthandler-interval", type=float, help="Seconds between two prints of all stacks.")
        add(
            "--process-monitoring-interval",
            type=float,
            help="Seconds between two dumps of the processes' stacks.",
        )

    def __enter__(self) -> TestMonitoringContext:  # noqa: PYI034  Self came with 3.11
        args = self._args
        self._start_logging()
        if args.enable_fault_handler:
            faulthandler.enable()
        if args.faulthandler_interval:
            faulthandler.dump_traceback_later(args.faulthandler_interval, repeat=True)
            self._undo.callback(faulthandler.cancel_dump_traceback_later)
        if args.process_monitoring_interval:
            monitoring = ProcessMonitoring(os.getpid(), remove_color=True)
            self._undo.enter_context(
                ProcessMonitoringThread(monitoring, args.process_monitoring_interval)
            )
        return self

    def __exit__(self, *_: object) -> None:
        self._undo.close()

    def _start_logging(self) -> None:
        level = logging.DEBUG if self._args.verbose else logging.INFO
        logging.basicConfig(level=level, format=DEFAULT_LOG_FORMAT)
        if not self._args.log_path:
            return
        handler = logging.handlers.RotatingFileHandler(
            self._args.log_path, maxBytes=self._args.maximum_log_file, backupCount=_LOG_FILES
        )
        handler.setFormatter(logging.Formatter(DEFAULT_LOG_FORMAT))
        if self._args.compress_logs:
            handler.namer = lambda name: f"{name}.gz"
            handler.rotator = _compress
        logging.getLogger().addHandler(handler)
        self._undo.callback(handler.close)
        self._undo.callback(logging.getLogger().removeHandler, handler)


def _compress(source: str, target: str) -> None:
    with pathlib.Path(source).open("rb") as plain, gzip.open(target, "wb") as compressed:
        shutil.copyfileobj(plain, compressed)
    pathlib.Path(source).unlink()


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

    def __exit__(self, *_: object) -> None:
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
