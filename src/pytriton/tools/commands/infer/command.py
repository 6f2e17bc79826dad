# SPDX-License-Identifier: Apache-2.0
"""`pytriton infer`: asks a model of any KServe v2 server and prints the answer."""

from __future__ import annotations

import argparse
import contextlib
import json
import shutil
import time
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from pytriton.client.kserve.errors import AskError, ServerRefusedError
from pytriton.client.kserve.records import ModelAnswer, ModelQuery, Parameter
from pytriton.tools.commands.infer import text, values
from pytriton.tools.commands.infer.values import tensor_of
from pytriton.tools.commands.model_cards import ModelCard, describe, unknown_model
from pytriton.tools.commands.output import show as show_piece
from pytriton.tools.commands.server_options import ServerClients, add_server_options, connect
from pytriton.utils.option_parser import OptionParser

_EPILOG = """\
values:
  x=1.5, x=[1,2,3]       JSON; a single value fits a tensor of one element, and the axis of
                         batches is added where it is missing
  name=text              text as it is, for BYTES; name='["a", "b"]' for several
  x=@array.npy           an array of numpy; @values.json; @image.png gives its bytes to BYTES
  x=-                    from standard input; @@ at the start means the character @
  VALUE                  without a name, for a model with one input

Without values, the inputs and outputs of the model are shown, with a line that asks it.

exit code: 0 if there was an answer, 1 if not, 2 for wrong options, 130 after Ctrl-C
"""
_JSON_OUTPUTS = ("--json-output", "--raw-json")


def run(
    arguments: Sequence[str], show: Callable[[str], None], complain: Callable[[str], None]
) -> int:
    """Ask a model; 1 if there was no answer."""
    options = _parser().parse_intermixed_args(list(arguments))
    try:
        connection = connect(options)
        with contextlib.closing(connection):
            return _ask(options, connection, show)
    except AskError as error:
        complain(str(error))
        return 1


def _ask(
    options: argparse.Namespace, connection: ServerClients, show: Callable[[str], None]
) -> int:
    try:
        card = describe(connection.server, options.model, options.version)
    except ServerRefusedError as error:
        if error.is_unknown_model:
            raise unknown_model(connection, options.model, options.version, error) from error
        raise _named(error, connection) from error
    given = _given(options, card)
    if not given.values and any(not tensor.is_optional for tensor in card.inputs or ()):
        show(text.signature_text(card, str(connection.address)))
        return 0
    question = question_of(options, card, given)
    printer = _Printer(options, show)
    try:
        for answer in _answers(connection, question, is_stream=card.is_decoupled):
            printer.print(answer)
    except ServerRefusedError as error:
        raise _named(error, connection) from error
    finally:
        printer.finish()
    return 0


def _answers(
    connection: ServerClients, question: ModelQuery, *, is_stream: bool
) -> Iterator[tuple[ModelAnswer, bool]]:
    """Yields answers, each with whether it is one of a stream."""
    if not is_stream:
        try:
            yield connection.server.infer(question), False
        except ServerRefusedError as error:
            if not error.is_for_streams_only:  # the configuration may be restricted
                raise
        else:
            return
    for answer in connection.server.stream(question):
        yield answer, True


def _named(error: ServerRefusedError, connection: ServerClients) -> AskError:
    reason = str(error).strip()
    return AskError(f"{connection.address} answered with an error: {reason}")


def _given(options: argparse.Namespace, card: ModelCard) -> values.Given:
    given = values.Given()
    if options.json is not None:
        given = values.read_json(options.json, card)
    given.values.update(values.read_npy(options.npy, card))
    given.values.update(values.read_pairs(options.values, card))
    return given


def question_of(options: argparse.Namespace, card: ModelCard, given: values.Given) -> ModelQuery:
    """Make the request of what a person gave.

    Raises:
        AskError: An input is missing or does not fit, or there is no such output.
    """
    tensors = []
    batches = None if card.max_batch_size is None else card.has_batches
    for tensor in card.inputs or ():
        if tensor.name in given.values:
            tensors.append(tensor_of(tensor, given.values[tensor.name], has_batches=batches))
        elif not tensor.is_optional:
            raise AskError(f"Input '{tensor.name}' is missing. {values.inputs_text(card)}")
    outputs = tuple(options.output or given.outputs)
    known = [tensor.name for tensor in card.outputs or ()]
    for name in outputs:
        if known and name not in known:
            raise AskError(f"{card.name} has no output '{name}'; it has {', '.join(known)}.")
    return ModelQuery(
        card.name,
        options.version,
        tuple(tensors),
        outputs,
        {**given.parameters, **_parameters(options)},
        options.id or given.request_id,
    )


def _parameters(options: argparse.Namespace) -> dict[str, Parameter]:
    parameters = values.parse_parameters(options.parameter)
    if options.sequence_id is not None:
        identity = values.scalar(options.sequence_id)
        parameters["sequence_id"] = identity if isinstance(identity, int) else options.sequence_id
        parameters["sequence_start"] = options.start
        parameters["sequence_end"] = options.end
    elif options.start or options.end:
        raise AskError("--start and --end belong to a sequence: give its --sequence-id, too.")
    return parameters


class _Printer:
    """Prints answers as they come, and keeps them where they are to be saved."""

    def __init__(self, options: argparse.Namespace, show: Callable[[str], None]) -> None:
        self._options = options
        self._show = show
        self._count = 0
        self._since = time.perf_counter()
        self._is_amid_text = False
        self._saved: dict[str, np.ndarray[tuple[int, ...], np.dtype[np.generic]]] = {}

    def print(self, answer_and_kind: tuple[ModelAnswer, bool]) -> None:
        answer, is_stream = answer_and_kind
        self._count += 1
        took_ms = (time.perf_counter() - self._since) * 1000
        if self._options.save:
            for output in answer.outputs:
                name = f"{output.name}_{self._count}" if is_stream else output.name
                is_bytes = output.datatype == "BYTES"
                # Arrays of objects would be pickled.
                self._saved[name] = output.array.astype("S") if is_bytes else output.array
        if self._options.json_output:
            self._show(json.dumps(text.answer_document(answer), ensure_ascii=False))
        elif self._options.values_only:
            self._print_values(answer, is_stream=is_stream)
        else:
            width = shutil.get_terminal_size().columns
            shown = (
                text.response_text(answer, self._count, took_ms, width)
                if is_stream
                else text.answer_text(answer, took_ms, width)
            )
            self._show(shown)

    def _print_values(self, answer: ModelAnswer, *, is_stream: bool) -> None:
        is_text = len(answer.outputs) == 1 and answer.outputs[0].datatype == "BYTES"
        if is_stream and is_text:  # the pieces of one text
            show_piece(text.plain_value(answer.outputs[0]), end="")
            self._is_amid_text = True
            return
        for output in answer.outputs:
            self._show(text.plain_value(output))

    def finish(self) -> None:
        """End the last line, and write the file where one is wanted."""
        if self._is_amid_text:
            self._show("")
        if not self._options.save or not self._saved:
            return
        try:
            np.savez(self._options.save, **self._saved)  # type: ignore[arg-type]  # stubs
        except OSError as error:
            raise AskError(f"{self._options.save} cannot be written: {error.strerror}.") from error


def _parser() -> OptionParser:
    parser = OptionParser(
        prog="pytriton infer",
        usage="pytriton infer MODEL [name=value ...] [options]",
        description="Ask a model of this server, of Triton or of any other KServe v2 server, and "
        "print the answer. Responses of a stream are printed as they come.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("model", metavar="MODEL")
    parser.add_argument(
        "values", nargs="*", default=[], metavar="name=value", help="inputs, see below"
    )
    parser.add_argument("--version", default="", help="of the model; default is its latest")
    _add_inputs(parser)
    _add_outputs(parser)
    add_server_options(parser)
    return parser


def _add_inputs(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("the request")
    group.add_argument(
        "--json",
        metavar="FILE|-|TEXT",
        help="a JSON object of values by name, or a request as KServe has it",
    )
    group.add_argument(
        "--npy",
        action="append",
        default=[],
        metavar="name=FILE",
        help="an array from a .npy file, or FILE.npz with one for each input; may be repeated",
    )
    group.add_argument(
        "--output", action="append", metavar="NAME", help="only this output; may be repeated"
    )
    group.add_argument(
        "--parameter",
        action="append",
        default=[],
        metavar="name=value",
        help="of the request; may be repeated",
    )
    group.add_argument("--id", default="", help="of the request; logs and traces show it")
    group.add_argument("--sequence-id", metavar="ID", help="the sequence that this belongs to")
    group.add_argument("--start", action="store_true", help="the first request of the sequence")
    group.add_argument("--end", action="store_true", help="the last request of the sequence")


def _add_outputs(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("the answer")
    group.add_argument(
        *_JSON_OUTPUTS,
        action="store_true",
        dest="json_output",
        help="print JSON, for a stream one line for each response",
    )
    group.add_argument(
        "--values",
        action="store_true",
        dest="values_only",
        help="print only the values, whole; the texts of a stream one after the other",
    )
    group.add_argument("--save", metavar="FILE.npz", help="also write the outputs to a file")
