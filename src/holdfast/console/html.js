// Preact with htm: templates without a build step.
import htm from "./vendor/htm.mjs";
import { h } from "./vendor/preact.mjs";

export const html = htm.bind(h);
export { render } from "./vendor/preact.mjs";
export { useEffect, useLayoutEffect, useMemo, useRef, useState } from "./vendor/hooks.mjs";
export { signal } from "./vendor/signals.mjs";
