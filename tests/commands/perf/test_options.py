# SPDX-License-Identifier: Apache-2.0
"""The command line of `pytriton perf`."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest

import pytriton
from pytriton.client.kserve.address import Tls
from pytriton.tools.commands.perf.arguments import make_parser
from pytriton.tools.commands.perf.command import exit_code, run, without_secrets
from pytriton.tools.commands.perf.options import PerfOptions, options_of
from pytriton.tools.perf.errors import OptionError
from pytriton.tools.perf.measuring.profiler import LoadRange
from pytriton.tools.perf.measuring.results import LevelStatus, Mode


def read(line: str) -> PerfOptions:
    return options_of(make_parser().parse_args(line.split()))


def test_defaults_are_those_of_perf_analyzer():
    options = read("M")

    assert options.model == read("-m M").model == "M"
    assert options.address.url == "localhost:8000"
    assert read("M -i gRPC").address.url == "localhost:8001"
    assert options.load.mode is Mode.CONCURRENCY
    assert options.load.loads == LoadRange(1, 1)
    assert options.measurement.window_ms == 5000
    assert options.measurement.window_requests == 0
    assert options.measurement.stability_percentage == 10
    assert options.measurement.max_trials == 10
    assert options.measurement.percentile is None
    assert options.data.sources == ("random",)
    assert options.data.string_length == 128
    assert options.given.output_shared_memory_size == 102_400


@pytest.mark.parametrize(
    "line, mode, loads",
    [
        ("M --concurrency-range 4", Mode.CONCURRENCY, LoadRange(4, 4)),
        ("M --concurrency-range=1:8:2", Mode.CONCURRENCY, LoadRange(1, 8, 2)),
        ("M --concurrency-range 2:0 -l 10", Mode.CONCURRENCY, LoadRange(2, 0)),
        ("M --concurrency 4:8", Mode.CONCURRENCY, LoadRange(4, 8)),
        ("M -t 16", Mode.CONCURRENCY, LoadRange(16, 16)),
        ("M -c 9", Mode.CONCURRENCY, LoadRange(1, 1)),
        ("M -d -c 9", Mode.CONCURRENCY, LoadRange(1, 9)),
        ("M -t 2 -d -c 9", Mode.CONCURRENCY, LoadRange(2, 9)),
        ("M -t 2 -d -l 10", Mode.CONCURRENCY, LoadRange(2, 0)),
        ("M --request-rate-range 0.5:2:0.5", Mode.RATE, LoadRange(0.5, 2, 0.5)),
        (
            "M --periodic-concurrency-range 1:9:2 --profile-export-file x.json",
            Mode.PERIODIC,
            LoadRange(1, 9, 2),
        ),
    ],
)
def test_load_is_read_in_its_forms(line, mode, loads):
    load = read(line).load

    assert load.mode is mode
    assert load.loads == loads


def test_intervals_become_a_rate(tmp_path):
    path = tmp_path / "gaps"
    path.write_text("10000\n20000\n")

    load = read(f"M --request-intervals {path}").load

    assert load.intervals_us == (10_000, 20_000)
    assert load.loads.start == pytest.approx(66.67, abs=0.01)


def test_short_windows_can_be_chosen_at_once():
    quick = read("M --quick").measurement

    assert quick.window_ms == 500
    assert quick.max_trials == 5
    assert quick.allow_unstable
    assert read("M --quick -p 2000").measurement.window_ms == 2000


def test_token_may_be_in_the_environment(monkeypatch):
    monkeypatch.setenv("TRITON_ACCESS_TOKEN", "secret")

    assert read("M").address.headers == (("triton-access-token", "secret"),)
    assert read("M --token other").address.headers == (("triton-access-token", "other"),)


def test_token_has_the_name_that_grpc_expects():
    name = "triton-grpc-protocol-triton-access-token"

    assert read("M -i grpc --token secret").address.headers == ((name, "secret"),)


def test_values_with_a_form_of_their_own():
    options = read(
        "M --shape a:1,2 --shape n:s:3 -H k:v:w --token secret --request-parameter p:4:int "
        "--request-parameter q:a:b:string --request-parameter r:TRUE:bool "
        "--bls-composing-models x:1,y --sequence-id-range 5:9 -b 2 -z"
    )

    assert options.data.shapes == {"a": (1, 2), "n:s": (3,)}
    assert options.address.headers == (("k", "v:w"), ("triton-access-token", "secret"))
    assert options.parameters == {"p": 4, "q": "a:b", "r": True}
    assert options.composing == (("x", "1"), ("y", ""))
    assert options.sequence_ids == (5, 8)
    assert options.data.batch_size == 2
    assert options.data.sources == ("zero",)


def test_encryption_follows_the_url_or_the_option():
    assert read("M -u https://h:1 --ssl-https-verify-peer 0").address.tls == Tls(verify_peer=False)
    assert read("M -u h:1").address.tls is None
    grpc = read("M -i grpc --ssl-grpc-use-ssl true --ssl-grpc-root-certifications-file ca")
    assert grpc.address.tls == Tls(ca_file="ca")
    assert read("M -i grpc").address.tls is None


@pytest.mark.parametrize(
    "line, error",
    [
        ("", "expected a model"),
        ("M -m N", "expected one model, got M and -m N"),
        ("M --async --sync", "Cannot specify --async and --sync simultaneously"),
        ("M --concurrency-range 1:0", "can not be both 0"),
        ("M --concurrency-range 1:4 --request-count 9", "request-count not supported with"),
        ("M --concurrency-range 1:4 --warmup-request-count 9", "warmup-request-count not"),
        ("M --concurrency-range 1:4 --request-rate-range 5", "more than one inference load mode"),
        ("M --binary-search -l 9", "needs a range with an end"),
        ("M --binary-search --concurrency-range 1:4", "needs a latency limit"),
        ("M --concurrency-range 1:x", "expected whole numbers as START:END:STEP, got 1:x"),
        ("M --concurrency-range 1:2:3:4", "expected START:END:STEP"),
        ("M --concurrency-range 4:2", "an end that is not below the start"),
        ("M --concurrency-range 1.5", "expected whole numbers"),
        ("M -t 3 --concurrency-range 3", "-t, -c and -d are the old form"),
        ("M -d", "can not be both 0"),
        ("M -d --request-rate-range 3", "more than one inference load mode"),
        ("M --htm=x.html --shap a:1 --conc", "argument --concurrency-range: expected one"),
        ("M --parcentile 3", "unrecognized option '--parcentile', did you mean --percentile?"),
        ("M --reques 3", "ambiguous option: --reques could match --request-rate-range"),
        ("M --percentile 100", "--percentile: expected 1 to 99, or -1 for the mean, got 100"),
        ("M -p 0", "--measurement-interval: expected a number above 0, got 0"),
        ("M -b 0", "expected a batch size above 0"),
        ("M --service-kind tfserving", "tfserving is not supported, expected triton"),
        ("M --enable-mpi", "--enable-mpi is not supported: start one process"),
        ("M --model-repository x", "--model-repository is not supported"),
        ("M --endpoint x", "--endpoint is not supported"),
        ("M -i tcp", "expected -i http or -i grpc, got -i tcp"),
        ("M --metrics-url x", "need --collect-metrics"),
        ("M -i grpc --input-tensor-format json", "only sent over HTTP"),
        ("M --grpc-compression-algorithm gzip", "needs -i grpc"),
        ("M --periodic-concurrency-range 1:2", "needs --profile-export-file"),
        ("M --shape a", "--shape: expected NAME:D,D"),
        ("M -H a", "-H: expected NAME:VALUE, got a"),
        ("M --request-parameter a:1:float", "the type bool, int or string"),
        ("M --sequence-id-range 9:9", "an end above it"),
        ("M --request-intervals none", "none cannot be read"),
        ("M --input-data random --input-data x.json", "cannot be joined with files"),
        ("M --no-such-option", "unrecognized option '--no-such-option'"),
        ("M --against x --profile-export-file y", "leave out --against"),
    ],
)
def test_options_that_make_no_sense_are_refused_in_words(line, error):
    with pytest.raises(OptionError) as refusal:
        read(line)

    assert error in str(refusal.value)


def test_wrong_options_end_with_code_3():
    errors: list[str] = []

    assert run(["M", "--sync", "--async"], print, errors.append) == 3
    assert "".join(errors) == (
        "Error: Cannot specify --async and --sync simultaneously. "
        "'pytriton perf --help' lists all options."
    )


@pytest.mark.parametrize("arguments", [["--version"], ["-m", "M", "--version"]])
def test_version_is_shown_whatever_else_is_given(arguments):
    shown: list[str] = []

    assert run(arguments, shown.append, print) == 0
    assert shown == [f"pytriton {pytriton.__version__}"]


@pytest.mark.parametrize("option", ["-f", "--json", "--html", "--plot", "--profile-export-file"])
def test_file_without_a_folder_is_refused_before_the_load(option, tmp_path):
    errors: list[str] = []

    code = run(["M", option, str(tmp_path / "none" / "x")], print, errors.append)

    assert code == 99
    assert "cannot be written: there is no folder for it" in errors[0]


def test_plot_without_matplotlib_is_refused_before_the_load(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    errors: list[str] = []

    assert run(["M", "--html", "x.html"], print, errors.append) == 99
    assert "pip install 'pytriton[plots]'" in errors[0]


def test_help_has_groups(capsys):
    with pytest.raises(SystemExit):
        make_parser().parse_args(["--help"])

    shown = capsys.readouterr().out
    for group in ("server:", "load:", "measurement:", "inputs:", "sequences:", "results:"):
        assert f"\n{group}\n" in shown
    assert "--enable-mpi" not in shown


def test_secrets_of_a_command_line_are_not_shown():
    line = "M --token s --token=s -H k:s -Hk:s --tok=s --toke s -b 2"

    shown = " ".join(without_secrets(line.split()))

    assert shown == "M --token … --token=… -H … -H… --tok=… --toke … -b 2"


@pytest.mark.parametrize(
    "statuses, allow_unstable, code",
    [
        ([LevelStatus.STABLE], False, 0),
        ([LevelStatus.UNSTABLE], False, 2),
        ([LevelStatus.UNSTABLE], True, 0),
        ([LevelStatus.STABLE, LevelStatus.UNSTABLE], False, 0),
        ([LevelStatus.STABLE, LevelStatus.FAILED], True, 99),
    ],
)
def test_first_level_decides_unless_one_had_no_answer(statuses, allow_unstable, code):
    measured = SimpleNamespace(results=[[SimpleNamespace(status=status) for status in statuses]])

    assert exit_code(measured, allow_unstable=allow_unstable) == code
