"""Trains `tiny-deepseek`: python -m dstune.model.tiny_deepseek.train --out FOLDER --steps N.

A file FOLDER/end holding a step number makes that the last step and decays towards it from now on;
it may change again later, and a second number sets the share of the peak rate to go on from.
SIGTERM starts the planned decay at once.
Running the command again on the same folder resumes from its last state.
"""

from __future__ import annotations

import argparse
import json
import signal
import time
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional as F

from dstune.model.tiny_deepseek.architecture import NetworkConfig
from dstune.model.tiny_deepseek.batches import Batches
from dstune.model.tiny_deepseek.checkpoint import save_published
from dstune.model.tiny_deepseek.data import build_corpus
from dstune.model.tiny_deepseek.network import Network
from dstune.model.tiny_deepseek.optim import Optimizer
from dstune.model.tiny_deepseek.schedule import Schedule

_CLIP = 1.0


class Trainer:
    """One training run and its folder of state, log and weights."""

    def __init__(self, options: argparse.Namespace) -> None:
        torch.manual_seed(options.seed)
        self.out, self.options = Path(options.out), options
        self.out.mkdir(parents=True, exist_ok=True)
        dtype = torch.bfloat16 if options.bf16 else torch.float32
        self.network = Network(NetworkConfig.read(Path(__file__).with_name("config.json")), dtype)
        self.optimizer = Optimizer(self.network, options.rate, options.weight_decay)
        self.schedule = Schedule(
            options.steps, options.decay_steps, options.warmup, options.long_share
        )
        documents = build_corpus().train
        self.short = Batches(documents, options.length, options.batch_tokens)
        self.long = Batches(documents, options.long_length, options.batch_tokens)
        # Another epoch number, so that long windows do not repeat the short ones' order.
        self.long.skip_to(1000, 0)
        self.step, self.tokens, self.decay_now = 0, 0, False
        signal.signal(signal.SIGTERM, self._on_terminate)

    def _on_terminate(self, *_: object) -> None:
        self.decay_now = True

    def run(self) -> None:
        """Train to the schedule's end and write the weights."""
        self._resume()
        while self.step < self.schedule.steps:
            self._follow_requests()
            began = time.perf_counter()
            loss, norm, loads = self._train_step()
            self.step += 1
            self._log(loss, norm, loads, time.perf_counter() - began)
            if self.step % self.options.save_every == 0:
                self._save()
        self._save()
        save_published(self.network, self.out / "model.safetensors")

    def _follow_requests(self) -> None:
        """Move the end of the schedule if the file or the signal asks for it."""
        request, schedule = self.out / "end", self.schedule
        numbers = request.read_text().split() if request.exists() else []
        if numbers and self.step < int(numbers[0]) != schedule.steps:
            factor = float(numbers[1]) if len(numbers) > 1 else None
            schedule.end_at(self.step, int(numbers[0]), factor)
        if self.decay_now and schedule.decay_factor(self.step) == 1.0:
            schedule.end_at(self.step, self.step + self.options.decay_steps)

    def _train_step(self) -> tuple[float, float, list[Tensor]]:
        """One update; returns mean loss (nats per byte), gradient norm and expert loads."""
        batches = self.long if self.schedule.is_long(self.step) else self.short
        inputs, targets = batches.next()
        logits = self.network(inputs)
        loss = F.cross_entropy(logits.flatten(0, 1), targets.flatten())
        loss.backward()  # type: ignore[no-untyped-call]
        norm = torch.nn.utils.clip_grad_norm_(self.network.parameters(), _CLIP)
        self.optimizer.step(self.schedule.factor(self.step))
        # No warmup here: a router that starts out lopsided starves experts within few steps.
        speed = self.options.balance_step * self.schedule.decay_factor(self.step)
        loads = [router.rebalance(speed) for router in self.network.routers()]
        self.tokens += targets.numel()
        return loss.item(), norm.item(), loads

    def _log(self, loss: float, norm: float, loads: list[Tensor], seconds: float) -> None:
        record = {
            "step": self.step,
            "tokens": self.tokens,
            "loss": round(loss, 4),
            "norm": round(norm, 3),
            "factor": round(self.schedule.factor(self.step - 1), 4),
            "load_min": round(min(float(load.min()) for load in loads), 3),
            "load_max": round(max(float(load.max()) for load in loads), 3),
            "seconds": round(seconds, 3),
            "epoch": self.short.epoch,
        }
        with (self.out / "log.jsonl").open("a") as log:
            log.write(json.dumps(record) + "\n")

    def _save(self) -> None:
        state = {
            "network": self.network.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "step": self.step,
            "tokens": self.tokens,
            "schedule": (self.schedule.steps, self.schedule.decay_steps),
            "short": (self.short.epoch, self.short.cursor),
            "long": (self.long.epoch, self.long.cursor),
        }
        # Written aside first: a run stopped while saving must still be able to resume.
        torch.save(state, self.out / "state.tmp")
        (self.out / "state.tmp").replace(self.out / "state.pt")

    def _resume(self) -> None:
        if not (self.out / "state.pt").exists():
            return
        state = torch.load(self.out / "state.pt")
        self.network.load_state_dict(state["network"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.step, self.tokens = state["step"], state["tokens"]
        steps, decay_steps = state["schedule"]
        # Before the decay, the options of this call decide; during it, the run's own schedule.
        if self.step > steps - decay_steps:
            self.schedule.steps, self.schedule.decay_steps = steps, decay_steps
        self.short.skip_to(*state["short"])
        self.long.skip_to(*state["long"])


def main() -> None:
    """Parse the options and train."""
    parser = argparse.ArgumentParser(description="Train tiny-deepseek.")
    parser.add_argument("--out", required=True, help="folder for state, log and weights")
    parser.add_argument("--steps", type=int, required=True, help="all steps, decay included")
    parser.add_argument("--decay-steps", type=int, default=800)
    parser.add_argument("--warmup", type=int, default=60)
    parser.add_argument("--long-share", type=float, default=0.3, help="of the decay's steps")
    parser.add_argument("--batch-tokens", type=int, default=4096)
    parser.add_argument("--length", type=int, default=512)
    parser.add_argument("--long-length", type=int, default=2048)
    parser.add_argument("--rate", type=float, default=0.01, help="peak learning rate")
    parser.add_argument("--weight-decay", type=float, default=0.1)
    parser.add_argument("--balance-step", type=float, default=5e-3)
    parser.add_argument("--save-every", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--bf16", action=argparse.BooleanOptionalAction, default=True)
    Trainer(parser.parse_args()).run()


if __name__ == "__main__":
    main()
