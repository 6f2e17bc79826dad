# SPDX-License-Identifier: Apache-2.0
"""What an inference callable receives, and the spans that belong to it."""
