"""What somebody finds who opens the server's address: a page in a browser, JSON for programs.

Open without a key, because a browser cannot send one; so it says nothing that the health routes do not say.
"""

from __future__ import annotations

import html
import re
from collections.abc import Mapping, Sequence
from string import Template
from typing import Final

from fastapi import Request
from starlette.responses import Response

from holdfast.api.deps import Deps
from holdfast.api.framework.routing import LazyRouter
from holdfast.api.json import json_response
from holdfast.version import API_VERSION, VERSION

router = LazyRouter(include_in_schema=False)

_POLICY: Final = "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'"
_WEIGHT: Final = re.compile(r"[01](\.[0-9]{0,3})?")
_HEADERS: Final = {"vary": "accept"}
_SUMMARY: Final = {
    "name": "holdfast",
    "holdfast_version": VERSION,
    "version": API_VERSION,
    "health": "/v1/health/",
    "docs": "/docs",
    "openapi": "/openapi.json",
}
_PAGE: Final = Template("""\
<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>Holdfast</title>
<style>
  :root { color-scheme: light dark; }
  body { font: 15px/1.5 system-ui, sans-serif; max-width: 50rem; margin: 2rem auto; padding: 0 1rem; }
  pre { font: .85rem/1.4 ui-monospace, monospace; overflow: auto; padding: .6rem; border: 1px solid #8884; }
</style>
<h1>Holdfast $version</h1>
<p>A server for stateful LLM agents. It works, and speaks the V1 REST API of Letta $api_version at
<code>$address</code>.</p>
<ul>
  <li>Is it healthy: <a href="v1/health/">/v1/health/</a>, <a href="v1/ready/">/v1/ready/</a></li>
  <li>What it understands: <a href="docs">/docs</a>, <a href="openapi.json">/openapi.json</a></li>
</ul>
$note<h2>A first agent, with curl</h2>
<pre>
curl $address/v1/agents/ -H 'Content-Type: application/json'$header \\
  -d '{"name": "scout", "memory_blocks": [{"label": "human", "value": "My name is Ada."}]}'

AGENT=agent-…  # the id that was answered
curl $address/v1/agents/$$AGENT/messages -H 'Content-Type: application/json'$header \\
  -d '{"input": "Hello!"}'
</pre>
<h2>The same in Python</h2>
<pre>
# pip install letta-client
from letta_client import Letta

client = Letta(base_url="$address"$argument)
agent = client.agents.create(name="scout", memory_blocks=[{"label": "human", "value": "My name is Ada."}])
print(client.agents.messages.create(agent.id, input="Hello!").messages[-1].content)
</pre>
<p>While no provider of models is configured, a built-in one answers that needs no network. It calls the tools that you
name (&ldquo;use roll_dice&rdquo;), remembers what you tell it to (&ldquo;remember that I like tea&rdquo;), and repeats
what else you say.</p>
</html>
""")
_KEY_NOTE: Final = "<p>This server has a key. Everything but this page and the health routes needs it.</p>\n"
_KEY_HEADER: Final = ' \\\n  -H "Authorization: Bearer $HOLDFAST_API_KEY"'
_KEY_ARGUMENT: Final = ', api_key="…"'


@router.api_route("/", methods=["GET", "HEAD"])
async def show_root(request: Request, deps: Deps) -> Response:
    if not prefers_html(request.headers.getlist("accept")):
        return json_response(_SUMMARY, headers=_HEADERS)
    page = _page(_address(request), deps.settings.api_key is not None)
    return Response(page, media_type="text/html", headers={**_HEADERS, "content-security-policy": _POLICY})


def prefers_html(accept: Sequence[str]) -> bool:
    """Browsers rank all else below HTML. Who accepts both alike, or says nothing, is taken for a program."""
    weights = _weights(",".join(accept))
    return _weight(weights, "text", "html") > _weight(weights, "application", "json")


def _page(address: str, keyed: bool) -> str:
    return _PAGE.substitute(
        version=VERSION,
        api_version=API_VERSION,
        address=html.escape(address),
        note=_KEY_NOTE if keyed else "",
        header=_KEY_HEADER if keyed else "",
        argument=_KEY_ARGUMENT if keyed else "",
    )


def _address(request: Request) -> str:
    """As the browser reached it. A proxy that ends TLS is believed, because nothing but what is shown depends on it."""
    secure = request.headers.get("x-forwarded-proto") == "https"
    return f"{'https' if secure else request.url.scheme}://{request.url.netloc}"


def _weights(accept: str) -> dict[str, float]:
    found: dict[str, float] = {}
    for part in accept.lower().split(","):
        name, *parameters = (piece.strip() for piece in part.split(";"))
        given = next((one[2:] for one in parameters if one.startswith("q=")), "1")
        found[name] = float(given) if _WEIGHT.fullmatch(given) else 0.0
    return found


def _weight(weights: Mapping[str, float], kind: str, form: str) -> float:
    names = (f"{kind}/{form}", f"{kind}/*", "*/*")
    return next((weights[name] for name in names if name in weights), 0.0)
