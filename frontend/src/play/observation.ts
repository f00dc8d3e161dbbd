import { type Json, type JsonObject, isObject } from "../shared/json";

/** An observation for people: its text, its images, and its other fields. */
export interface ObservationView {
  text: string;
  images: string[];
  fields: JsonObject;
  error: string | null;
}

// The order is that of the rendering for models, but nothing is hidden except for repetitions.
const MAIN_FIELDS = ["text", "question", "prompt", "message", "echoed_message", "scene_description"];
const LEADING_FIELDS = ["goal", "instruction", "error"];
const IMAGE_TYPE = /^image\/(png|jpeg|gif|webp|bmp|avif|svg\+xml)$/;
const DATA_URL = /^data:image\/(png|jpeg|gif|webp|bmp|avif|svg\+xml);base64,/;
const BASE64_STARTS: [string, string][] = [
  ["iVBORw0KGgo", "image/png"],
  ["/9j/", "image/jpeg"],
  ["R0lGOD", "image/gif"],
  ["UklGR", "image/webp"],
];
const MIN_BASE64_CHARS = 64;
const MIN_REPEATED_CHARS = 40;

export function viewObservation(observation: JsonObject): ObservationView {
  const view: ObservationView = { text: "", images: [], fields: {}, error: errorOf(observation) };
  if ("tool_name" in observation && "result" in observation) {
    const { tool_name: _name, result, error: _error, metadata: _metadata, ...rest } = observation;
    showResult(result ?? null, view);
    showFields(rest, view);
    return view;
  }
  const { metadata: _metadata, content, ...rest } = observation;
  const main = MAIN_FIELDS.find((name) => typeof rest[name] === "string" && rest[name] !== "");
  if (Array.isArray(content) && content.length > 0) showBlocks(content, view);
  else if (main) view.text = rest[main] as string;
  const leading = LEADING_FIELDS.filter((name) => typeof rest[name] === "string" && rest[name] !== "");
  view.text = [...leading.map((name) => `${name}: ${rest[name]}`), view.text].filter(Boolean).join("\n\n");
  for (const name of main ? [main, ...leading] : leading) delete rest[name];
  showFields(rest, view);
  if (view.error && view.text === `Error: ${view.error}`) view.text = "";
  return view;
}

function errorOf({ error, metadata }: JsonObject): string | null {
  for (const fault of [error, isObject(metadata) ? metadata.error : null]) {
    if (isObject(fault) && typeof fault.message === "string") return fault.message;
  }
  return null;
}

function showResult(result: Json, view: ObservationView): void {
  if (isObject(result) && Array.isArray(result.content)) showBlocks(result.content, view);
  else if (typeof result === "string" && !imageUrl(result)) view.text = result;
  else if (result !== null) showFields({ result }, view);
}

/** MCP's content blocks: text and images. */
function showBlocks(blocks: Json[], view: ObservationView): void {
  const texts: string[] = [];
  for (const block of blocks.filter(isObject)) {
    const type = String(block.mimeType ?? block.mime_type ?? "image/png");
    if (typeof block.text === "string") texts.push(block.text);
    else if (typeof block.data === "string" && IMAGE_TYPE.test(type)) {
      view.images.push(`data:${type};base64,${block.data}`);
    }
  }
  view.text = texts.join("\n");
}

function showFields(fields: JsonObject, view: ObservationView): void {
  for (const [name, value] of Object.entries(fields)) {
    const image = typeof value === "string" ? imageUrl(value) : null;
    if (image) view.images.push(image);
    else if (!isEmpty(value) && !isRepeated(value, view.text)) view.fields[name] = value;
  }
}

function isEmpty(value: Json): boolean {
  if (value === null || value === "") return true;
  return typeof value === "object" && Object.keys(value).length === 0;
}

/** Whether a long text is part of another one; "JSON" shows it all the same. */
function isRepeated(value: Json, text: string): boolean {
  return typeof value === "string" && value.length >= MIN_REPEATED_CHARS && text.includes(value);
}

function imageUrl(text: string): string | null {
  if (DATA_URL.test(text)) return text;
  if (text.length < MIN_BASE64_CHARS) return null;
  const start = BASE64_STARTS.find(([prefix]) => text.startsWith(prefix));
  return start && /^[A-Za-z0-9+/=\s]+$/.test(text) ? `data:${start[1]};base64,${text}` : null;
}
