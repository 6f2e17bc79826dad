# SPDX-License-Identifier: Apache-2.0
"""What clients may ask of the server beside inference: one table for both protocols."""
