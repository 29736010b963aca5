"""Cli: dstune kernels tune."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from dstune.cli.kernels.options import Json, show

EXAMPLES = """Examples:

dstune kernels tune

dstune kernels tune --model deepseek-v3 --precision fp8 --output tiles.json"""


def run(
    model: Annotated[str, typer.Option(help="As elsewhere; its weights are not read.")] = (
        "deepseek-v2-lite"
    ),
    precision: Annotated[str, typer.Option(help="Of the experts' weights.")] = "bf16",
    output: Annotated[
        Path | None, typer.Option(help="Default: the table that the engine reads.")
    ] = None,
    as_json: Json = False,
) -> int:
    """Measures the fastest tiles of a model's routed experts and writes them where they are read.

    Needs the CUDA device that will serve the model. Tiles of other models in the table stay.
    """
    from dstune.kernels.experts.tiles import user_file
    from dstune.kernels.workbench.tune import tune
    from dstune.kernels.workbench.verify import device_at_hand
    from dstune.model.loading.open import open_checkpoint
    from dstune.report import kernels
    from dstune.report.progress import ProgressBars

    shape = open_checkpoint(model, weights="random").shape
    with ProgressBars() as bars:
        table = tune(shape, precision, device_at_hand(), bars.named("tune"))
    path = output or user_file()
    table.save(path)
    show((table, path), kernels.tune_document, kernels.print_tiles, as_json)
    return 0
