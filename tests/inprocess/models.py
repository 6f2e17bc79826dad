# SPDX-License-Identifier: Apache-2.0
"""The models that the tests of the in-process API use, as files by path."""

from __future__ import annotations

from textwrap import dedent


def _config(inputs: str, outputs: str, more: str = "") -> str:
    return f'backend: "python"\n{inputs}\n{outputs}\n{more}\n'


def _tensor(kind: str, name: str, datatype: str, dims: str = "-1") -> str:
    return f'{kind} [{{ name: "{name}" data_type: TYPE_{datatype} dims: [ {dims} ] }}]'


def identity(datatype: str = "FP32", more: str = "") -> dict[str, str]:
    """Returns a model whose output is its input."""
    return {
        "config.pbtxt": _config(
            _tensor("input", "INPUT0", datatype), _tensor("output", "OUTPUT0", datatype), more
        ),
        "1/model.py": dedent(
            """
            import triton_python_backend_utils as pb_utils


            class TritonPythonModel:
                def execute(self, requests):
                    return [
                        pb_utils.InferenceResponse(
                            [
                                pb_utils.Tensor(
                                    "OUTPUT0",
                                    pb_utils.get_input_tensor_by_name(each, "INPUT0").as_numpy(),
                                )
                            ]
                        )
                        for each in requests
                    ]
            """
        ),
    }


# Sends the numbers below its input, then ends; with a parameter `fails`, an error in place of 1.
COUNTING = {
    "config.pbtxt": _config(
        _tensor("input", "COUNT", "INT32", "1"),
        _tensor("output", "NUMBER", "INT32", "1"),
        "model_transaction_policy { decoupled: true }",
    ),
    "1/model.py": dedent(
        """
        import json
        from pathlib import Path

        import numpy as np
        import triton_python_backend_utils as pb_utils


        class TritonPythonModel:
            def execute(self, requests):
                for request in requests:
                    sender = request.get_response_sender()
                    count = int(pb_utils.get_input_tensor_by_name(request, "COUNT").as_numpy()[0])
                    fails = json.loads(request.parameters()).get("fails", False)
                    for number in range(count):
                        if request.is_cancelled():
                            break
                        array = np.array([number], np.int32)
                        outputs = [pb_utils.Tensor("NUMBER", array)]
                        error = pb_utils.TritonError("no one") if fails and number == 1 else None
                        sender.send(
                            pb_utils.InferenceResponse([] if error else outputs, error)
                        )
                        place = Path(__file__).parent / "sending"
                        place.write_text(str(number + 1))
                        place.rename(place.with_name("sent"))
                    sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
        """
    ),
}

# Answers when it is cancelled, with an error; or, given 0, at once.
PATIENT = {
    "config.pbtxt": _config(
        _tensor("input", "WAIT", "INT32", "1"), _tensor("output", "WAITED", "INT32", "1")
    ),
    "1/model.py": dedent(
        """
        import os
        import time

        import numpy as np
        import triton_python_backend_utils as pb_utils


        class TritonPythonModel:
            def execute(self, requests):
                responses = []
                for request in requests:
                    waits = pb_utils.get_input_tensor_by_name(request, "WAIT").as_numpy()
                    while waits[0] and not request.is_cancelled():
                        time.sleep(0.002)
                    outputs = [pb_utils.Tensor("WAITED", np.array([os.getpid()], np.int32))]
                    responses.append(pb_utils.InferenceResponse(outputs))
                return responses
        """
    ),
}

# Answers with its request's id, parameters, priority, timeout and sequence, as JSON.
TELLING = {
    "config.pbtxt": _config(
        _tensor("input", "IN", "STRING", "1"), _tensor("output", "OUT", "STRING", "1")
    ),
    "1/model.py": dedent(
        """
        import json

        import numpy as np
        import triton_python_backend_utils as pb_utils


        class TritonPythonModel:
            def execute(self, requests):
                return [
                    pb_utils.InferenceResponse(
                        [
                            pb_utils.Tensor(
                                "OUT",
                                np.array(
                                    [
                                        json.dumps(
                                            {
                                                "id": each.request_id(),
                                                "parameters": json.loads(each.parameters()),
                                                "correlation": each.correlation_id(),
                                                "flags": each.flags(),
                                                "timeout": each.timeout(),
                                            }
                                        )
                                    ],
                                    object,
                                ),
                            )
                        ],
                        parameters={"answered": True},
                    )
                    for each in requests
                ]
        """
    ),
}

FAILING = {
    **identity(),
    "1/model.py": dedent(
        """
        import triton_python_backend_utils as pb_utils


        class TritonPythonModel:
            def execute(self, requests):
                error = pb_utils.TritonError("out of order", pb_utils.TritonError.UNAVAILABLE)
                return [pb_utils.InferenceResponse(error=error) for _ in requests]
        """
    ),
}
