# SPDX-License-Identifier: Apache-2.0
"""How many processes serve HTTP and gRPC; the cores are counted in `server/process/cores.py`."""

from __future__ import annotations

import msgspec

from pytriton.base.settings import MAX_FRONTEND_PROCESSES
from pytriton.exceptions import PyTritonValidationError
from pytriton.serving.server.options.flags import Flags

FRONTENDS_VARIABLE = "PYTRITON_FRONTEND_PROCESSES"

# Up to this many cores the clients, the server and its models already use all of them.
_CORES_FOR_ONE_PROCESS = 4
# More front ends share less of their work: requests then reach the core one by one.
_MAX_BY_DEFAULT = 8
# One front end costs what the server in one process does, so only a second one makes it faster.
_MIN_BY_DEFAULT = 2


class Surroundings(msgspec.Struct, frozen=True, kw_only=True):
    """What the machine and the environment say to settings that are not given."""

    cores: int = 1
    frontend_processes: str | None = None  # the value of `FRONTENDS_VARIABLE`
    variables: dict[str, str] = {}  # those that are set of cloud providers and of the page


ONE_CORE = Surroundings()


def frontend_process_count(cores: int) -> int:
    """Returns how many front ends a machine with this many cores gets if nobody says a number."""
    if cores <= _CORES_FOR_ONE_PROCESS:
        return 0
    return min(_MAX_BY_DEFAULT, max(_MIN_BY_DEFAULT, cores // 4))


def read_frontend_processes(flags: Flags, surroundings: Surroundings) -> int:
    """Read the number of processes for HTTP and gRPC; 0 means in the server's own process.

    The flag counts most, then the environment, then the number of threads for Triton.

    Raises:
        PyTritonValidationError: for a number out of range.
    """
    given: int | None = flags.value("frontend_processes")
    threads: int | None = flags.value("http_thread_count")
    if given is None:
        given = _from_environment(surroundings.frontend_processes)
    if given is not None:
        return given
    if threads is not None:
        return min(threads, _MAX_BY_DEFAULT, surroundings.cores)
    return frontend_process_count(surroundings.cores)


def _from_environment(value: str | None) -> int | None:
    if not value:
        return None
    try:
        return int(Flags({"frontend_processes": value}).value("frontend_processes"))
    except PyTritonValidationError:
        raise PyTritonValidationError(
            f"Expected an integer from 0 to {MAX_FRONTEND_PROCESSES} for the variable "
            f"{FRONTENDS_VARIABLE}, got {value!r}"
        ) from None
