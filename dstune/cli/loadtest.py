"""Cli: dstune loadtest."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dstune.cli.places import RUNS

if TYPE_CHECKING:
    from dstune.measure.run_folder import RunFolder
    from dstune.profile.model import Profile
    from dstune.target.open import Access
    from dstune.target.target import Target

EXAMPLES = """Examples:

dstune loadtest profiles/realtime-chat.yaml

dstune loadtest profiles/realtime-chat.yaml --duration 1m --rate 20

dstune loadtest profiles/realtime-chat.yaml --recommended reports/20260101T120000Z-sweep-chat

dstune loadtest profiles/realtime-chat.yaml --target http://127.0.0.1:8000 --users 32"""


def run(
    profile: Annotated[Path, typer.Argument(help="The scenario, a YAML file.")],
    target: Annotated[
        str | None, typer.Option(help="embedded, or the URL of an OpenAI-compatible server.")
    ] = None,
    duration: Annotated[
        str | None, typer.Option(help="How long, such as 90s; 5m unless the profile says.")
    ] = None,
    rate: Annotated[float | None, typer.Option(help="Requests per second, an open loop.")] = None,
    users: Annotated[int | None, typer.Option(help="Requests in flight, a closed loop.")] = None,
    backend: Annotated[
        str | None, typer.Option(help="Kernels: auto, triton, cpu or reference.")
    ] = None,
    processes: Annotated[int, typer.Option(min=1, max=64, help="Load processes.")] = 1,
    recommended: Annotated[
        str | None,
        typer.Option(metavar="RUN", help="The configuration of a sweep's recommended.yaml."),
    ] = None,
    api_key_file: Annotated[
        Path | None, typer.Option(help="The server's key; else OPENAI_API_KEY.")
    ] = None,
    overrides: Annotated[
        list[str] | None, typer.Option("--set", metavar="A.B=C", help="Override a key; repeatable.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON document on stdout.")] = False,
    output: Annotated[Path, typer.Option(help="Where run folders go.")] = RUNS,
) -> int:
    """Proves that a promise is kept: real load by Locust, 5% of it hostile, and a verdict."""
    from dstune.measure.fingerprint import fingerprint
    from dstune.profile.load import load_profile
    from dstune.target.open import Access, read_key
    from dstune.tune.loadtest import begin, configuration, under_load, with_fresh_prompts

    changes = list(overrides or [])
    changes += [f"target={json.dumps(target)}"] if target is not None else []
    changes += [f"knobs.backend={backend}"] if backend is not None else []
    loaded = under_load(
        load_profile(profile, changes), duration=duration, rate_per_s=rate, users=users
    )
    access = Access(num_processes=processes, api_key=read_key(api_key_file))
    knobs = configuration(loaded, recommended, output)
    loaded, notes = with_fresh_prompts(loaded, changes)
    folder = begin(loaded, knobs, output, sys.argv[1:], fingerprint(), notes)
    return _carry_out(folder, loaded.target, access, as_json)


def _carry_out(folder: RunFolder, target: str, access: Access, as_json: bool) -> int:
    from dstune.load.corpus import corpus_text
    from dstune.measure.host import reader_for
    from dstune.report import loadtest as shown
    from dstune.report import result
    from dstune.target import open as targets
    from dstune.tune.bench import Setting
    from dstune.tune.interrupt import one_gentle_stop
    from dstune.tune.loadtest import loadtest

    with folder.locked(), one_gentle_stop(), shown.LiveLoadtest() as live:

        def open_target(one: Profile) -> Target:
            return targets.open_target(one, folder.log_path, access)

        setting = Setting(open_target, live, corpus_text, read_cpu=reader_for(target))
        outcome = loadtest(folder, setting)
    done = result.read_result(folder)
    if as_json:
        print(json.dumps(result.as_document(done), indent=1))
    else:
        shown.print_loadtest(done)
    return outcome.exit_code
