# SPDX-License-Identifier: Apache-2.0
"""What a client asks for, read from the tensors and parameters of its request."""

import json

import numpy as np
import triton_python_backend_utils as pb_utils

_RETURNS = (
    "return_finish_reason",
    "return_cumulative_logprob",
    "return_logprobs",
    "return_num_input_tokens",
    "return_num_output_tokens",
)


class GenerateRequest:
    """A prompt and how to answer it."""

    def __init__(self, request, output_dtype):
        self._dtype = output_dtype
        prompt = pb_utils.get_input_tensor_by_name(request, "text_input").as_numpy()[0]
        self.prompt = prompt.decode() if isinstance(prompt, bytes) else prompt
        self.stream = self._flag(request, "stream")
        excludes = pb_utils.get_input_tensor_by_name(request, "exclude_input_in_output")
        self._prepends = not (excludes.as_numpy()[0] if excludes else self.stream)
        if self._prepends and self.stream:
            raise ValueError("the prompt cannot be in a stream")
        self._returns = {name: self._flag(request, name) for name in _RETURNS}
        self.sampling = json.loads(request.parameters())
        given = pb_utils.get_input_tensor_by_name(request, "sampling_parameters")
        if given:
            self.sampling = json.loads(given.as_numpy()[0].decode())
        self.adapter = self.sampling.pop("lora_name", None)
        self._sent_characters = 0
        self._sent_tokens = 0

    @staticmethod
    def _flag(request, name):
        tensor = pb_utils.get_input_tensor_by_name(request, name)
        return bool(tensor.as_numpy()[0]) if tensor else False

    def streamed(self, output):
        """Returns the response with what is new."""
        text = output.text[self._sent_characters :]
        self._sent_characters = len(output.text)
        return self._response(text, output)

    def whole(self, output):
        """Returns the response with the whole text."""
        return self._response((self.prompt if self._prepends else "") + output.text, output)

    def _response(self, text, output):
        tensors = [self._texts("text_output", text.encode())]
        if self._returns["return_finish_reason"]:
            reason = "length" if output.is_finished else None
            tensors.append(self._texts("finish_reason", str(reason)))
        if self._returns["return_cumulative_logprob"]:
            value = np.asarray([output.cumulative_logprob], dtype=np.float32)
            tensors.append(pb_utils.Tensor("cumulative_logprob", value))
        if self._returns["return_logprobs"]:
            tensors.append(self._texts("logprobs", json.dumps([{"1": -0.5}])))
        if self._returns["return_num_input_tokens"]:
            value = np.asarray(output.input_count, dtype=np.uint32)  # without dimensions
            tensors.append(pb_utils.Tensor("num_input_tokens", value))
        if self._returns["return_num_output_tokens"]:
            new = output.token_count - self._sent_tokens
            self._sent_tokens = output.token_count
            value = np.asarray([new], dtype=np.uint32)
            tensors.append(pb_utils.Tensor("num_output_tokens", value))
        return pb_utils.InferenceResponse(output_tensors=tensors)

    def _texts(self, name, text):
        return pb_utils.Tensor(name, np.asarray([text], dtype=self._dtype))
