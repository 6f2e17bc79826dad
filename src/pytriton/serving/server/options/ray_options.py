# SPDX-License-Identifier: Apache-2.0
"""Reads the settings about a Ray cluster from their flags."""

from __future__ import annotations

import ipaddress
import re
from pathlib import Path

from pytriton.base.ray_options import RayOptions
from pytriton.serving.server.options.flags import Flags, bad_value

_AUTO = "auto"
_HOST = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?")


def read_ray_options(flags: Flags) -> RayOptions:
    """Read the flags; nothing is connected, and Ray need not be there.

    Raises:
        PyTritonValidationError: for a value of the wrong form, or a folder that does not exist.
    """
    return RayOptions(
        **flags.record("ray"),
        address=_address(flags),
        instance_address=_instance_address(flags),
        working_dir=_working_dir(flags),
    )


def _address(flags: Flags) -> str:
    name = "ray_address"
    address: str = flags.value(name, "")
    if address and address != _AUTO and "://" not in address and not _is_place(address):
        raise bad_value(name, "<host>:<port>, ray://<host>:<port> or auto", address)
    return address


def _is_place(address: str) -> bool:
    host, _, port = address.rpartition(":")
    return bool(host) and port.isascii() and port.isdecimal() and 0 < int(port) < 65536


def _instance_address(flags: Flags) -> str:
    name = "ray_instance_address"
    address: str = flags.value(name, "")
    if address and not _is_host(address):
        raise bad_value(name, "the name or IP address of this machine, without a port", address)
    return address


def _is_host(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return _HOST.fullmatch(text) is not None
    return True


def _working_dir(flags: Flags) -> str:
    name = "ray_working_dir"
    folder: str = flags.value(name, "")
    if not folder or "://" in folder:  # Ray fetches an archive from such an address itself
        return folder
    path = Path(folder).expanduser()
    if not path.is_dir():
        raise bad_value(name, "a folder of this machine", folder)
    return str(path.absolute())
