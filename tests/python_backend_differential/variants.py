# SPDX-License-Identifier: Apache-2.0
"""Models that differ from others by a few lines, most of them to fail while loading."""

from __future__ import annotations

import dataclasses
import shutil
from pathlib import Path

MODELS = Path(__file__).parent / "model_repository"
PLAIN = 'backend: "python"\noutput [ { name: "OUT" data_type: TYPE_STRING dims: [ 1 ] } ]\n'
ON_CPU = "instance_group [ { kind: KIND_CPU count: 1 } ]\n"
DECOUPLED = "model_transaction_policy { decoupled: true }\n"

ANSWERING = """
    def execute(self, requests):
        tensor = pb_utils.Tensor("OUT", np.array([b"loaded"], dtype=object))
        return [pb_utils.InferenceResponse([tensor]) for _ in requests]
"""
HEAD = "import numpy as np\nimport triton_python_backend_utils as pb_utils\n"


@dataclasses.dataclass(frozen=True)
class Variant:
    """A model's source and configuration; without one, or None, the file is left out."""

    source: str | None
    config: str | None = PLAIN + ON_CPU
    file: str = "1/model.py"


def model(body: str, before: str = "") -> str:
    """A model class with these methods, and with the usual execute."""
    return f"{HEAD}{before}\nclass TritonPythonModel:\n{body}{ANSWERING}"


def auto_completed(*lines: str, config: str | None = 'backend: "python"\n') -> Variant:
    """A model whose auto_complete_config runs these lines."""
    text = "".join(f"        {line}\n" for line in lines)
    body = f"    @staticmethod\n    def auto_complete_config(config):\n{text}"
    return Variant(model(body), config)


def copy_of(name: str, extra: str) -> Variant:
    """A model of the repository with more configuration."""
    folder = MODELS / name
    source, config = (folder / "1" / "model.py").read_text(), (folder / "config.pbtxt").read_text()
    return Variant(source, config + extra)


def parameter(key: str, value: str) -> str:
    return f'parameters: {{ key: "{key}" value: {{ string_value: "{value}" }} }}\n'


OUT = 'config.add_output({"name": "OUT", "data_type": "TYPE_STRING", "dims": [1]})'
IN = '{"name": "A", "data_type": "TYPE_FP32", "dims": [2]'
BATCHED = 'backend: "python"\nmax_batch_size: 4\n' + PLAIN.split("\n", 1)[1]
SEQUENCES = PLAIN + "max_batch_size: 4\nsequence_batching { iterative_sequence: true }\n"

GOOD = {
    "senders_decoupled": copy_of("senders", DECOUPLED),
    "coroutine_decoupled": copy_of("coroutine", DECOUPLED),
    "returns_decoupled": copy_of("returns", DECOUPLED),
    "not_iterative": copy_of("iterative", ""),
}
GOOD["not_iterative"] = Variant(
    GOOD["not_iterative"].source,
    (GOOD["not_iterative"].config or "").replace(
        "sequence_batching { iterative_sequence: true }", ""
    ),
)

AUTO_COMPLETED = {
    "auto_nothing": auto_completed("return config"),
    "auto_without_config": auto_completed(OUT, "return config", config=None),
    "auto_batching": auto_completed(
        "config.set_max_batch_size(8)", "config.set_dynamic_batching()", OUT, "return config"
    ),
    "auto_optional_input": auto_completed(
        f'config.add_input({IN}, "optional": True}})', OUT, "return config"
    ),
    "auto_decoupled": auto_completed(
        'config.set_model_transaction_policy({"decoupled": True})', OUT, "return config"
    ),
    "auto_agrees": auto_completed(OUT, "return config", config=PLAIN + ON_CPU),
    "auto_changed_name": auto_completed(
        'config.as_dict()["name"] = "other"',
        'config.as_dict()["parameters"] = {"a": {"string_value": "b"}}',
        OUT,
        "return config",
    ),
    "auto_returns_none": auto_completed(OUT),
    "auto_returns_dict": auto_completed(OUT, "return config.as_dict()"),
    "auto_raises": auto_completed('raise ValueError("not today")'),
    "auto_unknown_name": auto_completed("return nothing"),
    "auto_smaller_batch": auto_completed(
        "config.set_max_batch_size(2)", "return config", config=BATCHED
    ),
    "auto_bigger_batch": auto_completed(
        "config.set_max_batch_size(16)", "return config", config=BATCHED
    ),
    "auto_other_dtype": auto_completed(
        'config.add_output({"name": "OUT", "data_type": "TYPE_INT8", "dims": [1]})',
        "return config",
        config=PLAIN,
    ),
    "auto_other_dims": auto_completed(
        'config.add_output({"name": "OUT", "data_type": "TYPE_STRING", "dims": [2]})',
        "return config",
        config=PLAIN,
    ),
    "auto_more_keys": auto_completed(f'config.add_input({IN}, "format": 1}})', "return config"),
    "auto_no_name": auto_completed('config.add_input({"dims": [1]})', "return config"),
    "auto_bad_dtype": auto_completed(
        'config.add_output({"name": "OUT", "data_type": "TYPE_WRONG", "dims": [1]})',
        "return config",
    ),
    "auto_dynamic_for_sequences": auto_completed(
        "config.set_dynamic_batching()", "return config", config=SEQUENCES
    ),
    "auto_policy_changed": auto_completed(
        'config.set_model_transaction_policy({"decoupled": False})',
        "return config",
        config=PLAIN + DECOUPLED,
    ),
    "auto_not_callable": Variant(model("    auto_complete_config = 5\n"), PLAIN + ON_CPU),
    "auto_calls_bls": auto_completed(
        'request = pb_utils.InferenceRequest(model_name="renamed", inputs=[],'
        " requested_output_names=[])",
        "request.exec()",
        "return config",
        config=PLAIN,
    ),
    "auto_model_dir": auto_completed(
        'open(pb_utils.get_model_dir() + "/model.py").close()', OUT, "return config"
    ),
    "auto_logs": auto_completed('pb_utils.Logger.log_info("hello")', OUT, "return config"),
}

FAILING = {
    "failing_initialize": Variant(
        model('    def initialize(self, args):\n        raise RuntimeError("cannot start")\n')
    ),
    "failing_constructor": Variant(
        model('    def __init__(self):\n        raise RuntimeError("cannot be made")\n')
    ),
    "failing_import": Variant(model("    pass\n", 'raise ImportError("cannot be imported")\n')),
    "failing_syntax": Variant("class TritonPythonModel\n    pass\n"),
    "failing_without_class": Variant("import json\n"),
    "failing_missing_package": Variant(model("    pass\n", "import nowhere_to_be_found\n")),
    "failing_exit_on_initialize": Variant(
        model("    def initialize(self, args):\n        import os\n        os._exit(3)\n")
    ),
    "failing_bls_on_initialize": Variant(
        model(
            "    def initialize(self, args):\n"
            '        request = pb_utils.InferenceRequest(model_name="renamed", inputs=[],'
            " requested_output_names=[])\n"
            "        request.exec()\n"
        )
    ),
    "failing_initialize_signature": Variant(model("    def initialize(self):\n        pass\n")),
    "failing_without_file": Variant(None),
    "failing_other_suffix": Variant(
        model("    pass\n"), PLAIN + 'default_model_filename: "model.txt"\n', "1/model.txt"
    ),
    "failing_forced_cpu": Variant(
        model("    pass\n"), PLAIN + parameter("FORCE_CPU_ONLY_INPUT_TENSORS", "maybe")
    ),
    "failing_environment": Variant(
        model("    pass\n"), PLAIN + parameter("EXECUTION_ENV_PATH", "/nowhere/env.tar.gz")
    ),
    "failing_gpu": Variant(model("    pass\n"), PLAIN + "instance_group [ { kind: KIND_GPU } ]\n"),
    "failing_name_with;semicolon": Variant(model("    pass\n")),
    "failing_unknown_field": Variant(model("    pass\n"), PLAIN + "colour: 5\n"),
}

LOADING = {
    "without_initialize": Variant(model("    pass\n")),
    "without_execute": Variant(f"{HEAD}\nclass TritonPythonModel:\n    pass\n"),
    "without_inputs_or_outputs": Variant(model("    pass\n"), 'backend: "python"\n'),
    "other_file_name": Variant(
        model("    pass\n"), PLAIN + ON_CPU + 'default_model_filename: "other.py"\n', "1/other.py"
    ),
    "forced_cpu_yes": Variant(
        model("    pass\n"), PLAIN + parameter("FORCE_CPU_ONLY_INPUT_TENSORS", "yes")
    ),
    "forced_cpu_no": Variant(
        model("    pass\n"), PLAIN + parameter("FORCE_CPU_ONLY_INPUT_TENSORS", "no")
    ),
    "kind_model": Variant(model("    pass\n"), PLAIN + "instance_group [ { kind: KIND_MODEL } ]\n"),
    "kind_auto": Variant(model("    pass\n"), PLAIN + "instance_group [ { kind: KIND_AUTO } ]\n"),
    "two_instances": Variant(
        model("    pass\n"), PLAIN + 'instance_group [ { name: "g" kind: KIND_CPU count: 2 } ]\n'
    ),
    "backend_from_file": Variant(model("    pass\n"), PLAIN.split("\n", 1)[1]),
    "class_from_import": Variant(
        f"{HEAD}\nclass Base:\n{ANSWERING}\nTritonPythonModel = type('Any', (Base,), {{}})\n"
    ),
    "with_is_ready": Variant(model("    def is_ready(self):\n        return False\n")),
    "returning_initialize": Variant(model("    def initialize(self, args):\n        return 5\n")),
}


def write_repository(folder: Path) -> None:
    """All models, in `folder`."""
    shutil.copytree(
        MODELS, folder, dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__")
    )
    for name, variant in {**GOOD, **AUTO_COMPLETED, **FAILING, **LOADING}.items():
        source = folder / name / variant.file
        source.parent.mkdir(parents=True)
        if variant.source is not None:
            source.write_text(variant.source)
        if variant.config is not None:
            (folder / name / "config.pbtxt").write_text(variant.config)
