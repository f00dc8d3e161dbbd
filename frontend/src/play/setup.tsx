import type { RefObject } from "preact";
import { useMemo, useState } from "preact/hooks";
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
};

/** The task arguments of the next game, as they are typed. */
export function useTask(schema: Schema) {
  const fields = useMemo(() => fieldsOf(schema), [schema]);
  const [values, setValues] = useState<Values>(() => toValues(fields, readAddress()));
  const takesOthers = schema.additionalProperties !== false;
  const read = (): JsonObject => {
    const others = takesOthers ? parseValues([OTHER], values)[OTHER.name] : {};
    return { ...parseValues(fields, values), ...(isObject(others) ? others : {}) };
  };
  return { fields: takesOthers ? [...fields, OTHER] : fields, values, setValues, read };
}

/** The form of a new game: seed and task arguments. */
export function Setup(props: {
  task: ReturnType<typeof useTask>;
  details: RefObject<HTMLDetailsElement | null>;
  started: boolean;
  onStart: () => void;
}) {
  const { fields, values, setValues } = props.task;
  return (
    <details class="card setup" ref={props.details} open={!props.started}>
      <summary>
        <h2>New game</h2>
      </summary>
      <form
        class="stack"
        onSubmit={(event) => {
          event.preventDefault();
          props.onStart();
        }}
      >
        {fields.length === 0 && <p class="muted">A game of this environment takes no arguments.</p>}
        <SchemaFields
          prefix="task"
          fields={fields.map((field) => (field.name === "seed" ? { ...field, placeholder: "random" } : field))}
          values={values}
          onChange={setValues}
          onEnter={props.onStart}
        />
        <div>
          <button class={props.started ? "" : "primary"}>Start</button>
        </div>
      </form>
    </details>
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
