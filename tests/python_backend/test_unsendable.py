# SPDX-License-Identifier: Apache-2.0
"""What a model hands over and UTF-8 or MessagePack cannot express harms nobody but its request."""

from __future__ import annotations

import numpy as np
import pytest

from pytriton.runtime.transport.frames import BatchFailure, ServiceCall
from tests.python_backend.sender_models import decoupled, items_until, model, value

X = np.array([[1.0]], np.float32)
ESCAPED = "\\udcff"

# Each is harmless to others: refused when it is made, or read by the client with escapes.
BAD_RESPONSES = [
    'pb_utils.InferenceResponse(error=pb_utils.TritonError("bad \\udcff"))',
    'pb_utils.InferenceResponse(error=pb_utils.TritonError(np.str_("bad")))',
    'pb_utils.InferenceResponse([], parameters={"a": "\\udcff"})',
    'pb_utils.InferenceResponse([], parameters={"\\udcff": "a"})',
    'pb_utils.InferenceResponse([pb_utils.Tensor("\\udcff", np.zeros((1, 1), np.float32))])',
    'pb_utils.InferenceResponse([pb_utils.Tensor("y", np.array([["\\udcff"]], np.object_))])',
]


@pytest.mark.parametrize("bad", BAD_RESPONSES)
def test_bad_response_is_its_own_error(worker, bad):
    rig = worker(
        model(f"return [{bad} if request.request_id() else response() for request in requests]")
    )
    (failed,) = rig.run({"x": X}, ids={0: "bad"})
    (fine,) = rig.run({"x": X})

    assert isinstance(failed, str)
    assert value(fine) == 1


@pytest.mark.parametrize("bad", BAD_RESPONSES)
def test_bad_response_of_a_stream_takes_no_other_along(worker, bad):
    rig = decoupled(
        worker,
        f"""
sender.send(response(0.0))
sender.send(response(1.0))
try:
    sender.send({bad})
except Exception as error:
    sender.send(pb_utils.InferenceResponse(error=pb_utils.TritonError(str(error))))
sender.send(response(2.0))
sender.send(flags=FINAL)
""",
    )
    for _ in range(2):  # the helper lives on
        rig.execute({"x": X})
        items, _ = items_until(rig, 5)
        answers = [answer for _, answer in items]
        assert [value(answers[at]) for at in (0, 1, 3)] == [0, 1, 2]
        assert isinstance(answers[2], str)


def test_names_of_numpy_are_plain_texts(worker):
    rig = worker(
        model(
            """
tensor = pb_utils.Tensor(np.str_("y"), np.ones((1, 1), np.float32))
return [pb_utils.InferenceResponse([tensor], parameters={np.str_("a"): np.str_("b")})]
"""
        )
    )
    (outputs,) = rig.run({"x": X})

    assert value(outputs) == 1


def test_log_lines_are_written_with_escapes(worker):
    rig = worker(model('pb_utils.Logger.log_info("line \\udcff")\nreturn [response()]'))
    rig.run({"x": X})

    assert ESCAPED in rig.log()


@pytest.mark.parametrize(
    "call",
    [
        'pb_utils.MetricFamily("\\udcff", "d", pb_utils.MetricFamily.COUNTER)',
        'pb_utils.MetricFamily("n", "\\udcff", pb_utils.MetricFamily.COUNTER)',
        'pb_utils.load_model("\\udcff")',
        'pb_utils.InferenceRequest("\\udcff", 0, [], [], "other")',
        'pb_utils.InferenceRequest("", "\\udcff", [], [], "other")',
        'pb_utils.InferenceRequest("", 0, [], ["\\udcff"], "other")',
        'pb_utils.InferenceRequest("", 0, [], [], "\\udcff")',
        'pb_utils.InferenceRequest("", 0, [], [], "other", parameters={"a": "\\udcff"})',
        'pb_utils.Tensor("\\udcff", np.zeros(1, np.float32))',
    ],
)
def test_calls_with_such_texts_are_refused_where_they_are_made(worker, call):
    rig = worker(model(f"{call}\nreturn [response()]"))
    (answer,) = rig.run({"x": X})

    assert "UTF-8" in answer
    assert "\\udcff" in answer


def test_labels_of_metrics_are_refused_where_they_are_made(worker):
    rig = worker(
        model(
            """
family = pb_utils.MetricFamily("n", "d", pb_utils.MetricFamily.COUNTER)
family.Metric({"a": "\\udcff"})
return [response()]
"""
        )
    )
    rig.execute({"x": X})
    rig.serve(rig.hear(ServiceCall).frame.call)
    while not isinstance(frame := rig.hear().frame, BatchFailure):
        assert isinstance(frame, ServiceCall)  # the family is given up

    assert "the value of a label must be text in UTF-8" in frame.error


def test_initialize_that_raises_such_a_text_is_reported(start_worker):
    rig = start_worker(
        """
class TritonPythonModel:
    def initialize(self, args):
        raise ValueError("no \\udcff")
"""
    )

    assert ESCAPED in rig.initialized().error


def test_rule_that_quotes_such_a_text_is_answered(worker):
    rig = worker(
        """
class Odd(type):
    def __repr__(self):
        return "\\udcff"

class Thing(metaclass=Odd):
    pass

class TritonPythonModel:
    def execute(self, requests):
        return Thing()
"""
    )
    (answer,) = rig.run({"x": X})

    assert ESCAPED in answer
