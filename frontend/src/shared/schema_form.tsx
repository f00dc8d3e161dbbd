import { Prose } from "./prose";
import type { Field, Values } from "./schema";
import "./schema_form.css";

const MAX_SEGMENTS = 6;

interface FieldsProps {
  fields: Field[];
  values: Values;
  onChange: (values: Values) => void;
  /** Distinguishes the forms of a page from each other. */
  prefix: string;
  /** Called for Enter in a text field; Shift+Enter starts a new line. */
  onEnter: () => void;
}

/** The fields of a form that was made from a JSON schema. The form around them submits. */
export function SchemaFields({ fields, values, onChange, prefix, onEnter }: FieldsProps) {
  return (
    <div class="fields">
      {fields.map((field) => (
        <FieldInput
          key={field.name}
          field={field}
          id={`${prefix}-${field.name}`}
          value={values[field.name] ?? ""}
          onEnter={onEnter}
          onChange={(value) => onChange({ ...values, [field.name]: value })}
        />
      ))}
    </div>
  );
}

interface InputProps {
  field: Field;
  id: string;
  value: string;
  onChange: (value: string) => void;
  onEnter: () => void;
}

function FieldInput(props: InputProps) {
  const { field, id } = props;
  const label = (
    <>
      <span class="field-name">{field.name}</span>
      <Prose text={field.description} />
    </>
  );
  if (field.kind === "choice" && field.choices.length <= MAX_SEGMENTS) {
    return (
      <fieldset class="field wide">
        <legend>{label}</legend>
        <Segments {...props} />
      </fieldset>
    );
  }
  return (
    <div class={field.kind === "text" || field.kind === "json" ? "field wide" : "field"}>
      <label for={id}>{label}</label>
      <Control {...props} />
    </div>
  );
}

function Segments({ field, id, value, onChange }: InputProps) {
  return (
    <div class="segments">
      {field.choices.map((choice, index) => (
        <label key={index}>
          <input
            type="radio"
            name={id}
            value={index}
            checked={value === "" ? field.defaultChoice === index : value === String(index)}
            onChange={() => onChange(String(index))}
          />
          <span>{typeof choice === "string" ? choice : JSON.stringify(choice)}</span>
        </label>
      ))}
    </div>
  );
}

function Control({ field, id, value, onChange, onEnter }: InputProps) {
  if (field.kind === "choice") {
    return (
      <select id={id} value={value} onChange={(event) => onChange(event.currentTarget.value)}>
        <option value="">{field.placeholder || "–"}</option>
        {field.choices.map((choice, index) => (
          <option key={index} value={index}>
            {typeof choice === "string" ? choice : JSON.stringify(choice)}
          </option>
        ))}
      </select>
    );
  }
  if (field.kind === "switch") {
    const on = (value || field.placeholder) === "true";
    return (
      <input
        id={id}
        type="checkbox"
        checked={on}
        onChange={(event) => onChange(String(event.currentTarget.checked))}
       
      />
    );
  }
  const shared = { id, value, placeholder: field.placeholder, autocomplete: "off" };
  if (field.kind === "integer" || field.kind === "number") {
    // Not type=number: that hides what is not a number, and scrolling over it changes it.
    return (
      <input
        {...shared}
        inputMode={field.kind === "integer" ? "numeric" : "decimal"}
        onInput={(event) => onChange(event.currentTarget.value)}
      />
    );
  }
  return (
    <textarea
      {...shared}
      rows={1}
      class={field.kind === "json" ? "mono" : ""}
      placeholder={field.placeholder || (field.kind === "json" ? "JSON" : "")}
      spellcheck={false}
      autocapitalize="none"
      onInput={(event) => onChange(event.currentTarget.value)}
      onKeyDown={(event) => {
        if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
          event.preventDefault();
          onEnter();
        }
      }}
    />
  );
}
