"""The tools `fetch_webpage` and `web_search`, as they run in the child. The egress policy says what they reach."""

from __future__ import annotations

import importlib
import json
import os
import urllib.error
import urllib.parse
import urllib.request
from typing import Any, Final

from holdfast.tools.sandbox.web_pages import charset_of, html_text, unpacked

_TIMEOUT_S: Final = 30.0
_MOST_BYTES: Final = 5 * 1024 * 1024
_EXTRACTOR: Final = "trafilatura"
_KEY: Final = "EXA_API_KEY"
_SEARCH_URL: Final = "https://api.exa.ai"
_MOST_RESULTS: Final = 25


def fetch_webpage(url: str) -> str:
    if urllib.parse.urlsplit(url).scheme not in ("http", "https"):
        raise ValueError(f"only http and https addresses can be fetched, not {url!r}")
    request = urllib.request.Request(
        url, headers={"User-Agent": "holdfast", "Accept": "text/html, text/*;q=0.9, */*;q=0.1"}
    )
    content_type, charset, body = _read(request)
    if not (content_type.startswith("text/") or content_type.endswith(("json", "xml", "javascript"))):
        raise ValueError(f"the page is {content_type}, which cannot be read as text")
    text = body.decode(charset, errors="replace")
    return page_text(text, url) if content_type in ("text/html", "application/xhtml+xml") else text


def web_search(
    query: str,
    num_results: int = 10,
    category: str | None = None,
    include_text: bool = False,
    include_domains: list[str] | None = None,
    exclude_domains: list[str] | None = None,
    start_published_date: str | None = None,
    end_published_date: str | None = None,
    user_location: str | None = None,
) -> str:
    key = os.environ.get(_KEY)
    if not key:
        raise ValueError(f"{_KEY} is not set. Give the agent a secret of that name: a key of exa.ai.")
    asked: dict[str, Any] = {
        "query": query,
        "numResults": max(1, min(num_results, _MOST_RESULTS)),
        "category": category,
        "includeDomains": include_domains,
        "excludeDomains": exclude_domains,
        "startPublishedDate": start_published_date,
        "endPublishedDate": end_published_date,
        "userLocation": user_location,
        "contents": {"text": include_text, "highlights": True, "summary": True},
    }
    body = json.dumps({name: value for name, value in asked.items() if value is not None}).encode()
    address = os.environ.get("EXA_BASE_URL", _SEARCH_URL).rstrip("/") + "/search"
    headers = {"x-api-key": key, "Content-Type": "application/json", "User-Agent": "holdfast"}
    _, _, answer = _read(urllib.request.Request(address, data=body, headers=headers))
    found: list[dict[str, Any]] = json.loads(answer).get("results") or []
    return json.dumps({"query": query, "results": [_result(each) for each in found]}, ensure_ascii=False)


def page_text(source: str, url: str) -> str:
    """What a page is about, as Markdown and without menus and the like, if the extra `web` is installed and finds it;
    otherwise all that the page says."""
    try:
        extractor: Any = importlib.import_module(_EXTRACTOR)
    except ModuleNotFoundError as missing:
        if missing.name != _EXTRACTOR:
            raise
        return html_text(source)
    found = extractor.extract(source, url=url, output_format="markdown", include_links=True, favor_recall=True)
    return found or html_text(source)


def _read(request: urllib.request.Request) -> tuple[str, str, bytes]:
    """The media type, the character set and the content."""
    try:
        with urllib.request.urlopen(request, timeout=_TIMEOUT_S) as answer:
            body: bytes = answer.read(_MOST_BYTES + 1)
            headers = answer.headers
    except urllib.error.HTTPError as refused:
        raise ValueError(f"{refused.url} answered {refused.code} {refused.reason}") from refused
    body = unpacked(body, str(headers.get("Content-Encoding") or "").strip().lower(), _MOST_BYTES)
    if len(body) > _MOST_BYTES:
        raise ValueError(f"the answer has more than {_MOST_BYTES} bytes, the most that is read")
    return headers.get_content_type(), charset_of(body, headers.get_content_charset()), body


def _result(found: dict[str, Any]) -> dict[str, Any]:
    shown = {name: found.get(name) for name in ("title", "url")}
    shown |= {"published_date": found.get("publishedDate"), "author": found.get("author")}
    return shown | {name: found[name] for name in ("text", "highlights", "summary") if found.get(name)}
