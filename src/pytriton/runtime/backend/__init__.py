# SPDX-License-Identifier: Apache-2.0
"""What the models of a process stand on, whatever kind they are; `backend.py` has the interface."""
