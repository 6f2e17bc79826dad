# SPDX-License-Identifier: Apache-2.0
"""The order in which the files of tests start, when several processes share them.

A file runs in one process. So one that takes long and starts last keeps the others waiting.
"""

from __future__ import annotations

from collections import Counter

# Those that take more than ten seconds, the longest first. The files of tests of Ray are far
# apart, so that there is one cluster at a time.
LONG_FILES = [
    "tests/cluster/test_ray_under_load.py",
    "tests/operations_differential/test_operations_differential.py",
    "tests/test_docs.py",
    "tests/examples/test_examples.py",
    "tests/contract/test_instances.py",
    "tests/examples/test_model_repositories.py",
    "tests/repository_e2e/test_front_end_processes.py",
    "tests/repository_e2e/test_front_end_resources.py",
    "tests/e2e/test_memory.py",
    "tests/repository_e2e/test_cloud.py",
    "tests/cluster/test_ray.py",
    "tests/contract/test_kept_inputs.py",
    "tests/e2e/test_life_object.py",
    "tests/client_differential/test_client_differential.py",
    "tests/repository_e2e/test_logging.py",
    "tests/repository_e2e/test_cloud_endpoints.py",
    "tests/sequence_differential/test_sequence_differential.py",
    "tests/e2e/test_remote_server_ends.py",
    "tests/client/test_stalls.py",
    "tests/client/test_model_client_life.py",
    "tests/repository_e2e/test_kills.py",
    "tests/docs/test_scaling_walk.py",
    "tests/repository_e2e/test_trace_files.py",
    "tests/commands/tune/test_tune_e2e.py",
    "tests/guides/test_promises_deploying.py",
    "tests/client/test_processes.py",
    "tests/check/test_command.py",
    "tests/e2e/test_front_ends.py",
    "tests/cost/test_grpc_cost.py",
    "tests/cost/test_http_cost.py",
    "tests/executor/test_workers.py",
    "tests/executor/remote/test_remote_workers.py",
    "tests/repository_e2e/test_startup.py",
    "tests/guides/test_snippets.py",
    "tests/repository_e2e/test_ensembles.py",
    "tests/cluster/test_ray_cut_off.py",
    "tests/server/binding/test_functions_elsewhere.py",
    "tests/e2e/test_life_signals.py",
    "tests/inprocess/test_lifecycle.py",
    "tests/guides/test_promises.py",
    "tests/e2e/test_remote_ends.py",
    "tests/docs/test_walks.py",
    "tests/e2e/test_life_kills.py",
    "tests/commands/perf/test_perf_e2e.py",
    "tests/c_library/test_programs.py",
    "tests/e2e/test_callable_concurrency.py",
    "tests/promises/test_model_repository.py",
    "tests/repository_e2e/test_crashes.py",
    "tests/repository_e2e/test_rolling_update.py",
]


def long_files_first(node_ids: list[str]) -> list[int]:
    """The order of tests, as indexes: long files, then those of many tests; files stay whole."""
    files = [node_id.partition("::")[0] for node_id in node_ids]
    sizes = Counter(files)
    places = {file: place for place, file in enumerate(LONG_FILES)}
    order = sorted(sizes, key=lambda file: (places.get(file, len(places)), -sizes[file]))
    turns = {file: turn for turn, file in enumerate(order)}
    return sorted(range(len(files)), key=lambda index: turns[files[index]])
