# SPDX-License-Identifier: Apache-2.0
"""Two connected TCP sockets."""

from __future__ import annotations

import socket

from pytriton.runtime.transport.stream_channel import tune_stream


def tcp_pair() -> tuple[socket.socket, socket.socket]:
    """Returns two connected sockets of the loopback interface, tuned as those between machines."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        ours = socket.create_connection(listener.getsockname())
        theirs, _ = listener.accept()
    for sock in (ours, theirs):
        tune_stream(sock)
    return ours, theirs
