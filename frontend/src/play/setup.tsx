import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import { type JsonObject, isObject } from "../shared/json";
import { type Field, type Schema, type Values, fieldsOf, parseValues, toValues } from "../shared/schema";
import { SchemaFields } from "../shared/schema_form";

const OTHER: Field = {
  name: "other arguments",
  kind: "json",
  description: "Further arguments of the reset, as a JSON object.",
  required: false,
  placeholder: "",
  choices: [],
  defaultChoice: -1,
};

/** The task arguments of the next game, as they are typed. */
export function useTask(schema: Schema) {
  const fields = useMemo(() => fieldsOf(schema), [schema]);
  const [values, setValues] = useState<Values>(() => toValues(fields, readAddress()));
  useEffect(() => {
    // The user opened a link to another task in this tab.
    const reload = () => location.reload();
    addEventListener("hashchange", reload);
    return () => removeEventListener("hashchange", reload);
  }, []);
  const takesOthers = schema.additionalProperties !== false;
  const read = (): JsonObject => {
    const others = takesOthers ? (parseValues([OTHER], values)[OTHER.name] ?? {}) : {};
    if (!isObject(others)) throw new Error('Other arguments must be a JSON object, such as {"size": 3}.');
    return { ...parseValues(fields, values), ...others };
  };
  /** The next game gets another seed; "Repeat" is for the same one. */
  const clearSeed = () => setValues((current) => ({ ...current, seed: "" }));
  return { fields: takesOthers ? [...fields, OTHER] : fields, values, setValues, read, clearSeed };
}

/** The form of a new game: the seed, and the other task arguments, which are folded. */
export function Setup(props: {
  task: ReturnType<typeof useTask>;
  onStart: () => void;
  /** Back to the game that is going on; null where there is none. */
  onCancel: (() => void) | null;
}) {
  const { fields, values, setValues } = props.task;
  const form = useRef<HTMLFormElement>(null);
  const button = useRef<HTMLButtonElement>(null);
  // Not by the attribute: browsers heed only the first one of a document.
  useEffect(() => button.current?.focus({ preventScroll: true }), []);
  const seed = fields.filter(({ name }) => name === "seed");
  const others = fields.filter(({ name, required }) => name !== "seed" && !required);
  const required = fields.filter(({ name, required }) => name !== "seed" && required);
  const shared = { prefix: "task", values, onChange: setValues, onEnter: () => form.current?.requestSubmit() };
  return (
    <form
      class="stack"
      ref={form}
      aria-label="New game"
      onSubmit={(event) => {
        event.preventDefault();
        props.onStart();
      }}
    >
      {required.length > 0 && <SchemaFields fields={required} {...shared} />}
      <div class="start-line">
        <SchemaFields fields={seed.map((field) => ({ ...field, placeholder: "random" }))} {...shared} />
        <button class="primary start" ref={button}>
          Start
        </button>
        {props.onCancel && (
          <button type="button" onClick={props.onCancel}>
            Cancel
          </button>
        )}
      </div>
      {others.length > 0 && (
        <details open={others.some(({ name }) => values[name])}>
          <summary class="muted small">Task arguments: {others.map(({ name }) => name).join(", ")}</summary>
          <SchemaFields fields={others} {...shared} />
        </details>
      )}
    </form>
  );
}

/** The task in the address of the page, so that a game can be shared as a link. */
function readAddress(): JsonObject {
  try {
    const task: unknown = JSON.parse(new URLSearchParams(location.hash.slice(1)).get("task") ?? "{}");
    return isObject(task) ? task : {};
  } catch {
    return {};
  }
}

export function writeAddress(task: JsonObject): void {
  history.replaceState(null, "", `#${new URLSearchParams({ task: JSON.stringify(task) })}`);
}
