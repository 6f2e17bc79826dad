# SPDX-License-Identifier: Apache-2.0
"""Tells whether the machine at the other end of a TCP connection is gone.

The kernel's keepalive finds that out only while nothing is being sent. With data on its way the
kernel tries for a quarter of an hour. Its option TCP_USER_TIMEOUT shortens that, but it also ends
connections to machines that are well if a busy process does not read for that time. (16 MiB for a
stopped process: the connection was lost after 4.3 s.) So the kernel is asked how long it has waited
for an answer: a machine answers for its processes.
"""

from __future__ import annotations

import socket
import struct

# How long a machine may be silent before it counts as gone, as with keepalive.
SILENCE_MS = 4000
CHECK_INTERVAL_S = 1.0
# Attempts that were not answered. After the first, the answer may be on its way.
_ATTEMPTS = 2
# From `struct tcp_info` in <linux/tcp.h>: retransmits, probes, and the age of the last ACK in ms.
_FIELDS = struct.Struct("=2xBB52xI")


def is_peer_gone(sock: socket.socket) -> bool:
    """Returns whether data is on its way to a machine that has not answered for some seconds.

    False if the system does not tell, or the socket is not of TCP.
    """
    option = getattr(socket, "TCP_INFO", None)  # only Linux has this form of it
    if option is None or sock.family not in (socket.AF_INET, socket.AF_INET6):
        return False
    try:
        info = sock.getsockopt(socket.IPPROTO_TCP, option, _FIELDS.size)
    except OSError:  # it is closed
        return False
    return len(info) == _FIELDS.size and is_silent(info)


def is_silent(info: bytes) -> bool:
    """Returns what the beginning of `struct tcp_info` says about the peer."""
    retransmits, probes, last_ack_ms = _FIELDS.unpack(info)
    attempts: int = max(retransmits, probes)
    return attempts >= _ATTEMPTS and last_ack_ms >= SILENCE_MS
