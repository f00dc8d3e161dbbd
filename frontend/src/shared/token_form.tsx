import { useEffect, useRef, useState } from "preact/hooks";
import { token } from "./server";

/** Ask for the token of a server. `onToken` is called once it is stored for this tab. */
export function TokenForm({ refused, onToken }: { refused: boolean; onToken: () => void }) {
  const [value, setValue] = useState("");
  const input = useRef<HTMLInputElement>(null);
  useEffect(() => input.current?.focus(), []);
  const submit = (event: SubmitEvent) => {
    event.preventDefault();
    token.store(value.trim());
    onToken();
  };
  return (
    <form class="card stack token-form" onSubmit={submit}>
      <h1>This server requires a token</h1>
      <p class="muted">
        It is the value of <code>LUDUS_TOKEN</code> that the server was started with. It is kept until this tab is
        closed.
      </p>
      <label class="stack">
        <span>Token</span>
        <input
          ref={input}
          type="password"
          autocomplete="off"
          required
          value={value}
          onInput={(event) => setValue(event.currentTarget.value)}
        />
      </label>
      {refused && (
        <p class="notice bad" role="alert">
          The server did not accept this token.
        </p>
      )}
      <div>
        <button class="primary">Continue</button>
      </div>
    </form>
  );
}
