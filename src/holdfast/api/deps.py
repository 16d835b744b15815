"""What the routes may reach: the one object that wiring built, and who is asking."""

from __future__ import annotations

from typing import Annotated, Final

from fastapi import Depends, Request
from starlette.types import Scope

from holdfast import ids
from holdfast.actions.agents.model_choice import Defaults
from holdfast.actions.assembled import Holdfast
from holdfast.errors import Invalid
from holdfast.secretbox import SecretBox
from holdfast.wire.clients import Client, client_of

READS_SECRETS: Final = "holdfast.reads_secrets"  # in the scope of a request that may


# These are `async` because FastAPI runs plain functions in a thread, which costs more than they do.
async def _assembled(request: Request) -> Holdfast:
    return holdfast_for(request.scope)


def holdfast_for(scope: Scope) -> Holdfast:
    return scope["app"].state.holdfast


def defaults_of(deps: Holdfast) -> Defaults:
    settings = deps.settings
    return Defaults(settings.default_model, settings.default_embedding, settings.max_context_window)


def check_actor(header: str) -> None:
    """Whoever is named, there is one user; a name that no client would send is refused all the same."""
    if header and not ids.is_id("user", header):
        raise Invalid(f"The user_id header must look like {ids.DEFAULT_USER}, not {header!r}.")


async def _opener(request: Request) -> SecretBox | None:
    return opener_for(request.scope)


def opener_for(scope: Scope) -> SecretBox | None:
    """Opens secrets for a request that came with the key for it."""
    return holdfast_for(scope).secretbox if scope.get(READS_SECRETS) else None


async def _client(request: Request) -> Client:
    return client_for(request.scope)


def client_for(scope: Scope) -> Client:
    return client_of(scope["headers"])


Deps = Annotated[Holdfast, Depends(_assembled)]
Opener = Annotated[SecretBox | None, Depends(_opener)]
Asking = Annotated[Client, Depends(_client)]
