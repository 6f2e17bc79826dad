# SPDX-License-Identifier: Apache-2.0
"""What this machine and this interpreter are, as far as it matters for serving models."""

from __future__ import annotations

import logging
import os
import pathlib
import platform
import resource
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from importlib import metadata

import psutil

import pytriton
from pytriton.check.report import Finding, Section, State
from pytriton.constants import DEFAULT_GRPC_PORT, DEFAULT_HTTP_PORT, DEFAULT_METRICS_PORT

logger = logging.getLogger(__name__)

_PACKAGES = (
    "pytriton", "numpy", "uvloop", "httptools", "hpack", "msgspec", "orjson", "ml_dtypes", "psutil",
    "tritonclient", "grpcio", "protobuf",
)  # fmt: skip
_OPTIONAL_PACKAGES = ("torch", "opentelemetry-sdk", "opentelemetry-exporter-otlp-proto-http")
_NAMESAKE = "nvidia-pytriton"
_PORTS = {
    "HTTP": DEFAULT_HTTP_PORT,
    "gRPC": DEFAULT_GRPC_PORT,
    "metrics": DEFAULT_METRICS_PORT,
}
# Variables that change what a server or a client does; nothing else of the environment is shown.
_VARIABLES = (
    "AIP_", "CUDA_", "GRPC_", "HTTP_PROXY", "HTTPS_PROXY", "LD_LIBRARY_PATH", "LD_PRELOAD",
    "NO_PROXY", "NVIDIA_", "OMP_", "OTEL_", "PYTHON", "PYTRITON_", "TRITON",
)  # fmt: skip
_SECRET_WORDS = ("token", "secret", "key", "password", "@")
_COMMAND_TIMEOUT_S = 20.0
_MIB = 1 << 20


def environment_sections() -> Iterator[Section]:
    """Look at everything; nothing here fails because something is missing."""
    looks: dict[str, Callable[[], list[Finding]]] = {
        "Checking OS version": _system,
        "Checking Python": _python,
        "Checking installed packages": _packages,
        "Checking psutil stats": _resources,
        "Checking GPU": _gpu,
        "Checking compiler and C libraries": _libraries,
        "Checking default ports": _ports,
        "Checking environment variables": _variables,
    }
    for title, look in looks.items():
        try:
            findings = look()
        except Exception as error:  # what cannot be read on this machine must not hide the rest
            logger.exception("Error occurred in command: %s", title)
            text = f"Error occurred in command: {type(error).__name__}: {error}"
            findings = [Finding("error", text, State.FAILED)]
        yield Section(title, tuple(findings))


def installed_packages() -> str:
    """Every installed distribution with its version and place, a line for each."""
    found = {
        f"{package.metadata['Name']}=={package.version} ({package.locate_file('')})"
        for package in metadata.distributions()
    }
    return "\n".join(sorted(found, key=str.lower))


def _system() -> list[Finding]:
    try:
        name = platform.freedesktop_os_release()["PRETTY_NAME"]
    except OSError:  # no such file outside Linux
        name = f"{platform.system()} {platform.release()}"
    return [
        Finding("OS version", f'"{name}"'),
        Finding("platform", f"{platform.platform()}, {platform.machine()}"),
    ]


def _python() -> list[Finding]:
    version = f"{platform.python_implementation()} {platform.python_version()}"
    state = State.OK if sys.version_info >= (3, 10) else State.FAILED
    return [
        Finding("python", f"{version}, expected 3.10 or newer", state),
        Finding("executable", sys.executable),
    ]


def _packages() -> list[Finding]:
    findings = [Finding("place", str(pathlib.Path(pytriton.__file__).parent))]
    for name in (*_PACKAGES, *_OPTIONAL_PACKAGES):
        version = _version(name)
        if version is not None:
            findings.append(Finding(f"{name}=={version}", ""))
        elif name in _OPTIONAL_PACKAGES:
            findings.append(Finding(name, "not installed, which is fine: it is optional"))
        else:
            findings.append(Finding(name, "not installed", State.FAILED))
    if _version(_NAMESAKE) is not None:
        text = "installed as well: both provide the module `pytriton`, and one hides the other"
        findings.append(Finding(f"{_NAMESAKE}=={_version(_NAMESAKE)}", text, State.FAILED))
    return findings


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _resources() -> list[Finding]:
    memory, swap = psutil.virtual_memory(), psutil.swap_memory()
    disk = shutil.disk_usage(pathlib.Path.cwd())
    files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return [
        Finding("cores", f"{psutil.cpu_count()}, usable by this process: {_usable_cores()}"),
        Finding("memory", f"{_mib(memory.available)} of {_mib(memory.total)} available"),
        Finding("swap", f"{_mib(swap.free)} of {_mib(swap.total)} free"),
        Finding("disk here", f"{_mib(disk.free)} of {_mib(disk.total)} free"),
        Finding("open files", f"{files} allowed; each connection takes one"),
        _shared_memory(),
    ]


def _usable_cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _shared_memory() -> Finding:
    folder = pathlib.Path("/dev/shm")  # noqa: S108  only its size is read
    size = f"{_mib(shutil.disk_usage(folder).total)}" if folder.is_dir() else "there is none"
    return Finding(str(folder), f"{size}; not needed, tensors travel in memory without a name")


def _mib(count: int) -> str:
    return f"{count // _MIB} MiB"


def _gpu() -> list[Finding]:
    code, text = _output_of("nvidia-smi")
    if code is None:
        return [Finding("nvidia-smi", f"{text}; without a GPU models run on the CPU")]
    state = State.FACT if code == 0 else State.NOTE
    return [Finding("nvidia-smi process finished with " + str(code), text, state)]


def _libraries() -> list[Finding]:
    code, text = _output_of("gcc", "--version")
    compiler = text.partition("\n")[0] if code == 0 else text
    libc = " ".join(platform.libc_ver()).strip() or "not glibc"
    return [
        Finding("gcc", f"{compiler}; not needed, nothing is compiled"),
        Finding("C library", f"{libc}; any will do"),
    ]


def _output_of(*command: str) -> tuple[int | None, str]:
    """Exit code and output of a program; None and the reason where it cannot be run."""
    path = shutil.which(command[0])
    if path is None:
        return None, "not found"
    try:
        done = subprocess.run(
            [path, *command[1:]],
            check=False,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=_COMMAND_TIMEOUT_S,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return None, str(error)
    return done.returncode, done.stdout.strip()


def _ports() -> list[Finding]:
    findings = []
    for name, port in _PORTS.items():
        if is_port_free(port):
            findings.append(Finding(f"{name} {port}", "free"))
        else:
            text = f"taken; another one can be set as TritonConfig({name.lower()}_port=...)"
            findings.append(Finding(f"{name} {port}", text, State.NOTE))
    return findings


def is_port_free(port: int) -> bool:
    """Whether a server could listen there, on all addresses."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("", port))
        except OSError:
            return False
        return True


def _variables() -> list[Finding]:
    shown = [
        Finding(name, value)
        for name, value in sorted(os.environ.items())
        if name.upper().startswith(_VARIABLES) and not _is_secret(name + value)
    ]
    return shown or [Finding("none", "no variable that matters is set")]


def _is_secret(text: str) -> bool:
    return any(word in text.lower() for word in _SECRET_WORDS)
