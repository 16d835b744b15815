// JSON values for people: names and values in a table, long text folded, whatever is nested written as JSON.
import { html } from "../html.js";
import { Plain, visible } from "./text.js";

const LONG = 600;

const isObject = (value) => value !== null && typeof value === "object" && !Array.isArray(value);

export function Value({ value }) {
  if (value === null || value === undefined) return html`<span class="note">null</span>`;
  if (typeof value === "boolean") return html`<span class="literal">${value ? "yes" : "no"}</span>`;
  if (typeof value === "number") return html`<span class="literal">${value}</span>`;
  if (typeof value === "string") return value === "" ? html`<span class="note">empty</span>` : html`<${Plain} text=${value} limit=${LONG} />`;
  if (Array.isArray(value) && value.length > 0 && value.every((one) => ["string", "number"].includes(typeof one) && String(one).length < 60))
    return html`<span class="chips">${value.map((one) => html`<span class="chip" dir="auto">${visible(String(one))}</span>`)}</span>`;
  if (isObject(value) && Object.keys(value).length > 0 && Object.values(value).every((one) => one === null || typeof one !== "object")) return html`<${Fields} fields=${value} />`;
  return html`<${Plain} text=${JSON.stringify(value, null, 2)} limit=${LONG} />`;
}

export function Fields({ fields }) {
  return html`<table class="fields"><tbody>${Object.entries(fields).map(([name, value]) => html`
    <tr key=${name}><th scope="row">${visible(name)}</th><td><${Value} value=${value} /></td></tr>`)}</tbody></table>`;
}
