import type { Json, JsonObject } from "../shared/json";
import { isObject } from "../shared/json";
import type { Schema } from "../shared/schema";

/** One route of the server. */
export interface Operation {
  method: string;
  path: string;
  summary: string;
  parameters: { name: string; in: string; required: boolean }[];
  /** The schema of the JSON body; null where there is none. */
  body: Schema | null;
}

interface OpenApiOperation {
  summary?: string;
  description?: string;
  parameters?: { name: string; in: string; required?: boolean }[];
  requestBody?: { content?: Record<string, { schema?: Schema }> };
}

export interface OpenApi {
  info: { title: string; description?: string; version: string };
  paths: Record<string, Record<string, OpenApiOperation>>;
  components?: { schemas?: Record<string, Schema> };
}

export function listOperations(document: OpenApi): Operation[] {
  const definitions = document.components?.schemas ?? {};
  return Object.entries(document.paths).flatMap(([path, methods]) =>
    Object.entries(methods).map(([method, operation]) => ({
      method: method.toUpperCase(),
      path,
      summary: operation.description ?? operation.summary ?? "",
      parameters: (operation.parameters ?? [])
        .filter((parameter) => parameter.in === "path" || parameter.in === "query")
        .map((parameter) => ({ ...parameter, required: parameter.required ?? false })),
      body: resolve(operation.requestBody?.content?.["application/json"]?.schema, definitions),
    })),
  );
}

function resolve(schema: Schema | undefined, definitions: Record<string, Schema>): Schema | null {
  if (!schema?.$ref) return schema ?? null;
  return definitions[schema.$ref.split("/").pop() ?? ""] ?? null;
}

/** A body to begin with: the required fields. */
export function exampleBody(schema: Schema): JsonObject {
  const required = new Set(schema.required ?? []);
  const fields = Object.entries(schema.properties ?? {}).filter(([name]) => required.has(name));
  return Object.fromEntries(fields.map(([name, field]) => [name, exampleValue(field)]));
}

function exampleValue(schema: Schema): Json {
  if (schema.default !== undefined) return schema.default;
  if (schema.enum?.length) return schema.enum[0]!;
  if (isObject(schema.properties)) return exampleBody(schema);
  const examples: Record<string, Json> = { string: "", integer: 0, number: 0, boolean: false, array: [] };
  return examples[String(schema.type)] ?? {};
}

export function buildPath(operation: Operation, values: Record<string, string>): string {
  let path = operation.path;
  const query = new URLSearchParams();
  for (const { name, in: place } of operation.parameters) {
    const value = values[name] ?? "";
    if (place === "path") path = path.replace(`{${name}}`, encodeURIComponent(value));
    else if (value) query.set(name, value);
  }
  const suffix = query.size > 0 ? `?${query}` : "";
  // Relative to this page, which may stand behind the prefix of a proxy.
  return `.${path}${suffix}`;
}
