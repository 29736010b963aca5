"""The engine's process with live requests, driven over its pipe as the front drives it."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

import pytest

STEP_COLUMNS = [
    "start_ns", "duration_ns", "num_prefill_tokens", "num_decode_tokens", "num_running",
    "num_waiting", "num_free_blocks", "num_preempted", "num_cached_tokens",
]  # fmt: skip
KNOBS = {"max_num_seqs": 2, "kv_cache_memory_bytes": 4_000_000, "max_model_len": 512}
PROMPT = list(b"Once upon a time")


class Child:
    """The process and its events."""

    def __init__(self) -> None:
        command = [sys.executable, "-m", "dstune.server"]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self.tell(op="open", model="tiny-deepseek", weights="auto", device="cpu")
        assert self.next()["event"] == "opened"
        self.tell(op="configure", knobs=KNOBS)
        self.num_blocks = self.next()["num_blocks"]

    def tell(self, **command: Any) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(command).encode() + b"\n")
        self.process.stdin.flush()

    def next(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        return dict(json.loads(self.process.stdout.readline()))

    def add(self, request_id: str, prompt: list[int] = PROMPT, **params: Any) -> None:
        self.tell(
            op="add", id=request_id, prompt_token_ids=prompt, params=params,
            arrival_ns=time.monotonic_ns(),
        )  # fmt: skip

    def until_idle(self, ended: int = 0) -> list[dict[str, Any]]:
        """Every event up to the one that says that nothing is left, `ended` requests later."""
        found = [self.next()]
        while found[-1]["event"] != "idle" or num_ended(found) < ended:
            found.append(self.next())
        return [one for one in found[:-1] if one["event"] != "idle"] + found[-1:]


def num_ended(events: list[dict[str, Any]]) -> int:
    finished = [one for event in events for one in event.get("tokens", ()) if one[4]]
    return len(finished) + sum(event["event"] == "refused" for event in events)


@pytest.fixture(scope="module")
def child() -> Iterator[Child]:
    made = Child()
    yield made
    assert made.process.stdin is not None and made.process.stdout is not None
    made.process.stdin.close()
    assert made.process.wait(10) == 0
    made.process.stdout.close()


def test_a_step_is_one_event_and_the_last_is_idle(child: Child) -> None:
    child.add("a", max_tokens=3)
    *steps, idle = child.until_idle()
    assert [one["event"] for one in steps] == ["step"] * 3
    assert [*steps[0]] == ["event", *STEP_COLUMNS, "tokens"]
    assert [one["tokens"][0][4] for one in steps] == [None, None, "length"]
    first = steps[0]["tokens"][0]
    assert first[0] == "a" and first[5] <= steps[0]["start_ns"] and first[6] == 0
    assert steps[1]["tokens"][0][5:] == [None, None]
    assert idle == {"event": "idle", "num_free_blocks": child.num_blocks}


def test_an_abort_frees_blocks_of_running_and_waiting_requests(child: Child) -> None:
    for name in ("a", "b", "waits"):
        child.add(name, max_tokens=400)
    while child.next().get("num_waiting") != 1:
        pass
    for name in ("waits", "a", "b", "never-was"):
        child.tell(op="abort", id=name)
    assert child.until_idle()[-1]["num_free_blocks"] == child.num_blocks


def test_what_the_engine_refuses_is_told_and_harms_nobody(child: Child) -> None:
    child.add("long", prompt=[1] * 512, max_tokens=1)
    child.add("wrong", max_tokens=1, no_such_parameter=1)
    child.add("fine", max_tokens=1)
    found = child.until_idle(ended=3)
    refused = {one["id"]: one["message"] for one in found if one["event"] == "refused"}
    assert "512 tokens" in refused["long"]
    assert "no_such_parameter" in refused["wrong"]
    assert [one["tokens"][0][0] for one in found if one["event"] == "step"] == ["fine"]


def test_log_probabilities_only_for_who_asks(child: Child) -> None:
    child.add("with", max_tokens=2, num_logprobs=3)
    child.add("chosen", max_tokens=2, num_logprobs=0)
    child.add("without", max_tokens=2)
    tokens = [one for event in child.until_idle(3)[:-1] for one in event["tokens"]]
    for name, token_id, logprob, likeliest, *_ in tokens:
        if name == "without":
            assert logprob is None and likeliest is None
        else:
            assert logprob < 0
        if name == "with":
            assert likeliest[0][0] == token_id  # greedy
            assert likeliest[0][1] == logprob
            assert sorted(likeliest, key=lambda one: -one[1]) == likeliest and len(likeliest) == 3
        if name == "chosen":
            assert likeliest is None


def test_steps_are_those_since_the_last_time(child: Child) -> None:
    child.tell(op="steps")
    child.next()
    child.add("a", max_tokens=4)
    told = [{name: one[name] for name in STEP_COLUMNS} for one in child.until_idle()[:-1]]
    child.tell(op="steps")
    assert child.next() == {"event": "steps", "steps": told, "num_dropped": 0}
    child.tell(op="steps")
    assert child.next()["steps"] == []


def test_steering_while_requests_run(child: Child) -> None:
    child.add("a", max_tokens=400)
    child.tell(op="configure", knobs={**KNOBS, "block_size": 32})
    while (answer := child.next())["event"] == "step":
        pass
    assert answer["kind"] == "UsageError" and "idle engine" in answer["message"]
    child.tell(op="run", requests=[], concurrency=1, temperature=0, timeout_s=1)
    while (answer := child.next())["event"] == "step":
        pass
    assert answer["kind"] == "UsageError" and "live requests" in answer["message"]
    child.tell(op="configure", knobs={**KNOBS, "max_num_seqs": 4})  # a live one
    while (answer := child.next())["event"] == "step":
        pass
    assert answer["restart"] == "live"
    child.tell(op="configure", knobs=KNOBS)
    child.tell(op="abort", id="a")
    child.until_idle()


def test_held_arrivals_wait_for_company_without_spinning(child: Child) -> None:
    child.tell(op="configure", knobs={**KNOBS, "batch_timeout_ms": 300})
    assert child.next()["event"] == "configured"
    sent_ns = time.monotonic_ns()
    child.add("a", max_tokens=1)
    first = child.until_idle()[0]
    assert first["start_ns"] - sent_ns >= 300e6
    child.add("a", max_tokens=1)
    child.add("b", max_tokens=1)  # the batch is full: nothing to wait for
    assert len(child.until_idle(2)[0]["tokens"]) == 2
    child.tell(op="configure", knobs=KNOBS)
    assert child.next()["event"] == "configured"
