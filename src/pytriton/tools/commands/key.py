# SPDX-License-Identifier: Apache-2.0
"""`pytriton key`: makes, lists and revokes the keys of clients, in the file beside a policy.

A server that runs notices the change within a second.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from pytriton.serving.server.access.files import (
    changed_keys,
    keys_path,
    read_document,
    read_keys,
)
from pytriton.serving.server.access.keys import KeyRecord, make_key, split_key, time_text
from pytriton.serving.server.access.policy import PolicyDocument, PolicyError
from pytriton.utils.option_parser import OptionParser

CONFIG_VARIABLE = "PYTRITON_AUTH_CONFIG"
_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 7 * 86400}
_DURATION = re.compile(r"([0-9]{1,6})([smhdw])")
_MAX_NOTE = 200
_EPILOG = """\
The file of keys has their hashes only: a key is printed once, and nobody can print it again. The
server reads the file again when it changes, so that a revoked key is refused within a second.
"""

Write = Callable[[str], None]


def run(arguments: Sequence[str], show: Write, complain: Write) -> int:
    """Make, list or revoke keys; 1 if that is impossible."""
    options = _parser().parse_args(list(arguments))
    path = Path(options.auth_config)
    try:
        document = read_document(path)
        keys = keys_path(path, document)
        if options.action == "create":
            return _create(options, document, keys, show, complain)
        if options.action == "list":
            return _list(options, document, keys, show)
        return _revoke(options, keys, show, complain)
    except PolicyError as error:
        complain(f"{error}.")
    except OSError as error:
        complain(f"The keys cannot be written: {error.strerror or error} ({error.filename}).")
    return 1


def _create(
    options: argparse.Namespace, document: PolicyDocument, path: Path, show: Write, complain: Write
) -> int:
    known = document.policy.principals
    if options.principal not in known:
        listed = ", ".join(known) or "none"
        complain(f"{options.auth_config} has no principal {options.principal}; it has {listed}.")
        return 1
    now_s = time.time()
    expires_s = None if options.expires is None else float(int(now_s)) + options.expires
    key, record = make_key(options.principal, now_s, expires_s, options.note)
    with changed_keys(path) as keys:
        keys[record.id] = record
    if options.json:
        show(json.dumps({"key": key, **_members(record, now_s)}))
    else:
        show(key)
        until = "until it is revoked" if expires_s is None else f"until {time_text(expires_s)}"
        complain(
            f"The key {record.id} of {record.principal} is valid {until}. It is shown only now."
        )
    return 0


def _list(options: argparse.Namespace, document: PolicyDocument, path: Path, show: Write) -> int:
    now_s = time.time()
    records = [each for each in read_keys(path).values() if _is_of(each, options.principal)]
    if options.json:
        show(json.dumps([_members(record, now_s) for record in records]))
        return 0
    rows = [("ID", "PRINCIPAL", "STATE", "CREATED", "EXPIRES", "NOTE")]
    for record in records:
        created, expires = time_text(record.created_s), time_text(record.expires_s) or "never"
        state = _state(record, now_s)
        if record.principal not in document.policy.principals:
            state += ", no such principal"
        rows.append((record.id, record.principal, state, created, expires, record.note))
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    for row in rows:
        cells = [cell.ljust(width) for cell, width in zip(row, widths, strict=True)]
        show("  ".join(cells).rstrip())
    return 0


def _is_of(record: KeyRecord, principal: str | None) -> bool:
    return principal is None or record.principal == principal


def _revoke(options: argparse.Namespace, path: Path, show: Write, complain: Write) -> int:
    # Whoever found a key somewhere has all of it, and wants to revoke it.
    parts = split_key(options.id)
    key_id = options.id if parts is None else parts[0]
    if key_id not in read_keys(path):
        complain(f"{path} has no key {key_id if parts or len(key_id) <= 12 else 'of this id'}.")
        return 1
    with changed_keys(path) as keys:
        record = keys[key_id]
        if record.revoked_s is None:
            keys[key_id] = msgspec.structs.replace(record, revoked_s=float(int(time.time())))
    show(f"The key {key_id} of {record.principal} is revoked.")
    return 0


def _state(record: KeyRecord, now_s: float) -> str:
    if record.revoked_s is not None:
        return "revoked"
    return "expired" if now_s >= record.until_s else "valid"


def _members(record: KeyRecord, now_s: float) -> dict[str, str]:
    return {
        "id": record.id,
        "principal": record.principal,
        "state": _state(record, now_s),
        "created": time_text(record.created_s),
        "expires": time_text(record.expires_s),
        "revoked": time_text(record.revoked_s),
        "note": record.note,
    }


def _duration(text: str) -> int:
    found = _DURATION.fullmatch(text)
    if found is None or not int(found[1]):
        raise argparse.ArgumentTypeError(f"expected a duration such as 90d, 12h or 30m, got {text}")
    return int(found[1]) * _UNITS[found[2]]


def _note(text: str) -> str:
    if len(text) > _MAX_NOTE or not text.isprintable():
        raise argparse.ArgumentTypeError(f"expected up to {_MAX_NOTE} visible characters")
    return text


def _parser() -> OptionParser:
    parser = OptionParser(
        prog="pytriton key",
        description="Make, list and revoke the keys of clients of a server with --auth-config.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    actions = parser.add_subparsers(dest="action", required=True, metavar="create|list|revoke")
    create = actions.add_parser("create", help="make a key, and print it once")
    listing = actions.add_parser("list", help="list the keys, without their secrets")
    revoke = actions.add_parser("revoke", help="revoke a key")
    for each in (create, listing, revoke):
        given = os.environ.get(CONFIG_VARIABLE)
        each.add_argument(
            "--auth-config",
            metavar="FILE",
            default=given,
            required=given is None,
            help=f"the policy of the server; default is the variable {CONFIG_VARIABLE}",
        )
    create.add_argument("--principal", metavar="NAME", required=True, help="whose key it is")
    create.add_argument(
        "--expires", metavar="TIME", type=_duration, help="such as 90d or 12h; default is never"
    )
    create.add_argument("--note", metavar="TEXT", type=_note, default="", help="shown by list")
    listing.add_argument("--principal", metavar="NAME", help="list the keys of this one only")
    for each in (create, listing):
        each.add_argument("--json", action="store_true", help="print JSON")
    revoke.add_argument("id", metavar="ID", help="the id of the key, or the key itself")
    return parser
