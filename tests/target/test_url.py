"""A server that somebody else runs: the bundled model's front, and plain servers that take less."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from fronts import SteeredFront

from dstune.errors import TargetError, UsageError
from dstune.load.plan import LoadPlan, PlannedRequest
from dstune.measure.anomalies import Anomaly
from dstune.measure.sample import Status
from dstune.target.url import UrlTarget

TEXT = "def double(x):\n    return 2 * x\n" * 40


@pytest.fixture(scope="module")
def front() -> Iterator[str]:
    with SteeredFront({"max_model_len": 512, "kv_cache_memory_bytes": 16 << 20}) as one:
        yield f"http://127.0.0.1:{one.port}"


def url_target(
    url: str, tmp_path: Path, model: str = "whatever", key: str | None = None
) -> UrlTarget:
    return UrlTarget(url, model, tmp_path / "log", 1, key)


def plan(tokens: list[int], count: int = 6) -> LoadPlan:
    return LoadPlan(
        tuple(
            PlannedRequest(f"r{at}", at * 5_000_000, tuple(tokens[at : at + 20]), 4, seed=at)
            for at in range(count)
        )
    )


def test_finds_model_and_length_by_itself_and_measures(front: str, tmp_path: Path) -> None:
    with url_target(front + "/v1/", tmp_path) as target:
        configured = target.configure({})
        assert configured.model["name"] == "tiny-deepseek"
        assert configured.effective["max_model_len"] == 512
        tokens = target.tokenize(TEXT)
        assert bytes(one for one in tokens[:10]) == TEXT[:10].encode()  # the model's own ids
        target.reset_caches()
        result = target.run(plan(tokens))
    assert [one.status for one in result.samples] == [Status.OK] * 6
    assert [one.output_tokens for one in result.samples] == [4] * 6
    assert [one.prompt_tokens for one in result.samples] == [20] * 6
    assert all(one.token_source == "usage" for one in result.samples)
    assert result.server_metrics is not None
    before, after = (
        one.histograms["time_to_first_token_seconds"].count for one in result.server_metrics
    )
    assert after - before == 6


def test_nothing_there_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(TargetError, match=r"nothing to load at http://127.0.0.1:9: .*refused"):
        url_target("http://127.0.0.1:9", tmp_path)


class Plain:
    """A server of tests: `refuses` says with which status and message a completion is refused."""

    def __init__(self) -> None:
        self.asked: list[dict[str, Any]] = []
        self.models: Any = {"data": [{"id": "other"}]}
        self.status = 200
        self.key = ""
        self.refuses: Callable[[dict[str, Any]], str] = lambda body: ""
        self.names: Callable[[dict[str, Any]], str | None] = lambda body: "cmpl-1"


@contextmanager
def serving(plain: Plain) -> Iterator[str]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if plain.key and self.headers["Authorization"] != f"Bearer {plain.key}":
                self._say(401, {"error": {"message": "no key"}})
            elif self.path == "/v1/models":
                self._say(plain.status, plain.models)
            else:
                self._say(404, {})

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            if self.path != "/v1/completions":
                self._say(404, {})
                return
            plain.asked.append(body)
            refused = plain.refuses(body)
            if refused:
                self._say(400, {"error": {"message": refused}})
                return
            prompt = body["prompt"]
            num = len(prompt) if isinstance(prompt, list) else len(prompt) // 5
            usage = {"prompt_tokens": num, "completion_tokens": 1}
            self._say(200, {"id": plain.names(body), "usage": usage})

        def _say(self, status: int, document: Any) -> None:
            data = json.dumps(document).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()


def test_a_server_without_token_ids_is_asked_in_text(tmp_path: Path) -> None:
    plain = Plain()
    plain.refuses = lambda body: "" if isinstance(body["prompt"], str) else "prompt: text only"
    with serving(plain) as url, url_target(url, tmp_path) as target:
        ids = target.tokenize(TEXT)
        # 5 characters a token there, so as many to a piece
        assert len(ids) == len(TEXT) // 5
        assert all(isinstance(body["prompt"], str) for body in plain.asked[-1:])


def test_extras_that_a_server_refuses_are_left_away(tmp_path: Path) -> None:
    plain = Plain()
    plain.refuses = lambda body: "unknown: ignore_eos" if "ignore_eos" in body else ""
    with serving(plain) as url, url_target(url, tmp_path) as target:
        target.tokenize(TEXT)
        assert "ignore_eos" not in plain.asked[-1] and plain.asked[-1]["return_token_ids"] is True


@pytest.mark.parametrize(
    ("names", "refuses", "field"),
    [
        (lambda body: f"cmpl-{body.get('request_id', 'x')}", None, "request_id"),  # as vLLM does
        (lambda body: "cmpl-1", None, "user"),
        (lambda body: None, None, "user"),
        (lambda body: "cmpl-1", "request_id", "user"),
    ],
)
def test_duplicates_share_the_id_that_a_server_goes_by(
    tmp_path: Path, names: Callable[[dict[str, Any]], str], refuses: str | None, field: str
) -> None:
    plain = Plain()
    plain.names, plain.refuses = names, lambda body: "unknown" if refuses in body else ""
    kind = Anomaly.DUPLICATE_ID.value
    with serving(plain) as url, url_target(url, tmp_path) as target:
        tokens = tuple(target.tokenize(TEXT)[:4])
        pair = [PlannedRequest(f"r{at}", 0, tokens, 4, seed=7, kind=kind) for at in range(2)]
        target.run(LoadPlan(tuple(pair)))
    assert [one.get(field) for one in plain.asked[-2:]] == ["duplicate-7"] * 2


def test_a_server_that_refuses_everything_is_quoted(tmp_path: Path) -> None:
    plain = Plain()
    plain.refuses = lambda body: "the model is asleep"
    refused = pytest.raises(TargetError, match="refuses a plain request with 400: the model is as")
    with serving(plain) as url, url_target(url, tmp_path) as target, refused:
        target.tokenize(TEXT)


def test_a_missing_key_is_named(tmp_path: Path) -> None:
    plain = Plain()
    plain.key = "secret"
    with serving(plain) as url:
        with pytest.raises(UsageError, match="--api-key-file"):
            url_target(url, tmp_path)
        url_target(url, tmp_path, key="secret").stop()


def test_of_several_models_one_has_to_be_named(tmp_path: Path) -> None:
    plain = Plain()
    plain.models = {"data": [{"id": "a"}, {"id": "b", "max_model_len": 99}]}
    with serving(plain) as url:
        with pytest.raises(UsageError, match="serves a, b: name one of them with --set model=NAME"):
            url_target(url, tmp_path)
        with url_target(url, tmp_path, model="b") as target:
            assert target.configure({}).effective == {"max_model_len": 99}


@pytest.mark.parametrize("models", [{"data": "no"}, {"list": []}, [], {"data": [{"name": 3}]}])
def test_what_lists_no_models_is_no_such_server(tmp_path: Path, models: Any) -> None:
    plain = Plain()
    plain.models = models
    with serving(plain) as url, pytest.raises(TargetError, match="does not list models"):
        url_target(url, tmp_path)


def test_another_kind_of_server_is_said_to_be_one(tmp_path: Path) -> None:
    plain = Plain()
    plain.status = 404
    with serving(plain) as url, pytest.raises(TargetError, match=r"answers 404.*OpenAI-compatible"):
        url_target(url, tmp_path)
