# SPDX-License-Identifier: Apache-2.0
"""The messages between the server and the zygote, which forks worker processes for it.

They are sent over a stream socket that the zygote inherits. When the server closes its end, the
zygote kills all processes that it forked and exits.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from pytriton.runtime.transport.link import RecordLink

if TYPE_CHECKING:
    import socket


class ForkWorker(msgspec.Struct, tag="fork", array_like=True):
    """Server to zygote: fork a worker. The message comes with its channel and its fork socket."""

    call: int
    title: str  # of the process
    environment: dict[str, str] = {}  # variables to set


class Forked(msgspec.Struct, tag="forked", array_like=True):
    """Zygote to server: the worker was forked, or the reason why not."""

    call: int
    pid: int  # 0: no worker was forked
    error_number: int = 0  # the reason, as a value of `errno`


class Exited(msgspec.Struct, tag="exited", array_like=True):
    """Zygote to server: a worker ended; the status is that of `os.waitpid`."""

    pid: int
    status: int


ZygoteMessage = ForkWorker | Forked | Exited

_decoder = msgspec.msgpack.Decoder(ZygoteMessage)


class ZygoteLink(RecordLink[ZygoteMessage]):
    """Either end of the zygote's socket."""

    def __init__(self, sock: socket.socket) -> None:
        super().__init__(sock, _decoder)
