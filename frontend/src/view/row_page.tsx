import { useEffect, useState } from "preact/hooks";
import type { Json, JsonObject } from "../shared/json";
import { JsonView } from "../shared/json_view";
import { type Shortcut, useShortcuts } from "../shared/keyboard";
import { useGet } from "./api";
import { formatCount } from "./format";
import { useLibrary } from "./library";
import { MessageEntry } from "./messages";
import { link, navigate } from "./route";
import type { Message, RenderedConversation } from "./types";
import "./tokens_view.css";

const STUDENT_KEY = "ludus-student";
const SIDES = ["messages", "prompt", "completion", "chosen", "rejected"];

/** A row of a data set, as it is stored and as a student sees it. */
export function RowPage(props: { params: URLSearchParams; onShortcuts: (list: Shortcut[]) => void }) {
  const { params } = props;
  const dataset = params.get("dataset") ?? "";
  const split = params.get("split") ?? "train";
  const number = Number(params.get("number") ?? 0);
  const { state } = useLibrary();
  const trainings = state?.entries.filter((entry) => entry.kind === "training") ?? [];
  const [student, setStudent] = useState(params.get("student") ?? localStorage.getItem(STUDENT_KEY) ?? "");
  const { data, error } = useGet<JsonObject>("row", { dataset, split, number: String(number) });
  const move = (by: number) =>
    number + by >= 0 && navigate(link("row", { dataset, split, number: String(number + by), student }), { replace: true });
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
      <label class="student">
        <span class="small muted">Student: a model's folder, whose chat template is applied</span>
        <input
          class="mono"
          list="students"
          value={student}
          placeholder="models/sft"
          onChange={(event) => {
            setStudent(event.currentTarget.value);
            localStorage.setItem(STUDENT_KEY, event.currentTarget.value);
            navigate(link("row", { dataset, split, number: String(number), student: event.currentTarget.value }), { replace: true });
          }}
        />
        <datalist id="students">
          {trainings.map(({ key }) => (
            <option key={key} value={key} />
          ))}
        </datalist>
      </label>
      {student && <RenderedRow dataset={dataset} split={split} number={String(number)} student={student} />}
      {data && <Stored row={data} />}
    </main>
  );
}

/** The row under the chat template, which takes seconds the first time: a tokenizer is loaded. */
function RenderedRow(props: { dataset: string; split: string; number: string; student: string }) {
  const { data, error, stale } = useGet<RenderedConversation[]>("rendered_row", props);
  if (error) return <p class="notice bad">{error}</p>;
  if (!data) return <p class="muted">Applying the chat template of {props.student}…</p>;
  return (
    <div class="stack" aria-busy={stale}>
      {data.map((rendered) => (
        <Rendered key={rendered.name} rendered={rendered} />
      ))}
    </div>
  );
}

function Rendered({ rendered }: { rendered: RenderedConversation }) {
  return (
    <section class="card stack">
      <div class="row">
        <h2>As the student sees it{rendered.name && `: ${rendered.name}`}</h2>
        <span class="badge">{formatCount(rendered.tokens)} tokens</span>
        <span class="badge good">{formatCount(rendered.loss_tokens)} bear the loss</span>
      </div>
      {rendered.unmarked && <p class="notice">No loss mask: {rendered.unmarked}.</p>}
      <pre class="tokens">
        {rendered.spans.map((span, at) => (
          <span key={at} class={`span ${span.loss ? "loss" : ""} ${span.special ? "special" : ""}`}>
            {span.text}
          </span>
        ))}
      </pre>
    </section>
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
