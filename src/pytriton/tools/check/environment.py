# SPDX-License-Identifier: Apache-2.0
"""Reports what matters for serving on this machine: system, Python, packages, limits, ports."""

from __future__ import annotations

import logging
import os
import pathlib
import platform
import re
import resource
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from importlib import metadata

import psutil

import pytriton
from pytriton.base.control_groups import core_limit, memory_limit, scheduled_cores
from pytriton.base.sandbox import missing_parts
from pytriton.constants import DEFAULT_GRPC_PORT, DEFAULT_HTTP_PORT, DEFAULT_METRICS_PORT
from pytriton.runtime.sandbox.probe import probe
from pytriton.tools.check.report import CheckReport, Finding, State

PACKAGE = "pytriton"
_INTERFACE = "nvidia-pytriton"
_INTERFACE_VERSION = "0.7.0"
_OPTIONAL = ("torch", "tritonclient")
_OPTIONAL_EXTRA = "extra == 'telemetry'"
_REQUIREMENT = re.compile(
    r"(?P<name>[\w.-]+)(\[[^\]]*\])?\s*(>=\s*(?P<least>[\d.]+))?[^;]*(;(?P<marker>.*))?"
)

logger = logging.getLogger(__name__)

_PORTS = {
    "HTTP": DEFAULT_HTTP_PORT,
    "gRPC": DEFAULT_GRPC_PORT,
    "metrics": DEFAULT_METRICS_PORT,
}
# Environment variables that affect a server or a client; no others are shown.
_VARIABLES = (
    "AIP_", "CUDA_", "GRPC_", "HTTP_PROXY", "HTTPS_PROXY", "LD_LIBRARY_PATH", "LD_PRELOAD",
    "NO_PROXY", "NVIDIA_", "OMP_", "OTEL_", "PYTHON", "PYTRITON_", "TRITON",
)  # fmt: skip
_SECRET_WORDS = ("token", "secret", "key", "password", "@")
# In the order in which gRPC reads them; it supports only lower case.
_GRPC_PROXIES = ("grpc_proxy", "https_proxy", "http_proxy")
_COMMAND_TIMEOUT_S = 20.0
_FEW_FILES = 1024
_LITTLE_MEMORY = 1 << 29
_MIB = 1 << 20
_SHOWN = 300  # maximum number of characters of a variable


def version_of(name: str) -> str | None:
    """Returns the version of a distribution; None if it is not installed."""
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def installed_packages() -> str:
    """Returns one line for each installed distribution, with its version and path."""
    found = {
        f"{package.metadata['Name']}=={package.version} ({package.locate_file('')})"
        for package in metadata.distributions()
    }
    return "\n".join(sorted(found, key=str.lower))


def package_findings() -> Iterator[Finding]:
    """Yields the relevant packages, and whether their versions are sufficient."""
    yield Finding("place", str(pathlib.Path(pytriton.__file__).parent))
    yield _package_finding(PACKAGE)
    yield from _interface()
    optional = list(_OPTIONAL)
    for name, least, marker in _requirements():
        if _OPTIONAL_EXTRA in marker.replace('"', "'"):
            optional.append(name)
        elif "extra ==" not in marker and _is_for_this_python(marker):
            yield _package_finding(name, least)
    for name in optional:
        version = version_of(name)
        text = "not installed, which is fine: it is optional"
        yield Finding(name, text) if version is None else Finding(f"{name}=={version}", "")


def _is_for_this_python(marker: str) -> bool:
    """Returns whether a condition such as `python_version < '3.11'` holds; it may be empty."""
    if not marker:
        return True
    try:
        from packaging.markers import Marker  # noqa: PLC0415  it may be what is missing
    except ImportError:
        return False  # what others need is told, also that this one is missing
    return Marker(marker).evaluate()


def _interface() -> Iterator[Finding]:
    yield Finding("interface", f"that of {_INTERFACE}=={_INTERFACE_VERSION}")
    version = version_of(_INTERFACE)
    if version is not None:
        text = "installed as well: both provide the module `pytriton`, and one hides the other"
        yield Finding(f"{_INTERFACE}=={version}", text, State.FAILED)


def _requirements() -> Iterator[tuple[str, str, str]]:
    """Yields name, minimum version and condition of each package that ours requires."""
    if version_of(PACKAGE) is None:  # it runs from its source tree and is not installed
        return
    for text in metadata.requires(PACKAGE) or ():
        match = _REQUIREMENT.match(text)
        if match is not None:
            yield match["name"], match["least"] or "0", match["marker"] or ""


def _package_finding(name: str, least: str = "0") -> Finding:
    version = version_of(name)
    if version is None:
        return Finding(name, "not installed", State.FAILED)
    if _numbers(version) < _numbers(least):
        return Finding(f"{name}=={version}", f"expected {least} or newer", State.FAILED)
    return Finding(f"{name}=={version}", "")


def _numbers(version: str) -> tuple[int, ...]:
    """Returns the release without its suffix, so that 2.0.0rc1 counts as 2.0.0."""
    release = re.match(r"\d+(\.\d+)*", version)
    numbers = [int(number) for number in release[0].split(".")] if release else []
    while numbers and numbers[-1] == 0:  # 1.0 and 1 are the same release
        numbers.pop()
    return tuple(numbers)


def report_environment(report: CheckReport) -> None:
    """Report everything; missing programs and files are no failures."""
    looks: dict[str, Callable[[], Iterable[Finding]]] = {
        "Checking OS version": _system,
        "Checking Python": _python,
        "Checking installed packages": package_findings,
        "Checking psutil stats": _resources,
        "Checking GPU": _gpu,
        "Checking compiler and C libraries": _libraries,
        "Checking sandboxes of models": _sandboxes,
        "Checking default ports": _ports,
        "Checking environment variables": _variables,
    }
    for title, look in looks.items():
        report.begin(title)
        try:
            for finding in look():
                report.add(finding)
        except Exception as error:  # one failure must not hide the other findings
            logger.exception("Error occurred in command: %s", title)
            report.add(Finding.of_error("error", error))


def _system() -> Iterator[Finding]:
    try:
        name = platform.freedesktop_os_release()["PRETTY_NAME"]
    except OSError:  # no such file outside Linux
        name = f"{platform.system()} {platform.release()}"
    yield Finding("OS version", f'"{name}"')
    yield Finding("platform", f"{platform.platform()}, {platform.machine()}")


def _python() -> Iterator[Finding]:
    version = f"{platform.python_implementation()} {platform.python_version()}"
    state = State.OK if sys.version_info >= (3, 10) else State.FAILED
    yield Finding("python", f"{version}, expected 3.10 or newer", state)
    yield Finding("executable", sys.executable)


def _resources() -> Iterator[Finding]:
    yield _cores()
    yield _memory()
    swap = psutil.swap_memory()
    yield Finding("swap", f"{_mib(swap.free)} of {_mib(swap.total)} free")
    disk = shutil.disk_usage(pathlib.Path.cwd())
    yield Finding("disk here", f"{_mib(disk.free)} of {_mib(disk.total)} free")
    files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    state = State.FACT if files >= _FEW_FILES else State.NOTE
    yield Finding("open files", f"{files} allowed; each connection takes one", state)
    yield _shared_memory()


def _cores() -> Finding:
    present, usable, limit = psutil.cpu_count() or 1, scheduled_cores(), core_limit()
    text = f"{present}, usable by this process: {usable}"
    if limit is not None and limit < present:
        text += f", limited to {limit:g} by its container or control group"
    if min(usable, limit or usable) > 1:
        return Finding("cores", f"{text}; the server takes up to one, models the rest")
    return Finding("cores", f"{text}; the server and its models share one", State.NOTE)


def _memory() -> Finding:
    memory, limit = psutil.virtual_memory(), memory_limit()
    text = f"{_mib(memory.available)} of {_mib(memory.total)} available"
    if limit is not None and limit < memory.total:
        text += f", limited to {_mib(limit)} by its container or control group"
    if min(memory.available, limit or memory.available) >= _LITTLE_MEMORY:
        return Finding("memory", text)
    return Finding("memory", f"{text}; a server takes about 60 MiB without models", State.NOTE)


def _shared_memory() -> Finding:
    folder = pathlib.Path("/dev/shm")  # noqa: S108  only its size is read
    size = f"{_mib(shutil.disk_usage(folder).total)}" if folder.is_dir() else "there is none"
    return Finding(str(folder), f"{size}; not needed, tensors travel in memory without a name")


def _mib(count: int) -> str:
    return f"{count // _MIB} MiB"


def _gpu() -> Iterator[Finding]:
    fields = "--query-gpu=name,memory.total,memory.used,driver_version"
    code, text = _output_of("nvidia-smi", fields, "--format=csv")
    if code is None:
        yield Finding("nvidia-smi", f"{text}; without a GPU models run on the CPU")
    else:
        state = State.FACT if code == 0 else State.NOTE
        yield Finding(f"nvidia-smi process finished with {code}", text, state)


def _libraries() -> Iterator[Finding]:
    code, text = _output_of("gcc", "--version")
    compiler = text.partition("\n")[0] if code == 0 else text
    yield Finding("gcc", f"{compiler}; not needed, nothing is compiled")
    libc = " ".join(platform.libc_ver()).strip() or "not glibc"
    yield Finding("C library", f"{libc}; any will do")


def _sandboxes() -> Iterator[Finding]:
    machine = probe()
    missing = missing_parts(machine)
    if not any(part.is_essential for part in missing):
        yield Finding("--sandbox", "on and strict work here")
    for part in missing:
        state = State.NOTE if part.is_essential else State.FACT
        yield Finding(f"without {part.name}", part.consequence, state)


def _output_of(*command: str) -> tuple[int | None, str]:
    """Returns exit code and output of a program; None and the reason if it cannot be run."""
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
            errors="replace",
            timeout=_COMMAND_TIMEOUT_S,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return None, str(error)
    return done.returncode, done.stdout.strip()


def _ports() -> Iterator[Finding]:
    for name, port in _PORTS.items():
        if is_port_free(port):
            yield Finding(f"{name} {port}", "free")
        else:
            setting = f"TritonConfig({name.lower()}_port=...)"
            text = f"taken by {_listener(port)}; another one can be set as {setting}"
            yield Finding(f"{name} {port}", text, State.NOTE)


def is_port_free(port: int) -> bool:
    """Returns whether a server could listen on this port, on all addresses."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("", port))
        except OSError:
            return False
        return True


def _listener(port: int) -> str:
    """Describe the process that listens on this port, as far as permissions allow."""
    try:
        for connection in psutil.net_connections("tcp"):
            is_it = connection.status == psutil.CONN_LISTEN and connection.laddr.port == port
            if is_it and connection.pid is not None:
                return f"{psutil.Process(connection.pid).name()} (process {connection.pid})"
    except psutil.Error:  # it has just ended, or permissions are missing
        logger.debug("who listens on port %d cannot be told", port, exc_info=True)
    return "a process that only its user or root can see"


def _variables() -> Iterator[Finding]:
    shown = [
        Finding(name, value if len(value) <= _SHOWN else value[:_SHOWN] + " ...")
        for name, value in sorted(os.environ.items())
        if name.upper().startswith(_VARIABLES) and not _is_secret(name + value)
    ]
    yield from shown or [Finding("none", "no variable that matters is set")]
    proxy = next((name for name in _GRPC_PROXIES if os.environ.get(name)), None)
    if proxy is not None:
        text = f"gRPC clients go through {proxy}, except to hosts that no_proxy names"
        yield Finding("proxy", text, State.NOTE)


def _is_secret(text: str) -> bool:
    return any(word in text.lower() for word in _SECRET_WORDS)
