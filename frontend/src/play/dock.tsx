import { useMemo, useRef, useState } from "preact/hooks";
import type { JsonObject } from "../shared/json";
import { Prose } from "../shared/prose";
import { type Values, fieldsOf, parseValues } from "../shared/schema";
import { SchemaFields } from "../shared/schema_form";
import type { Call, Tool } from "./game";

/** Where the player acts: the tools, and the form of the selected one. */
export function Dock(props: {
  tools: Tool[];
  selected: number;
  onSelect: (index: number) => void;
  onCall: (call: Call) => Promise<boolean>;
}) {
  const tool = props.tools[props.selected] ?? props.tools[0];
  if (!tool) return <p class="muted">This environment offers no tools.</p>;
  return (
    <div class="stack">
      {props.tools.length > 1 && (
        <div class="segments tools" role="radiogroup" aria-label="Tool">
          {props.tools.map(({ name }, index) => (
            <label key={name}>
              <input
                type="radio"
                name="tool"
                checked={index === props.selected}
                onChange={() => props.onSelect(index)}
              />
              <span>{name}</span>
            </label>
          ))}
        </div>
      )}
      <ToolForm key={tool.name} tool={tool} onCall={props.onCall} />
    </div>
  );
}

function ToolForm(props: {
  tool: Tool;
  onCall: (call: Call) => Promise<boolean>;
}) {
  const { tool } = props;
  const fields = useMemo(() => fieldsOf(tool.inputSchema), [tool]);
  const [values, setValues] = useState<Values>({});
  const own = useRef<HTMLFormElement>(null);

  const call = async (args: JsonObject) => {
    if (await props.onCall({ tool: tool.name, args })) setValues({});
  };
  const [only] = fields;
  const isChoice = fields.length === 1 && only?.kind === "choice" && only.required;
  return (
    <form
      ref={own}
      class="stack tool-form"
      aria-label={`Tool ${tool.name}`}
      onSubmit={(event) => {
        event.preventDefault();
        if (!isChoice) void call(parseValues(fields, values));
      }}
    >
      {tool.description && <p class="muted small">{tool.description}</p>}
      {isChoice ? (
        <fieldset class="stack">
          <legend class="choice-name">
            <span class="field-name">{only.name}</span>
            <Prose text={only.description} />
          </legend>
          <div class="row">
            {only.choices.map((choice, index) => (
              <button
                key={index}
                type="button"
                class="primary"
                onClick={() => void call({ [only.name]: choice })}
              >
                {typeof choice === "string" ? choice : JSON.stringify(choice)}
              </button>
            ))}
          </div>
        </fieldset>
      ) : (
        <div class="tool-line">
          <SchemaFields
            prefix="argument"
            fields={fields}
            values={values}
            onChange={setValues}
            onEnter={() => own.current?.requestSubmit()}
          />
          <button class="primary">{tool.name}</button>
        </div>
      )}
    </form>
  );
}
