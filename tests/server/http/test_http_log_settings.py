# SPDX-License-Identifier: Apache-2.0
"""Settings of the log over HTTP."""

from __future__ import annotations

import gzip
import json

import pytest

from pytriton.serving.server.options.server_options import LogOptions
from tests.server.http_fakes import get, post
from tests.server.http_models import Service, ask, error

PATH = b"/v2/logging"
DEFAULTS = {
    "log_file": "",
    "log_info": True,
    "log_warning": True,
    "log_error": True,
    "log_verbose_level": 0,
    "log_format": "default",
}


@pytest.fixture
def service():
    return Service()


def settings(answer):
    assert answer.status == 200
    return json.loads(answer.body)


def test_settings_are_shown_in_tritons_order(service):
    answer = ask(service, get(PATH))

    assert answer.body == json.dumps(DEFAULTS, separators=(",", ":")).encode()
    assert answer.headers[b"Content-Type"] == b"application/json"


def test_settings_of_the_start_are_shown():
    service = Service(log=LogOptions(verbose=1, info=False, format="json", file="x.log"))

    assert settings(ask(service, get(PATH))) == DEFAULTS | {
        "log_file": "x.log",
        "log_info": False,
        "log_verbose_level": 1,
        "log_format": "json",
    }


def test_changes_are_answered_with_all_settings_and_stay(service):
    changed = DEFAULTS | {"log_info": False, "log_verbose_level": 2}
    body = b'{"log_info":false,"log_verbose_level":2,"log_error":null}'

    assert settings(ask(service, post(body, PATH))) == changed
    assert settings(ask(service, get(PATH))) == changed


def test_compressed_changes_are_read(service):
    body = gzip.compress(b'{"log_warning":false}')
    answer = ask(service, post(body, PATH, b"Content-Encoding: gzip"))

    assert settings(answer)["log_warning"] is False


def test_nothing_changes_with_an_error(service):
    answer = ask(service, post(b'{"log_error":false,"log_format":"x"}', PATH))

    assert (answer.status, error(answer)) == (503, "invalid argument for --log_format, got: x")
    assert settings(ask(service, get(PATH))) == DEFAULTS


@pytest.mark.parametrize(
    "body, status",
    [
        (b'{"log_file":"/tmp/x"}', 501),
        (b'{"log_info":1}', 500),
        (b"", 500),
        (b'{"log_format":"' + b"x" * (64 << 10) + b'"}', 400),
    ],
)
def test_mistakes_have_a_status(service, body, status):
    assert ask(service, post(body, PATH)).status == status
