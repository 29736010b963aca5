"""Cli: the entry point; every verb is one module, and an exception becomes its exit code here."""

from __future__ import annotations

import sys
import traceback
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer

import dstune
from dstune.cli import gate, kernels, knobs, loadtest, quality, report, serve, sweep, trace
from dstune.errors import DstuneError, ExitCode

app = typer.Typer(
    name="dstune",
    help="Tunes and benchmarks LLM serving.",
    epilog="Begin with: dstune sweep profiles/quickstart.yaml",
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
# a further verb is a module with `run`, and a line here
app.command("sweep", epilog=sweep.EXAMPLES)(sweep.run)
app.command("loadtest", epilog=loadtest.EXAMPLES)(loadtest.run)
app.command("report", epilog=report.EXAMPLES)(report.run)
app.command("knobs", epilog=knobs.EXAMPLES)(knobs.run)
app.command("serve", epilog=serve.EXAMPLES)(serve.run)
app.command("quality", epilog=quality.EXAMPLES)(quality.run)
app.add_typer(kernels.app, name="kernels")
app.add_typer(gate.app, name="gate", epilog=gate.EXAMPLES)
app.add_typer(trace.app, name="trace")


def _version(is_asked: bool) -> None:
    if is_asked:
        print(f"dstune {dstune.__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print and exit.")
    ] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of a crash.")] = False,
) -> None:
    """Tunes and benchmarks LLM serving."""


def main(argv: list[str] | None = None) -> None:
    """Runs the program and exits with its code."""
    arguments = sys.argv[1:] if argv is None else argv
    # --debug may stand behind the verb as well, where people add it after a crash
    is_debug = "--debug" in arguments
    sys.exit(_code([one for one in arguments if one != "--debug"], is_debug))


def _code(arguments: list[str], is_debug: bool) -> int:
    try:
        returned = app(arguments, prog_name="dstune", standalone_mode=False)
        if returned == ExitCode.INTERRUPTED:  # typer turns a Ctrl-C into this without a word
            _say("interrupted")
        return returned if isinstance(returned, int) else ExitCode.PASS
    except DstuneError as error:
        _say(str(error))
        return error.exit_code
    except (KeyboardInterrupt, typer.Abort):
        _say("interrupted")
        return ExitCode.INTERRUPTED
    except BrokenPipeError:
        sys.stderr.close()  # the reader of our output has gone, as `| head` does
        return ExitCode.PASS
    except Exception as error:
        format_message = getattr(error, "format_message", None)
        if format_message is not None:  # the command line itself is wrong
            return _usage(error, format_message())
        return _crash(error, is_debug)


def _usage(error: Exception, message: str) -> int:
    show = getattr(error, "show", None)
    if not message and show is not None:
        show()  # no arguments: the help
        return ExitCode.USAGE
    context = getattr(error, "ctx", None)
    path = " ".join(context.command_path.split()) if context is not None else "dstune"
    _say(f"{message} (see {path} --help)")
    return ExitCode.USAGE


def _crash(error: Exception, is_debug: bool) -> int:
    """One line and a file with the traceback; with --debug the traceback itself."""
    if is_debug:
        traceback.print_exception(error)
        return ExitCode.FAILED
    moment = datetime.now(UTC).strftime("%Y%m%dT%H%M%SZ")
    path = Path.cwd() / f"dstune-crash-{moment}.log"
    try:
        path.write_text("".join(traceback.format_exception(error)), encoding="utf-8")
        where = f"the traceback is in {path}"
    except OSError:
        where = "--debug shows the traceback"
    what = " ".join(str(error).split())[:200]
    _say(f"dstune failed unexpectedly: {type(error).__name__}: {what}; {where}")
    return ExitCode.FAILED


def _say(message: str) -> None:
    for line in message.split("\n"):
        print(f"error: {line}", file=sys.stderr)
