# SPDX-License-Identifier: Apache-2.0
"""Random model configurations, as text and as JSON: each is served or refused with a reason.

Configurations are valid ones with fields that are missing, repeated, of another type, or have
values from the edges of their types.
"""

from __future__ import annotations

import json
import random
import re
from typing import Any

import pytest
from google.protobuf import json_format

from pytriton.base.errors import ServerError
from pytriton.base.protos import model_config_pb2
from pytriton.serving.engine.config import (
    config_from_dict,
    config_from_text,
    config_to_json,
    normalise_config,
    spec_from_config,
    validate_config,
)
from pytriton.serving.engine.ensemble.ensemble_rules import validate_ensemble
from tests.fuzz.fuzzing import Case, assert_reveals_nothing, assert_work_is_paid, fuzz
from tests.fuzz.mutation import mutate_bytes, mutate_document

TEXTS = (
    """name: "m" backend: "python" max_batch_size: 8
input [ { name: "x" data_type: TYPE_FP32 dims: [ 4 ] reshape { shape: [ 2, 2 ] } } ]
output [ { name: "y" data_type: TYPE_STRING dims: [ 1 ] label_filename: "labels.txt" } ]
dynamic_batching { preferred_batch_size: [ 4, 8 ] max_queue_delay_microseconds: 100
  priority_levels: 2 default_priority_level: 1
  priority_queue_policy { key: 1 value { timeout_action: DELAY max_queue_size: 3 } } }
instance_group [ { count: 2 kind: KIND_CPU } ]
""",
    """name: "s" backend: "python" # with sequences
input [ { name: "x" data_type: TYPE_INT32 dims: 1 } ] output [ { name: "y" data_type: TYPE_INT32
dims: 1 } ]
sequence_batching { max_sequence_idle_microseconds: 5000 oldest { max_candidate_sequences: 4 }
  control_input [ { name: "START" control [ { kind: CONTROL_SEQUENCE_START
    int32_false_true: [0, 1] } ] },
    { name: "ID" control [ { kind: CONTROL_SEQUENCE_CORRID data_type: TYPE_UINT64 } ] } ]
  state [ { input_name: "i" output_name: "o" data_type: TYPE_FP32 dims: [ 2 ]
    initial_state { name: "z" data_type: TYPE_FP32 dims: [ 2 ] zero_data: true } } ] }
""",
    """name: "e" platform: "ensemble" max_batch_size: 1
input { name: "a" data_type: TYPE_FP32 dims: 1 } output { name: "b" data_type: TYPE_FP32 dims: 1 }
ensemble_scheduling { step [ { model_name: "m" model_version: -1
  input_map { key: "x" value: "a" } output_map { key: "y" value: "b" } } ] }
""",
    """name: "p" backend: "python" version_policy { specific { versions: [ 1, 3 ] } }
parameters { key: "openai" value { string_value: "chat" } }
parameters: { key: "IDEMPOTENT", value: { string_value: "true" } };
optimization { execution_accelerators { gpu_execution_accelerator: [ { name: "a"
  parameters { key: "b" value: "c" } } ] } }
model_warmup [ { name: "w" batch_size: 1 inputs { key: "x" value { data_type: TYPE_FP32 dims: 1
  zero_data: true } } } ] response_cache { enable: false } metric_tags { key: "a" value: "b" }
model_transaction_policy { decoupled: true }
input { name: "prompt" data_type: TYPE_STRING dims: [ 1 ] optional: true allow_ragged_batch: true }
output { name: "text" data_type: TYPE_STRING dims: [ 1 ] }
""",
)
TOKEN = re.compile(r'"[^"]*"|[\w.-]+|[\[\]{}<>:,;#]|\s+')
VALUES = (
    "0", "1", "-1", "2", "1.5", "1e400", "0x7f", "-0x1", "017", "99999999999999999999", "true",
    "inf", "nan", '""', "'a'", '"\\377"', '"\\x00"', '"\\u00e9"', '"unended', "TYPE_FP32",
    "TYPE_INVALID",
    "KIND_GPU", "KIND_MODEL", "name", "dims", "max_batch_size", "[", "]", "{", "}", "<", ">", ":",
    ",", ";", "#", "2147483648", "-2147483649", "9223372036854775808", "18446744073709551616", "\n",
)  # fmt: skip
LIMIT_PER_BYTE = 250  # protobuf's reader of texts is Python, and looks at each token several times


def random_text(source: random.Random) -> Case:
    """A configuration whose tokens were changed."""
    tokens = TOKEN.findall(source.choice(TEXTS))
    for _ in range(source.choice((0, 1, 1, 2, 3))):
        at = source.randrange(len(tokens))
        end = min(len(tokens), at + source.choice((1, 1, 2, 8, 30)))
        kind = source.randrange(5)
        if kind == 0:
            tokens[at:end] = []
        elif kind == 1:
            tokens[at:at] = tokens[at:end] * source.choice((1, 2, 20))
        elif kind == 2:
            tokens[at] = source.choice(VALUES)
        elif kind == 3:
            tokens[at:at] = [" ", source.choice(VALUES), " "]
        else:
            other = TOKEN.findall(source.choice(TEXTS))
            start = source.randrange(len(other))
            tokens[at:end] = other[start : start + source.choice((1, 5, 20))]
    text = "".join(tokens).encode()
    if source.random() < 0.1:
        text = mutate_bytes(source, text)
    return [text]


def check_text(texts: Case) -> None:
    for text in texts:
        config: list[Any] = []

        def read(content: bytes = text, found: list[Any] = config) -> None:
            try:
                found.append(config_from_text(content.decode("utf-8", "replace"), "config.pbtxt"))
            except ServerError as error:
                assert_reveals_nothing(error.message, content)

        assert_work_is_paid(read, len(text), fixed_work=5000, work_per_byte=LIMIT_PER_BYTE)
        if config:
            check_config(config[0], text)


def check_config(config: Any, sent: bytes) -> None:
    """Assert that a configuration that could be read is served or refused with a reason."""
    try:
        normal = normalise_config(config)
        validate_config(normal)
        if normal.platform == "ensemble":
            validate_ensemble(normal)
        spec = spec_from_config(normal, 1)
    except ServerError as error:
        assert_reveals_nothing(error.message, sent)
    else:
        assert spec.name == config.name
        assert len(spec.inputs) == len(config.input)
        assert json.loads(config_to_json(normal))["name"] == config.name


DOCUMENTS = tuple(
    json_format.MessageToDict(config_from_text(text, "-"), preserving_proto_field_name=True)
    for text in TEXTS
)
NAMES = tuple(model_config_pb2.ModelConfig.DESCRIPTOR.fields_by_name)


def random_document(source: random.Random) -> Case:
    document: Any = source.choice(DOCUMENTS)
    for _ in range(source.choice((1, 1, 2, 4))):
        document = mutate_document(source, document, NAMES)
    return [document]


def check_document(documents: Case) -> None:
    (document,) = documents
    sent = repr(document).encode()
    try:
        config = config_from_dict(document)
    except ServerError as error:
        assert_reveals_nothing(error.message, sent)
    else:
        check_config(config, sent)


def test_random_text_is_a_configuration_or_refused():
    fuzz("config.pbtxt", 200, random_text, check_text)


def test_random_document_is_a_configuration_or_refused():
    fuzz("configuration as JSON", 400, random_document, check_document)


@pytest.mark.parametrize("text", TEXTS)
def test_configuration_of_the_fuzzer_is_valid(text):
    check_text([text.encode()])
    config = normalise_config(config_from_text(text, "-"))

    validate_config(config)
