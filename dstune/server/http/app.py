"""The server's routes.

The two that generate are plain ASGI (`generate.py`), the rest go through starlette's requests.
"""

from __future__ import annotations

from typing import Any

import msgspec
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from dstune.errors import DstuneError
from dstune.server.http.ask import parse_chat, parse_completion
from dstune.server.http.generate import GenerateRoute
from dstune.server.http.metrics import CONTENT_TYPE
from dstune.server.http.refusal import (
    Refusal,
    bad_request,
    bad_value,
    engine_gone,
    internal,
    no_such_route,
    shutting_down,
    wrong_method,
)
from dstune.server.http.service import RETRY_AFTER_S, Service
from dstune.server.http.strict_json import parse_object


def make_app(service: Service) -> Starlette:
    """The application, without the limits in front of it."""
    plain = PlainRoutes(service)
    complete = GenerateRoute(service, parse_completion, "cmpl")
    chat = GenerateRoute(service, parse_chat, "chatcmpl")
    app = Starlette(
        routes=[
            Route("/health", plain.health, methods=["GET"]),
            Route("/metrics", plain.metrics, methods=["GET"]),
            Route("/v1/models", plain.models, methods=["GET"]),
            Route("/v1/models/{name:path}", plain.one_model, methods=["GET"]),
            Route("/tokenize", plain.tokenize, methods=["POST"]),
            Route("/v1/completions", complete, methods=["POST"]),
            Route("/v1/chat/completions", chat, methods=["POST"]),
        ],
        exception_handlers={Refusal: _refuse, HTTPException: _refuse_route, Exception: _fail},  # type: ignore[dict-item]
    )
    app.router.redirect_slashes = False
    return app


class PlainRoutes:
    """The routes that generate nothing."""

    def __init__(self, service: Service) -> None:
        self._service = service

    async def health(self, request: Request) -> Response:
        """200 as long as requests are taken and can be answered."""
        if self._service.engine.death is not None:
            raise engine_gone()
        if self._service.is_draining:
            raise shutting_down(RETRY_AFTER_S)
        return Response(b"")

    async def metrics(self, request: Request) -> Response:
        """Prometheus text."""
        return Response(self._service.metrics.text(), headers={"content-type": CONTENT_TYPE})

    async def models(self, request: Request) -> Response:
        """The one model that is served."""
        return _json({"object": "list", "data": [self._model()]})

    async def one_model(self, request: Request) -> Response:
        """The same by its name."""
        if request.path_params["name"] != self._service.check_open().model.name:
            raise no_such_route(request.method, request.url.path)
        return _json(self._model())

    def _model(self) -> dict[str, Any]:
        model = self._service.check_open().model
        return {
            "id": model.name,
            "object": "model",
            "created": model.created,
            "owned_by": "dstune",
            "max_model_len": model.max_model_len,
        }

    async def tokenize(self, request: Request) -> Response:
        """The model's token ids of a text, as vLLM has it."""
        model = self._service.check_open().model
        document = parse_object(await request.body())
        text = document.get("prompt", document.get("text"))
        if not isinstance(text, str):
            raise bad_value("prompt", "must be a string")
        if model.tokenizer is None:
            raise bad_request("this model has no tokenizer", "prompt")
        try:
            tokens = model.tokenizer.encode(text)
        except DstuneError as error:
            raise bad_request(str(error), "prompt") from None
        return _json({"tokens": tokens, "count": len(tokens), "max_model_len": model.max_model_len})


def _json(document: Any) -> Response:
    return Response(msgspec.json.encode(document), media_type="application/json")


async def _refuse(request: Request, refusal: Refusal) -> Response:
    headers = dict(refusal.headers)
    return Response(refusal.body(), refusal.status, headers, media_type="application/json")


async def _fail(request: Request, error: Exception) -> Response:
    return await _refuse(request, internal())  # starlette raises the error again, for the log


async def _refuse_route(request: Request, error: HTTPException) -> Response:
    if error.status_code == 405:
        allowed = (error.headers or {}).get("Allow", "")
        return await _refuse(request, wrong_method(request.method, request.url.path, allowed))
    return await _refuse(request, no_such_route(request.method, request.url.path))
