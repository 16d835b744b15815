"""Puts the HTTP application together: layers, routes, translations. Decides nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import cache
from typing import Any, Final

from fastapi import APIRouter, FastAPI
from fastapi.openapi.utils import get_openapi
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.routing import BaseRoute, Route

from holdfast.actions.dependencies import Holdfast
from holdfast.api import answers
from holdfast.api.framework.routing import RouteIndex, built
from holdfast.api.middleware import OPEN_PATHS, Auth, CanonicalPaths, Limits, RequestIds, TraceContext, UnhandledErrors
from holdfast.api.not_implemented import unbuilt_routes
from holdfast.api.routes import (
    admin,
    agent_archives,
    agent_blocks,
    agent_files,
    agent_folders,
    agent_history,
    agent_tools,
    agents,
    all_messages,
    approvals,
    archives,
    blocks,
    chat_completions,
    console,
    conversation_messages,
    conversations,
    docs,
    events,
    folders,
    groups,
    health,
    identities,
    mcp_servers,
    messages,
    models,
    providers,
    runs,
    statistics,
    steps,
    tags,
    tools,
)
from holdfast.api.routes.health import METRICS_PATH
from holdfast.settings import Settings
from holdfast.version import VERSION

ROUTERS: Final[tuple[APIRouter, ...]] = (
    console.root_router,
    console.router,
    health.router,
    health.metrics_router,
    docs.router,
    agents.router,
    agents.counting_router,
    agent_files.router,
    agent_blocks.router,
    agent_tools.router,
    blocks.router,
    archives.router,
    archives.passages_router,
    archives.embeddings_router,
    agent_archives.router,
    folders.router,
    folders.sources_router,
    agent_folders.router,
    tools.router,
    groups.router,
    groups.agent_router,
    identities.router,
    identities.attaching_router,
    mcp_servers.router,
    mcp_servers.named_router,
    models.router,
    providers.router,
    messages.router,
    all_messages.router,
    all_messages.search_router,
    agent_history.router,
    conversations.router,
    conversation_messages.router,
    chat_completions.router,
    runs.router,
    runs.jobs_router,
    steps.router,
    tags.router,
    steps.telemetry_router,
    approvals.router,
    events.router,
    statistics.router,
    admin.router,
)

OBSERVING: Final[tuple[APIRouter, ...]] = (health.router, health.metrics_router)  # all that a worker serves

_LOCAL_ORIGIN: Final = r"https?://([a-z0-9-]+\.)?(localhost|127\.0\.0\.1|\[::1\])(:[0-9]+)?"
_PROBLEM_SCHEMA: Final = {
    "title": "Problem",
    "type": "object",
    "required": ["detail"],
    "properties": {
        "trace_id": {"type": "string"},
        "detail": {"type": "string", "description": "What is wrong, and where."},
        "examples": {"type": "array", "items": {"type": "string"}},
    },
}


def create_app(deps: Holdfast, routers: Iterable[APIRouter] = ROUTERS, *, whole: bool = True) -> FastAPI:
    """An ASGI application that owns nothing: what it uses is opened and closed by whoever made `deps`.

    `whole`: what the API has and this server does not is answered 501; else 404, as anything else.
    """
    routes = [route for router in routers for route in router.routes if isinstance(route, Route)]
    everything = [*routes, *(unbuilt_routes() if whole else ())]
    app = FastAPI(
        title="Holdfast",
        version=VERSION,
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
        # Runs have spans of their own, so the framework need not look for providers at each request.
        telemetry={"tracing": False, "metrics": False, "logs": False, "operation_spans": False},
        middleware=_layers(deps.settings, frozenset(route.path for route in everything if route.path.endswith("/"))),
    )
    app.state.holdfast = deps
    app.router.routes.append(RouteIndex(everything))
    app.openapi = _description_of(routes)
    answers.translate_errors(app)
    return app


def _layers(settings: Settings, slashed: frozenset[str]) -> list[Middleware]:
    """Outermost first. CORS comes before auth because a browser's preflight carries no key."""
    return [
        Middleware(RequestIds),
        Middleware(UnhandledErrors),
        Middleware(
            CORSMiddleware,
            allow_origins=list(settings.acceptable_origins),
            allow_origin_regex=_LOCAL_ORIGIN,
            allow_methods=["*"],
            allow_headers=["*"],
            allow_credentials=True,
        ),
        Middleware(CanonicalPaths, slashed=slashed),
        Middleware(
            Auth,
            api_key=settings.api_key,
            secrets_key=settings.secrets_key,
            open_paths=OPEN_PATHS | {METRICS_PATH} if settings.metrics == "open" else OPEN_PATHS,
        ),
        Middleware(Limits, max_body_bytes=settings.max_body_bytes, max_file_bytes=settings.max_file_bytes),
        Middleware(TraceContext),
    ]


def _description_of(routes: Sequence[BaseRoute]) -> Callable[[], dict[str, Any]]:
    """FastAPI documents its own 422 body, a list of objects; ours is a sentence."""

    @cache
    def openapi() -> dict[str, Any]:
        described = get_openapi(title="Holdfast", version=VERSION, routes=built(routes))
        schemas = described.get("components", {}).get("schemas", {})
        if "HTTPValidationError" in schemas:
            schemas["HTTPValidationError"] = _PROBLEM_SCHEMA
            schemas.pop("ValidationError", None)
        return described

    return openapi
