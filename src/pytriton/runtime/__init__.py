# SPDX-License-Identifier: Apache-2.0
"""Everything that runs a model: channels, workers, backends, instances, clusters."""
