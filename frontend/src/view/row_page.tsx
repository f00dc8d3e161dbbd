import { useEffect } from "preact/hooks";
import type { Json, JsonObject } from "../shared/json";
import { JsonView } from "../shared/json_view";
import { type Shortcut, useShortcuts } from "../shared/keyboard";
import { useGet } from "./api";
import { formatCount } from "./format";
import { MessageEntry } from "./messages";
import { link, navigate } from "./route";
import type { Message } from "./types";

const SIDES = ["messages", "prompt", "completion", "chosen", "rejected"];

/** A row of a data set, as it is stored. */
export function RowPage(props: { params: URLSearchParams; onShortcuts: (list: Shortcut[]) => void }) {
  const { params } = props;
  const dataset = params.get("dataset") ?? "";
  const split = params.get("split") ?? "train";
  const number = Number(params.get("number") ?? 0);
  const { data, error } = useGet<JsonObject>("row", { dataset, split, number: String(number) });
  const move = (by: number) =>
    number + by >= 0 && navigate(link("row", { dataset, split, number: String(number + by) }), { replace: true });
  const shortcuts: Shortcut[] = [
    { key: "j", label: "Next row", run: () => move(1) },
    { key: "k", label: "Previous row", run: () => move(-1) },
    { key: "Escape", label: "Back to the data set", run: () => navigate(link("dataset", { key: dataset, split })) },
  ];
  useShortcuts(shortcuts);
  useEffect(() => props.onShortcuts(shortcuts), []);
  return (
    <main class="page">
      <header class="row">
        <a class="button quiet" href={link("dataset", { key: dataset, split })}>
          ← {dataset}
        </a>
        <h1>
          Row {formatCount(number)} <span class="muted">of {split}</span>
        </h1>
        <span class="spacer" />
        <button type="button" disabled={number === 0} onClick={() => move(-1)}>
          ↑ <kbd>k</kbd>
        </button>
        <button type="button" onClick={() => move(1)}>
          ↓ <kbd>j</kbd>
        </button>
      </header>
      {error && <p class="notice bad">{error}</p>}
      {data && <Stored row={data} />}
    </main>
  );
}

function Stored({ row }: { row: JsonObject }) {
  const others = Object.fromEntries(Object.entries(row).filter(([name]) => !SIDES.includes(name)));
  return (
    <>
      {SIDES.filter((side) => Array.isArray(row[side])).map((side) => (
        <section key={side} class="stack">
          <h2>{side}</h2>
          <ol class="transcript">
            {(row[side] as unknown as Message[]).map((message, at) => (
              <MessageEntry key={at} message={message} note={message.weight === 0 ? "no loss" : ""} />
            ))}
          </ol>
        </section>
      ))}
      <details class="card">
        <summary>Other columns</summary>
        <JsonView value={others as Json} />
      </details>
    </>
  );
}
