# SPDX-License-Identifier: Apache-2.0
"""ModelStreamInfer: order, flags, errors inside the stream and errors that end it."""

from __future__ import annotations

import base64
from typing import Any

from tests.differential.case import BECAUSE_OF_DIVISION, NO_CLASSES_OF_STRINGS
from tests.differential.grpc_case import (
    GrpcCase,
    Observation,
    add_sub,
    by_id,
    floats,
    integers,
    message,
    output,
    stream,
    tensor,
)

STRICT = (("triton_grpc_error", "true"),)
EMPTY_FINAL = {"triton_enable_empty_final_response": True}


def repeat(count: int, name: str = "", model: str = "repeat", **fields: Any) -> Any:
    """A request to a stream, for so many responses."""
    inputs = [tensor("IN", "INT32", [1])]
    return message(model, inputs, raw=[integers(count)], id=name, **fields)


def failing(name: str = "", **fields: Any) -> Any:
    return message("failing", [tensor("IN", "FP32", [1])], raw=[floats(1)], id=name, **fields)


def short_errors(seen: Observation) -> Observation:
    """Of models' failures the type and the text, without the name of the instance."""

    def shorten(text: str) -> str:
        _, found, rest = text.partition("ValueError: ")
        return found + rest.split("\n")[0] if found else text

    responses = [
        {**item, "error_message": shorten(item["error_message"])}
        if "error_message" in item
        else item
        for item in seen["responses"]
    ]
    shortened = {**seen, "responses": responses}
    if "details" in seen:
        shortened["details"] = shorten(seen["details"])
    return shortened


def short_by_id(seen: Observation) -> Observation:
    return by_id(short_errors(seen))


def numbered(count: int, **fields: Any) -> list[Any]:
    return [
        add_sub(id=str(number), raw=[floats(number), floats(1)], **fields)
        for number in range(count)
    ]


COUPLED = [
    stream("nothing", []),
    stream("one request", [add_sub()]),
    stream("an id", [add_sub(id="seven")]),
    stream("a version", [add_sub(model_version="1", id="v")]),
    stream("two requests", numbered(2)),
    stream("twenty requests in order", numbered(20)),
    stream("requests of several models", [
        add_sub(id="a"), message("word", [tensor("IN", "BYTES", [1, 1])],
                                 raw=[b"\x01\x00\x00\x00x"], id="b"), add_sub(id="c")]),
    stream("typed contents", [message("id_int8", [tensor("IN", "INT8", [2], int_contents=[1, -2])],
                                      id="t")]),
    stream("one output", [add_sub(outputs=[output("sub")], id="o")]),
    stream("classes", [message("matrix", [tensor("IN", "FP32", [1, 1, 3])], raw=[floats(1, 3, 2)],
                               outputs=[output("OUT", classification=2)], id="c")]),
    stream("parameters", [message("parameters", [tensor("IN", "INT32", [1, 1])], raw=[integers(0)],
                                  parameters={"a": 1, "b": "x"}, id="p")]),
    stream("forwarded metadata", [message("parameters", [tensor("IN", "INT32", [1, 1])],
                                          raw=[integers(0)])], metadata=(("x-name", "value"),)),
    stream("the empty final parameter", [add_sub(parameters=EMPTY_FINAL, id="e")]),
]  # fmt: skip

REFUSED = [
    stream("unknown model", [message("nobody", id="u")]),
    stream("unknown model without an id", [message("nobody")]),
    stream("unknown version", [add_sub(model_version="5", id="u")]),
    stream("bad version", [add_sub(model_version="x", id="u")]),
    stream("a mistake between right ones", [
        add_sub(id="1"), add_sub(id="2", model_version="9"), add_sub(id="3")]),
    stream("mistakes only", [message("nobody", id=str(number)) for number in range(5)]),
    stream("no inputs", [message("add_sub", id="n")]),
    stream("no contents", [add_sub(raw=[], id="n")]),
    stream("a wrong shape", [add_sub(inputs=[tensor("a", "FP32", [1, 2]),
                                             tensor("b", "FP32", [1, 1])], id="s")]),
    stream("a wrong datatype", [add_sub(inputs=[tensor("a", "INT32", [1, 1]),
                                                tensor("b", "FP32", [1, 1])], id="d")]),
    stream("another field", [message("id_int32", [tensor("IN", "INT32", [1], fp32_contents=[1.0])],
                                     id="f")]),
    stream("an unknown output", [add_sub(outputs=[output("mul")], id="o")]),
    stream("a reserved parameter", [add_sub(parameters={"triton_x": 1}, id="r")]),
    stream("a sequence flag as a number", [add_sub(parameters={"sequence_start": 1}, id="q")]),
    stream("a negative priority", [add_sub(parameters={"priority": -1}, id="p")]),
    stream("classes of strings", [message(
        "id_bytes", [tensor("IN", "BYTES", [1])], raw=[b"\x00\x00\x00\x00"],
        outputs=[output("OUT", classification=1)], id="c")],
        only_ours=True, because=BECAUSE_OF_DIVISION, ours={"status": "OK", "responses": [{
            "error_message": NO_CLASSES_OF_STRINGS,
            "infer_response": {"model_name": "id_bytes", "id": "c",
                               "parameters": {"triton_final_response": {"bool_param": True}}},
        }]}),
    stream("strict, a mistake", [message("nobody", id="u"), add_sub(id="2")], metadata=STRICT),
]  # fmt: skip

DECOUPLED = [
    stream("three responses", [repeat(3, "r")]),
    stream("one response", [repeat(1, "r")]),
    stream("no response", [repeat(0, "r")]),
    stream("three responses and an empty final", [repeat(3, "r", parameters=EMPTY_FINAL)]),
    stream("no response and an empty final", [repeat(0, "r", parameters=EMPTY_FINAL)]),
    stream("no response and an empty final, no id", [repeat(0, parameters=EMPTY_FINAL)]),
    stream("an empty final that is not wanted", [
        repeat(2, "r", parameters={"triton_enable_empty_final_response": False})]),
    stream("a version of a stream", [repeat(1, "r", model_version="1", parameters=EMPTY_FINAL)]),
    stream("fifty responses", [repeat(50, "r")]),
    stream("once", [repeat(8, "o", model="once")]),
    stream("three streams", [repeat(n, f"r{n}") for n in (4, 0, 7)], view=by_id),
    stream("three streams with empty finals", [
        repeat(n, f"r{n}", parameters=EMPTY_FINAL) for n in (4, 0, 7)], view=by_id),
    stream("an output of a stream by name", [repeat(2, "r", outputs=[output("OUT")])]),
    stream("a stream with a mistake", [
        message("repeat", [tensor("IN", "INT32", [2])], raw=[integers(1, 2)], id="m"),
        repeat(2, "r")], view=by_id),
    stream("a stream without contents", [message("repeat", [tensor("IN", "INT32", [1])], id="m")]),
    stream("classes of a stream", [repeat(2, "c", outputs=[output("OUT", classification=1)])]),
]  # fmt: skip


def numbers(name: str, count: int) -> list[Observation]:
    """What a stream answers to one request."""
    return [
        response("repeat", name, {"OUT": ("INT32", [1], integers(number))}, final=False)
        for number in range(count)
    ]


def response(
    model: str, name: str, outputs: dict[str, tuple[str, list[int], bytes]], *, final: bool
) -> Observation:
    """A streamed response as it is stored."""
    flag = {"triton_final_response": {"bool_param": final}}
    tensors = [
        {"name": key, "datatype": datatype, "shape": [str(size) for size in shape]}
        for key, (datatype, shape, _) in outputs.items()
    ]
    raw = [base64.b64encode(data).decode() for _, _, data in outputs.values()]
    return {
        "infer_response": {
            "model_name": model,
            "model_version": "1",
            "id": name,
            "parameters": flag,
            "outputs": tensors,
            "raw_output_contents": raw,
        }
    }


SUM = {"add": ("FP32", [1, 1], floats(3)), "sub": ("FP32", [1, 1], floats(-1))}
MIXED = [
    stream(
        "streams and coupled models",
        [repeat(3, "r"), add_sub(id="a"), repeat(2, "s"), add_sub(id="b")],
        view=by_id,
        ours={
            "status": "OK",
            "responses": {
                "r": numbers("r", 3),
                "a": [response("add_sub", "a", SUM, final=True)],
                "s": numbers("s", 2),
                "b": [response("add_sub", "b", SUM, final=True)],
            },
        },
        because="the real server dies of a stream with models of both kinds",
        only_ours=True,
    ),
]

FAILING = [
    stream("a failing model", [failing("f")], view=short_errors),
    stream("a failing model and a version", [failing("f", model_version="1")], view=short_errors),
    stream("a failing model between right ones", [
        add_sub(id="1"), failing("2"), add_sub(id="3")], view=short_errors),
    stream("a stream that fails at once", [repeat(0, "f", model="fail_late")], view=short_by_id),
    stream("a stream that fails late", [repeat(2, "f", model="fail_late")], view=short_by_id),
    stream("strict, a failing model", [failing("f")], metadata=STRICT, view=short_errors),
    stream("strict, a stream that fails late", [repeat(2, "f", model="fail_late")],
           metadata=STRICT, view=short_errors),
    stream("strict and right", [add_sub(id="s")], metadata=STRICT),
    stream("strict in another word", [failing("f")], metadata=(("triton_grpc_error", "True"),),
           view=short_errors),
]  # fmt: skip

STREAM_CASES: list[GrpcCase] = [*COUPLED, *REFUSED, *DECOUPLED, *MIXED, *FAILING]
