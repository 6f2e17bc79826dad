# SPDX-License-Identifier: Apache-2.0
"""What a sandbox of workers grants: the words of operators and models, and the records of it.

The operator trusts nobody below. `--sandbox` is what every worker gets, `--sandbox-allow` what a
model may ask for in addition, with its parameter SANDBOX, which whoever wrote the model has chosen.
Only decisions are here; `pytriton.runtime.sandbox` carries them out.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import PurePosixPath

import msgspec

from pytriton.base.errors import InvalidArgumentError

PARAMETER = "SANDBOX"
OFF, ON, STRICT = "off", "on", "strict"
GRAMMAR = (
    "off, on or strict, with grants after commas: network, unix, control, read=<path>, "
    "write=<path>, device=<path>, env=<name>, memory=<size>, processes=<count>, files=<count>, "
    "scratch=<size>"
)
# Threads count, too. OpenBLAS and torch start one for each core, some libraries several.
DEFAULT_PROCESSES = 4096
DEFAULT_FILES = 4096
DEFAULT_SCRATCH_BYTES = 1 << 30

_FLAGS = {"network": "has_network", "unix": "has_unix", "control": "has_control"}
_PATHS = {"read": "readable", "write": "writable", "device": "devices"}
_COUNTS = {"processes": "processes", "files": "files"}
_SIZES = {"memory": "memory_bytes", "scratch": "scratch_bytes"}
_SIZE = re.compile(r"(?P<number>\d+)(?P<unit>[KMGT]iB)?")
_UNITS = {"": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40}
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
# The variables of the server's environment that workers in a sandbox get: those of the system, of
# our processes and of the libraries of models that say how something runs, and never who may do it.
# A list of all that may be secret would always lack the next name. Prefixes end with an asterisk.
_VARIABLES = """
    PATH HOME USER LOGNAME HOSTNAME TMPDIR TZ LANG LANGUAGE LC_* SOURCE_DATE_EPOCH CC
    LD_LIBRARY_PATH LD_PRELOAD MALLOC_* GLIBC_TUNABLES SSL_CERT_FILE SSL_CERT_DIR
    PYTHONPATH PYTHONHOME PYTHONUNBUFFERED PYTHONDONTWRITEBYTECODE PYTHONHASHSEED PYTHONWARNINGS
    PYTHONFAULTHANDLER PYTHONOPTIMIZE PYTHONMALLOC PYTHONIOENCODING PYTHONUTF8 PYTHONNOUSERSITE
    PYTHONSAFEPATH PYTHONDEVMODE PYTHONASYNCIODEBUG PYTHON_GIL VIRTUAL_ENV CONDA_PREFIX
    PYTRITON_HOME PYTRITON_MACHINE_CODE PYTRITON_PORTABLE_CHANNEL PYTRITON_WORKER_START
    OMP_* GOMP_* KMP_* MKL_* OPENBLAS_* GOTO_NUM_THREADS BLIS_* NUMEXPR_* VECLIB_* TBB_* NUMBA_*
    CUDA_* CUDNN_* CUBLAS_* NCCL_* NVIDIA_VISIBLE_DEVICES NVIDIA_DRIVER_CAPABILITIES
    NVIDIA_TF32_OVERRIDE ROCR_* HIP_* HSA_* ZE_* ONEAPI_DEVICE_SELECTOR
    TORCH_* TORCHINDUCTOR_* PYTORCH_* TRITON_CACHE_DIR TF_* XLA_* JAX_PLATFORMS JAX_ENABLE_X64
    ORT_* OPENVINO_* OV_* TOKENIZERS_PARALLELISM TRANSFORMERS_OFFLINE TRANSFORMERS_CACHE
    HF_HOME HF_HUB_CACHE HF_HUB_OFFLINE HF_DATASETS_CACHE HF_DATASETS_OFFLINE HF_MODULES_CACHE
    SENTENCE_TRANSFORMERS_HOME TIKTOKEN_CACHE_DIR NLTK_DATA MPLBACKEND MPLCONFIGDIR
""".split()  # noqa: SIM905  as words they can be read
_NAMES = frozenset(name for name in _VARIABLES if not name.endswith("*"))
_PREFIXES = tuple(name[:-1] for name in _VARIABLES if name.endswith("*"))


class Grants(msgspec.Struct, frozen=True, kw_only=True):
    """What code in a sandbox may do beyond the minimum; None leaves a limit as it is."""

    has_network: bool = False
    has_unix: bool = False  # sockets with a path or an abstract name; pairs need no grant
    has_control: bool = False  # may load and unload models
    readable: tuple[str, ...] = ()
    writable: tuple[str, ...] = ()
    devices: tuple[str, ...] = ()
    variables: tuple[str, ...] = ()  # of the environment, beside those that all sandboxes get
    memory_bytes: int | None = None
    processes: int | None = None
    files: int | None = None
    scratch_bytes: int | None = None


class SandboxChoice(msgspec.Struct, frozen=True):
    """A value of `--sandbox`, or of a model's parameter SANDBOX."""

    mode: str = OFF
    grants: Grants = Grants()


class SandboxSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The operator's settings."""

    default: SandboxChoice = SandboxChoice()  # of every worker
    allowed: Grants = Grants()  # what models may ask for in addition
    allows_off: bool = False  # models may ask for no sandbox

    @property
    def is_strict(self) -> bool:
        """Whether the server must not start where a part of the sandbox is missing."""
        return self.default.mode == STRICT


class SandboxPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """The sandbox of one worker, as the process that forks it gets it. All paths are absolute.

    `landlock`, `has_mounts` and `groups` are what the machine has, see `SandboxMachine`: what it
    lacks is left out, and what it has must succeed.
    """

    readable: tuple[str, ...] = ()
    writable: tuple[str, ...] = ()
    devices: tuple[str, ...] = ()
    has_network: bool = False
    has_unix: bool = False
    memory_bytes: int | None = None
    processes: int = DEFAULT_PROCESSES
    files: int = DEFAULT_FILES
    scratch_bytes: int = DEFAULT_SCRATCH_BYTES
    landlock: int = 0  # the version of its interface; 0: there is none
    has_mounts: bool = False
    groups: dict[str, str] = {}  # folders of control groups by controller
    scratch_folder: str = "/tmp"  # noqa: S108  in which the folder of the worker is made


class SandboxMachine(msgspec.Struct, frozen=True, kw_only=True):
    """The parts of a sandbox that a machine has, as `pytriton.runtime.sandbox.probe` finds them."""

    system: str = ""  # as `platform.system` names it
    processor: str = ""
    is_root: bool = False
    landlock: int = 0
    has_filters: bool = False  # seccomp
    has_mounts: bool = False  # a file system of one's own: a bounded scratch folder
    mounts_problem: str = ""
    groups: dict[str, str] = {}


class MissingPart(msgspec.Struct, frozen=True):
    """A part of the sandbox that a machine lacks."""

    name: str
    consequence: str
    is_essential: bool = True  # `--sandbox=strict` refuses to start without it

    def __str__(self) -> str:
        return f"{self.name}: {self.consequence}"


def parse_choice(text: str) -> SandboxChoice:
    """Returns what a value of `--sandbox` or of the parameter SANDBOX means.

    Raises:
        InvalidArgumentError: It is none; the text says what was expected.
    """
    mode, comma, rest = text.strip().partition(",")
    mode = mode.strip().lower()
    if mode not in (OFF, ON, STRICT):
        raise InvalidArgumentError(f"Expected {GRAMMAR}; got '{text}'")
    if mode == OFF and comma:
        raise InvalidArgumentError(f"Expected nothing after 'off' for a sandbox, got '{rest}'")
    return SandboxChoice(mode, parse_grants(rest.split(",") if comma else ()))


def parse_grants(words: Iterable[str]) -> Grants:
    """Returns the grants that some words name; raises InvalidArgumentError for an unknown one."""
    found: dict[str, bool | int | list[str]] = {}
    for word in words:
        name, equals, value = word.strip().partition("=")
        if name in _FLAGS and not equals:
            found[_FLAGS[name]] = True
        elif name in _PATHS and value:
            _add(found, _PATHS[name], _path(name, value))
        elif name == "env" and _VARIABLE.fullmatch(value):
            _add(found, "variables", value)
        elif name in _COUNTS and value.isdecimal() and int(value):
            found[_COUNTS[name]] = int(value)
        elif name in _SIZES and (size := _SIZE.fullmatch(value)) and int(size["number"]):
            found[_SIZES[name]] = int(size["number"]) * _UNITS[size["unit"] or ""]
        else:
            raise InvalidArgumentError(f"Expected {GRAMMAR}; got '{word.strip()}'")
    return msgspec.convert(found, Grants)


def _add(found: dict[str, bool | int | list[str]], field: str, value: str) -> None:
    values = found.setdefault(field, [])
    assert isinstance(values, list)
    values.append(value)


def _path(name: str, value: str) -> str:
    path = PurePosixPath(value)
    if not path.is_absolute() or ".." in path.parts or "\0" in value:
        raise InvalidArgumentError(
            f"Expected an absolute path without '..' for {name} of a sandbox, got '{value}'"
        )
    return str(path)


def read_sandbox_settings(sandbox: str, allowed: Iterable[str]) -> SandboxSettings:
    """Returns the operator's settings; raises InvalidArgumentError if they are wrong."""
    words = [word.strip() for text in allowed for word in text.split(",")]
    return SandboxSettings(
        default=parse_choice(sandbox),
        allowed=parse_grants(word for word in words if word != OFF),
        allows_off=OFF in words,
    )


def settle(settings: SandboxSettings, text: str | None) -> Grants | None:
    """Returns what the workers of a model are granted; None: they have no sandbox.

    Where the operator has chosen no sandbox, a model may have one, with grants as it likes: it
    could do all of it anyway. Where the operator has, a model may be content with less, and ask for
    what `--sandbox-allow` names.

    Args:
        settings: The operator's.
        text: The model's parameter; None: it has none.

    Raises:
        InvalidArgumentError: The parameter is wrong, or asks for more than the operator allows.
    """
    default = settings.default
    if text is None:
        return None if default.mode == OFF else default.grants
    asked = parse_choice(text)
    if asked.mode == STRICT:
        raise InvalidArgumentError(
            f"Expected on or off for the parameter {PARAMETER}; strict is for --sandbox"
        )
    if default.mode == OFF:
        return None if asked.mode == OFF else asked.grants
    if asked.mode == OFF:
        if settings.allows_off:
            return None
        raise _refusal("no sandbox", OFF)
    return _joined(default.grants, asked.grants, settings.allowed)


def _joined(given: Grants, asked: Grants, allowed: Grants) -> Grants:
    joined: dict[str, object] = {}
    for word, field in _FLAGS.items():
        joined[field] = getattr(given, field) or getattr(asked, field)
        if getattr(asked, field) and not (getattr(given, field) or getattr(allowed, field)):
            raise _refusal(f"'{word}'", word)
    for word, field in _PATHS.items():
        within = (*getattr(given, field), *getattr(allowed, field))
        if word == "read":  # what may be written may be read
            within = (*within, *given.writable, *allowed.writable)
        for path in getattr(asked, field):
            if not any(PurePosixPath(path).is_relative_to(each) for each in within):
                raise _refusal(f"'{word}={path}'", f"{word}={path}")
        joined[field] = tuple(dict.fromkeys((*getattr(given, field), *getattr(asked, field))))
    for name in asked.variables:
        if name not in (*given.variables, *allowed.variables):
            raise _refusal(f"'env={name}'", f"env={name}")
    joined["variables"] = tuple(dict.fromkeys((*given.variables, *asked.variables)))
    for word, field in {**_COUNTS, **_SIZES}.items():
        joined[field] = _limit(word, field, given, asked, allowed)
    return msgspec.convert(joined, Grants)


def _limit(word: str, field: str, given: Grants, asked: Grants, allowed: Grants) -> int | None:
    """Returns the limit of a model, which may be lower than the operator's, or as allowed."""
    base = getattr(given, field)
    if base is None:
        base = _DEFAULTS.get(field)
    wanted: int | None = getattr(asked, field)
    if wanted is None:
        return getattr(given, field)  # type: ignore[no-any-return]  # all of them are counts
    highest = max((each for each in (base, getattr(allowed, field)) if each is not None), default=0)
    if base is not None and wanted > highest:
        raise _refusal(f"'{word}={wanted}'", f"{word}={wanted}")
    return wanted


_DEFAULTS: Mapping[str, int] = {
    "processes": DEFAULT_PROCESSES,
    "files": DEFAULT_FILES,
    "scratch_bytes": DEFAULT_SCRATCH_BYTES,
}


def _refusal(what: str, option: str) -> InvalidArgumentError:
    return InvalidArgumentError(
        f"The parameter {PARAMETER} asks for {what}, which the operator of this server does not "
        f"allow; --sandbox-allow={option} would"
    )


def allowed_variables(variables: Mapping[str, str], granted: Iterable[str] = ()) -> dict[str, str]:
    """Returns the variables of an environment for code in a sandbox."""
    names = _NAMES.union(granted)
    return {
        name: value
        for name, value in variables.items()
        if name in names or name.startswith(_PREFIXES)
    }


def missing_parts(machine: SandboxMachine) -> list[MissingPart]:
    """Returns the parts that a machine lacks, with what follows from each."""
    if machine.system != "Linux":
        name = f"a sandbox on {machine.system or 'this system'}"
        return [MissingPart(name, "workers run without one; only Linux has its parts")]
    parts = []
    if machine.landlock < 1:
        parts.append(
            MissingPart(
                "Landlock (Linux 5.13)", "workers see all files that the server's user sees"
            )
        )
    elif machine.landlock < 3:
        parts.append(
            MissingPart(
                "truncation in Landlock (Linux 6.2)", "workers can empty files they can read"
            )
        )
    if not machine.has_filters:
        parts.append(
            MissingPart("seccomp", "workers can open sockets, and trace and signal processes")
        )
    if not machine.has_mounts:
        problem = f" ({machine.mounts_problem})" if machine.mounts_problem else ""
        parts.append(
            MissingPart(
                f"a mount namespace{problem}",
                "scratch folders are limited by file only, /dev/shm is closed, and changes of "
                "modes, owners and times have no effect",
                is_essential=False,
            )
        )
    if "pids" not in machine.groups:
        parts.append(_without_pids(is_root=machine.is_root))
    if "memory" not in machine.groups:
        parts.append(
            MissingPart(
                "a control group for memory",
                "a limit of memory holds for each process of a worker, and not for shared memory",
                is_essential=False,
            )
        )
    return parts


def _without_pids(*, is_root: bool) -> MissingPart:
    if is_root:
        return MissingPart(
            "a control group for processes", "root can start any number of them in a worker"
        )
    return MissingPart(
        "a control group for processes",
        "their limit holds for all processes of the server's user together",
        is_essential=False,
    )
