// A long list of which only what is near the screen is in the page. Heights are measured once a row has been drawn, and
// guessed before. What the reader looks at stays where it is, whatever is put above it or turns out higher than guessed.
import { html, useEffect, useLayoutEffect, useRef, useState } from "../html.js";

const GUESS_PX = 90;
const MARGIN_PX = 700; // drawn above and below what is seen
const NEAR_END_PX = 80; // who is this close to the end follows it

// Which rows to draw: around the row `anchor`, or the last ones when it is null.
export function rangeOf(heights, anchor, screenPx) {
  const last = heights.length;
  let from = anchor ?? last;
  let to = from;
  for (let px = 0; from > 0 && px < MARGIN_PX + (anchor === null ? screenPx : 0); px += heights[from]) from -= 1;
  for (let px = 0; to < last && px < screenPx + MARGIN_PX; to += 1) px += heights[to];
  return [from, to];
}

const sum = (numbers, from, to) => {
  let total = 0;
  for (let place = from; place < to; place += 1) total += numbers[place];
  return total;
};

// `items` have a `key`; `draw(item)` makes a row; `onTop` is called when the first rows are drawn; `children` come last.
export function VirtualList({ items, draw, onTop, label, head, children }) {
  const list = useRef(null);
  const rows = useRef(null);
  const known = useRef(new Map()); // measured heights, by key
  const anchor = useRef(null); // {key, top}: the first row that is seen, and where it was; null follows the end
  const [, again] = useState(0);
  const redraw = () => again((number) => number + 1);

  const heights = items.map(({ key }) => known.current.get(key) ?? GUESS_PX);
  const found = anchor.current === null ? -1 : items.findIndex(({ key }) => key === anchor.current.key);
  const place = anchor.current === null || (found < 0 && items.length) ? null : found;
  const [from, to] = rangeOf(heights, place, list.current?.clientHeight ?? 800);

  const measure = () => {
    let changed = false;
    for (const node of rows.current.children) {
      const height = node.getBoundingClientRect().height;
      if (node.dataset.key && Math.abs((known.current.get(node.dataset.key) ?? 0) - height) > 0.5) {
        known.current.set(node.dataset.key, height);
        changed = true;
      }
    }
    return changed;
  };
  const settle = () => {
    const kept = anchor.current && rows.current.querySelector(`[data-key="${CSS.escape(anchor.current.key)}"]`);
    if (kept) {
      const moved = kept.offsetTop - anchor.current.top;
      if (moved) list.current.scrollTop += moved;
      anchor.current.top = kept.offsetTop;
    } else if (!anchor.current) list.current.scrollTop = list.current.scrollHeight;
  };
  useLayoutEffect(() => {
    const changed = measure();
    settle();
    if (changed) redraw();
    if (from === 0 && items.length) onTop?.();
  });
  useEffect(() => {
    const watcher = new ResizeObserver(() => {
      if (rows.current === null) return; // another view is shown by now
      if (measure()) redraw();
      else settle();
    });
    watcher.observe(rows.current);
    watcher.observe(list.current);
    return () => watcher.disconnect();
  }, []);

  const scrolled = () => {
    if (rows.current === null) return;
    const { scrollTop, scrollHeight, clientHeight } = list.current;
    if (scrollHeight - scrollTop - clientHeight < NEAR_END_PX) anchor.current = null;
    else {
      let top = rows.current.offsetTop;
      let first = 0;
      while (first < items.length - 1 && top + heights[first] <= scrollTop) top += heights[first++];
      const node = rows.current.querySelector(`[data-key="${CSS.escape(items[first]?.key ?? "")}"]`);
      anchor.current = items.length ? { key: items[first].key, top: node?.offsetTop ?? top } : null;
    }
    redraw();
  };
  // A fold that the reader opens at the end must not be scrolled away from under the pointer.
  const clicked = (event) => {
    const row = event.target.closest?.("summary") && event.target.closest("[data-key]");
    if (row) anchor.current = { key: row.dataset.key, top: row.offsetTop };
  };
  return html`<div class="messages" ref=${list} onScroll=${scrolled} onClickCapture=${clicked} role="log" aria-label=${label} tabindex="0">
    ${head}
    <div class="rows" ref=${rows}>
      <div class="space" key="above" style=${{ height: `${sum(heights, 0, from)}px` }}></div>
      ${items.slice(from, to).map((item) => html`<div class="item" key=${item.key} data-key=${item.key}>${draw(item)}</div>`)}
      <div class="space" key="below" style=${{ height: `${sum(heights, to, items.length)}px` }}></div>
    </div>
    ${children}
  </div>`;
}
