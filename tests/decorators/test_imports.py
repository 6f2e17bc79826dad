# SPDX-License-Identifier: Apache-2.0
import subprocess
import sys

_HEAVY = ("google", "tritonclient", "grpc", "uvloop", "httptools", "orjson", "ml_dtypes", "psutil")


def test_process_that_binds_models_loads_nothing_heavy():
    modules = "pytriton.decorators, pytriton.model_config, pytriton.base.triton_config"
    parts = ", pytriton.model_config.parser, pytriton.model_config.generator, pytriton.proxy.types"
    script = f"import sys, {modules}{parts}; print(*sys.modules)"

    loaded = subprocess.run(
        [sys.executable, "-c", script], check=True, capture_output=True, text=True
    ).stdout.split()

    assert "pytriton.decorators" in loaded
    assert {name.partition(".")[0] for name in loaded}.isdisjoint(_HEAVY)
