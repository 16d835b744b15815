// A model's text as HTML: Markdown, then cleaned. It may hold anything, and is never trusted.
import { html, useMemo } from "../html.js";
import { Marked } from "../vendor/marked.mjs";
import DOMPurify from "../vendor/purify.mjs";
import { LONGEST, visible } from "./text.js";

const ESCAPES = { "&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;" };
// HTML in a model's text is shown as text, so that none of it is ever parsed.
const marked = new Marked({ gfm: true, breaks: true, renderer: { html: ({ text }) => text.replace(/[&<>"]/g, (found) => ESCAPES[found]) } });
const ALLOWED = {
  ALLOWED_TAGS: ["p", "br", "em", "strong", "del", "code", "pre", "ul", "ol", "li", "blockquote", "h1", "h2", "h3", "h4", "h5", "h6",
    "table", "thead", "tbody", "tr", "th", "td", "hr", "a"],
  ALLOWED_ATTR: ["href"],
  ALLOWED_URI_REGEXP: /^(?:https?|mailto):/i,
};

DOMPurify.addHook("afterSanitizeAttributes", (node) => {
  if (node.tagName === "A") {
    node.setAttribute("target", "_blank");
    node.setAttribute("rel", "noopener noreferrer nofollow");
  }
});

export function Markdown({ text }) {
  const shown = useMemo(() => DOMPurify.sanitize(marked.parse(visible(text.slice(0, LONGEST))), ALLOWED), [text]);
  return html`<div class="markdown" dir="auto" dangerouslySetInnerHTML=${{ __html: shown }}></div>
    ${text.length > LONGEST && html`<p class="note">${(text.length - LONGEST).toLocaleString("en")} more characters are not shown.</p>`}`;
}
