"""The engine that dstune carries, as a child process steered over a pipe of JSON lines.

Load reaches it over HTTP as it reaches any server, or, with the offline driver, over the pipe
too. The child keeps its weights from one configuration to the next. It lives in a session of its
own, so that a Ctrl-C reaches this process alone, and ends by itself when its standard input closes:
no kill of the parent leaves it behind.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal, cast

from dstune import errors
from dstune.errors import TargetError
from dstune.knobs import KnobValue, Restart
from dstune.load.bodies import Asker
from dstune.load.plan import LoadPlan
from dstune.measure.operation_trace import Trace
from dstune.measure.progress import LoadProgress
from dstune.measure.sample import Sample, SampleError, Status, StepSample
from dstune.target import http
from dstune.target.http_load import Endpoint, HttpLoad, stamped
from dstune.target.target import Configured, Interrupted, LoadResult, Progress
from dstune.target.trace_rows import read_trace

QUIT_TIMEOUT_S = 5.0
Driver = Literal["http", "offline"]


@dataclass(frozen=True)
class EngineProgram:
    """The program that holds the engine; another version's, for one, in its own folder."""

    command: Sequence[str] = (sys.executable, "-m", "dstune.server")
    cwd: Path | None = None
    env: Mapping[str, str] = field(default_factory=dict)  # beside this process's own
    device: str = "auto"
    traces: bool = False  # records what every operation costs; see `EmbeddedTarget.take_trace`


OWN_PROGRAM = EngineProgram()


class EmbeddedTarget:
    """A child process with one model; `configure` before `run`."""

    def __init__(
        self,
        model: str,
        *,
        weights: str = "auto",
        log_path: Path | None = None,
        driver: Driver = "http",
        num_processes: int = 1,
        program: EngineProgram = OWN_PROGRAM,
    ) -> None:
        self._traces = program.traces
        self._stack = contextlib.ExitStack()
        log = (
            log_path.open("ab")
            if log_path
            else tempfile.NamedTemporaryFile(prefix="dstune-", suffix=".log")  # noqa: SIM115
        )
        self._stack.enter_context(log)
        self._log_path = Path(log.name)
        self._load = HttpLoad(num_processes, self._log_path) if driver == "http" else None
        self._child = subprocess.Popen(
            [*program.command, *(["--http"] if self._load else [])],
            cwd=program.cwd,
            env={**os.environ, **program.env},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            encoding="utf-8",
            start_new_session=True,
        )
        try:
            command: dict[str, Any] = {
                "op": "open",
                "model": model,
                "weights": weights,
                "device": program.device,
            }
            if program.traces:  # an earlier version's program does not know of it
                command["traces"] = True
            opened = self._ask(command)
        except BaseException:
            self.stop()
            raise
        self._model: dict[str, object] = opened["model"]
        self._url: str = opened.get("url", "")
        self._configured: Configured | None = None

    def __enter__(self) -> EmbeddedTarget:
        return self

    def __exit__(self, *exc: object) -> None:
        self.stop()

    def configure(self, knobs: Mapping[str, KnobValue]) -> Configured:
        """Makes a configuration be in force by the cheapest restart; see `Target`."""
        done = self._ask({"op": "configure", "knobs": dict(knobs)})
        self._configured = Configured(
            restart=Restart(done["restart"]) if done["restart"] else None,
            seconds=done["seconds"],
            effective=done["effective"],
            model={
                **self._model,
                "weight_bytes": done["weight_bytes"],
                "num_blocks": done["num_blocks"],
            },
        )
        return self._configured

    def tokenize(self, text: str) -> list[int]:
        """The model's token ids of a text; see `Target`."""
        return cast("list[int]", self._ask({"op": "tokenize", "text": text})["token_ids"])

    def reset_caches(self) -> None:
        """Forgets cached prefixes; see `Target`."""
        self._ask({"op": "reset"})

    def score(self, windows: Sequence[Sequence[int]], context_tokens: int) -> list[float]:
        """Mean negative log-likelihood, in nats, of each window's tokens after its first ones.

        The configuration in force computes them as it serves. Raises `UsageError` for a window
        that does not fit max_model_len, or has no more than `context_tokens`.
        """
        command = {"op": "score", "windows": [list(one) for one in windows]}
        scored = self._ask({**command, "context_tokens": context_tokens})
        return cast("list[float]", scored["window_nlls"])

    def run(self, plan: LoadPlan, progress: Progress | None = None) -> LoadResult:
        """Carries out a plan; see `Target`."""
        if self._traces:
            self._ask({"op": "trace"})  # of earlier loads
        return (
            self.run_offline(plan, progress)
            if self._load is None
            else self._run_http(self._load, plan, progress)
        )

    def _run_http(self, load: HttpLoad, plan: LoadPlan, progress: Progress | None) -> LoadResult:
        assert self._configured is not None, "configure comes first"
        effective = self._configured.effective
        max_model_len = effective["max_model_len"]
        assert isinstance(max_model_len, int)
        asker = Asker(model=str(self._model["name"]), max_model_len=max_model_len)
        self._ask({"op": "steps"})  # those of earlier loads

        num_errors = 0

        def watch(seen: LoadProgress) -> None:
            nonlocal num_errors
            if sum(seen.errors.values()) > num_errors:
                self._check_alive()  # else the rest of the load would meet nobody
                num_errors = sum(seen.errors.values())
            if progress is not None:
                progress(seen)

        try:
            return self._completed(load.run(plan, Endpoint(self._url, asker), watch), effective)
        except TargetError as error:
            # the load stopped because the server did: the server's own words say why
            raise self._death() if self._child.poll() is not None else error from None
        except Interrupted as interrupt:
            raise Interrupted(self._completed(interrupt.result, effective)) from None

    def _check_alive(self) -> None:
        """Raises `TargetError` when the server, or the engine behind it, has died."""
        if self._child.poll() is not None:
            raise self._death()
        with contextlib.suppress(http.NoAnswer):
            if http.get(self._url + "/health", {}).status != 200:
                self._ask({"op": "steps"})  # the answer is what it died of

    def _completed(self, result: LoadResult, effective: Mapping[str, KnobValue]) -> LoadResult:
        """The same result with what only the server knows of it."""
        steps = self._ask({"op": "steps"})["steps"]
        result = stamped(result, str(effective["precision"]), str(effective["backend"]))
        return dataclasses.replace(result, steps=_steps(steps))

    def take_trace(self) -> Trace:
        """What every operation cost since the last `run` began, as load 0 of a trace.

        Raises `UsageError` where the program was not asked to trace.
        """
        return read_trace(self._ask({"op": "trace"}))

    def run_offline(self, plan: LoadPlan, progress: Progress | None = None) -> LoadResult:
        """Carries out a plan inside the engine's own process, without HTTP."""
        command = {
            "op": "run",
            "requests": [asdict(request) for request in plan.requests],
            "concurrency": plan.concurrency,
            "temperature": plan.temperature,
            "timeout_s": plan.timeout_s,
        }
        ran = self._ask(command, progress)
        return LoadResult(
            started_ns=ran["started_ns"],
            finished_ns=ran["finished_ns"],
            samples=tuple(_sample(row) for row in ran["rows"]),
            steps=_steps(ran["steps"]),
        )

    def stop(self) -> None:
        """Ends the child: asked first, killed when it does not; harmless when called twice."""
        child = self._child
        if self._load is not None:
            self._load.stop()
        if child.poll() is None:
            with contextlib.suppress(OSError, ValueError):
                self._write({"op": "quit"})
                assert child.stdin is not None
                child.stdin.close()
            try:
                child.wait(QUIT_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                child.kill()
                child.wait()
        for pipe in (child.stdin, child.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()
        self._stack.close()

    def _write(self, command: Mapping[str, Any]) -> None:
        assert self._child.stdin is not None
        self._child.stdin.write(json.dumps(command) + "\n")
        self._child.stdin.flush()

    def _ask(self, command: Mapping[str, Any], progress: Progress | None = None) -> dict[str, Any]:
        """Sends a command and returns the event that answers it, its errors raised here."""
        try:
            self._write(command)
        except (OSError, ValueError):
            raise self._death() from None
        assert self._child.stdout is not None
        for line in self._child.stdout:
            event: dict[str, Any] = json.loads(line)
            if event["event"] == "progress":
                if progress is not None:
                    progress(LoadProgress(event["planned"], event["finished"]))
            elif event["event"] == "error":
                raise errors.BY_NAME.get(event["kind"], TargetError)(event["message"])
            else:
                return event
        raise self._death()

    def _death(self) -> TargetError:
        """Why the child ended, in one line: the log's last words and the signal or status."""
        status = self._child.wait()
        how = f"was killed by signal {-status}" if status < 0 else f"exited with status {status}"
        if status == -9:
            how += " (out of memory?)"
        lines = self._log_path.read_text(errors="replace").split("\n")
        said = next((line.strip() for line in reversed(lines) if line.strip()), "")
        return TargetError(f"the engine's process {how}" + (f": {said}" if said else ""))


def _steps(rows: list[dict[str, int]]) -> tuple[StepSample, ...]:
    return tuple(StepSample(trial_id="", repetition=0, **row) for row in rows)


def _sample(row: Mapping[str, Any]) -> Sample:
    fields = {**row, "status": Status(row["status"]), "error": SampleError(row["error"])}
    return Sample(
        trial_id="", repetition=0, process=0, http_status=None, token_source="usage", **fields
    )
