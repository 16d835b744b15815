// A form made from a JSON schema. Texts, numbers, switches and choices have fields of their own; lists and objects are
// written as JSON and checked while they are written.
import { html, useState } from "../html.js";
import { visible } from "./text.js";

const MOST_CHOICES = 200;

// A schema with its references and "or null" resolved: what the field is for.
export function plainSchema(schema, root) {
  let found = schema ?? {};
  for (let depth = 0; found.$ref && depth < 10; depth += 1) {
    const steps = found.$ref.replace(/^#\//, "").split("/");
    found = { ...steps.reduce((place, step) => place?.[step], root), ...found, $ref: undefined };
  }
  const choices = (found.anyOf ?? found.oneOf)?.filter(({ type }) => type !== "null");
  if (choices?.length === 1) found = { ...plainSchema(choices[0], root), ...found, anyOf: undefined, oneOf: undefined, optional: true };
  if (Array.isArray(found.type)) found = { ...found, type: found.type.find((type) => type !== "null") };
  if (found.const !== undefined) found = { ...found, enum: [found.const] };
  return found;
}

export function kindOf(schema) {
  if (schema.enum?.length && schema.enum.length <= MOST_CHOICES) return "choice";
  if (schema.type === "boolean") return "switch";
  if (schema.type === "integer" || schema.type === "number") return "number";
  return schema.type === "string" ? "text" : "json";
}

// The value that was written, or why it cannot be one.
export function readField(schema, text, required) {
  if (text === "" || text === undefined) return required && kindOf(schema) !== "text" ? { problem: "This is required." } : { empty: true };
  const kind = kindOf(schema);
  if (kind === "choice") return { value: schema.enum[Number(text)] };
  if (kind === "switch") return { value: text === "true" };
  if (kind === "number") return readNumber(schema, text);
  if (kind === "text") return readText(schema, text);
  return readJson(schema, text);
}

function readNumber(schema, text) {
  const value = Number(text);
  if (text.trim() === "" || !Number.isFinite(value)) return { problem: "This is not a number." };
  if (schema.type === "integer" && !Number.isInteger(value)) return { problem: "This is not a whole number." };
  if (value < (schema.minimum ?? -Infinity)) return { problem: `At least ${schema.minimum}.` };
  if (value > (schema.maximum ?? Infinity)) return { problem: `At most ${schema.maximum}.` };
  return { value };
}

function readText(schema, text) {
  if (text.length < (schema.minLength ?? 0)) return { problem: `At least ${schema.minLength} characters.` };
  if (text.length > (schema.maxLength ?? Infinity)) return { problem: `At most ${schema.maxLength} characters.` };
  return { value: text };
}

function readJson(schema, text) {
  let value;
  try {
    value = JSON.parse(text);
  } catch (error) {
    return { problem: `This is not JSON: ${error.message}` };
  }
  if (schema.type === "array" && !Array.isArray(value)) return { problem: 'A list is wanted, such as ["a", "b"].' };
  if (schema.type === "object" && (value === null || typeof value !== "object" || Array.isArray(value))) return { problem: 'An object is wanted, such as {"name": "value"}.' };
  return { value };
}

// Every field, with what was written for it: {values, problems}.
export function readForm(schema, texts) {
  const required = new Set(schema.required ?? []);
  const values = {};
  const problems = {};
  for (const [name, given] of Object.entries(schema.properties ?? {})) {
    const field = plainSchema(given, schema);
    const { value, problem, empty } = readField(field, texts[name], required.has(name));
    if (problem) problems[name] = problem;
    else if (!empty) values[name] = value;
    else if (required.has(name)) values[name] = "";
  }
  return { values, problems };
}

const EXAMPLES = { array: '["a", "b"]', object: '{"name": "value"}' };

function Field({ name, schema, required, text, problem, change, id }) {
  const kind = kindOf(schema);
  const shared = {
    id, value: text ?? "", "aria-invalid": problem ? "true" : undefined, "aria-describedby": `${id}-about`, "aria-required": required ? "true" : undefined,
    onInput: (event) => change(event.target.value),
  };
  const input = () => {
    if (kind === "choice") return html`<select ...${shared}><option value="">${required ? "Choose …" : "not set"}</option>${schema.enum.map((one, place) => html`<option value=${String(place)}>${String(one)}</option>`)}</select>`;
    if (kind === "switch") return html`<select ...${shared}><option value="">${required ? "Choose …" : "not set"}</option><option value="true">yes</option><option value="false">no</option></select>`;
    if (kind === "number") return html`<input ...${shared} inputmode=${schema.type === "integer" ? "numeric" : "decimal"} placeholder=${schema.default ?? ""} />`;
    if (kind === "text" && !schema.multiline) return html`<input ...${shared} placeholder=${schema.default ?? ""} />`;
    return html`<textarea ...${shared} rows=${kind === "text" ? 3 : 2} class=${kind === "json" ? "code" : ""} placeholder=${EXAMPLES[schema.type] ?? schema.default ?? ""}></textarea>`;
  };
  const type = kind === "json" ? `${schema.type ?? "any"}, as JSON` : schema.type ?? "";
  return html`<div class="field"><label for=${id}>${visible(schema.title && schema.named ? schema.title : name)}${required && html`<b class="required" title="required"> *</b>`} <span class="note">${type}</span></label>
    ${input()}
    <p class="note about" id=${`${id}-about`}>${problem && text ? html`<span class="wrong" role="alert">${problem}</span> ` : ""}${visible(schema.description ?? "")}</p></div>`;
}

let forms = 0;

// How values are written in the form's fields.
export function textsOf(schema, values) {
  const texts = {};
  for (const [name, given] of Object.entries(schema.properties ?? {})) {
    const value = values?.[name];
    if (value === undefined || value === null) continue;
    const field = plainSchema(given, schema);
    const kind = kindOf(field);
    texts[name] = kind === "choice" ? String(field.enum.indexOf(value)) : kind === "json" ? JSON.stringify(value) : String(value);
  }
  return texts;
}

// `submit(values)` is called with what was written, once all of it can be read. `initial` values are there at first.
export function SchemaForm({ schema, action, submit, busy, initial, primary = true }) {
  const [texts, setTexts] = useState(() => textsOf(schema, initial));
  const [pressed, setPressed] = useState(false);
  const [number] = useState(() => (forms += 1));
  const required = new Set(schema.required ?? []);
  const { values, problems } = readForm(schema, texts);
  const send = (event) => {
    event.preventDefault();
    setPressed(true);
    if (!Object.keys(problems).length) submit(values);
  };
  const names = Object.keys(schema.properties ?? {});
  return html`<form class="schema-form" onSubmit=${send}>
    ${names.length === 0 && html`<p class="note">It takes no arguments.</p>`}
    ${names.map((name) => html`<${Field} key=${name} id=${`form${number}-${name}`} name=${name} schema=${plainSchema(schema.properties[name], schema)} required=${required.has(name)}
      text=${texts[name]} problem=${problems[name]} change=${(text) => setTexts({ ...texts, [name]: text })} />`)}
    ${pressed && Object.keys(problems).length > 0 && html`<p class="wrong" role="alert">${Object.entries(problems).map(([name, problem]) => `${name}: ${problem}`).join(" ")}</p>`}
    <button class=${primary ? "primary" : ""} disabled=${busy}>${action}</button>
  </form>`;
}
