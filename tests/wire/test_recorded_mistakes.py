# SPDX-License-Identifier: Apache-2.0
"""The mistakes that the real Triton was recorded with, put to the codec and validation alone."""

from __future__ import annotations

import pytest

from pytriton.base import dtypes
from pytriton.base.errors import ServerError
from pytriton.protocol.generate import parse_generate
from pytriton.protocol.kserve_json import parse_header_length, parse_infer
from pytriton.serving.engine.validation import validate
from pytriton.serving.server.api.status import HTTP_STATUS
from tests.differential import cases_forms, cases_generate, cases_mistakes
from tests.differential.case import Case
from tests.differential.model_table import MODELS
from tests.differential.recording import GOLDEN as GOLDEN_FILE
from tests.recorded_json import load
from tests.wire.specs import model_spec, tensor_spec

GOLDEN = load(GOLDEN_FILE)
# What a codec cannot see: it is the front end's or the model's to say.
ELSEWHERE = (
    "content-encoding",
    "Method Not Allowed",
    "unknown model",
    "format, got data",
    "fails",
    "Unable to find shared memory region",
)


def spec_of(model):
    batched = model.max_batch_size > 0
    inputs = [
        tensor_spec(
            port.name,
            dtypes.BY_NAME[port.datatype],
            port.dims,
            batched=batched,
            optional=port.optional,
        )
        for port in model.inputs
    ]
    outputs = tuple(port.name for port in model.outputs)
    return model_spec(
        *inputs, name=model.name, outputs=outputs, max_batch_size=model.max_batch_size
    )


SPECS = {model.name: spec_of(model) for model in MODELS}


def expected_error(case: Case) -> tuple[int, str]:
    answer = case.ours[0] if case.ours else GOLDEN[case.name][0]
    body = answer["body"]
    text = body.get("error", "") if isinstance(body, dict) else str(body)
    return answer["status"], text


def is_mistake(case: Case) -> bool:
    status, text = expected_error(case)
    written = text.startswith(("sending", "class result", "Unsupported compression", "nothing to"))
    return status >= 400 and not written and not any(words in text for words in ELSEWHERE)


CASES = [*cases_mistakes.CASES, *cases_forms.CASES, *cases_generate.CASES]
MISTAKES = [pytest.param(case, id=case.name) for case in CASES if is_mistake(case)]


def submit(case: Case) -> None:
    head, _, body = case.request.partition(b"\r\n\r\n")
    first, *lines = head.decode("latin-1").split("\r\n")
    headers = dict(line.split(": ", 1) for line in lines)
    _, _, _, model, operation = first.split(" ")[1].split("/")
    if operation == "infer":
        length = headers.get("Inference-Header-Content-Length")
        header_length = None if length is None else parse_header_length(length, len(body))
        request, _ = parse_infer(body, header_length, SPECS[model])
    else:
        request = parse_generate(body, SPECS[model])
    validate(request, SPECS[model])


@pytest.mark.parametrize("case", MISTAKES)
def test_mistake_is_refused_in_the_recorded_words(case):
    with pytest.raises(ServerError) as caught:
        submit(case)

    text = caught.value.message
    if case.view is not None:
        text = case.view({"error": text})["error"]
    assert (HTTP_STATUS[caught.value.code], text) == expected_error(case)
