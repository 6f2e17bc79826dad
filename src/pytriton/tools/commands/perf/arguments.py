# SPDX-License-Identifier: Apache-2.0
"""The command line of `pytriton perf`: perf_analyzer's options, and those it does not have."""

from __future__ import annotations

import argparse
from typing import NoReturn

from pytriton.base.security import API_KEY_VARIABLE, TOKEN_VARIABLE
from pytriton.tools.perf.errors import OptionError
from pytriton.utils.option_parser import OptionParser

# Options for services of other kinds, with the reason why they are refused.
REFUSED = {
    "--triton-server-directory": "a server inside this process is not measured; start one",
    "--model-repository": "a server inside this process is not measured; start tritonserver",
    "--model-signature-name": "it belongs to TensorFlow Serving",
    "--endpoint": "it belongs to the service kind openai, which is not measured",
    "--session-concurrency": "it belongs to the service kind openai, which is not measured",
    "--grpc-method": "it belongs to the service kind dynamic_grpc, which is not measured",
}
REFUSED_FLAGS = {
    "--enable-mpi": "start one process for each server, or use --processes",
}
EPILOG = """\
examples:
  pytriton perf AddSub --concurrency-range 1:8
  pytriton perf AddSub -i grpc --request-rate-range 100:1000:100 --request-distribution poisson
  pytriton perf Text --shape prompt:1 --string-data 'Hello' --html text.html
  pytriton perf AddSub --concurrency-range 1:16:5 --against other:8000 --html two_servers.html

exit code: 0; 2 if the first level was not stable; 3 for wrong options; 99 for everything else
"""


class PerfParser(OptionParser):
    """Raises instead of ending the program, because the exit code is perf_analyzer's."""

    def error(self, message: str) -> NoReturn:
        raise OptionError(message)


def make_parser(*, allow_abbrev: bool = True) -> PerfParser:
    """Returns the parser; perf_analyzer takes options by the beginning of their names, too."""
    parser = PerfParser(
        prog="pytriton perf",
        description="Measure a model of any KServe v2 server under load. The options are those "
        "of perf_analyzer, and some more.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=allow_abbrev,
        usage="pytriton perf MODEL [options]",
    )
    parser.add_argument("model", nargs="?", metavar="MODEL", help="the model, also -m MODEL")
    parser.add_argument("-m", dest="model_option", metavar="MODEL", help=argparse.SUPPRESS)
    parser.add_argument("-x", dest="version", default="", metavar="VERSION", help="its version")
    parser.add_argument(
        "-v", dest="verbose", action="count", default=0, help="also report each window"
    )
    parser.add_argument(
        "--version", dest="wants_version", action="store_true", help="print the version of pytriton"
    )
    _add_server(parser)
    _add_load(parser)
    _add_measurement(parser)
    _add_inputs(parser)
    _add_sequences(parser)
    _add_results(parser)
    _add_server_details(parser)
    _add_encryption(parser)
    _add_refused(parser)
    return parser


def _add_server(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("server")
    group.add_argument("-u", dest="url", metavar="URL", help="default localhost:8000, gRPC :8001")
    group.add_argument(
        "-i", dest="protocol", type=str.lower, default="http", metavar="PROTOCOL",
        help="http or grpc (default http)",
    )  # fmt: skip
    group.add_argument(
        "-H", dest="header", action="append", default=[], metavar="NAME:VALUE",
        help="header of each request, metadata over gRPC; may be repeated",
    )  # fmt: skip
    group.add_argument(
        "--token",
        help="access token, which your own server on this machine does not need; the variable "
        f"{TOKEN_VARIABLE} is safer, as other users of the machine see command lines",
    )
    group.add_argument(
        "--api-key", metavar="KEY",
        help="key of 'pytriton key create', for a server with --auth-config; the variable "
        f"{API_KEY_VARIABLE} is safer",
    )  # fmt: skip
    group.add_argument(
        "--against", metavar="URL",
        help="a second server, which each level is measured on, too",
    )  # fmt: skip
    group.add_argument(
        "--against-model", metavar="MODEL", help="its model, if that has another name"
    )
    group.add_argument("--service-kind", default="triton", metavar="KIND", help="triton")


def _add_load(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("load")
    add = group.add_argument
    add("--concurrency-range", metavar="START:END:STEP", help="requests under way (default 1)")
    # The old options: a concurrency, the highest one, and the search between them.
    add("-t", dest="concurrency", type=int, metavar="N", help=argparse.SUPPRESS)
    add("-c", dest="max_concurrency", type=int, metavar="N", help=argparse.SUPPRESS)
    add("-d", dest="is_search", action="store_true", help=argparse.SUPPRESS)
    add("--request-rate-range", metavar="START:END:STEP", help="requests a second")
    add(
        "--request-distribution", choices=("constant", "poisson"), default="constant",
        help="gaps between the requests of a rate (default constant)",
    )  # fmt: skip
    add("--request-intervals", metavar="FILE", help="gaps in microseconds, a line each")
    add("--fixed-schedule", action="store_true", help="requests at the timestamps of the data")
    add("--periodic-concurrency-range", metavar="START:END:STEP",
        help="start STEP more requests after some responses, up to END")  # fmt: skip
    add("--request-period", type=int, default=10, metavar="N", help="responses (default 10)")
    add("--binary-search", action="store_true", help="find the load that meets the limit")
    add("-l", "--latency-threshold", type=int, default=0, metavar="MS",
        help="latency that ends the search")  # fmt: skip
    add("-a", "--async", dest="is_async", action="store_true", help="asynchronous calls")
    add("--sync", action="store_true", help="synchronous calls")
    add("--streaming", action="store_true", help="one stream of requests and responses")
    add("--processes", type=int, default=0, metavar="N", help="of the generator")
    add("--max-threads", type=int, metavar="N", help="accepted; the generator has no threads")


def _add_measurement(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("measurement")
    add = group.add_argument
    add("-p", "--measurement-interval", type=int, metavar="MS", help="window (default 5000)")
    add("--measurement-mode", choices=("time_windows", "count_windows"), default="time_windows")
    add("--measurement-request-count", type=int, default=50, metavar="N",
        help="requests of a window in mode count_windows (default 50)")  # fmt: skip
    add("-s", "--stability-percentage", type=float, metavar="PERCENT",
        help="how far three windows may differ (default 10)")  # fmt: skip
    add("-r", "--max-trials", type=int, metavar="N",
        help="windows at most (default 10)")  # fmt: skip
    add("--percentile", type=int, default=-1, metavar="P",
        help="the latency that counts (default: the mean)")  # fmt: skip
    add("--request-count", type=int, default=0, metavar="N", help="measure just N requests")
    add("--warmup-request-count", type=int, default=0, metavar="N", help="N requests before")
    add(
        "--quick",
        action="store_true",
        help="short windows, stable or not: a first impression in seconds",
    )
    add("--allow-unstable", action="store_true",
        help="go on after a level that is not stable")  # fmt: skip
    add("--seed", type=int, default=0, metavar="N", help="of everything random (default 0)")


def _add_inputs(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("inputs")
    add = group.add_argument
    add("-b", dest="batch_size", type=int, default=1, metavar="N", help="batch size (default 1)")
    add("--input-data", action="append", default=[], metavar="DATA",
        help="random (default), zero, a directory, a file of JSON or of pytriton record; may be "
        "repeated")  # fmt: skip
    add("-z", dest="zero", action="store_true", help=argparse.SUPPRESS)
    add("--data-directory", metavar="DIR", help=argparse.SUPPRESS)
    add("--shape", action="append", default=[], metavar="NAME:D,D",
        help="shape of an input that varies; may be repeated")  # fmt: skip
    add("--string-length", type=int, default=128, metavar="N", help="(default 128)")
    add("--string-data", metavar="TEXT", help="the text of all strings")
    add("--request-parameter", action="append", default=[], metavar="NAME:VALUE:TYPE",
        help="parameter of each request: bool, int or string")  # fmt: skip
    formats = ("binary", "json")
    add("--input-tensor-format", choices=formats, default="binary", help="over HTTP")
    add("--output-tensor-format", choices=formats, default="binary", help="over HTTP")
    add("--shared-memory", choices=("none", "system", "cuda"), default="none",
        help="where tensors are; cuda: on GPU 0 of this machine (default none)")  # fmt: skip
    add("--output-shared-memory-size", type=int, default=102_400, metavar="BYTES",
        help="of each output (default 102400)")  # fmt: skip


def _add_sequences(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("sequences")
    add = group.add_argument
    add("--num-of-sequences", type=int, default=4, metavar="N",
        help="at the same time, with a request rate (default 4)")  # fmt: skip
    add("--sequence-length", type=int, metavar="N", help="(default 20)")
    add("--sequence-length-variation", type=float, default=20.0, metavar="PERCENT",
        help="(default 20)")  # fmt: skip
    add("--sequence-id-range", metavar="START:END")
    add("--serial-sequences", action="store_true",
        help="accepted; requests of a sequence never overlap here")  # fmt: skip


def _add_results(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("results")
    add = group.add_argument
    add("-f", dest="csv", metavar="FILE.csv", help="the levels as CSV")
    add("--verbose-csv", action="store_true", help="with more columns")
    add("--profile-export-file", metavar="FILE.json", help="every request, as perf_analyzer does")
    add("--json", metavar="FILE.json", help="the whole run, to compare others with it")
    add("--html", metavar="FILE.html", help="a page with plots and tables")
    add("--plot", metavar="FILE.png", help="the plots as one picture")
    add("--plots", metavar="DIR", help="each plot as a picture")
    add("--compare", metavar="RUN.json", help="compare with a run that --json wrote")
    add("--no-progress", action="store_true", help="no live display on a terminal")


def _add_server_details(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("details of the server")
    add = group.add_argument
    add("--bls-composing-models", default="", metavar="A:1,B", help="report these as well")
    add("--collect-metrics", action="store_true", help="GPU metrics of the server")
    add("--metrics-url", metavar="URL", help="default: the host of -u, port 8002")
    add("--metrics-interval", type=int, default=1000, metavar="MS", help="(default 1000)")
    add("--trace-level", action="append", default=[], metavar="LEVEL", help="server's traces")
    add("--trace-rate", type=int, default=1000, metavar="N")
    add("--trace-count", type=int, default=-1, metavar="N")
    add("--log-frequency", type=int, default=0, metavar="N")
    add("--grpc-compression-algorithm", choices=("none", "gzip", "deflate"), default="none")


def _add_encryption(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("encrypted connections")
    add = group.add_argument
    add("--ssl-grpc-use-ssl", nargs="?", const="true", default="false", metavar="BOOL")
    add("--ssl-grpc-root-certifications-file", metavar="FILE")
    add("--ssl-grpc-private-key-file", metavar="FILE")
    add("--ssl-grpc-certificate-chain-file", metavar="FILE")
    add("--ssl-https-verify-peer", type=int, choices=(0, 1), default=1)
    add("--ssl-https-verify-host", type=int, choices=(0, 1, 2), default=2)
    add("--ssl-https-ca-certificates-file", metavar="FILE")
    add("--ssl-https-client-certificate-file", metavar="FILE")
    add("--ssl-https-client-certificate-type", choices=("PEM", "DER"), default="PEM")
    add("--ssl-https-private-key-file", metavar="FILE")
    add("--ssl-https-private-key-type", choices=("PEM", "DER"), default="PEM")


def _add_refused(parser: argparse.ArgumentParser) -> None:
    for name in REFUSED:
        parser.add_argument(name, dest=f"refused_{name.strip('-')}", help=argparse.SUPPRESS)
    for name in REFUSED_FLAGS:
        parser.add_argument(
            name, dest=f"refused_{name.strip('-')}", action="store_true", help=argparse.SUPPRESS
        )
