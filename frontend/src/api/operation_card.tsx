import { useState } from "preact/hooks";
import { JsonView } from "../shared/json_view";
import type { Json } from "../shared/json";
import { Prose } from "../shared/prose";
import { request } from "../shared/server";
import { type Operation, buildPath, exampleBody } from "./openapi";

interface Reply {
  status: string;
  ok: boolean;
  json: Json | undefined;
  text: string;
}

/** A route: what it does, and a form that sends a request to it. */
export function OperationCard({ operation }: { operation: Operation }) {
  const { method, path, parameters, body } = operation;
  const [values, setValues] = useState<Record<string, string>>({});
  const [typed, setTyped] = useState(body ? JSON.stringify(exampleBody(body), null, 2) : "");
  const [reply, setReply] = useState<Reply | null>(null);
  const send = async (event: SubmitEvent) => {
    event.preventDefault();
    const options = body ? { body: typed, headers: { "Content-Type": "application/json" } } : {};
    try {
      setReply(await readReply(await request(buildPath(operation, values), { method, ...options })));
    } catch (error) {
      setReply({ status: (error as Error).message, ok: false, json: undefined, text: "" });
    }
  };
  return (
    <details class="card operation">
      <summary>
        <span class={`badge method ${method === "GET" ? "good" : "warn"}`}>{method}</span>
        <code>{path}</code>
        <span class="muted small">
          <Prose text={operation.summary} />
        </span>
      </summary>
      <form class="stack" onSubmit={(event) => void send(event)}>
        {parameters.map(({ name, required }) => (
          <label class="stack" key={name}>
            <code>{name}</code>
            <input
              required={required}
              value={values[name] ?? ""}
              onInput={(event) => setValues({ ...values, [name]: event.currentTarget.value })}
            />
          </label>
        ))}
        {body && (
          <>
            <label class="stack">
              <span class="small muted">Body</span>
              <textarea
                class="mono"
                rows={4}
                spellcheck={false}
                value={typed}
                onInput={(event) => setTyped(event.currentTarget.value)}
              />
            </label>
            <details>
              <summary class="small muted">Schema of the body</summary>
              <JsonView value={body as unknown as Json} />
            </details>
          </>
        )}
        <div>
          <button class="primary">Send</button>
        </div>
        {reply && (
          <div role="status" class="stack">
            <p>
              <span class={`badge ${reply.ok ? "good" : "bad"}`}>{reply.status}</span>
            </p>
            {reply.json !== undefined ? <JsonView value={reply.json} /> : <pre class="code">{reply.text}</pre>}
          </div>
        )}
      </form>
    </details>
  );
}

async function readReply(response: Response): Promise<Reply> {
  const text = await response.text();
  const status = `${response.status} ${response.statusText}`;
  const isJson = response.headers.get("content-type")?.includes("json") ?? false;
  return { status, ok: response.ok, text, json: isJson && text ? (JSON.parse(text) as Json) : undefined };
}
