"""Says whether a server can run here as it is configured, and what to do if not. Changes nothing."""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

import msgspec

from holdfast.commands import health_checks, settings_from
from holdfast.commands.health_checks import Finding, failed
from holdfast.errors import ConfigError, HoldfastError
from holdfast.settings import Settings

LIMIT_S: Final = 30.0  # of each check
Check = Callable[[Settings], Awaitable[Sequence[Finding]]]

CHECKS: Final[tuple[tuple[str, Check], ...]] = (
    ("settings", health_checks.check_settings),
    ("data directory", health_checks.check_data_directory),
    ("disk", health_checks.check_disk),
    ("secrets key", health_checks.check_secrets_key),
    ("database", health_checks.check_database),
    ("pool", health_checks.check_pool),
    ("signals", health_checks.check_signals),
    ("sandbox", health_checks.check_sandbox),
    ("providers", health_checks.check_providers),
    ("server", health_checks.check_server),
)


def run(arguments: argparse.Namespace) -> int:
    try:
        settings = settings_from(arguments)
    except ConfigError as error:
        findings = [failed("settings", error.message)]
    else:
        findings = asyncio.run(examine(settings, online=arguments.online))
    sys.stdout.write(as_json(findings) if arguments.json else as_lines(findings))
    return 0 if is_well(findings) else 1


async def examine(settings: Settings, *, online: bool = False) -> list[Finding]:
    """One after the other, so that none disturbs what another measures."""
    checks = [*CHECKS, ("vendors", health_checks.check_vendors)] if online else CHECKS
    return [finding for name, check in checks for finding in await _within_limit(name, check, settings)]


async def _within_limit(name: str, check: Check, settings: Settings) -> Sequence[Finding]:
    try:
        async with asyncio.timeout(LIMIT_S):
            return await check(settings)
    except TimeoutError:
        return [failed(name, f"No answer within {LIMIT_S:g} s.")]
    except HoldfastError as error:  # its sentence says what to do
        return [failed(name, error.message)]


def is_well(findings: Sequence[Finding]) -> bool:
    return all(finding.state != "failed" for finding in findings)


def as_lines(findings: Sequence[Finding]) -> str:
    return "".join(
        f"{finding.state:<9}{finding.name:<16}{' '.join(f'{finding.detail} {finding.advice}'.split())}\n"
        for finding in findings
    )


def as_json(findings: Sequence[Finding]) -> str:
    return msgspec.json.encode({"ok": is_well(findings), "checks": findings}).decode() + "\n"
