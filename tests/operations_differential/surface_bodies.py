# SPDX-License-Identifier: Apache-2.0
"""Bodies of requests that are wrong in themselves: repeated members, wrong types and sizes."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

from tritonclient.grpc import service_pb2

from tests.operations_differential.asking import by_stub, over_http
from tests.operations_differential.models import write_common, write_mirror
from tests.operations_differential.server import Observation, Server
from tests.operations_differential.surface import Case, Setup, Surface


def post(path: str, *bodies: str) -> list[Case]:
    """A case for each body, which is posted to this path."""

    def case(body: str) -> Case:
        name = f"{path.removeprefix('/v2/')} {body or 'without a body'}"
        return Case(name, lambda server: over_http(server, path, body))

    return [case(body) for body in bodies]


def write_models(repository: Path) -> None:
    write_common(repository)
    write_mirror(repository, "spare", "INT32")


INPUT = '{"name":"INPUT0","datatype":"INT32","shape":[1],"data":[1]}'
OTHER = '{"name":"INPUT0","datatype":"INT32","shape":[1],"data":[2]}'

REPEATED = (
    *post(
        "/v2/models/numbers/generate",
        '{"INPUT0":1,"INPUT0":2}',
        '{"INPUT0":[1,2],"INPUT0":[3]}',
        '{"INPUT0":1,"id":"a","id":"b"}',
        '{"INPUT0":1,"name":"a","name":"b"}',
        '{"INPUT0":1,"parameters":{"a":1},"parameters":{"b":2}}',
        '{"INPUT0":1,"parameters":{"a":1,"a":2}}',
        '{"INPUT0":1,"parameters":{"INPUT0":2}}',
        '{"INPUT0":1,"a":1,"parameters":{"a":2}}',
        '{"parameters":{"INPUT0":1,"INPUT0":2}}',
        '{"INPUT0":1,"INPUT0":"text"}',
        '{"INPUT0":"text","INPUT0":1}',
        '{"INPUT0":1,"a":[],"a":1}',
        '{"INPUT0":1,"a":1,"a":[]}',
    ),
    *post(
        "/v2/models/numbers/generate_stream",
        '{"INPUT0":1,"INPUT0":2}',
        '{"INPUT0":1,"a":1,"a":2}',
    ),
    *post(
        "/v2/models/pair/generate",
        '{"INPUT0":1,"INPUT1":2,"INPUT0":3}',
        '{"INPUT0":1,"INPUT0":3}',
        '{"INPUT0":1,"INPUT1":2,"INPUT1":3,"INPUT0":3}',
    ),
    *post(
        "/v2/models/numbers/infer",
        f'{{"id":"a","id":"b","inputs":[{INPUT}]}}',
        f'{{"inputs":[{INPUT}],"inputs":[{OTHER}]}}',
        f'{{"inputs":[],"inputs":[{OTHER}]}}',
        f'{{"inputs":[{OTHER}],"inputs":1}}',
        f'{{"inputs":[{INPUT},{OTHER}]}}',
        '{"inputs":[{"name":"INPUT0","name":"X","datatype":"INT32","shape":[1],"data":[1]}]}',
        '{"inputs":[{"name":"X","name":"INPUT0","datatype":"INT32","shape":[1],"data":[1]}]}',
        '{"inputs":[{"name":"INPUT0","datatype":"INT32","datatype":"FP32","shape":[1],"data":[1]}]}',
        '{"inputs":[{"name":"INPUT0","datatype":"INT32","shape":[1],"shape":[2],"data":[1]}]}',
        '{"inputs":[{"name":"INPUT0","datatype":"INT32","shape":[2],"data":[1],"data":[2,3]}]}',
        '{"inputs":[{"name":"INPUT0","datatype":"INT32","shape":[1],"data":[1],"data":[2]}]}',
        f'{{"inputs":[{INPUT}],"outputs":[{{"name":"OUTPUT0"}},{{"name":"OUTPUT0"}}]}}',
        f'{{"inputs":[{INPUT}],"outputs":[{{"name":"OUTPUT0","name":"X"}}]}}',
        f'{{"inputs":[{INPUT}],"parameters":{{"a":1,"a":2}}}}',
        f'{{"inputs":[{INPUT}],"parameters":{{"a":1}},"parameters":{{"a":[]}}}}',
        f'{{"inputs":[{INPUT}],"parameters":{{"sequence_id":1,"sequence_id":"b"}}}}',
    ),
    *post(
        "/v2/repository/index",
        '{"ready":true,"ready":false}',
        '{"ready":false,"ready":true}',
        '{"ready":true,"ready":1}',
        '{"ready":1,"ready":true}',
    ),
    *post(
        "/v2/repository/models/spare/load",
        '{"parameters":{},"parameters":{"config":1}}',
        '{"parameters":{"config":1},"parameters":{}}',
        '{"parameters":{"config":"{}","config":"{"}}',
        '{"parameters":{"unknown":"a","unknown":"b"}}',
        '{"parameters":{"config":"{\\"max_batch_size\\":1,\\"max_batch_size\\":2}"}}',
        '{"parameters":{"config":"{\\"backend\\":\\"python\\",\\"backend\\":\\"other\\"}"}}',
    ),
    *post(
        "/v2/repository/models/spare/unload",
        '{"parameters":{"unload_dependents":true,"unload_dependents":1}}',
        '{"parameters":{"unload_dependents":1,"unload_dependents":true}}',
    ),
    *post(
        "/v2/trace/setting",
        '{"trace_rate":"1","trace_rate":"2"}',
        '{"trace_rate":"x","trace_rate":"2"}',
        '{"trace_rate":"2","trace_rate":"x"}',
        '{"trace_level":["OFF"],"trace_level":["TIMESTAMPS"],"trace_level":["OFF"]}',
    ),
)

WRONG_IN_INDEX = (
    *post(
        "/v2/repository/index",
        "",
        "{}",
        "[]",
        "1",
        '"text"',
        "null",
        "true",
        "{",
        '{"ready":1}',
        '{"ready":"true"}',
        '{"ready":null}',
        '{"ready":[]}',
        '{"ready":{}}',
        '{"ready":true}',
        '{"unknown":1}',
    ),
)

WRONG_IN_CONTROL = (
    *post(
        "/v2/repository/models/spare/load",
        "[]",
        "1",
        "{",
        '{"parameters":1}',
        '{"parameters":[]}',
        '{"parameters":null}',
        '{"parameters":{"config":1}}',
        '{"parameters":{"config":null}}',
        '{"parameters":{"config":{}}}',
        '{"parameters":{"config":"{"}}',
        '{"parameters":{"config":"[]"}}',
        '{"parameters":{"file:1/model.py":1}}',
        '{"parameters":{"file:1/model.py":"***"}}',
        '{"unknown":1}',
    ),
    *post(
        "/v2/repository/models/spare/unload",
        "[]",
        "1",
        "{",
        '{"parameters":1}',
        '{"parameters":[]}',
        '{"parameters":{"unload_dependents":1}}',
        '{"parameters":{"unload_dependents":"true"}}',
        '{"parameters":{"unload_dependents":null}}',
        '{"parameters":{"unknown":1}}',
    ),
)


def strings_in_json(shape: list[int], data: Any) -> Case:
    tensor = {"name": "INPUT0", "datatype": "BYTES", "shape": shape, "data": data}
    return Case(
        f"strings in JSON: {json.dumps(data)} for {shape}",
        lambda server: over_http(server, "/v2/models/texts/infer", {"inputs": [tensor]}),
    )


IN_JSON = (
    ([2], ["a"]),
    ([1], ["a", "b"]),
    ([0], ["a"]),
    ([3], []),
    ([2], [["a"], ["b"]]),
    ([2], "a"),
    ([1], [1]),
    ([1], [None]),
    ([2], ["a", 1]),
    ([2], ["a", ["b", "c"]]),
)


def packed(*texts: bytes) -> bytes:
    return b"".join(struct.pack("<I", len(text)) + text for text in texts)


PACKED = {
    "two for one": (1, packed(b"a", b"b")),
    "three for one": (1, packed(b"a", b"b", b"c")),
    "one for two": (2, packed(b"a")),
    "none for two": (2, b""),
    "one for none": (0, packed(b"a")),
    "one for five": (5, packed(b"a")),
    "two empty ones for three": (3, packed(b"", b"")),
    "length cut off": (2, packed(b"a") + b"\1\0"),
    "length cut off at first": (1, b"\1\0"),
    "text cut off": (2, packed(b"a") + struct.pack("<I", 9) + b"abc"),
    "text cut off at first": (1, struct.pack("<I", 9) + b"abc"),
    "text cut off before the last": (3, packed(b"a") + struct.pack("<I", 9) + b"abc"),
    "length of four gibibytes": (1, struct.pack("<I", 2**32 - 1) + b"abc"),
}


def strings_after_json(name: str, count: int, blob: bytes) -> Case:
    def ask(server: Server) -> Observation:
        tensor = {
            "name": "INPUT0",
            "datatype": "BYTES",
            "shape": [count],
            "parameters": {"binary_data_size": len(blob)},
        }
        head = json.dumps({"inputs": [tensor]}).encode()
        headers = {"Inference-Header-Content-Length": str(len(head))}
        return over_http(server, "/v2/models/texts/infer", head + blob, headers=headers)

    return Case(f"strings in binary: {name}", ask)


def strings_in_protobuf(name: str, count: int, contents: bytes | list[bytes]) -> Case:
    """Strings as raw contents, or as typed ones."""

    def ask(server: Server) -> Observation:
        request = service_pb2.ModelInferRequest(model_name="texts")
        tensor = request.inputs.add(name="INPUT0", datatype="BYTES", shape=[count])
        if isinstance(contents, bytes):
            request.raw_input_contents.append(contents)
        else:
            tensor.contents.bytes_contents.extend(contents)
        return by_stub(server, lambda stub: stub.ModelInfer(request))

    return Case(f"strings in protobuf: {name}", ask)


TYPED = ((1, [b"a", b"b"]), (2, [b"a"]), (2, []), (0, [b"a"]), (3, [b"a", b""]))


SURFACE = Surface(
    "bodies",
    cases=(
        *WRONG_IN_INDEX,  # before models come and go, of which the real one may tell more states
        *REPEATED,
        *WRONG_IN_CONTROL,
        *(strings_in_json(*given) for given in IN_JSON),
        *(strings_after_json(name, *given) for name, given in PACKED.items()),
        *(strings_in_protobuf(name, *given) for name, given in PACKED.items()),
        *(
            strings_in_protobuf(f"{len(texts)} typed for {count}", count, texts)
            for count, texts in TYPED
        ),
    ),
    setup=Setup(
        models=write_models,
        options=(
            "--model-control-mode=explicit",
            "--load-model=numbers",
            "--load-model=pair",
            "--load-model=texts",
            "--load-model=batched",
        ),
    ),
)
