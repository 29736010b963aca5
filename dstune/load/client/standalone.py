"""Load client: what `locust -f loadtests/*.py` needs when dstune does not steer it.

Bodies are made here, from the bundled text, for a model that is asked for at /v1/models.
"""

from __future__ import annotations

import itertools
import json
import urllib.error
import urllib.request
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

from gevent.hub import get_hub

from dstune.errors import TargetError
from dstune.load.client import samples
from dstune.load.client.alarms import Alarms
from dstune.load.client.exchange import Exchange, Line, request_head
from dstune.load.client.parsing import ParseQueue
from dstune.load.client.pool import Pool
from dstune.load.client.receiver import make_receiver
from dstune.load.client.waiter import Waiter
from dstune.load.corpus import corpus_text
from dstune.load.wire import WireRequest
from dstune.measure.sample import Sample

PREFLIGHT_TIMEOUT_S = 10.0
REQUEST_TIMEOUT_S = 600.0
STRIDE_WORDS = 7919  # a prime: prompts begin all over the text before any two begin close together


def discover_model(host: str, headers: dict[str, str]) -> str:
    """The first model that the server names; raises `TargetError` with one line."""
    url = host.rstrip("/") + "/v1/models"
    try:
        request = urllib.request.Request(url, headers=headers)
        # no proxy of the environment: the load goes to the host itself
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with opener.open(request, timeout=PREFLIGHT_TIMEOUT_S) as response:
            models = json.load(response)["data"]
        return str(models[0]["id"])
    except urllib.error.HTTPError as error:
        hint = "; give --api-key, or set OPENAI_API_KEY" if error.code in (401, 403) else ""
        raise TargetError(f"{url} answers {error.code}{hint}") from None
    except (OSError, ValueError) as error:  # nothing listens, no URL, no JSON
        raise TargetError(f"{url} does not answer: {error}") from None
    except (LookupError, TypeError):
        raise TargetError(f"{url} names no model") from None


def prompts(worker: int, num_words: int) -> Iterator[str]:
    """Prompts without end. No other worker, and no later prompt, begins as any of them does."""
    words = corpus_text().split()
    for number in itertools.count():
        start = (worker + number * 64) * STRIDE_WORDS % len(words)
        text = itertools.islice(itertools.cycle(words), start, start + num_words)
        yield f"{worker}.{number} " + " ".join(text)


def body(path: str, model: str, prompt: str, output_tokens: int) -> bytes:
    """A streaming request that every OpenAI-compatible server accepts."""
    asked: dict[str, Any] = {
        "model": model,
        "max_tokens": output_tokens,
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    if path.endswith("/chat/completions"):
        asked["messages"] = [{"role": "user", "content": prompt}]
    else:
        asked["prompt"] = prompt
    return json.dumps(asked).encode()


class Sender:
    """Sends for all users of this process, over one pool of connections."""

    def __init__(self, host: str, path: str, headers: dict[str, str]) -> None:
        alarms = Alarms()
        self._receiver = make_receiver(get_hub().loop)
        pool = Pool(host, self._receiver, alarms)
        head = request_head(urlsplit(host).path.rstrip("/") + path, pool.netloc, headers)
        self._line = Line(pool, alarms, ParseQueue(), head, REQUEST_TIMEOUT_S)

    def close(self) -> None:
        """Closes all that is open; nothing may be in flight."""
        self._line.pool.close()
        self._line.queue.close()
        self._line.alarms.close()
        self._receiver.close()

    def send(self, body: bytes, prompt_words: int) -> Sample:
        """One request, now; blocks the calling greenlet until it has ended."""
        request = WireRequest(
            request_id="", kind="normal", body=body, offset_ns=None, prompt_tokens=prompt_words
        )
        exchange = Exchange(self._line, request, Waiter(self._line.alarms))
        return samples.sample(0, request, exchange.run(self._line.alarms.now_ns()))
