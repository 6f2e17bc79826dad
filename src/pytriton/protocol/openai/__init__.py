# SPDX-License-Identifier: Apache-2.0
"""OpenAI's requests as those of models, and the responses of models as OpenAI's answers."""
