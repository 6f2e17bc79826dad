# SPDX-License-Identifier: Apache-2.0
"""Names that programs for Triton take from its package although they are private there."""

from tritonserver._api import _response as _response
