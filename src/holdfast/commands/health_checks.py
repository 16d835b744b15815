"""The checks of `holdfast doctor`. Each gives findings, or raises an error whose sentence is the finding."""

from __future__ import annotations

import asyncio
import http.client
import os
import shutil
import stat
import urllib.error
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from typing import Final, Literal

import msgspec

from holdfast.engine.worker import SKEW_LIMIT_S
from holdfast.errors import ModelError
from holdfast.llm.catalog import environment
from holdfast.llm.catalog.catalog import ModelCatalog
from holdfast.private_files import KEY_FILE
from holdfast.secretbox import SecretBox
from holdfast.settings import OFFLINE_MODEL, Settings
from holdfast.store import inspection
from holdfast.store.database import sqlite_path
from holdfast.store.inspection import Found
from holdfast.version import VERSION
from holdfast.wiring import new_sandbox

_OTHERS: Final = 0o077
_LITTLE_DISK: Final = 1 << 30
_NO_DISK: Final = 100 << 20
_SERVER_S: Final = 3.0
_VENDOR_S: Final = 10.0


class Finding(msgspec.Struct, frozen=True):
    name: str
    state: Literal["ok", "warning", "failed"]
    detail: str
    advice: str = ""  # what to do


def ok(name: str, detail: str) -> Finding:
    return Finding(name, "ok", detail)


def warning(name: str, detail: str, advice: str) -> Finding:
    return Finding(name, "warning", detail, advice)


def failed(name: str, detail: str, advice: str = "") -> Finding:
    return Finding(name, "failed", detail, advice)


async def check_settings(settings: Settings) -> list[Finding]:
    settings.require_safe_binding()
    if settings.processes > 1:
        settings.require_shared("Serving with several processes")
    if not settings.worker:
        settings.require_shared("A server that drives no background runs")
    return [ok("settings", f"Holdfast {VERSION}, to listen on {settings.host} port {settings.port}.")]


async def check_data_directory(settings: Settings) -> list[Finding]:
    name, directory = "data directory", settings.data_dir
    if not directory.exists():
        parent = _existing(directory)
        if not os.access(parent, os.W_OK | os.X_OK):
            return [failed(name, f"{directory} does not exist, and {parent} cannot be written.", _OTHER_DIRECTORY)]
        return [ok(name, f"{directory} does not exist yet; the first start makes it.")]
    if not directory.is_dir():
        return [failed(name, f"{directory} is not a directory.", _OTHER_DIRECTORY)]
    if not os.access(directory, os.R_OK | os.W_OK | os.X_OK):
        return [failed(name, f"{directory} cannot be written by this user.", _OTHER_DIRECTORY)]
    state = directory.stat()
    mode = f"mode {stat.S_IMODE(state.st_mode):04o}"
    if not state.st_mode & _OTHERS:
        return [ok(name, f"{directory}, {mode}.")]
    advice = f"chmod 700 {directory}, or let HOLDFAST_DATA_DIR name a directory for Holdfast alone."
    return [warning(name, f"{directory} can be entered by other users of this machine ({mode}).", advice)]


async def check_disk(settings: Settings) -> list[Finding]:
    file = settings.database_file
    places = {_existing(settings.data_dir), _existing(file.parent) if file is not None else None} - {None}
    return [judge_disk(place, shutil.disk_usage(place).free) for place in sorted(filter(None, places))]


def judge_disk(place: Path, free: int) -> Finding:
    detail = f"{free / (1 << 30):.1f} GiB are free at {place}."
    if free < _NO_DISK:
        return failed("disk", detail, "Make room: a database that cannot be written stops all runs.")
    return warning("disk", detail, "Make room soon.") if free < _LITTLE_DISK else ok("disk", detail)


async def check_secrets_key(settings: Settings) -> list[Finding]:
    name, path = "secrets key", settings.data_dir / KEY_FILE
    if settings.encryption_key:
        return [ok(name, "HOLDFAST_ENCRYPTION_KEY is set.")]
    shared: list[Finding] = []
    if settings.is_shared:
        advice = "Set HOLDFAST_ENCRYPTION_KEY to the same value everywhere, if several servers share the database."
        shared = [warning(name, "The key is a file of this machine.", advice)]
    if not path.exists():
        return shared or [ok(name, f"{path} does not exist yet; the first start makes it.")]
    if path.stat().st_mode & _OTHERS:
        return [warning(name, f"{path} can be read by other users of this machine.", f"chmod 600 {path}"), *shared]
    SecretBox.from_directory(settings.data_dir)
    return shared or [ok(name, f"{path} can be used. Keep a copy: without it stored secrets are lost.")]


async def check_database(settings: Settings) -> list[Finding]:
    """And its schema and its clock."""
    if settings.is_shared:
        found = await inspection.look_at_server(settings.database_address)
        return [ok("database", f"PostgreSQL {found.version} answers."), judge_schema(found), judge_clock(found.ahead_s)]
    path = sqlite_path(settings.database_address)
    if not path.exists():
        return [ok("database", f"{path} does not exist yet; the first start makes it.")]
    found = await asyncio.to_thread(inspection.look_at_file, path)
    return [ok("database", f"SQLite {found.version} reads {path}."), judge_schema(found)]


def judge_schema(found: Found) -> Finding:
    if found.is_newest:
        return ok("migrations", f"The schema is the newest, {found.revision}.")
    if found.is_newer_than_ours:
        advice = "Install that release or a newer one, or restore a backup."
        return failed("migrations", f"A newer release has changed the schema, to {found.revision}.", advice)
    if found.revision is None:
        return ok("migrations", "The database has no schema yet; the first start makes it.")
    advice = "Back it up, then `holdfast migrate`; `holdfast serve` does the same."
    return warning("migrations", f"The schema is old, {found.revision}.", advice)


def judge_clock(ahead_s: float) -> Finding:
    detail = f"This machine's clock is {ahead_s:+.1f} s off the database's."
    if abs(ahead_s) <= SKEW_LIMIT_S:
        return ok("clock", detail)
    return warning("clock", detail, "Correct one of them (NTP): runs go on, but what is dated is dated wrongly.")


async def check_pool(settings: Settings) -> list[Finding]:
    """PostgreSQL only: whether there is room for this server's connections, and for all its processes."""
    if not settings.is_shared:
        return []
    wanted = inspection.CONNECTIONS * settings.processes
    found = await inspection.look_at_server(settings.database_address)
    most = found.most_connections or 0
    room = f"{settings.processes} × {inspection.CONNECTIONS} connections are wanted; PostgreSQL allows {most}"
    advice = "Raise max_connections of PostgreSQL, stop other clients, or lower HOLDFAST_PROCESSES."
    if wanted > most:
        return [failed("pool", f"{room}.", advice)]
    await inspection.open_many(settings.database_address, inspection.CONNECTIONS)
    if wanted > most - found.open_connections:
        return [warning("pool", f"{room}, of which {found.open_connections} are open now.", advice)]
    return [ok("pool", f"{room}; those of one process could be opened.")]


async def check_signals(settings: Settings) -> list[Finding]:
    """PostgreSQL only: whether servers can wake each other."""
    if not settings.is_shared:
        return []
    advice = "Set HOLDFAST_DATABASE_DIRECT_URL to PostgreSQL itself, past any proxy."
    if not await inspection.hears_signals(settings.signals_address):
        return [failed("signals", "A notification (LISTEN, NOTIFY) did not arrive.", advice)]
    if await inspection.is_behind_proxy(settings.signals_address):
        detail = "A proxy stands before PostgreSQL. If it pools transactions, signals between servers are lost."
        return [warning("signals", detail, advice)]
    return [ok("signals", "A notification arrived.")]


async def check_sandbox(settings: Settings) -> list[Finding]:
    """By starting it."""
    sandbox = new_sandbox(settings)
    try:
        status = await sandbox.status()
    finally:
        await sandbox.aclose()
    detail = f"Custom tools: {status.tools}. Egress: {status.egress}."
    if status.tools.startswith("isolated") and "bubblewrap is not" not in status.tools:
        return [ok("sandbox", detail)]
    advice = "Install bubblewrap (apt-get install bubblewrap); see docs/tools-and-sandbox.md."
    return [warning("sandbox", detail, advice)]


async def check_providers(settings: Settings) -> list[Finding]:
    endpoints = environment.endpoints(settings.providers)
    if endpoints:
        return [ok("providers", f"Configured: {', '.join(endpoint.provider_name for endpoint in endpoints)}.")]
    advice = "Set OPENAI_API_KEY, ANTHROPIC_API_KEY, OLLAMA_BASE_URL or another (docs/models.md)."
    return [warning("providers", f"None is configured; agents use {OFFLINE_MODEL} or what users bring.", advice)]


async def check_vendors(settings: Settings) -> list[Finding]:
    endpoints = environment.endpoints(settings.providers)
    catalog = ModelCatalog(endpoints)
    findings: list[Finding] = []
    try:
        for endpoint in endpoints:
            name = endpoint.provider_name
            try:
                async with asyncio.timeout(_VENDOR_S):
                    await catalog.check(endpoint)
            except TimeoutError:
                findings.append(
                    failed(name, f"No answer within {_VENDOR_S:g} s.", "Check its address and the network.")
                )
            except ModelError as error:
                findings.append(failed(name, error.message, "Check its key and its address."))
            else:
                findings.append(ok(name, "It answers, and takes the key."))
    finally:
        await catalog.aclose()
    return findings


async def check_server(settings: Settings) -> Sequence[Finding]:
    host = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(settings.host, settings.host)
    place = f"{settings.host} port {settings.port}"
    try:
        version = await asyncio.to_thread(_version_at, f"http://{host}:{settings.port}/v1/health/")
    except ConnectionRefusedError:
        return [ok("server", f"None runs on {place}.")]
    except (OSError, ValueError, http.client.HTTPException) as error:
        advice = "Another program may use the port: choose another with HOLDFAST_PORT, or stop it."
        return [warning("server", f"What listens on {place} does not answer like Holdfast: {error}.", advice)]
    if version == VERSION:
        return [ok("server", f"Holdfast {version} runs on {place}.")]
    return [warning("server", f"Holdfast {version} runs on {place}; this is {VERSION}.", "Restart it to upgrade.")]


def _version_at(url: str) -> str:
    """Not through a proxy: what is asked about is this machine."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(url, timeout=_SERVER_S) as answer:
            told = msgspec.json.decode(answer.read(1_000_000), type=dict[str, str])
    except urllib.error.HTTPError as error:
        with error:
            raise ValueError(f"it answered {error.code}") from error
    except urllib.error.URLError as error:
        raise error.reason if isinstance(error.reason, OSError) else OSError(str(error.reason)) from error
    if "holdfast_version" not in told:
        raise ValueError("its answer has no version")
    return told["holdfast_version"]


def _existing(path: Path) -> Path:
    """It, or the nearest directory above it that exists."""
    path = path.absolute()
    return next(place for place in (path, *path.parents) if place.exists())


_OTHER_DIRECTORY: Final = "Make it writable for this user, or name another with HOLDFAST_DATA_DIR."
