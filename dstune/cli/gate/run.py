"""Cli: dstune gate itself."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from dstune.cli.places import RUNS
from dstune.errors import DstuneError, UsageError

EXAMPLES = """Examples:

dstune gate --baseline profiles/quickstart.yaml --baseline-revision main

dstune gate --baseline reports/20260101T120000Z-sweep-chat --set max_num_seqs=32

dstune gate --baseline chat --stored --junit gate.xml

dstune gate --baseline profiles/chat.yaml --baseline-revision v1.2
--candidate-command "python serve.py --port {port}"

dstune gate --baseline before/ --candidate after/   # folders of another tool's results"""


def run(
    ctx: typer.Context,
    baseline: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="A run, a recommended.yaml, an accepted baseline, a profile, or another tool's "
            "results; with --stored repeatable.",
        ),
    ] = None,
    candidate: Annotated[
        str | None, typer.Option(metavar="NAME", help="Likewise; the baseline's own unless given.")
    ] = None,
    settings: Annotated[
        list[str] | None, typer.Option("--set", metavar="KNOB=VALUE", help="Of the candidate.")
    ] = None,
    overrides: Annotated[
        list[str] | None, typer.Option("--profile-set", metavar="A.B=C", help="Of a profile.")
    ] = None,
    baseline_revision: Annotated[
        str | None, typer.Option(metavar="REV", help="Check out this revision for the baseline.")
    ] = None,
    baseline_command: Annotated[
        str | None,
        typer.Option(help="Starts it: a server on {port}, or another python -m dstune.server."),
    ] = None,
    candidate_command: Annotated[str | None, typer.Option(help="Likewise.")] = None,
    baseline_url: Annotated[str | None, typer.Option(help="It runs already, there.")] = None,
    candidate_url: Annotated[str | None, typer.Option(help="Likewise.")] = None,
    stored: Annotated[
        bool, typer.Option("--stored", help="Measure no baseline again: advisory.")
    ] = False,
    metrics: Annotated[
        list[str] | None, typer.Option("--metric", help="Gate this figure; repeatable.")
    ] = None,
    min_effect: Annotated[str, typer.Option(help="A smaller slowdown is no failure.")] = "3%",
    margin: Annotated[str, typer.Option(help="A pass excludes a slowdown of this size.")] = "10%",
    max_perplexity_increase: Annotated[str, typer.Option(help="A larger one fails.")] = "0.5%",
    loads: Annotated[int, typer.Option(min=1, max=100, help="Per side and pair, in turns.")] = 1,
    budget: Annotated[
        str | None, typer.Option(help="Wall clock of the pairs, such as 5m; stops before a look.")
    ] = None,
    quality: Annotated[bool, typer.Option(help="Compare perplexity.")] = True,
    trace: Annotated[bool, typer.Option(help="Explain a failure by a trace.")] = True,
    junit: Annotated[Path | None, typer.Option(help="Write JUnit XML there.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON document on stdout.")] = False,
    output: Annotated[Path, typer.Option(help="Where run folders go.")] = RUNS,
) -> int:
    """Compares with a baseline by interleaved pairs, at 5, 8 and 12 of them, and stops early."""
    if ctx.invoked_subcommand is not None:
        return 0
    if not baseline:
        raise UsageError("give --baseline NAME, or see dstune gate --help")
    from dstune.cli.gate import carry_out
    from dstune.cli.gate.options import plan_of
    from dstune.cli.gate.shown import Shown, no_verdict
    from dstune.gate.resolve import Asked

    shown = Shown(as_json, junit)
    try:
        plan = plan_of(
            {"--min-effect": min_effect, "--margin": margin,
             "--max-perplexity-increase": max_perplexity_increase},
            metrics, loads, budget, quality, trace,
        )  # fmt: skip
        asked = Asked(
            baseline[0], candidate, tuple(settings or ()), tuple(overrides or ()),
            baseline_revision, baseline_command, candidate_command, baseline_url, candidate_url,
        )  # fmt: skip
        return carry_out.gate(baseline, asked, plan, output, shown, is_stored=stored)
    except DstuneError as error:
        no_verdict(error, shown)
        raise
