# SPDX-License-Identifier: Apache-2.0
from google.protobuf import text_format as protobuf_text_format
from hypothesis import given
from hypothesis import strategies as st
from tritonclient.grpc import model_config_pb2

from pytriton.model_config import text_format

_TEXT = st.text(st.characters(exclude_categories=["Cs"]))


@given(name=_TEXT, key=_TEXT, value=_TEXT)
def test_any_text_survives_both_readers(name, key, value):
    message = {"name": name, "parameters": {key: {"string_value": value}}}

    text = text_format.dumps(message)

    read = text_format.loads(text)
    assert read.get("name", "") == name
    assert read["parameters"][key].get("string_value", "") == value
    read = protobuf_text_format.Parse(text, model_config_pb2.ModelConfig())
    assert read.name == name
    assert read.parameters[key].string_value == value
