"""Locust's own HTTP users at the same task, as careful users write them; see `load_client.py`.

Each token is stamped before its JSON is parsed, one Locust event is fired per request. After
`BENCH_REQUESTS` requests the process writes what it measured to `BENCH_RESULT` and ends.
"""

from __future__ import annotations

import json
import os
import resource
import time
from typing import Any

import gevent
from locust import FastHttpUser, HttpUser, events, task
from locust.exception import StopUser

PATH = "/v1/completions"
BODY = os.environ.get("BENCH_BODY", "")
REQUESTS = int(os.environ.get("BENCH_REQUESTS", "0"))
RESULT = os.environ.get("BENCH_RESULT", "")
HEADERS = {"content-type": "application/json"}
state: dict[str, Any] = {"begun": 0, "rows": [], "cpu_s": 0.0, "wall_s": 0.0}


@events.test_start.add_listener
def _start(**_: object) -> None:
    state["cpu_s"], state["wall_s"] = time.process_time(), time.monotonic()


def _begin() -> None:
    if state["begun"] >= REQUESTS:
        raise StopUser
    state["begun"] += 1


def _end(environment: Any, row: list[int]) -> None:
    state["rows"].append(row)
    if len(state["rows"]) == REQUESTS:
        result = {
            "rows": state["rows"],
            "cpu_s": time.process_time() - state["cpu_s"],
            "wall_s": time.monotonic() - state["wall_s"],
            "rss_kb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss,
        }
        with open(RESULT, "w") as file:
            json.dump(result, file)
        gevent.spawn_later(0.1, environment.runner.quit)


def _is_token(line: bytes) -> bool:
    if not line.startswith(b"data: ") or line.startswith(b"data: [DONE]"):
        return False
    choices = json.loads(line[6:])["choices"]
    return bool(choices and choices[0].get("text"))


class Fast(FastHttpUser):
    """geventhttpclient, line by line."""

    @task
    def ask(self) -> None:
        """One request; its row is when it was sent and when each token came, in ns."""
        _begin()
        row = [time.monotonic_ns()]
        with self.client.post(
            PATH, data=BODY, headers=HEADERS, stream=True, catch_response=True
        ) as response:
            while line := response.stream.readline(b"\n"):
                now = time.monotonic_ns()
                if _is_token(line):
                    row.append(now)
            response.success()
        _end(self.environment, row)


class Plain(HttpUser):
    """requests, line by line."""

    @task
    def ask(self) -> None:
        """As `Fast.ask`."""
        _begin()
        row = [time.monotonic_ns()]
        with self.client.post(
            PATH, data=BODY, headers=HEADERS, stream=True, catch_response=True
        ) as response:
            for line in response.iter_lines():
                now = time.monotonic_ns()
                if _is_token(line):
                    row.append(now)
            response.success()
        _end(self.environment, row)
