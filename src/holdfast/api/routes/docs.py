"""A page that shows the API from /openapi.json. Self-contained: it works without the internet and loads nothing."""

from __future__ import annotations

from typing import Final

from starlette.responses import Response

from holdfast.api.framework.routing import LazyRouter

router = LazyRouter(include_in_schema=False)

_POLICY: Final = "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; connect-src 'self'"
_PAGE: Final = b"""<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>Holdfast API</title>
<style>
  :root { color-scheme: light dark; }
  body { font: 15px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; }
  input { font: inherit; width: 100%; padding: .4rem .6rem; box-sizing: border-box; }
  h2 { margin: 2rem 0 .5rem; font-size: 1.1rem; }
  summary { cursor: pointer; padding: .2rem 0; }
  summary b { display: inline-block; width: 4.5rem; font: 600 .8rem ui-monospace, monospace; }
  code, pre { font: .85rem/1.4 ui-monospace, monospace; }
  pre { overflow: auto; max-height: 24rem; padding: .6rem; border: 1px solid #8884; border-radius: 4px; }
  p { margin: .3rem 0 .3rem 4.5rem; }
</style>
<h1>Holdfast API</h1>
<p style="margin-left:0">The machine-readable form is at <a href="openapi.json">openapi.json</a>.</p>
<input id="filter" type="search" placeholder="Filter by path or method" aria-label="Filter">
<main id="list">Loading\xe2\x80\xa6</main>
<script>
const make = (tag, text) => Object.assign(document.createElement(tag), { textContent: text ?? "" });
const resolve = (spec, node, depth = 0) => {
  if (Array.isArray(node)) return node.map(item => resolve(spec, item, depth));
  if (node === null || typeof node !== "object") return node;
  if (node.$ref) {
    const name = node.$ref.split("/").pop();
    return depth > 3 ? name : resolve(spec, spec.components.schemas[name], depth + 1);
  }
  return Object.fromEntries(Object.entries(node).map(([key, value]) => [key, resolve(spec, value, depth)]));
};
const operation = (spec, path, method, about) => {
  const box = make("details"), head = make("summary");
  head.append(make("b", method.toUpperCase()), make("code", path));
  box.append(head);
  box.dataset.words = (method + " " + path).toLowerCase();
  box.addEventListener("toggle", () => {
    if (box.childElementCount > 1) return;
    if (about.description) box.append(make("p", about.description));
    for (const parameter of about.parameters ?? []) {
      const line = make("p");
      line.append(make("code", parameter.name), " (" + parameter.in + (parameter.required ? ", required" : "") + ") " +
        (parameter.description ?? ""));
      box.append(line);
    }
    for (const [type, body] of Object.entries(about.requestBody?.content ?? {})) {
      box.append(make("p", "Body, " + type), make("pre", JSON.stringify(resolve(spec, body.schema), null, 2)));
    }
  });
  return box;
};
const show = spec => {
  const list = document.getElementById("list"), groups = new Map();
  list.textContent = "";
  for (const [path, methods] of Object.entries(spec.paths)) {
    for (const [method, about] of Object.entries(methods)) {
      const tag = about.tags?.[0] ?? "other";
      if (!groups.has(tag)) groups.set(tag, list.appendChild(make("section"))).get(tag).append(make("h2", tag));
      groups.get(tag).append(operation(spec, path, method, about));
    }
  }
  document.getElementById("filter").addEventListener("input", event => {
    const words = event.target.value.toLowerCase();
    for (const box of list.querySelectorAll("details")) box.hidden = !box.dataset.words.includes(words);
  });
};
fetch("openapi.json").then(answer => answer.json()).then(show, error => {
  document.getElementById("list").textContent = "The description could not be loaded: " + error;
});
</script>
</html>
"""


@router.get("/docs")
async def show_docs() -> Response:
    return Response(_PAGE, media_type="text/html", headers={"content-security-policy": _POLICY})
