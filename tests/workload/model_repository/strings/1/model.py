# SPDX-License-Identifier: Apache-2.0
"""Reverses the bytes of texts."""

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    """Reverses the bytes of texts."""

    def execute(self, requests):
        """Answer each request of a batch."""
        return [self.answer(request) for request in requests]

    def answer(self, request):
        """Answer one request."""
        texts = pb_utils.get_input_tensor_by_name(request, "IN").as_numpy()
        turned = np.array([text[::-1] for text in texts.ravel()], np.object_)
        return pb_utils.InferenceResponse([pb_utils.Tensor("OUT", turned.reshape(texts.shape))])
