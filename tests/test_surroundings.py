"""A developer's shell is full of keys, proxies and habits. No test may see any of it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from holdfast.settings import PROVIDER_VARIABLES
from tests.serving import ServerProcess
from tests.surroundings import calm

REPOSITORY = Path(__file__).parent.parent
NOWHERE = "http://127.0.0.1:9"
SHELL = dict.fromkeys(PROVIDER_VARIABLES, NOWHERE) | {
    "OPENAI_ORG_ID": "org-mine",
    "AWS_PROFILE": "mine",
    "GOOGLE_APPLICATION_CREDENTIALS": "/nowhere/mine.json",
    "HOLDFAST_API_KEY": "mine",
    "LETTA_BASE_URL": NOWHERE,
    "OTEL_EXPORTER_OTLP_ENDPOINT": NOWHERE,
    "PGSSLMODE": "require",
    "LC_ALL": "xx_YY.UTF-8",
    "HTTP_PROXY": NOWHERE,
    "https_proxy": NOWHERE,
    "no_proxy": "example.com",
    "PYTHONDONTWRITEBYTECODE": "1",
}


def test_keys_proxies_and_servers_of_the_shell_are_left_behind() -> None:
    kept = {"PATH": "/bin", "HOME": "/home/ada", "PYTHONPATH": "src", "HOLDFAST_EFFORT": "20", "TZ": "Asia/Tokyo"}
    given = {"LANG": "C.UTF-8", "SSL_CERT_FILE": str(REPOSITORY / "tests/authority.pem")}
    assert calm(SHELL | kept | {"LANG": "xx_YY.UTF-8"}) == kept | given


def test_clients_of_tests_trust_one_authority_which_signs_nothing() -> None:
    """Not one of those that sign real servers: to read these takes longer than most tests."""
    (trusted,) = httpx.create_ssl_context().get_ca_certs()
    assert "signs nothing" in str(trusted["subject"])


@pytest.mark.slow
def test_a_test_and_its_processes_do_not_see_them() -> None:
    program = "import tests.conftest, os, sys; print([name for name in sys.argv[1:] if name in os.environ])"
    command = [sys.executable, "-c", program, *SHELL]
    shown = subprocess.run(command, env=os.environ | SHELL, cwd=REPOSITORY, capture_output=True, text=True, check=True)
    assert shown.stdout.strip() == "[]"


@pytest.mark.slow
def test_a_server_that_a_test_starts_knows_no_vendor_of_the_shell(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("OPENAI_API_KEY", "ANTHROPIC_API_KEY"):
        monkeypatch.setenv(name, "mine")
    with ServerProcess(tmp_path) as server:
        shown = server.read_log()
    assert "holdfast/offline" in shown
    assert not [vendor for vendor in ("openai", "anthropic") if vendor in shown]


@pytest.mark.slow
def test_a_package_that_nobody_has_compiled_yet_fails_no_test(tmp_path: Path) -> None:
    """Installers may leave it to the first who imports a package, and Python warns of careless strings only then."""
    (tmp_path / "careless.py").write_text('PATTERN = "\\/"\n')
    (tmp_path / "test_import.py").write_text("def test_it():\n    assert __import__('careless').PATTERN\n")
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-n0",
        "-c",
        REPOSITORY / "pyproject.toml",
        "--rootdir",
        tmp_path,
        tmp_path,
    ]
    ended = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stdout
