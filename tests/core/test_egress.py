"""Egress policies as values: what they allow, and how they are written."""

from __future__ import annotations

import ipaddress
from typing import get_args

import pytest

from holdfast.core.egress import Egress, Entry, Mode, UnknownEgress, entries, is_public, of_tags, strictest, unwrap_ipv4
from holdfast.core.records import Tool

NOT_PUBLIC = """
    0.0.0.0 0.1.2.3 10.0.0.1 100.64.0.1 127.0.0.1 127.255.255.255 169.254.169.254 172.16.0.1 172.31.255.255 192.0.2.1
    192.168.1.1 198.18.0.1 224.0.0.1 239.255.255.255 240.0.0.1 255.255.255.255
    :: ::1 ::7f00:1 ::ffff:127.0.0.1 ::ffff:10.0.0.1 ::ffff:169.254.169.254 64:ff9b::7f00:1 64:ff9b::a00:1
    64:ff9b:1::808:808 2002:7f00:1:: 2002:a00:1:: 2001:0:a00:1::f5ff:fffe fc00::1 fd00::2 fe80::1 fec0::1 ff02::1
    2001:db8::1
"""
PUBLIC = "8.8.8.8 1.1.1.1 93.184.216.34 2606:4700:4700::1111 ::ffff:8.8.8.8 64:ff9b::808:808 2002:808:808::"


@pytest.mark.parametrize("text", NOT_PUBLIC.split())
def test_an_address_of_no_public_host_is_not_public_in_any_clothes(text: str) -> None:
    assert not is_public(ipaddress.ip_address(text))
    assert not Egress("public").allows(ipaddress.ip_address(text), 443)


@pytest.mark.parametrize("text", PUBLIC.split())
def test_an_address_of_the_internet_is_public(text: str) -> None:
    assert Egress("public").allows(ipaddress.ip_address(text), 443)
    assert not Egress("none").allows(ipaddress.ip_address(text), 443)


@pytest.mark.parametrize(
    ("text", "entry"),
    [
        ("api.Example.com:443", Entry("api.example.com", 443)),
        ("localhost", Entry("localhost")),
        ("127.0.0.1:80", Entry("127.0.0.1/32", 80)),
        ("10.1.2.3/8", Entry("10.0.0.0/8")),
        ("10.0.0.0/8:5432", Entry("10.0.0.0/8", 5432)),
        ("::1", Entry("::1/128")),
        ("[::1]:8080", Entry("::1/128", 8080)),
        ("[fd00::/8]:80", Entry("fd00::/8", 80)),
        ("::ffff:127.0.0.1", Entry("127.0.0.1/32")),
    ],
)
def test_an_entry_is_a_name_or_a_network_and_perhaps_a_port(text: str, entry: Entry) -> None:
    assert entries(f" {text} ,") == (entry,)


@pytest.mark.parametrize(
    "text", ["http://a.b", "a b", "a:0", "a:65536", "a:x", "10.0.0.0/99", "1.2.3", "[::1]8", "*.b"]
)
def test_an_entry_that_means_nothing_is_refused(text: str) -> None:
    with pytest.raises(UnknownEgress):
        entries(text)


def test_an_allow_list_judges_address_and_port() -> None:
    policy = Egress("allow-list", entries("10.0.0.0/8:80,::1"))
    assert policy.allows(ipaddress.ip_address("10.9.9.9"), 80)
    assert policy.allows(ipaddress.ip_address("::ffff:10.9.9.9"), 80)
    assert not policy.allows(ipaddress.ip_address("10.9.9.9"), 81)
    assert not policy.allows(ipaddress.ip_address("8.8.8.8"), 80)
    assert policy.allows(ipaddress.ip_address("::1"), 1)


def test_tags_say_a_tools_own_policy() -> None:
    assert of_tags(["retry-safe"]) is None
    assert of_tags(["egress:none", "egress:public"]) == Egress("none")
    assert of_tags(["egress:public"]) == Egress("public")
    listed = of_tags(["egress:allow=a.example:443", "egress:allow=b.example"])
    assert listed == Egress("allow-list", (Entry("a.example", 443), Entry("b.example")))


@pytest.mark.parametrize("tag", ["egress:all", "egress:", "egress:nothing", "egress:allow=", "egress:allow=a:b:c d"])
def test_a_tag_that_widens_or_means_nothing_is_refused(tag: str) -> None:
    with pytest.raises(UnknownEgress):
        of_tags([tag])


def test_a_policy_knows_its_names_and_whether_it_needs_dns() -> None:
    named = Egress("allow-list", (Entry("api.example.com", 443), Entry("10.0.0.0/8")))
    assert named.names == ("api.example.com",)
    assert [Egress(mode).needs_names for mode in ("none", "public", "all")] == [False, True, True]
    assert (named.needs_names, Egress("allow-list", (Entry("10.0.0.0/8"),)).needs_names) == (True, False)


def test_each_policy_judges_an_address() -> None:
    public, private = ipaddress.ip_address("93.184.216.34"), ipaddress.ip_address("10.1.2.3")
    judged = {mode: (Egress(mode).allows(public, 80), Egress(mode).allows(private, 80)) for mode in get_args(Mode)}
    assert judged == {
        "none": (False, False),
        "public": (True, False),
        "allow-list": (False, False),
        "all": (True, True),
    }


def test_a_name_of_the_list_allows_its_port() -> None:
    listed = Egress("allow-list", (Entry("api.example.com", 443),))
    assert (listed.allows_as("api.example.com", 443), listed.allows_as("api.example.com", 80)) == (True, False)
    assert not listed.allows_as("other.example.com", 443)


def test_the_zone_of_a_link_local_address_is_no_part_of_it() -> None:
    assert unwrap_ipv4(ipaddress.ip_address("fe80::1%eth0")) == ipaddress.ip_address("fe80::1")


def test_a_tool_says_its_own_policy_with_its_tags() -> None:
    tool = Tool(id="tool-1", name="t", tool_type="custom", description="", json_schema={}, tags=("egress:none",))
    assert tool.egress == Egress("none")


def test_brackets_around_an_address_need_no_port() -> None:
    assert entries("[::1], [fd00::2]:80") == (Entry("::1/128"), Entry("fd00::2/128", 80))


A, B, BOTH = (Egress("allow-list", entries(text)) for text in ("a:1", "b:2", "a:1,b:2"))


@pytest.mark.parametrize(
    ("policies", "together"),
    [
        ([], None),
        ([None, Egress("all")], None),
        ([None, A], A),
        ([A, A, Egress("all")], A),
        ([A, BOTH], A),
        ([A, B], Egress("none")),
        ([A, Egress("none")], Egress("none")),
        ([A, Egress("public")], Egress("none")),
        ([Egress("public"), None], Egress("public")),
    ],
)
def test_the_strictest_of_several_policies_allows_nothing_that_one_of_them_forbids(
    policies: list[Egress | None], together: Egress | None
) -> None:
    assert strictest(policies) == together
