"""Cli: dstune serve."""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path
from typing import Annotated

import typer

from dstune.cli.places import RUNS
from dstune.server.http.options import ServerOptions

EXAMPLES = """Examples:

dstune serve

dstune serve --model SmolLM2.gguf --port 9000 --set max_num_seqs=16 --set precision=int8

dstune serve --recommended reports/20260101T120000Z-sweep-chat

dstune serve --host 0.0.0.0 --api-key-file key.txt --rate-limit 50 --max-waiting 64"""

DEFAULTS = ServerOptions()


def run(
    model: Annotated[
        str | None,
        typer.Option(
            help="A bundled name, a folder, a .gguf file or a hub id; the recommended one, or "
            "the bundled one, unless given."
        ),
    ] = None,
    weights: Annotated[str, typer.Option(help="auto, or random for a shape alone.")] = "auto",
    device: Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:N.")] = "auto",
    backend: Annotated[
        str | None, typer.Option(help="Kernels: auto, triton, cpu or reference.")
    ] = None,
    host: Annotated[
        str, typer.Option(help="Where to listen; beyond this machine only with a key.")
    ] = DEFAULTS.host,
    port: Annotated[int, typer.Option(help="0 takes any free one.")] = DEFAULTS.port,
    api_key_file: Annotated[
        Path | None, typer.Option(help="A file with the key that clients must send.")
    ] = None,
    settings: Annotated[
        list[str] | None, typer.Option("--set", metavar="KNOB=VALUE", help="See dstune knobs.")
    ] = None,
    recommended: Annotated[
        str | None,
        typer.Option(metavar="RUN", help="The configuration of a sweep's recommended.yaml."),
    ] = None,
    max_waiting: Annotated[
        int, typer.Option(help="Requests that may wait; more get a 503.")
    ] = DEFAULTS.max_waiting,
    rate_limit: Annotated[
        float | None, typer.Option(help="Requests per second; more get a 429. Default: no limit.")
    ] = DEFAULTS.rate_limit_per_s,
    timeout: Annotated[
        float, typer.Option(help="Seconds for a whole answer; then a 504.")
    ] = DEFAULTS.timeout_s,
    drain: Annotated[
        float, typer.Option(help="Seconds that a SIGTERM leaves to what is under way.")
    ] = DEFAULTS.drain_s,
) -> int:
    """Serves a model over HTTP, as OpenAI does: completions and chats, streamed or whole.

    Logs are JSON lines on standard error. SIGTERM and Ctrl-C end it in order: no new requests,
    those under way finish within --drain, and the rest is told so.
    """
    from dstune.knobs import complete, parse_settings
    from dstune.measure.run_folder import RunFolder
    from dstune.profile.model import Profile
    from dstune.server.http.front import bind, serve
    from dstune.server.http.logs import log_event, log_to
    from dstune.target.open import read_key

    options = ServerOptions(
        host=host,
        port=port,
        api_key=None if api_key_file is None else read_key(api_key_file),
        max_waiting=max_waiting,
        rate_limit_per_s=rate_limit,
        timeout_s=timeout,
        drain_s=drain,
    )
    found = None if recommended is None else RunFolder.recommended(recommended, RUNS)
    served = model or (found.model if found else str(Profile.model_fields["model"].default))
    changes = [*(settings or []), *([f"backend={backend}"] if backend is not None else [])]
    chosen = {**(found.knobs if found else {}), **parse_settings(changes)}
    complete(chosen)  # what is wrong together is told before a model is loaded
    bind(host, port).close()  # so is a port that is taken
    log_to(sys.stderr)

    def ready(url: str) -> None:
        log_event("serving", url=url, model=served)
        _say_ready(url, served, api_key_file)

    log_event("starting", model=served, knobs=chosen)
    code = serve(options, served, weights, device, chosen, on_ready=ready)
    log_event("stopped", exit_code=code)
    return code


def _say_ready(url: str, model: str, api_key_file: Path | None) -> None:
    """The URL, and a request to try it with."""
    from rich.console import Console
    from rich.markup import escape

    words = [
        "curl",
        f"{url}/v1/chat/completions",
        "-H",
        shlex.quote("Content-Type: application/json"),
    ]
    if api_key_file is not None:
        words += ["-H", f'"Authorization: Bearer $(cat {shlex.quote(str(api_key_file))})"']
    messages = [{"role": "user", "content": "Hello"}]
    body = json.dumps({"model": model, "messages": messages, "max_tokens": 64})
    console = Console(highlight=False)
    console.print(f"serving [bold]{escape(model)}[/bold] on [bold]{url}[/bold]")
    # not for Rich to colour or wrap: it is there to be copied
    print(*words, "-d", shlex.quote(body), flush=True)
