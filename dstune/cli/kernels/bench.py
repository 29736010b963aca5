"""Cli: dstune kernels bench."""

from __future__ import annotations

from typing import Annotated

import typer

from dstune.cli.kernels.options import Json, Only, show, words

EXAMPLES = """Examples:

dstune kernels bench

dstune kernels bench --only norm,rope

dstune kernels bench --predict h100"""


def run(
    only: Only = None,
    predict: Annotated[
        str | None,
        typer.Option(metavar="GPU", help="Run nothing: the least times on A100, H100 or H200."),
    ] = None,
    as_json: Json = False,
) -> int:
    """Times every kernel on the device at hand, once it is right on the same inputs.

    Triton on a CUDA device, the cpu backend on a CPU; torch's own operation takes turns with it.
    """
    from dstune.kernels.workbench import catalogue
    from dstune.report import kernels
    from dstune.report.progress import ProgressBars

    cases = catalogue.benches(words(only))
    if predict is not None:
        from dstune.kernels.workbench.predict import predict as predicted

        rows = predicted(cases, predict)
        show(rows, kernels.predict_document, kernels.print_predictions, as_json)
        return 0
    from dstune.kernels.workbench.bench import bench, prepare

    backends = prepare()
    with ProgressBars() as bars:
        found = bench(cases, *backends, bars.report)
    show(found, kernels.bench_document, kernels.print_benchmark, as_json)
    return 0 if found.passes else 1
