# SPDX-License-Identifier: Apache-2.0
"""Large JSON is read to the same requests and the same errors as small JSON."""

from __future__ import annotations

import json

import msgspec
import pytest

from pytriton.base import dtypes
from pytriton.base.errors import InvalidArgumentError, ServerError
from pytriton.protocol import large_json
from pytriton.protocol.generate import parse_generate
from pytriton.protocol.kserve_json import parse_infer
from pytriton.protocol.large_json import parse_large_generate, parse_large_infer
from pytriton.protocol.shared_memory import RegionPlace
from tests.differential import cases_forms, cases_generate, cases_mistakes
from tests.wire.specs import model_spec, tensor_spec
from tests.wire.test_recorded_mistakes import SPECS

PLENTY = 1 << 40
SPEC = model_spec(
    tensor_spec("n", dtypes.INT32, (-1,), batched=False),
    tensor_spec("f", dtypes.FP32, (-1,), batched=False),
    tensor_spec("s", dtypes.BYTES, (-1,), batched=False),
    name="m",
    outputs=("o",),
    max_batch_size=0,
)


@pytest.fixture(autouse=True)
def _small_pieces(monkeypatch):
    monkeypatch.setattr(large_json, "_PIECE_BYTES", 7)
    monkeypatch.setattr(large_json, "_PIECE_STRINGS", 2)


def plain(data):
    return data if isinstance(data, RegionPlace) else bytes(data)


def outcome(parse, *arguments):
    """What came of reading: the fields of the request, or the error."""
    try:
        result = parse(*arguments)
    except ServerError as error:
        return type(error).__mro__[-4:], error.code, error.message
    request, output_format = result if isinstance(result, tuple) else (result, None)
    fields = msgspec.structs.asdict(request)
    inputs = {
        name: (tensor.dtype.name, tensor.shape, plain(tensor.data))
        for name, tensor in fields.pop("inputs").items()
    }
    return repr(inputs), repr(fields), output_format


def both_ways(text, spec=SPEC, body=None):
    body = text if body is None else body
    usual = outcome(parse_infer, body, len(text), spec)
    return usual, outcome(parse_large_infer, text, body, spec, PLENTY, PLENTY)


def infer_text(data, datatype, shape):
    entry = f'{{"name":"n","datatype":"{datatype}","shape":{shape},"data":{data}}}'
    return b'{"id":"x", "parameters":{"p":1.5},"inputs":[%b]}' % entry.encode()


NUMBERS = ",".join(map(str, range(-20, 20)))
DATA = [
    (f"[{NUMBERS}]", "INT32", [40]),
    (f"[ {NUMBERS.replace(',', ' , ')} ]", "INT64", [40]),
    (f"[[{NUMBERS}],[{NUMBERS}]]", "FP32", [2, 40]),
    (f"[[[{NUMBERS}],[{NUMBERS}]]]", "INT16", [2, 40]),
    (f"[1,[2,[{NUMBERS}]],3]", "FP64", [43]),
    (f"[[],[{NUMBERS}]]", "INT32", [40]),
    (f"[{NUMBERS}]", "INT32", [41]),
    (f"[{NUMBERS}]", "UINT8", [40]),
    (f"[{NUMBERS},1.5]", "INT32", [41]),
    (f"[{NUMBERS},1.5,2e3,-0.0,1E-5]", "FP32", [44]),
    (f"[{NUMBERS},NaN,-Infinity]", "FP32", [42]),
    (f"[{NUMBERS},1e400]", "FP64", [41]),
    (f"[{NUMBERS},18446744073709551616]", "FP64", [41]),
    (f"[{NUMBERS},99999999999999999999]", "INT64", [41]),
    (f"[{NUMBERS},{2**40}]", "INT32", [41]),
    (f"[{NUMBERS},null]", "INT32", [41]),
    (f'[{NUMBERS},"1"]', "INT32", [41]),
    (f"[{NUMBERS},true]", "INT32", [41]),
    (f"[{NUMBERS},{{}}]", "INT32", [41]),
    (f"[{NUMBERS} 5]", "INT32", [40]),
    (f"[{NUMBERS},]", "INT32", [40]),
    (f"[{NUMBERS}", "INT32", [40]),
    ("[" * 99 + NUMBERS + "]" * 99, "INT32", [40]),
    ("[" * 100 + NUMBERS + "]" * 100, "INT32", [40]),
    ("[" * 200 + NUMBERS + "]" * 200, "INT32", [40]),
    ("[]", "INT32", [0]),
    ("{}", "INT32", [0]),
    ("7", "INT32", [1]),
    ("[true,false,true]", "BOOL", [3]),
    ("[1.5]", "FP16", [1]),
    ('["a","bc","","d"]', "BYTES", [4]),
    ('[["a","bc"],["","d"]]', "BYTES", [2, 2]),
    ('[[],["a"],[[]],"b"]', "BYTES", [2]),
    (r'["a,\"b\"]","[\\","\u00e9\n","é",",","\ud83d\ude00"]', "BYTES", [6]),
    (r'["ab","\ud800"]', "BYTES", [2]),
    ('["ab",1,"c"]', "BYTES", [3]),
    ('["ab",null]', "BYTES", [2]),
    ('["ab" "c"]', "BYTES", [2]),
    ("[" * 99 + '"a","b"' + "]" * 99, "BYTES", [2]),
    ("[" * 100 + '"a","b"' + "]" * 100, "BYTES", [2]),
]


@pytest.mark.parametrize("data,datatype,shape", DATA)
def test_data_is_read_as_usual(data, datatype, shape):
    usual, large = both_ways(infer_text(data, datatype, shape))

    assert large == usual


def test_text_that_is_not_utf8_is_read_as_usual():
    usual, large = both_ways(infer_text('["ab","c?"]', "BYTES", [2]).replace(b"?", b"\xff"))

    assert large == usual
    assert "\\xff" in large[0]


@pytest.mark.parametrize("text", [b"", b" " * 50, b"[" + b"{}," * 50 + b"{}]", b"\xef\xbb\xbf{}"])
def test_text_that_is_no_request_is_refused_as_usual(text):

    usual = outcome(parse_infer, text + b" ", None, SPEC)
    large = outcome(parse_large_infer, text + b" ", text + b" ", SPEC, PLENTY, PLENTY)

    assert large == usual


def test_binary_tensors_lie_behind_the_text():
    inputs = [
        {"name": "n", "datatype": "INT32", "shape": [2], "parameters": {"binary_data_size": 8}},
        {"name": "f", "datatype": "FP32", "shape": [3], "data": [1, 2, 3]},
        {"name": "s", "datatype": "BYTES", "shape": [1], "parameters": {"binary_data_size": 4}},
    ]
    text = json.dumps({"inputs": inputs}).encode()
    for tail in (bytes(range(12)), bytes(11), bytes(13)):
        usual, large = both_ways(text, SPEC, text + tail)

        assert large == usual


RECORDED = [*cases_mistakes.CASES, *cases_forms.CASES, *cases_generate.CASES]
OPERATIONS = {"infer", "generate", "generate_stream"}


def parts_of(case):
    head, _, body = case.request.partition(b"\r\n\r\n")
    path = head.split(b" ")[1].decode("latin-1").split("/")
    return path[-2:], head, body


def is_comparable(case):
    (model, operation), head, body = parts_of(case)
    names = (b"Content-Encoding", b"Inference-Header")
    return (
        operation in OPERATIONS and model in SPECS and body and not any(it in head for it in names)
    )


@pytest.mark.parametrize(
    "case", [pytest.param(it, id=it.name) for it in RECORDED if is_comparable(it)]
)
def test_recorded_request_is_read_as_usual(case):
    (model, operation), _, body = parts_of(case)
    spec = SPECS[model]
    if operation == "infer":
        usual, large = both_ways(body, spec)
    else:
        usual = outcome(parse_generate, body, spec)
        large = outcome(parse_large_generate, body, spec, PLENTY)

    assert large == usual


@pytest.mark.parametrize(
    "members",
    [
        f'"n":[{NUMBERS}]',
        f'"n":[{NUMBERS}],"f":[{NUMBERS}],"s":["a","b[","]c"],"p":"x","q":true',
        f'"n":[1],"\\u006e":[{NUMBERS}]',
        f'"s":["a:b"],"n":[{NUMBERS}],"p":1,"p":2',
        f'"n":[{NUMBERS}],"parameters":{{"s":"a","s":"b"}}',
        f'"a:b":1,"n":[{NUMBERS}]',
        f'"n":[[{NUMBERS}]]',
        f'"n":[{NUMBERS},1.5]',
        f'"f":[{NUMBERS},NaN]',
        f'"n":[{NUMBERS}],"parameters":{{"f":[{NUMBERS}],"p":1}}',
        f'"n":[{NUMBERS}],"n":[1]',
        f'"n":[{NUMBERS}],"p":null',
        f'"n":[{NUMBERS}],"id":"x"',
        f'"n":[{NUMBERS},99999999999999999999]',
        f'"n":[{NUMBERS} 1]',
        '"n":[]',
        '"n":7',
    ],
)
def test_generate_request_is_read_as_usual(members):
    text = b"{%b}" % members.encode()

    usual = outcome(parse_generate, text, SPEC)

    assert outcome(parse_large_generate, text, SPEC, PLENTY) == usual


def test_well_formed_data_is_never_read_as_a_whole(monkeypatch):
    monkeypatch.setattr(large_json, "read_document", None)

    for data, datatype, shape in (DATA[0], DATA[2], DATA[4], DATA[30], DATA[33]):
        text = infer_text(data, datatype, shape)

        request, _ = parse_large_infer(text, text, SPEC, PLENTY, PLENTY)

        assert [each.shape for each in request.inputs.values()] == [tuple(shape)]


def test_more_objects_than_any_request_has_are_refused(monkeypatch):
    monkeypatch.setattr(large_json, "MAX_OBJECTS", 3)
    parse = large_json.check_objects

    parse(b'{"a":"{{{{","b":{},"c":{}}')
    with pytest.raises(InvalidArgumentError, match="expected at most 3 objects"):
        parse(b"[{},{},{},{}]")


def test_text_that_would_take_too_much_memory_is_refused_before_it_does():
    text = b"[" + b"[]," * 1000 + b"[]]"

    with pytest.raises(InvalidArgumentError, match="at most 10000 bytes of memory"):
        parse_large_infer(text, text, SPEC, PLENTY, 10_000)


def test_input_beyond_the_limit_is_refused_in_tritons_words():
    text = infer_text(f"[{NUMBERS}]", "INT32", [40])

    with pytest.raises(InvalidArgumentError, match=r"byte_size \(160 bytes\) that exceeds the max"):
        parse_large_infer(text, text, SPEC, 159, PLENTY)


def test_separators_without_strings_take_linear_time():
    with pytest.raises(large_json._IrregularError):
        list(large_json._string_pieces(b"[" + b"[]," * 200_000 + b"1]"))


def test_quotation_marks_beside_many_braces_take_linear_time():
    braces = b"{" * (large_json.MAX_OBJECTS + 1)

    large_json.check_objects(b'"%b"' % braces + b'\\"' * 200_000)
    with pytest.raises(InvalidArgumentError, match="objects"):
        large_json.check_objects(b'"%b"%b' % (braces, braces))
