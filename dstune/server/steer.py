"""Commands of the parent, carried out on the engine; each ends in one event that answers it.

{"op": "open", "model", "weights", "device"}   -> {"event": "opened", "model": {...}}
{"op": "configure", "knobs"}                   -> {"event": "configured", ...}
{"op": "tokenize", "text"}                     -> {"event": "tokens", "token_ids"}
{"op": "reset"}                                -> {"event": "reset"}
{"op": "run", "requests", ...}  -> {"event": "progress", ...} ... {"event": "ran", ...}
{"op": "quit"}                                 -> the process ends
anything that fails                            -> {"event": "error", "kind", "message"}
"""

from __future__ import annotations

import dataclasses
import json
import os
import queue
import threading
import time
import traceback
from collections.abc import Iterator
from typing import Any, TextIO

import torch

from dstune.engine.config import EngineConfig
from dstune.engine.engine import Engine
from dstune.errors import DstuneError, ModelError, UsageError
from dstune.model.loading.open import Checkpoint, open_checkpoint
from dstune.server.offline import OfflineRequest, run_offline

Command = dict[str, Any]
Event = dict[str, Any]

PROGRESS_INTERVAL_S = 0.25


def serve(commands: TextIO, events: TextIO) -> None:
    """Answers commands in order until `quit` or the end of `commands`."""
    child = Child(events)
    for command in _read(commands):
        try:
            child.answer(command)
        except DstuneError as error:
            child.send({"event": "error", "kind": type(error).__name__, "message": str(error)})
        except Exception as error:
            traceback.print_exc()
            message = f"{type(error).__name__}: {error}"
            child.send({"event": "error", "kind": "TargetError", "message": message})


def _read(commands: TextIO) -> Iterator[Command]:
    """Commands as they come. On `quit`, or when the parent is gone, the process ends at once,
    also within a run: nobody is left to read an answer, and nothing here needs to be saved.
    """
    received: queue.SimpleQueue[Command] = queue.SimpleQueue()

    def watch() -> None:
        for line in commands:
            command: Command = json.loads(line)
            if command["op"] == "quit":
                break
            received.put(command)
        os._exit(0)

    threading.Thread(target=watch, daemon=True).start()
    while True:
        yield received.get()


class Child:
    """One engine and the commands that act on it."""

    def __init__(self, events: TextIO) -> None:
        self._events = events
        self._checkpoint: Checkpoint | None = None
        self._device = torch.device("cpu")
        self._engine: Engine | None = None

    def send(self, event: Event) -> None:
        """Writes one event."""
        self._events.write(json.dumps(event) + "\n")
        self._events.flush()

    def answer(self, command: Command) -> None:
        """Carries out one command and sends what answers it."""
        match command["op"]:
            case "open":
                self.send(self._open(command["model"], command["weights"], command["device"]))
            case "configure":
                self.send(self._configure(command["knobs"]))
            case "tokenize":
                self.send({"event": "tokens", "token_ids": self._tokenize(command["text"])})
            case "reset":
                self._running().reset_prefix_cache()
                self.send({"event": "reset"})
            case "run":
                self.send(self._run(command))
            case other:
                raise UsageError(f"unknown command {other!r}")

    def _open(self, model: str, weights: str, device: str) -> Event:
        self._device = _device(device)
        self._checkpoint = open_checkpoint(model, weights)
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
            self._engine = Engine(self._checkpoint, config, self._device)
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

    def _tokenize(self, text: str) -> list[int]:
        assert self._checkpoint is not None, "open comes first"
        tokenizer = self._checkpoint.tokenizer
        if tokenizer is None:
            raise ModelError(f"{self._checkpoint.name} has no tokenizer")
        return tokenizer.encode(text)

    def _running(self) -> Engine:
        assert self._engine is not None, "configure comes first"
        return self._engine

    def _run(self, command: Command) -> Event:
        engine = self._running()
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
        )
        return {"event": "ran", **dataclasses.asdict(result)}


def _device(name: str) -> torch.device:
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if name.startswith("cuda") and not torch.cuda.is_available():
        raise UsageError(f"device {name} was asked for and torch sees no CUDA device")
    return torch.device(name)
