# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import json
import shlex
from datetime import datetime, timezone

from hypothesis import example, given
from hypothesis import strategies as st

from pytriton.base.messages import RequestCost
from pytriton.serving.server.access_log.access_log import (
    GRPC,
    HTTP,
    MAX_CHARACTERS,
    AccessEntry,
    json_line,
    plain_line,
    with_costs,
)
from pytriton.serving.server.options.server_options import COST_FIELDS

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


COST = RequestCost(1, 1_500_000, 30_000, 2_000, 8, 16, 3, 4)


def test_costs_follow_in_the_order_that_was_asked_for():
    entry = ENTRY._replace(cost=COST)
    plain = with_costs(plain_line, ["tokens_out", "worker_s"], is_json=False)
    as_json = with_costs(json_line, ["queue_s", "tensor_bytes_in"], is_json=True)

    assert plain(entry) == f"{plain_line(entry)} 4 0.001500"
    expected = json.loads(json_line(entry)) | {"queue_s": 2e-06, "tensor_bytes_in": 8}
    assert json.loads(as_json(entry)) == expected


def test_costs_that_nobody_has_measured_are_not_shown_as_zero():
    plain = with_costs(plain_line, COST_FIELDS, is_json=False)
    as_json = with_costs(json_line, COST_FIELDS, is_json=True)

    for cost in (None, RequestCost()):
        entry = ENTRY._replace(cost=cost)
        assert plain(entry) == plain_line(entry) + " -" * len(COST_FIELDS)
        assert as_json(entry) == json_line(entry)


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


texts = st.text(st.characters(exclude_categories=("Cs",)), max_size=8) | st.just("x" * 2000)
raw = st.binary(max_size=8) | st.just(b"x" * 2000)
entries = st.builds(
    AccessEntry,
    st.floats(0, 4e9),
    st.sampled_from(["", "127.0.0.1:80", "[fe80::1%eth0]:80"]),
    st.sampled_from([HTTP, GRPC]),
    raw,
    raw,
    st.integers(0, 17) | st.integers(200, 599),
    st.integers(0, 2**40),
    st.integers(0, 2**40),
    st.integers(0, 2**60),
    texts,
    texts,
    texts,
    raw,
)


@given(entries)
def test_json_line_is_what_the_encoder_of_python_writes(entry):
    line = json_line(entry)

    members = json.loads(line)
    assert json.dumps(members) == line
    assert "" not in members.values()
    assert members["duration_s"] == entry.duration_ns / 1e9
    moment = datetime.fromtimestamp(entry.ended_s, timezone.utc)
    assert members["time"] == moment.isoformat(timespec="microseconds").replace("+00:00", "Z")


@given(entries)
def test_plain_line_has_the_same_on_one_line(entry):
    line, members = plain_line(entry), json.loads(json_line(entry))

    assert line.isprintable()
    fields = shlex.split(line)
    assert len(fields) == 12
    assert fields[0] == members["time"]
    assert fields[5:7] == [str(entry.bytes_in), str(entry.bytes_out)]
