# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import json
import shlex

from hypothesis import example, given
from hypothesis import strategies as st

from pytriton.serving.server.access_log.access_log import (
    GRPC,
    HTTP,
    MAX_CHARACTERS,
    AccessEntry,
    json_line,
    plain_line,
)

ENTRY = AccessEntry(
    ended_s=1_700_000_000.25,
    client="127.0.0.1:5000",
    protocol=HTTP,
    method=b"POST",
    target=b"/v2/models/AddSub/infer",
    status=200,
    bytes_in=120,
    bytes_out=240,
    duration_ns=1_500_000,
    model="AddSub",
    version="1",
    request_id="7",
    user_agent=b"curl/8.0",
)
CALL = ENTRY._replace(
    protocol=GRPC, method=b"", target=b"/inference.GRPCInferenceService/ModelInfer", status=3
)
HOSTILE = 'a" 200 0 0\r\n2026 fake "\\\x1b[31m\u2028\x00'


def test_plain_line_has_its_fields_in_order():
    assert plain_line(ENTRY) == (
        "2023-11-14T22:13:20.250000Z 127.0.0.1:5000 HTTP "
        '"POST /v2/models/AddSub/infer" 200 120 240 0.001500 AddSub 1 7 "curl/8.0"'
    )


def test_plain_line_names_the_status_of_grpc():
    assert plain_line(CALL).split()[3:5] == [
        '"/inference.GRPCInferenceService/ModelInfer"',
        "INVALID_ARGUMENT",
    ]


def test_plain_line_has_a_dash_for_what_is_unknown():
    bare = ENTRY._replace(client="", model="", version="", request_id="", user_agent=b"")

    assert plain_line(bare).split()[1] == "-"
    assert plain_line(bare).endswith(" - - - -")
    assert plain_line(ENTRY._replace(model="-")).split()[-4] == '"-"'


def test_json_line_has_a_number_as_status_for_both_protocols():
    assert json.loads(json_line(ENTRY)) == {
        "time": "2023-11-14T22:13:20.250000Z",
        "client": "127.0.0.1:5000",
        "protocol": "HTTP",
        "method": "POST",
        "path": "/v2/models/AddSub/infer",
        "status": 200,
        "bytes_in": 120,
        "bytes_out": 240,
        "duration_s": 0.0015,
        "model": "AddSub",
        "version": "1",
        "request_id": "7",
        "user_agent": "curl/8.0",
    }
    call = json.loads(json_line(CALL))
    assert (call["status"], call["grpc_status"]) == (3, "INVALID_ARGUMENT")
    assert "method" not in call


def test_query_is_left_out_as_it_may_contain_a_token():
    entry = ENTRY._replace(target=b"/v2?token=secret")

    assert "secret" not in plain_line(entry) + json_line(entry)


def test_long_texts_are_shortened():
    entry = ENTRY._replace(target=b"/" * 50_000, user_agent=b"x" * 50_000, request_id="y" * 50_000)

    assert len(plain_line(entry)) < 4 * MAX_CHARACTERS
    assert json.loads(json_line(entry))["request_id"] == "y" * MAX_CHARACTERS + "..."


def test_hostile_texts_stay_in_their_fields():
    raw = HOSTILE.encode("utf-8")
    entry = ENTRY._replace(target=raw, model=HOSTILE, request_id=HOSTILE, user_agent=raw)
    line = plain_line(entry)

    assert line.isprintable()
    assert len(shlex.split(line)) == 12
    assert json.loads(json_line(entry))["model"] == HOSTILE


@example(b"'", "'", "")
@given(st.binary(), st.text(), st.text(st.characters(categories=["Cs", "Cc", "Zl", "L"])))
def test_any_text_makes_one_line_of_the_same_fields(raw, text, other):
    entry = ENTRY._replace(target=raw, model=text, version=other, request_id=text, user_agent=raw)
    line = plain_line(entry)

    assert line.isprintable()
    assert len(shlex.split(line)) == 12
    as_json = json_line(entry)
    assert as_json.isascii()
    assert as_json.isprintable()
    assert json.loads(as_json)["status"] == 200
    assert line.encode()
