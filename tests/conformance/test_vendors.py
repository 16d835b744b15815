"""The fakes that stand in for vendors, as processes; and the list of what their protocols cannot say."""

from __future__ import annotations

import re

import httpx
import pytest

from tests.conformance.conftest import HERE
from tests.conformance.vendors import ADAPTERS, FURTHER, UNSAYABLE, Standing, VendorProcess

STALLED = {
    "model": "offline",
    "stream": True,
    "messages": [{"role": "user", "content": "[[no_reasoning]] [[tokens:9]] [[stall_after:2]]"}],
}


def test_a_vendor_knows_who_listens_and_who_left() -> None:
    with VendorProcess("chat") as vendor:
        with httpx.stream("POST", f"{vendor.url}/v1/chat/completions", json=STALLED) as answer:
            said = answer.iter_bytes()
            assert b"data: " in next(said)
            assert vendor.standing() == Standing(open=1, left=0, asked=1)
        assert vendor.check_none_open() == Standing(open=0, left=1, asked=1)
        assert "[[stall_after:2]]" in vendor.last_request()


@pytest.mark.parametrize("protocol", [vendor.name for vendor in (*ADAPTERS, *FURTHER)])
def test_a_vendor_ends_when_its_input_does(protocol: str) -> None:
    with VendorProcess(protocol) as vendor:
        url = vendor.url
        assert vendor.standing().open == 0
    with pytest.raises(httpx.ConnectError):
        httpx.get(url)


def test_whatever_cannot_be_said_is_still_a_test() -> None:
    """A row that outlives its test would hide the next one of that name."""
    written = "\n".join(path.read_text() for path in HERE.glob("test_*.py"))
    tests = set(re.findall(r"def (test_\w+)\(", written))
    assert {row.test for row in UNSAYABLE} <= tests
    assert {name for row in UNSAYABLE for name in row.vendors} <= {vendor.name for vendor in (*ADAPTERS, *FURTHER)}
