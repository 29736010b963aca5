"""Cli: dstune kernels verify."""

from __future__ import annotations

from typing import Annotated

import typer

from dstune.cli.kernels.options import Json, Only, show, words

EXAMPLES = """Examples:

dstune kernels verify

dstune kernels verify --only attention --json

dstune kernels verify --backend cpu"""


def run(
    only: Only = None,
    backend: Annotated[str, typer.Option(help="triton or cpu.")] = "triton",
    as_json: Json = False,
) -> int:
    """Runs every kernel beside its reference on the device at hand.

    Without a CUDA device Triton's kernels run in its interpreter: slow, but the very same code.
    """
    import faulthandler
    import sys

    from dstune.kernels.workbench import catalogue
    from dstune.kernels.workbench.verify import prepare, verify
    from dstune.report import kernels
    from dstune.report.progress import ProgressBars

    # a kernel that leaves its memory ends the process: say where
    faulthandler.enable(sys.__stderr__ or sys.stderr)
    backends = prepare(backend)
    cases = catalogue.checks(words(only))
    with ProgressBars() as bars:
        found = verify(cases, *backends, bars.report)
    show(found, kernels.verify_document, kernels.print_verification, as_json)
    return 0 if found.passes else 1
