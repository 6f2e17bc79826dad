# SPDX-License-Identifier: Apache-2.0
"""Starts Python processes of this package: the zygote, and workers that nobody forks."""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys
from typing import TYPE_CHECKING

from pytriton.errors import InternalError

if TYPE_CHECKING:
    import socket
    from collections.abc import Mapping, Sequence

_PACKAGE = pathlib.Path(__file__).parent.parent
_WORKER_SCRIPT = str(_PACKAGE / "python_backend" / "__main__.py")
# The folder that holds the package replaces the working directory as the first place to import
# from: a file of the user's called like a module of ours must not be taken for it.
_ZYGOTE_BOOTSTRAP = (
    "import sys; sys.path[0] = sys.argv.pop(1); "
    "from pytriton.python_backend.zygote import main; main(sys.argv[1:])"
)
_ASK_VERSION = "import sys; print(*sys.version_info[:2])"
_VERSION_TIMEOUT_S = 60.0


def start_zygote(control: socket.socket) -> subprocess.Popen[bytes]:
    """Start the zygote, which is told over a socket what to fork."""
    descriptor = control.fileno()
    command = [sys.executable, "-c", _ZYGOTE_BOOTSTRAP, str(_PACKAGE.parent)]
    return subprocess.Popen(
        [*command, "--control-fd", str(descriptor)],
        stdin=subprocess.DEVNULL,
        pass_fds=[descriptor],
    )


def start_worker(
    interpreter: str,
    title: str,
    sockets: tuple[socket.socket, socket.socket],
    variables: Mapping[str, str],
    fallback_paths: Sequence[str],
) -> subprocess.Popen[bytes]:
    """Start a worker as the leader of a group of processes, which ends with it."""
    channel, fork_socket = (each.fileno() for each in sockets)
    arguments = ["--channel-fd", str(channel), "--fork-fd", str(fork_socket), "--title", title]
    for path in fallback_paths:
        arguments += ["--fallback-path", path]
    environment = {**os.environ, **variables}
    if interpreter != sys.executable:
        environment.pop("PYTHONHOME", None)  # of the server's own Python
    return subprocess.Popen(
        [interpreter, _WORKER_SCRIPT, *arguments],
        stdin=subprocess.DEVNULL,
        pass_fds=[channel, fork_socket],
        env=environment,
        start_new_session=True,
    )


def fallback_paths(interpreter: str) -> list[str]:
    """Where another Python finds numpy and msgspec if it has none of its own.

    Takes as long as that Python needs to start. Compiled modules of ours fit only a Python of the
    same version.

    Raises:
        InternalError: It is no Python, or does not run.
    """
    try:
        asked = subprocess.run(
            [interpreter, "-c", _ASK_VERSION],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            check=True,
            text=True,
            timeout=_VERSION_TIMEOUT_S,
            env={name: value for name, value in os.environ.items() if name != "PYTHONHOME"},
        )
    except subprocess.CalledProcessError as error:
        raise InternalError(f"The Python '{interpreter}' does not run: {error.stderr}") from error
    except (OSError, subprocess.SubprocessError) as error:
        raise InternalError(f"The Python '{interpreter}' does not run: {error}") from error
    if asked.stdout.split() != [str(part) for part in sys.version_info[:2]]:
        return []
    return [path for path in sys.path if path.endswith(("site-packages", "dist-packages"))]
