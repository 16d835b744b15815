// Text as it is: of a model, a tool or a user, never as HTML.
import { html } from "../html.js";

export const LONGEST = 200_000;
// Zero-width and direction-changing characters can make text look like something else.
const INVISIBLE = /[\u200b-\u200f\u202a-\u202e\u2060-\u2069\ufeff]/g;

export const visible = (text) => text.replace(INVISIBLE, (found) => `⟨U+${found.codePointAt(0).toString(16).toUpperCase()}⟩`);

// With a limit that one click lifts.
export function Plain({ text, limit = 4000 }) {
  const cut = text.length > limit;
  return cut
    ? html`<details class="long"><summary><pre dir="auto">${visible(text.slice(0, limit))}</pre><span class="note">${(text.length - limit).toLocaleString("en")} more characters</span></summary><pre dir="auto">${visible(text.slice(limit, limit + LONGEST))}</pre></details>`
    : html`<pre dir="auto">${visible(text)}</pre>`;
}
