"""Cli: dstune quality."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

EXAMPLES = """Examples:

dstune quality

dstune quality --model SmolLM2.gguf --precision bf16,int8 --kv-cache-dtype auto,int8

dstune quality --model ./checkpoint --text mine.txt --windows 64 --json"""


def run(
    model: Annotated[
        str, typer.Option(help="A bundled name, a folder, a .gguf file or a hub id.")
    ] = "tiny-deepseek",
    precision: Annotated[
        str, typer.Option(help="Precisions; the others are compared with the first.")
    ] = "bf16,int8",
    kv_cache_dtype: Annotated[
        str, typer.Option(help="KV element types; the others are compared with the first.")
    ] = "auto,int8",
    text: Annotated[Path | None, typer.Option(help="UTF-8 text; default: the bundled one.")] = None,
    backend: Annotated[str, typer.Option(help="Kernels: auto, triton, cpu or reference.")] = "auto",
    windows: Annotated[int, typer.Option(min=2, help="Windows of 512 tokens to score.")] = 32,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON document on stdout.")] = False,
) -> int:
    """Measures how much perplexity a precision or KV element type costs.

    Same weights, same text, same scheduler: only the precision changes. Text is scored through
    the paged decode path that serves requests.
    """
    from dstune.kv.validate import check_quality, plan_variants
    from dstune.load.corpus import corpus_text, read_text
    from dstune.report import console, quality
    from dstune.report.progress import ProgressBars

    content = corpus_text() if text is None else read_text(text)
    variants = plan_variants(precision.split(","), kv_cache_dtype.split(","))
    with ProgressBars() as bars:
        found = check_quality(model, variants, content, windows, bars.report, backend)
    rows = [quality.QualityRow(**one.as_row()) for one in found]
    if as_json:
        print(json.dumps(quality.as_document(model, rows), indent=1))
    else:
        console.print_table(quality.quality_table(rows))
    return 0
