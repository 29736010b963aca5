"""Cli: dstune kernels compile."""

from __future__ import annotations

from typing import Annotated

import typer

from dstune.cli.kernels.options import Json, Only, show, words

EXAMPLES = """Examples:

dstune kernels compile

dstune kernels compile --arch sm_90 --only attention --json

dstune kernels compile --checks"""


def run(
    arch: Annotated[
        str, typer.Option(metavar="NAMES", help="Of sm_80, sm_89 and sm_90.")
    ] = "sm_80,sm_90",
    only: Only = None,
    checks: Annotated[
        bool, typer.Option("--checks", help="The small cases of verify too: minutes more.")
    ] = False,
    workers: Annotated[int, typer.Option(min=0, help="Processes; 0: one per core.")] = 0,
    as_json: Json = False,
) -> int:
    """Compiles every kernel ahead of time; a spill or too much shared memory fails.

    No GPU is needed: the launches are those that the wrappers would make on it.
    """
    from dstune.kernels.workbench import catalogue
    from dstune.kernels.workbench.compile import compile_cases, gpus_named
    from dstune.report import kernels
    from dstune.report.progress import ProgressBars

    gpus, cases = gpus_named(words(arch, "--arch")), catalogue.benches(words(only))
    cases += catalogue.checks(words(only)) if checks else []
    with ProgressBars() as bars:
        found = compile_cases(cases, gpus, workers, bars.report)
    show(found, kernels.compile_document, kernels.print_compilation, as_json)
    return 1 if found.failed else 0
