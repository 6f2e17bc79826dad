# SPDX-License-Identifier: Apache-2.0
"""Messages between the measuring process and those that make load, over a pair of sockets."""

from __future__ import annotations

import socket
import struct

import msgspec

from pytriton.tools.perf.load.recipe import Order, Report

_LENGTH = struct.Struct("<Q")
_RECEIVE_BYTES = 1 << 20
_encode = msgspec.msgpack.Encoder().encode
_decode_order = msgspec.msgpack.Decoder(Order).decode
_decode_report = msgspec.msgpack.Decoder(Report).decode


class ControlClosedError(Exception):
    """The other process is gone."""


def send(connection: socket.socket, message: Order | Report) -> None:
    """Send a message; ControlClosedError if the other process is gone."""
    data = _encode(message)
    try:
        connection.sendall(_LENGTH.pack(len(data)) + data)
    except OSError as error:
        raise ControlClosedError from error


def receive_order(connection: socket.socket) -> Order:
    """Wait for a message to a process that makes load; ControlClosedError if none can come."""
    order: Order = _decode_order(_receive(connection))
    return order


class ReportInbox:
    """Messages of a process that makes load; an interrupt in between does not lose a part of one.

    Args:
        connection: The socket to the process.
    """

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._data = bytearray()

    def receive(self) -> Report:
        """Wait for a message; ControlClosedError if the process is gone."""
        while not self._has_message():
            try:
                received = self._connection.recv(_RECEIVE_BYTES)
            except OSError as error:
                raise ControlClosedError from error
            if not received:
                raise ControlClosedError
            self._data += received
        end = _LENGTH.size + _LENGTH.unpack_from(self._data)[0]
        report: Report = _decode_report(bytes(memoryview(self._data)[_LENGTH.size : end]))
        del self._data[:end]
        return report

    def _has_message(self) -> bool:
        size = len(self._data) - _LENGTH.size
        return size >= 0 and size >= _LENGTH.unpack_from(self._data)[0]


def _receive(connection: socket.socket) -> bytearray:
    (length,) = _LENGTH.unpack(_exactly(connection, _LENGTH.size))
    return _exactly(connection, length)


def _exactly(connection: socket.socket, size: int) -> bytearray:
    data = bytearray(size)
    view = memoryview(data)
    while view:
        try:
            received = connection.recv_into(view)
        except OSError as error:
            raise ControlClosedError from error
        if not received:
            raise ControlClosedError
        view = view[received:]
    return data
