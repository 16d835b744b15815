// How numbers, times and JSON are shown.
export function ago(text) {
  const seconds = (Date.now() - Date.parse(text)) / 1000;
  if (!Number.isFinite(seconds)) return "";
  for (const [size, unit] of [[86400, "d"], [3600, "h"], [60, "min"]]) if (seconds >= size) return `${Math.floor(seconds / size)} ${unit} ago`;
  return seconds < 2 ? "now" : `${Math.floor(seconds)} s ago`;
}

export function duration(ns) {
  if (ns == null) return "–";
  const ms = ns / 1e6;
  if (ms < 1000) return `${ms < 10 ? ms.toFixed(1) : Math.round(ms)} ms`;
  return ms < 60000 ? `${(ms / 1000).toFixed(1)} s` : `${Math.floor(ms / 60000)} min ${Math.round((ms % 60000) / 1000)} s`;
}

export const count = (number) => (number == null ? "–" : number.toLocaleString("en"));
export const money = (usd) => (usd == null ? "–" : usd === 0 ? "$0" : usd < 0.01 ? `$${usd.toFixed(5)}` : `$${usd.toFixed(2)}`);
export const time = (text) => (text ? new Date(text).toLocaleString() : "–");
export const shortId = (id) => (id ? id.replace(/^([a-z]+-[0-9a-f]{8}).*/, "$1") : "–");

export function parsed(text) {
  try {
    const value = JSON.parse(text);
    return value && typeof value === "object" && !Array.isArray(value) ? value : null;
  } catch {
    return null;
  }
}

export function pretty(text) {
  try {
    return JSON.stringify(JSON.parse(text), null, 2);
  } catch {
    return text;
  }
}
