import { render } from "preact";
import { useEffect, useState } from "preact/hooks";
import "../shared/base.css";
import { ServerError, fetchJson } from "../shared/server";
import { TokenForm } from "../shared/token_form";
import type { EnvironmentInterface } from "./game";
import { PlayPage } from "./play_page";

/** Load what the environment is, and ask for a token where the server wants one. */
function App() {
  const [environment, setEnvironment] = useState<EnvironmentInterface | null>(null);
  const [error, setError] = useState<ServerError | null>(null);
  const [attempts, setAttempts] = useState(0);

  useEffect(() => {
    fetchJson<EnvironmentInterface>("interface").then(
      (reply) => {
        document.title = `${reply.id} · Ludus`;
        setEnvironment(reply);
        setError(null);
      },
      (reason: ServerError) => setError(reason),
    );
  }, [attempts]);

  const retry = () => setAttempts((count) => count + 1);
  if (error?.needsToken) {
    return (
      <main class="centered">
        <TokenForm refused={attempts > 0} onToken={retry} />
      </main>
    );
  }
  if (environment) {
    return <PlayPage environment={environment} onTokenNeeded={() => setError(new ServerError("", 401))} />;
  }
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

render(<App />, document.getElementById("app")!);
