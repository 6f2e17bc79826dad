# SPDX-License-Identifier: Apache-2.0
"""Errors and ids of OpenAI's answers, on a connection."""

from __future__ import annotations

import logging
import re
import secrets
from typing import TYPE_CHECKING

from pytriton.base.errors import ErrorCode, error_for_clients
from pytriton.protocol.openai.errors import OpenAIError, from_server_error
from pytriton.serving.server.http.connection import JSON_TYPE

if TYPE_CHECKING:
    from pytriton.serving.server.http.connection import HttpConnection
    from pytriton.serving.server.http.reader import RequestHead

logger = logging.getLogger(__name__)

_REQUEST_ID = b"x-request-id"
_is_safe_id = re.compile(rb"[\x21-\x7e]{1,128}").fullmatch


def request_id(head: RequestHead) -> str:
    """Returns the id of a request: that of its header, or a new one."""
    given = head.headers.get(_REQUEST_ID, b"")
    return given.decode("ascii") if _is_safe_id(given) else f"req_{secrets.token_hex(12)}"


def id_header(request_id: str) -> bytes:
    """Returns the header line with the id of a request."""
    return b"x-request-id: %b\r\n" % request_id.encode()


def as_openai_error(error: Exception) -> OpenAIError:
    """Returns the error for the client; an unexpected exception is logged, and not sent."""
    if isinstance(error, OpenAIError):
        return error
    failure = error_for_clients(error, "it served a request of OpenAI's routes")
    if failure is not error and failure.code is ErrorCode.INTERNAL:
        return OpenAIError(500, failure.message, code="internal_error", kind="server_error")
    return from_server_error(failure)


def respond_error(connection: HttpConnection, error: OpenAIError, request_id: str) -> None:
    """Answer with an error."""
    logger.debug("HTTP error %d: %s", error.status, error.message)
    headers = error.headers + id_header(request_id)
    connection.respond(error.status, (error.body(),), JSON_TYPE, headers)
