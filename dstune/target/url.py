"""A server that somebody else runs: found out by asking, put under load, never reconfigured."""

from __future__ import annotations

import itertools
import json
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from dstune.errors import TargetError, UsageError
from dstune.knobs import KnobValue
from dstune.load.bodies import Asker, body_of
from dstune.load.plan import LoadPlan, PlannedRequest
from dstune.target import http
from dstune.target.http_load import COMPLETIONS, Endpoint, HttpLoad
from dstune.target.pieces import Pieces
from dstune.target.target import Configured, LoadResult, Progress

PROBE_TIMEOUT_S = 60.0


@dataclass(frozen=True)
class Served:
    """What a server says of one of its models."""

    name: str
    max_model_len: int | None


class UrlTarget:
    """An OpenAI-compatible server at a URL."""

    def __init__(
        self, url: str, model: str, log_path: Path, num_processes: int, api_key: str | None
    ) -> None:
        self._url = url.rstrip("/").removesuffix("/v1")
        self._headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        self._served = _choose(self._list_models(), model, self._url)
        self._pieces: Pieces | None = None
        self._asker: Asker | None = None
        self._load = HttpLoad(num_processes, log_path)

    def __enter__(self) -> UrlTarget:
        return self

    def __exit__(self, *exc: object) -> None:
        self.stop()

    def configure(self, knobs: Mapping[str, KnobValue]) -> Configured:
        """Nothing can be configured from here; what the server says of itself is in force."""
        effective: dict[str, KnobValue] = {}
        if self._served.max_model_len is not None:
            effective["max_model_len"] = self._served.max_model_len
        model = {"name": self._served.name, "url": self._url}
        return Configured(restart=None, seconds=0.0, effective=effective, model=model)

    def tokenize(self, text: str) -> list[int]:
        """Token ids by the server's `/tokenize`; without one, ids of pieces of about a token.

        Pieces are cut so that the server counts about as many tokens as there are pieces, which
        one request finds out; `prompt_length_differs` tells when that went wrong.
        """
        tokens = self._ask_tokens(text)
        if tokens is None or not self._takes(tokens[:8], None):
            self._pieces = Pieces(text, self._characters_per_token(text))
            tokens = self._pieces.ids
        self._asker = self._probe(tokens[:8])
        return tokens

    def reset_caches(self) -> None:
        """Asks for a cold prefix cache; a server that cannot is met by fresh prompts instead."""
        http.post(self._url + "/reset_prefix_cache", {}, self._headers)

    def run(self, plan: LoadPlan, progress: Progress | None = None) -> LoadResult:
        """Carries out a plan; see `Target`."""
        assert self._asker is not None, "tokenize comes first"
        asker = replace(self._asker, temperature=plan.temperature)
        return self._load.run(plan, Endpoint(self._url, asker, self._headers), progress)

    def stop(self) -> None:
        """Ends the load processes; the server is not ours to stop."""
        self._load.stop()

    def _list_models(self) -> list[Served]:
        try:
            answer = http.get(self._url + "/v1/models", self._headers)
            if answer.status in (401, 403):
                refused = "refuses the key that it was given" if self._headers else "wants a key"
                raise UsageError(
                    f"{self._url} {refused}: give --api-key-file FILE or set OPENAI_API_KEY"
                )
            if answer.status != 200:
                raise TargetError(
                    f"{self._url}/v1/models answers {answer.status}: {answer.reason}; is this an "
                    "OpenAI-compatible server?"
                )
            return [_served(one) for one in answer.json()["data"]]
        except http.NoAnswer as error:
            raise TargetError(f"nothing to load at {self._url}: {error}") from None
        except (KeyError, TypeError):
            raise TargetError(f"{self._url}/v1/models does not list models") from None

    def _ask_tokens(self, text: str) -> list[int] | None:
        body = {"model": self._served.name, "prompt": text, "add_special_tokens": False}
        try:
            answer = http.post(self._url + "/tokenize", body, self._headers, PROBE_TIMEOUT_S)
            if answer.status != 200:
                return None
            tokens = answer.json()["tokens"]
        except (http.NoAnswer, KeyError, TypeError):
            return None
        is_list = isinstance(tokens, list) and all(isinstance(one, int) for one in tokens)
        return tokens if is_list and tokens else None

    def _characters_per_token(self, text: str) -> float:
        sample = text[:2000]
        answer = self._complete(Asker(model=self._served.name), sample)
        try:
            return len(sample) / max(int(answer.json()["usage"]["prompt_tokens"]), 1)
        except (http.NoAnswer, KeyError, TypeError, ValueError):
            return 4.0  # no usage: English text in common vocabularies

    def _probe(self, tokens: list[int]) -> Asker:
        """The richest way of asking that this server accepts, found out by asking."""
        base = Asker(
            model=self._served.name,
            max_model_len=self._served.max_model_len,
            prompt_text=self._pieces.text if self._pieces else None,
        )
        for ignore_eos, token_ids in itertools.product((True, False), repeat=2):
            asker = replace(base, ignore_eos=ignore_eos, return_token_ids=token_ids)
            if self._takes(tokens, asker):
                return replace(asker, takes_request_id=self._takes_id(tokens, asker))
        plain = replace(base, ignore_eos=False, return_token_ids=False)
        answer = self._ask(tokens, plain)
        raise TargetError(
            f"{self._url}{COMPLETIONS} refuses a plain request with {answer.status}: "
            f"{answer.reason}"
        )

    def _takes(self, tokens: list[int], asker: Asker | None) -> bool:
        asker = asker or Asker(model=self._served.name, ignore_eos=False, return_token_ids=False)
        return self._ask(tokens, asker).status == 200

    def _ask(self, tokens: list[int], asker: Asker) -> http.Answer:
        """The very request that the load sends, for one token."""
        body, _ = body_of(PlannedRequest("preflight", 0, tuple(tokens), 1, seed=0), asker)
        return self._post(json.loads(body))

    def _takes_id(self, tokens: list[int], asker: Asker) -> bool:
        """Whether a request may name itself: then its answer's id has that name in it.

        Only there are two requests of one id a danger; elsewhere the field is not even read.
        """
        name = f"dstune-{uuid.uuid4().hex}"
        answer = self._complete(asker, tokens, request_id=name)
        try:
            return answer.status == 200 and name in str(answer.json()["id"])
        except (http.NoAnswer, KeyError, TypeError):
            return False

    def _complete(self, asker: Asker, prompt: Any, **more: str) -> http.Answer:
        """One token of one completion; raises `TargetError` when no answer comes."""
        if asker.prompt_text is not None and not isinstance(prompt, str):
            prompt = asker.prompt_text(prompt)
        body = {"model": asker.model, "prompt": prompt, "max_tokens": 1, "temperature": 0, **more}
        if asker.ignore_eos:
            body["ignore_eos"] = True
        if asker.return_token_ids:
            body["return_token_ids"] = True
        return self._post(body)

    def _post(self, body: Mapping[str, Any]) -> http.Answer:
        try:
            return http.post(self._url + COMPLETIONS, body, self._headers, PROBE_TIMEOUT_S)
        except http.NoAnswer as error:
            raise TargetError(f"{self._url}{COMPLETIONS} does not answer: {error}") from None


def _served(said: Mapping[str, Any]) -> Served:
    name, length = said["id"], said.get("max_model_len")
    return Served(str(name), length if isinstance(length, int) and length > 0 else None)


def _choose(served: list[Served], wanted: str, url: str) -> Served:
    """The model that the profile names where it is served, else the only one."""
    named = [one for one in served if one.name == wanted]
    if named:
        return named[0]
    if len(served) == 1:
        return served[0]
    names = ", ".join(one.name for one in served) or "none"
    raise UsageError(f"{url} serves {names}: name one of them with --set model=NAME")
