"""What the tests leave behind of the shell that started them: its keys, proxies and servers are none of their business.

A key in a developer's environment must not have a real vendor asked, and neither it nor a proxy may fail a test.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from holdfast.settings import ENABLING_VARIABLES, PROVIDER_VARIABLES

_OURS = ("HOLDFAST_EFFORT",)  # speaks to the tests, not to a server
_VENDORS = tuple(sorted({f"{name.partition('_')[0]}_" for name in ENABLING_VARIABLES}))
_LIBPQ = "PG"  # no underscore: PGHOST, PGSSLMODE
_SLOW = "PYTHONDONTWRITEBYTECODE"  # every process would compile everything anew
# Whoever makes an HTTP client reads all authorities there are, 20 ms each time. Tests reach nobody who would need them.
_AUTHORITY = {"SSL_CERT_FILE": str(Path(__file__).with_name("authority.pem"))}
_STRANGERS = ("HOLDFAST_", "LETTA_", "OTEL_", "LC_", _LIBPQ, _SLOW, *_VENDORS)


def calm(environment: Mapping[str, str]) -> dict[str, str]:
    """The locale is fixed as well: one that a shell names and a machine has not keeps PostgreSQL from starting."""
    kept = {name: value for name, value in environment.items() if name in _OURS or not _is_strange(name)}
    return kept | {"LANG": "C.UTF-8"} | _AUTHORITY


def _is_strange(name: str) -> bool:
    return name.startswith(_STRANGERS) or name in PROVIDER_VARIABLES or name.upper().endswith("_PROXY")
