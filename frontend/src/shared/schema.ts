import { type Json, type JsonObject, isObject } from "./json";

/** The part of JSON Schema that forms are made from. */
export interface Schema {
  type?: string | string[];
  description?: string;
  default?: Json;
  enum?: Json[];
  const?: Json;
  anyOf?: Schema[];
  oneOf?: Schema[];
  allOf?: Schema[];
  items?: Schema;
  properties?: Record<string, Schema>;
  required?: string[];
  additionalProperties?: boolean | Schema;
  minimum?: number;
  maximum?: number;
  $ref?: string;
  $defs?: Record<string, Schema>;
}

/** How a value is typed: as text, a number, a choice, on or off, or JSON. */
export type FieldKind = "text" | "integer" | "number" | "choice" | "switch" | "json";

export interface Field {
  name: string;
  kind: FieldKind;
  description: string;
  required: boolean;
  /** The default as it would be typed; empty without one. */
  placeholder: string;
  choices: Json[];
  /** The position of the default among the choices; -1 without one. */
  defaultChoice: number;
}

/** What the user typed, by field. */
export type Values = Record<string, string>;

/** The fields of an object schema, in their order. */
export function fieldsOf(schema: Schema): Field[] {
  const required = new Set(schema.required ?? []);
  return Object.entries(schema.properties ?? {}).map(([name, property]) => {
    const resolved = simplify(property, schema.$defs ?? {});
    const kind = kindOf(resolved);
    return {
      name,
      kind,
      description: property.description ?? resolved.description ?? "",
      required: required.has(name),
      placeholder: toText(property.default ?? null),
      choices: resolved.enum ?? [],
      defaultChoice: (resolved.enum ?? []).indexOf(property.default ?? null),
    };
  });
}

/** Resolve references, and drop `null` from unions: an empty field is left out. */
function simplify(schema: Schema, definitions: Record<string, Schema>): Schema {
  if (schema.$ref) {
    const target = definitions[schema.$ref.split("/").pop() ?? ""];
    return target ? simplify({ ...target, ...without(schema, "$ref") }, definitions) : {};
  }
  if (schema.allOf?.length === 1) {
    return simplify({ ...schema.allOf[0], ...without(schema, "allOf") }, definitions);
  }
  const variants = (schema.anyOf ?? schema.oneOf ?? []).filter(({ type }) => type !== "null");
  if (variants.length === 1) return simplify(variants[0]!, definitions);
  if (Array.isArray(schema.type)) {
    const types = schema.type.filter((type) => type !== "null");
    return types.length === 1 ? { ...schema, type: types[0]! } : without(schema, "type");
  }
  if (schema.const !== undefined) return { ...schema, enum: [schema.const] };
  return schema;
}

function without(schema: Schema, key: keyof Schema): Schema {
  const { [key]: _, ...rest } = schema;
  return rest;
}

function kindOf(schema: Schema): FieldKind {
  if (schema.enum) return "choice";
  switch (schema.type) {
    case "string":
      return "text";
    case "integer":
      return "integer";
    case "number":
      return "number";
    case "boolean":
      return "switch";
    default:
      return "json";
  }
}

function toText(value: Json): string {
  if (value === null) return "";
  return typeof value === "string" ? value : JSON.stringify(value);
}

/**
 * The arguments that were typed. Empty fields are left out, unless they are required texts. What is
 * not a number where one is expected is sent as text: the server then says what is wrong with it, as
 * it would to an agent.
 */
export function parseValues(fields: Field[], values: Values): JsonObject {
  const parsed: JsonObject = {};
  for (const field of fields) {
    const typed = values[field.name] ?? "";
    if (typed !== "" || (field.required && field.kind === "text")) {
      parsed[field.name] = parseValue(field, typed);
    }
  }
  return parsed;
}

function parseValue(field: Field, typed: string): Json {
  if (field.kind === "text") return typed;
  if (field.kind === "choice") return field.choices[Number(typed)] ?? typed;
  try {
    return JSON.parse(typed) as Json;
  } catch {
    return typed;
  }
}

/** What would have to be typed for these arguments. */
export function toValues(fields: Field[], values: JsonObject): Values {
  const typed: Values = {};
  for (const { name, kind, choices } of fields) {
    const value = values[name];
    if (value === undefined) continue;
    typed[name] = kind === "choice" ? String(choices.indexOf(value)) : toText(value);
  }
  return typed;
}

export function asSchema(value: unknown): Schema {
  return isObject(value) ? (value as Schema) : {};
}
