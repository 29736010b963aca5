"""Commands of the parent, carried out on the engine between its steps.

Each of these ends in one event that answers it:

{"op": "open", "model", "weights", "device"}   -> {"event": "opened", "model": {...}}
{"op": "tokenizer"}                            -> {"event": "tokenizer", "tokenizer": {...}}
{"op": "configure", "knobs"}                   -> {"event": "configured", ...}
{"op": "tokenize", "text"}                     -> {"event": "tokens", "token_ids"}
{"op": "reset"}                                -> {"event": "reset"}
{"op": "score", "windows": [[token id, ...], ...], "context_tokens"}
                                -> {"event": "scored", "window_nlls": mean of each window, in nats}
{"op": "run", "requests", ...}  -> {"event": "progress", ...} ... {"event": "ran", ...}
{"op": "trace"}     -> {"event": "trace", ...TracedEngine.take_trace}: after `open` with "traces"
{"op": "steps"}             -> {"event": "steps", "steps": [...]}: of live serving, since the last
{"op": "quit"}                                 -> the process ends
anything that fails                            -> {"event": "error", "kind", "message"}

Live requests are not answered but served; their events stand in `online.py`:

{"op": "add", "id", "prompt_token_ids", "params", "arrival_ns"}
{"op": "abort", "id"}

A step that fails ends the process: nothing is known of the engine's state any more.
"""

from __future__ import annotations

import dataclasses
import json
import os
import queue
import sys
import threading
import time
import traceback
from collections.abc import Mapping
from statistics import fmean
from typing import Any, BinaryIO

import msgspec
import torch

from dstune.engine.config import EngineConfig
from dstune.engine.engine import Engine
from dstune.engine.scoring import score_windows
from dstune.engine.slowdown import Slowdown, parse_slowdown
from dstune.engine.tracing.engine import TracedEngine
from dstune.errors import DstuneError, ExitCode, ModelError, UsageError
from dstune.model.loading.open import Checkpoint, open_checkpoint
from dstune.server.offline import OfflineRequest, run_offline, wait_until_ns
from dstune.server.online import OnlineServing

Command = dict[str, Any]
Event = dict[str, Any]

PROGRESS_INTERVAL_S = 0.25
NS_PER_S = 1_000_000_000


def serve(commands: BinaryIO, events: BinaryIO, slow: str | None = None) -> None:
    """Answers commands in order and serves live requests until `quit` or the end of `commands`.

    `slow` is a slowdown to plant, for tests.
    """
    child = Child(events, slow)
    received = _receive(commands)
    while True:
        _take_commands(received, child)
        try:
            child.step()
        except Exception as error:
            child.online.crashed(error)
            # not sys.exit: the reading thread holds standard input, which finalising would want
            sys.stderr.flush()
            os._exit(ExitCode.FAILED)


def _receive(commands: BinaryIO) -> queue.SimpleQueue[Command]:
    """Commands as they come. On `quit`, or when the parent is gone, the process ends at once,
    also within a run: nobody is left to read an answer, and nothing here needs to be saved.
    """
    received: queue.SimpleQueue[Command] = queue.SimpleQueue()

    def watch() -> None:
        for line in commands:
            command = _decode(line)
            if command["op"] == "quit":
                break
            received.put(command)
        os._exit(0)

    threading.Thread(target=watch, daemon=True).start()
    return received


def _decode(line: bytes) -> Command:
    try:
        command: Command = msgspec.json.decode(line)
    except msgspec.DecodeError:
        command = json.loads(line)  # a lone surrogate, which is a caller's mistake to be answered
    return command


def _take_commands(received: queue.SimpleQueue[Command], child: Child) -> None:
    """Carries out what has come; waits for a command as long as no step is due."""
    wait_s = child.idle_s()
    try:
        command = received.get_nowait() if wait_s == 0 else _await(received, child, wait_s)
        while True:
            child.carry_out(command)
            command = received.get_nowait()
    except queue.Empty:
        return


def _await(received: queue.SimpleQueue[Command], child: Child, wait_s: float | None) -> Command:
    since_ns = time.monotonic_ns()
    try:
        return received.get(timeout=wait_s)
    finally:
        child.waited(since_ns)


class Child:
    """One engine and the commands that act on it."""

    def __init__(self, events: BinaryIO, slow: str | None = None) -> None:
        self._events = events
        self._slow = slow
        self._slowdown: Slowdown | None = None
        self._engine_class: type[Engine] = Engine
        self._encode = msgspec.json.Encoder().encode
        self.online = OnlineServing(self.send, keeps_steps=True)
        self._checkpoint: Checkpoint | None = None
        self._device = torch.device("cpu")
        self._engine: Engine | None = None

    def send(self, *events: Mapping[str, Any]) -> None:
        """Writes events, a line each."""
        self._events.write(b"".join([self._encode(event) + b"\n" for event in events]))
        self._events.flush()

    def idle_s(self) -> float | None:
        """How long no step is due; None for as long as no command comes."""
        engine = self._engine
        if engine is None or not engine.has_requests:
            return None
        held_until = engine.hold_until_ns()
        return 0.0 if held_until is None else max(0.0, (held_until - engine.now_ns()) / NS_PER_S)

    def waited(self, since_ns: int) -> None:
        """Tells a traced engine that nothing was to be done since then."""
        if isinstance(self._engine, TracedEngine):
            self._engine.waited(since_ns)

    def step(self) -> None:
        """Computes a step of the live requests, if one is due."""
        if self._engine is not None:
            self.online.step(self._engine)

    def carry_out(self, command: Command) -> None:
        """Does what a command asks; what fails is answered, too."""
        try:
            self._carry_out(command)
        except DstuneError as error:
            self.send({"event": "error", "kind": type(error).__name__, "message": str(error)})
        except Exception as error:
            traceback.print_exc()
            message = f"{type(error).__name__}: {error}"
            self.send({"event": "error", "kind": "TargetError", "message": message})

    def _carry_out(self, command: Command) -> None:
        match command["op"]:
            case "add":
                self.online.add(self._running(), command)
            case "abort":
                self._running().abort(command["id"])
            case "open":
                self.send(self._open(command))
            case "tokenizer":
                self.send(self._describe_tokenizer())
            case "steps":
                self.send({"event": "steps", **self.online.take_steps()})
            case "configure":
                self.send(self._configure(command["knobs"]))
            case "tokenize":
                self.send({"event": "tokens", "token_ids": self._tokenize(command["text"])})
            case "reset":
                self._running().reset_prefix_cache()
                self.send({"event": "reset"})
            case "trace":
                self.send({"event": "trace", **self._traced().take_trace()})
            case "score":
                self.send(self._score(command["windows"], command["context_tokens"]))
            case "run":
                self.send(self._run(command))
            case other:
                raise UsageError(f"unknown command {other!r}")

    def _open(self, command: Command) -> Event:
        self._slowdown = None if self._slow is None else parse_slowdown(self._slow)
        self._engine_class = TracedEngine if command.get("traces") else Engine
        self._device = _device(command["device"])
        self._checkpoint = open_checkpoint(command["model"], command["weights"])
        self.online = OnlineServing(self.send, command.get("keeps_steps", True))
        shape = self._checkpoint.shape
        described = {
            "name": self._checkpoint.name,
            "digest": self._checkpoint.digest,
            "num_parameters": shape.num_parameters(),
            "max_position": shape.max_position,
            "vocab_size": shape.vocab_size,
            "device": str(self._device),
        }
        return {"event": "opened", "model": described}

    def _configure(self, values: dict[str, object]) -> Event:
        assert self._checkpoint is not None, "open comes first"
        config = EngineConfig.from_knobs(values)
        start = time.monotonic()
        if self._engine is None:
            self._engine = self._engine_class(
                self._checkpoint, config, self._device, slowdown=self._slowdown
            )
            restart = "reload"
        else:
            changed = self._engine.reconfigure(config)
            restart = "" if changed is None else changed.value
        return {
            "event": "configured",
            "restart": restart or None,
            "seconds": time.monotonic() - start,
            "effective": self._engine.effective_knobs(),
            "weight_bytes": self._engine.num_weight_bytes,
            "num_blocks": self._engine.size.num_blocks,
        }

    def _describe_tokenizer(self) -> Event:
        """All that the front needs to turn text into tokens and back without the model."""
        assert self._checkpoint is not None, "open comes first"
        tokenizer, shape = self._checkpoint.tokenizer, self._checkpoint.shape
        return {
            "event": "tokenizer",
            "tokenizer": None if tokenizer is None else tokenizer.to_parts(),
            "eos_ids": list(shape.eos_token_ids),
        }

    def _tokenize(self, text: str) -> list[int]:
        assert self._checkpoint is not None, "open comes first"
        tokenizer = self._checkpoint.tokenizer
        if tokenizer is None:
            raise ModelError(f"{self._checkpoint.name} has no tokenizer")
        return tokenizer.encode(text)

    def _running(self) -> Engine:
        assert self._engine is not None, "configure comes first"
        return self._engine

    def _traced(self) -> TracedEngine:
        if not isinstance(self._engine, TracedEngine):
            raise UsageError('nothing is recorded: open with "traces" and configure first')
        return self._engine

    def _idle(self) -> Engine:
        engine = self._running()
        if engine.has_requests:
            raise UsageError("live requests are being served; finish or abort them first")
        return engine

    def _score(self, windows: list[list[int]], context_tokens: int) -> Event:
        """Without the cached prefixes of anything else, and leaving none behind."""
        engine = self._idle()
        for window in windows:
            _check_window(window, context_tokens, engine)
        engine.reset_prefix_cache()
        try:
            scores = score_windows(engine, windows, context_tokens)
        finally:
            engine.reset_prefix_cache()
        return {"event": "scored", "window_nlls": [-fmean(one) for one in scores]}

    def _run(self, command: Command) -> Event:
        engine = self._idle()
        planned = [OfflineRequest(**one) for one in command["requests"]]
        last_sent = 0.0

        def report(finished: int) -> None:
            nonlocal last_sent
            if time.monotonic() - last_sent > PROGRESS_INTERVAL_S:
                last_sent = time.monotonic()
                self.send({"event": "progress", "finished": finished, "planned": len(planned)})

        result = run_offline(
            engine,
            planned,
            concurrency=command["concurrency"],
            temperature=command["temperature"],
            timeout_s=command["timeout_s"],
            report=report,
            wait_until=self._wait_until,
        )
        return {"event": "ran", **dataclasses.asdict(result)}

    def _wait_until(self, at_ns: int) -> None:
        since_ns = time.monotonic_ns()
        wait_until_ns(at_ns)
        self.waited(since_ns)


def _check_window(window: list[int], context_tokens: int, engine: Engine) -> None:
    longest = engine.size.max_model_len - 1
    if not 0 < context_tokens < len(window) <= longest:
        raise UsageError(
            f"a window of {len(window)} tokens cannot be scored: it must have more than its "
            f"{context_tokens} of context and at most {longest} (max_model_len - 1)"
        )
    if not 0 <= min(window) <= max(window) < engine.checkpoint.shape.vocab_size:
        raise UsageError("a window has a token id outside the vocabulary")


def _device(name: str) -> torch.device:
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if name.startswith("cuda") and not torch.cuda.is_available():
        raise UsageError(f"device {name} was asked for and torch sees no CUDA device")
    return torch.device(name)
