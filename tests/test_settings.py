# SPDX-License-Identifier: Apache-2.0
"""The table of settings, and every place where a setting has to be."""

from __future__ import annotations

import dataclasses
import re

import msgspec
import pytest

from pytriton.base.settings import BY_KEY, Takes
from pytriton.base.triton_config import TritonConfig
from pytriton.inprocess.c_library.options import OptionHandles as LibraryOptions
from pytriton.inprocess.options import Options, server_settings
from pytriton.runtime.native_backend.api_table import FUNCTIONS
from pytriton.serving.server.options.server_options import ServerOptions

CONFIG_FIELDS = {field.name: field for field in dataclasses.fields(TritonConfig)}
INPROCESS_FIELDS = {field.name: field for field in dataclasses.fields(Options)}
C_PREFIX = "TRITONSERVER_ServerOptions"
# The annotations of a field, by the kind of value that its setting takes.
TYPES = {
    Takes.NOTHING: {"bool"},
    Takes.BOOLEAN: {"bool"},
    Takes.INTEGER: {"int"},
    Takes.NUMBER: {"float", "int"},
    Takes.TEXT: {"str"},
    Takes.PATH: {"str", "pathlib.Path", "str | pathlib.Path"},
    Takes.PATTERN: {"str"},
}
# The restricted APIs and the repository are single values in `TritonConfig`.
REPEATED = {"list[str]", "str", "pathlib.Path"}
# Their defaults are described in words.
IN_WORDS = {"cache_directory", "http_max_input_size", "log_verbose", "ray_instance_port"}
# The in-process servers of Triton have other defaults than its command line.
INPROCESS_DEFAULTS = {
    "min_supported_compute_capability": 6.0,
    "log_info": False,
    "log_warn": False,
    "log_error": False,
    "strict_model_config": False,
}


def with_prefix(prefix):
    return {name for name in FUNCTIONS if name.startswith(prefix)}


def test_triton_config_has_the_settings_that_the_table_gives_it():
    assert set(CONFIG_FIELDS) == {key for key, row in BY_KEY.items() if row.in_config}


@pytest.mark.parametrize("key", CONFIG_FIELDS)
def test_field_of_triton_config_has_the_type_of_the_setting_and_is_documented(key):
    setting = BY_KEY[key]
    field = CONFIG_FIELDS[key]

    expected = REPEATED if setting.is_repeatable else TYPES[setting.takes]
    assert field.type.removesuffix(" | None") in expected
    assert field.default is None
    assert re.search(rf"^ +{key}: \w", TritonConfig.__doc__, re.MULTILINE)


@pytest.mark.parametrize("key", sorted(CONFIG_FIELDS.keys() - IN_WORDS))
def test_documented_default_of_triton_config_is_that_of_the_table(key):
    default = BY_KEY[key].config_default or BY_KEY[key].default
    (text,) = re.findall(rf"^ +{key}: ((?:.|\n {{12}})+)", TritonConfig.__doc__, re.MULTILINE)

    said = rf"default\s+(is\s+)?{re.escape(default)}[.;]"
    assert not default or re.search(said, f"{text}.", re.IGNORECASE)


def test_inprocess_options_have_the_settings_that_the_table_gives_them():
    names = [row.inprocess for row in BY_KEY.values() if row.inprocess]

    assert sorted(names) == sorted(INPROCESS_FIELDS)


@pytest.mark.parametrize(
    "key", [row.key for row in BY_KEY.values() if row.inprocess and row.default and row.has_effect]
)
def test_inprocess_options_have_the_defaults_of_the_table(key):
    setting = BY_KEY[key]
    given = {key: server_settings(Options("models"))[key]}

    if setting.inprocess in INPROCESS_DEFAULTS:
        assert INPROCESS_FIELDS[setting.inprocess].default == INPROCESS_DEFAULTS[setting.inprocess]
    else:
        assert ServerOptions.from_triton_config(given) == ServerOptions.from_triton_config({})


@pytest.mark.parametrize("name", INPROCESS_FIELDS)
def test_field_of_inprocess_options_is_documented(name):
    assert re.search(rf"^ +{name}: [\w`]", Options.__doc__, re.MULTILINE)


def test_every_function_of_the_c_api_that_sets_an_option_is_in_the_table():
    functions = {C_PREFIX + row.c_function for row in BY_KEY.values() if row.c_function}

    assert functions == with_prefix(f"{C_PREFIX}Set") | with_prefix(f"{C_PREFIX}Add")
    assert set(LibraryOptions().setters()) <= functions


@pytest.mark.parametrize("key", [row.key for row in BY_KEY.values() if row.field])
def test_setting_fills_a_field_that_has_its_default(key):
    setting = BY_KEY[key]
    record, options = ServerOptions(), ServerOptions.from_triton_config({}, is_command=True)
    for name in setting.field.split("."):
        assert name in record.__struct_fields__
        record, options = getattr(record, name), getattr(options, name)

    assert options == record


def test_defaults_of_the_table_are_those_of_the_records():
    assert ServerOptions.from_triton_config({}, is_command=True) == ServerOptions()


def test_fields_of_records_have_the_types_of_their_settings():
    options = ServerOptions.from_triton_config({}, is_command=True)

    assert msgspec.convert(msgspec.to_builtins(options), ServerOptions) == options
