"""Report: a run's summary as Markdown."""

from __future__ import annotations

from dstune.report import loadtest_tables as loadtest
from dstune.report import words
from dstune.report.engine_tables import engine_by_trial, engine_table
from dstune.report.gate_markdown import gate_summary
from dstune.report.result import LOADTEST, Result
from dstune.report.tables import as_markdown, comparison_table, trials_table


def summary(result: Result) -> str:
    """The recommendation first, then every trial, then what was not tried and why."""
    if result.run.verb == LOADTEST:
        return _loadtest_summary(result)
    if result.gate is not None:
        return gate_summary(result.gate)
    profile = result.run.profile
    parts = [f"# {profile['name']}: {result.headline}\n"]
    comparison = comparison_table(result)
    chosen = result.recommendation
    if chosen is not None and comparison is not None:
        parts.append(f"`{words.knobs(chosen.changed)}` for {chosen.load}.\n")
        parts.append(as_markdown(comparison))
        parts.append(_list([words.promise(check) for check in chosen.recommended.slo]))
        parts.append(_list([f"{one.code}: {one.message}" for one in chosen.remarks]))
    parts.append("## Trials\n")
    parts.append(as_markdown(trials_table(result)))
    engine = engine_by_trial(result.search)
    if engine is not None:
        parts += ["## What the engine did\n", as_markdown(engine)]
    parts.append(_list([f"skipped {words.knobs(one.changed)}: {one.reason}"
                        for one in result.run.skipped]))  # fmt: skip
    if result.run.not_tried:
        parts.append(f"Not tried for want of time: {', '.join(result.run.not_tried)}.\n")
    parts.append(_list(list(result.run.notes)))
    parts.append(f"Run folder: `{result.folder}`.\n")
    return "\n".join(part for part in parts if part)


def _loadtest_summary(result: Result) -> str:
    """The verdict first, then promises, figures, hostile requests, and the trust in all of it."""
    parts = [f"# {result.run.profile['name']}: {result.headline}\n"]
    trial = result.loadtest
    if trial is not None and trial.is_measured:
        parts += [f"{trial.load}.\n", as_markdown(loadtest.slo_table(trial.slo))]
        parts.append(f"{loadtest.trust_line(trial)}.\n")
        parts.append(_list([loadtest.remark_line(one) for one in trial.remarks]))
        parts += ["## Figures\n", as_markdown(loadtest.latency_table(trial))]
        parts.append(as_markdown(loadtest.rate_table(trial)))
        if trial.anomalies:
            parts += ["## Hostile requests\n", as_markdown(loadtest.hostile_table(trial.anomalies))]
            parts.append(_list(loadtest.hostile_lines(trial.anomalies, trial.slo)))
        if trial.accounting is not None:
            parts.append("## Where every request went\n")
            parts.append(_list(loadtest.accounting_lines(trial.accounting)))
        engine = engine_table(trial)
        if engine is not None:
            parts += ["## What the engine did\n", as_markdown(engine)]
        server = loadtest.server_table(trial)
        if server is not None:
            parts += ["## By the server's own account\n", as_markdown(server)]
            parts.append(_list([one for one in [loadtest.server_line(trial)] if one]))
    parts.append(f"Run folder: `{result.folder}`.\n")
    return "\n".join(part for part in parts if part)


def _list(lines: list[str]) -> str:
    return "".join(f"- {line}\n" for line in lines)
