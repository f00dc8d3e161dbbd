import type { ComponentChildren } from "preact";
import { type Json, type JsonObject, isObject } from "./json";
import "./json_view.css";

const OPEN_LEVELS = 2;
const MAX_ITEMS = 200;

/** A JSON value as a tree whose objects and lists fold. */
export function JsonView({ value }: { value: Json }) {
  return (
    <div class="json">
      <Value value={value} level={0} />
    </div>
  );
}

/** The fields of an object, without the object around them. */
export function JsonFields({ value }: { value: JsonObject }) {
  return (
    <div class="json">
      {Object.entries(value).map(([name, item]) => (
        <div key={name}>
          <Value value={item} level={1} label={name} />
        </div>
      ))}
    </div>
  );
}

function Value({ value, level, label }: { value: Json; level: number; label?: string }) {
  const key = label === undefined ? null : <span class="key">{label}: </span>;
  if (Array.isArray(value) && value.length > 0) {
    return (
      <Branch head={key} size={`[${value.length}]`} level={level}>
        {value.slice(0, MAX_ITEMS).map((item, index) => (
          <li key={index}>
            <Value value={item} level={level + 1} label={String(index)} />
          </li>
        ))}
        {value.length > MAX_ITEMS && <li class="muted">… {value.length - MAX_ITEMS} more</li>}
      </Branch>
    );
  }
  if (isObject(value) && Object.keys(value).length > 0) {
    return (
      <Branch head={key} size={`{${Object.keys(value).length}}`} level={level}>
        {Object.entries(value).map(([name, item]) => (
          <li key={name}>
            <Value value={item} level={level + 1} label={name} />
          </li>
        ))}
      </Branch>
    );
  }
  const kind = typeof value === "string" ? "string" : "scalar";
  return (
    <>
      {key}
      <span class={kind}>{kind === "string" ? value : JSON.stringify(value)}</span>
    </>
  );
}

function Branch(props: {
  head: ComponentChildren;
  size: string;
  level: number;
  children: ComponentChildren;
}) {
  return (
    <details open={props.level < OPEN_LEVELS}>
      <summary>
        {props.head}
        <span class="muted">{props.size}</span>
      </summary>
      <ul>{props.children}</ul>
    </details>
  );
}
