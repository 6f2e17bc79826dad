# SPDX-License-Identifier: Apache-2.0
"""Every name that users of PyTriton import is where they import it from, with its value."""

from __future__ import annotations

import ast
import contextlib
import dataclasses
import importlib
import inspect
import pathlib
import re

import pytest

from tests.guides.conftest import guides_folder
from tests.snippets import snippets

REPOSITORY = pathlib.Path(__file__).parents[2]
OURS = {"pytriton", "tritonserver", "triton_python_backend_utils", "c_python_backend_utils"}


def read_names() -> dict[str, set[str]]:
    """Returns the public names of `recorded/public_names.txt` by their modules."""
    names: dict[str, set[str]] = {}
    module = ""
    file = pathlib.Path(__file__).with_name("recorded") / "public_names.txt"
    for line in file.read_text().splitlines():
        if line.startswith(" "):
            names[module].update(line.split())
        elif line and not line.startswith("#"):
            module = line
            names[module] = set()
    return names


NAMES = read_names()

VALUES = {
    "pytriton.client.client.DEFAULT_INFERENCE_TIMEOUT_S": 60.0,
    "pytriton.constants.CREATE_TRITON_CLIENT_TIMEOUT_S": 10,
    "pytriton.constants.DEFAULT_GRPC_PORT": 8001,
    "pytriton.constants.DEFAULT_HTTP_PORT": 8000,
    "pytriton.constants.DEFAULT_METRICS_PORT": 8002,
    "pytriton.constants.DEFAULT_TRITON_STARTUP_TIMEOUT_S": 120,
    "pytriton.constants.TRITON_CONTEXT_FIELD_NAME": "triton_context",
    "pytriton.constants.TRITON_LOCAL_IP": "127.0.0.1",
    "pytriton.triton.GROWTH_BACKEND_SHM_SIZE": 1048576,
    "pytriton.triton.INITIAL_BACKEND_SHM_SIZE": 4194304,
    "pytriton.triton.MODEL_CONFIG_URL": "/v2/models/{model_name}/config/",
    "pytriton.triton.MODEL_INFER_URL": "/v2/models/{model_name}/infer/",
    "pytriton.triton.MODEL_READY_URL": "/v2/models/{model_name}/ready/",
    "pytriton.triton.MODEL_URL": "/v2/models/{model_name}",
    "pytriton.triton.MONITORING_PERIOD_S": 10.0,
    "pytriton.triton.TRITON_ACCESS_HEADER": "triton-access-token",
    "pytriton.triton.WAIT_FORM_MODEL_TIMEOUT_S": 60.0,
}

# Positional arguments in their order, as users write calls without names; the rest by name.
SIGNATURES = {
    "pytriton.triton.Triton": "* config workspace triton_lifecycle_policy security_config",
    "pytriton.triton.Triton.bind": "self model_name infer_func inputs outputs model_version config "
    "strict trace_config * instances",
    "pytriton.triton.Triton.serve": "self monitoring_period_s",
    "pytriton.triton.RemoteTriton": "url workspace access_token",
    "pytriton.triton.TritonLifecyclePolicy": "launch_triton_on_startup local_model_store",
    "pytriton.triton.TritonSecurityConfig": "access_token restricted_endpoints",
    "pytriton.model_config.Tensor": "shape dtype name optional device",  # the last is ours
    "pytriton.model_config.ModelConfig": "batching max_batch_size batcher response_cache decoupled "
    "model_warmup sequence rate_limiter openai",  # the last three are ours
    "pytriton.model_config.DynamicBatcher": "max_queue_delay_microseconds preferred_batch_size "
    "preserve_ordering priority_levels default_priority_level default_queue_policy "
    "priority_queue_policy",
    "pytriton.model_config.QueuePolicy": "timeout_action default_timeout_microseconds "
    "allow_timeout_override max_queue_size",
    "pytriton.model_config.common.WarmupInput": "dtype shape zero_data random_data input_data_file",
    "pytriton.model_config.common.ModelWarmup": "name batch_size inputs count",
    "pytriton.proxy.types.Request": "data parameters span requested_output_names",
    "pytriton.proxy.types.Response": "data",
    "pytriton.decorators.group_by_values": "*keys pad_fn",
    "pytriton.decorators.fill_optionals": "**defaults",
    "pytriton.decorators.first_value": "*keys squeeze_single_values strict",
    "pytriton.decorators.ConstantPadder": "pad_value",
    "pytriton.client.ModelClient": "url model_name model_version * lazy_init init_timeout_s "
    "inference_timeout_s model_config ensure_model_is_ready access_token tls",
    "pytriton.client.FuturesModelClient": "url model_name model_version * max_workers "
    "max_queue_size non_blocking init_timeout_s inference_timeout_s access_token tls",
    "pytriton.client.ModelClient.infer_sample": "self *inputs parameters headers **named_inputs",
}


def found(path: str) -> object:
    """What lies at a dotted path: a module's member, or a member of that."""
    module, _, name = path.rpartition(".")
    try:
        return getattr(importlib.import_module(module), name)
    except ModuleNotFoundError:
        return getattr(found(module), name)


@pytest.mark.parametrize("module", NAMES)
def test_names_are_imported_from(module):
    namespace = importlib.import_module(module)

    assert {name for name in NAMES[module] if not hasattr(namespace, name)} == set()
    assert set(getattr(namespace, "__all__", NAMES[module])) == NAMES[module]


def programs_of_users() -> dict[str, str]:
    """Returns the source of examples, and of the Python blocks of pages."""
    files = [*REPOSITORY.glob("examples/**/*.py"), *REPOSITORY.glob("tests/typing/scripts/*.py")]
    pages = [
        REPOSITORY / "README.md",
        *REPOSITORY.glob("docs/**/*.md"),
        *REPOSITORY.glob("examples/**/*.md"),
        *guides_folder().glob("*.md"),
    ]
    blocks = [block for page in pages for block in snippets(page, "python")]
    return {
        **{str(file): file.read_text() for file in files},
        **{str(block): block.text for block in blocks},
    }


def imported_names(source: str) -> set[tuple[str, str]]:
    """Returns the names that a program imports from our packages; "" is a module itself."""
    found: set[tuple[str, str]] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom) and node.module is not None:
            found.update((node.module, alias.name) for alias in node.names)
        elif isinstance(node, ast.Import):
            found.update((alias.name, "") for alias in node.names)
    return {(module, name) for module, name in found if module.split(".")[0] in OURS}


def test_programs_of_users_import_only_public_names():
    imported = set()
    for source in programs_of_users().values():
        with contextlib.suppress(SyntaxError):  # an excerpt, whose page shows the whole elsewhere
            imported |= imported_names(source)
    unknown = {(module, name) for module, name in imported if name not in NAMES.get(module, ())}

    assert len(imported) > 50
    assert {each for each in unknown if each[1] or each[0] not in NAMES} == set()


def test_reference_describes_only_public_names():
    pages = [page.read_text() for page in REPOSITORY.glob("docs/reference/*.md")]
    described = re.findall(r"^::: (\S+)$", "\n".join(pages), re.MULTILINE)
    public = {f"{module}.{name}" for module, names in NAMES.items() for name in names}

    assert len(described) > 10
    assert set(described) - public - set(NAMES) == set()


def test_commands_and_plugins_are_where_the_package_says():
    text = (REPOSITORY / "pyproject.toml").read_text()
    commands = re.findall(
        r'^(?:pytriton|tritonserver) = "([\w.]+)(?::(\w+))?"$', text, re.MULTILINE
    )

    assert [module for module, _ in commands if module.startswith("pytriton")] != []
    for module, name in commands:
        assert hasattr(importlib.import_module(module), name or "__name__")


@pytest.mark.parametrize("path", VALUES)
def test_value_is_the_usual_one(path):
    assert found(path) == VALUES[path]


def described(signature: inspect.Signature) -> str:
    marks = {inspect.Parameter.VAR_POSITIONAL: "*", inspect.Parameter.VAR_KEYWORD: "**"}
    words = []
    for parameter in signature.parameters.values():
        by_name = parameter.kind is inspect.Parameter.KEYWORD_ONLY
        if by_name and not any(word.startswith("*") for word in words):
            words.append("*")
        words.append(marks.get(parameter.kind, "") + parameter.name)
    return " ".join(words)


@pytest.mark.parametrize("path", SIGNATURES)
def test_arguments_have_the_usual_names_and_order(path):
    assert described(inspect.signature(found(path))) == SIGNATURES[path]


@pytest.mark.parametrize("path", [path for path in SIGNATURES if "model_config." in path])
def test_settings_of_a_model_are_dataclasses(path):
    assert dataclasses.is_dataclass(found(path))
