"""Report: a run's summary as Markdown."""

from __future__ import annotations

from dstune.report import words
from dstune.report.result import Result
from dstune.report.tables import as_markdown, comparison_table, trials_table


def summary(result: Result) -> str:
    """The recommendation first, then every trial, then what was not tried and why."""
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
    parts.append(_list([f"skipped {words.knobs(one.changed)}: {one.reason}"
                        for one in result.run.skipped]))  # fmt: skip
    if result.run.not_tried:
        parts.append(f"Not tried for want of time: {', '.join(result.run.not_tried)}.\n")
    parts.append(_list(list(result.run.notes)))
    parts.append(f"Run folder: `{result.folder}`.\n")
    return "\n".join(part for part in parts if part)


def _list(lines: list[str]) -> str:
    return "".join(f"- {line}\n" for line in lines)
