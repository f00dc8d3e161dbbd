import type { ComponentChildren } from "preact";
import { useEffect, useState } from "preact/hooks";
import { ServerError, fetchJson } from "./server";
import { TokenForm } from "./token_form";

/**
 * Load JSON from the server and show it with `children`; ask for a token where the server wants one.
 * `askForToken` starts over, for a token that is refused later.
 */
export function Connected<T>(props: {
  path: string;
  children: (loaded: T, askForToken: () => void) => ComponentChildren;
}) {
  const [loaded, setLoaded] = useState<T | null>(null);
  const [error, setError] = useState<ServerError | null>(null);
  const [attempts, setAttempts] = useState(0);

  useEffect(() => {
    fetchJson<T>(props.path).then(
      (reply) => {
        setLoaded(reply);
        setError(null);
      },
      (reason: ServerError) => setError(reason),
    );
  }, [props.path, attempts]);

  const retry = () => setAttempts((count) => count + 1);
  if (error?.needsToken) {
    return (
      <main class="centered">
        <TokenForm refused={attempts > 0} onToken={retry} />
      </main>
    );
  }
  if (loaded !== null) return <>{props.children(loaded, () => setError(new ServerError("", 401)))}</>;
  return (
    <main class="centered">
      {error ? (
        <div class="card stack">
          <p class="notice bad" role="alert">
            {error.message}
          </p>
          <div>
            <button class="primary" onClick={retry}>
              Try again
            </button>
          </div>
        </div>
      ) : (
        <p class="muted">Loading …</p>
      )}
    </main>
  );
}
