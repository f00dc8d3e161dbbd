import type { RefObject } from "preact";
import { useState } from "preact/hooks";
import { token } from "../shared/server";
import type { Game } from "./game";
import { pythonCode } from "./python_code";

/** The dialog with the game as Python code. Open it with `showModal()` of its element. */
export function CodeDialog(props: { game: Game; dialog: RefObject<HTMLDialogElement | null> }) {
  const [copied, setCopied] = useState(false);
  const url = new URL(".", location.href).href.replace(/\/$/, "");
  const code = pythonCode(url, token.read() !== "", props.game.view.task, props.game.calls);
  return (
    <dialog ref={props.dialog} class="wide" aria-label="Python code" onClose={() => setCopied(false)}>
      <form method="dialog" class="stack">
        <h2>This game as Python code</h2>
        <pre class="code" tabIndex={0}>
          {code}
        </pre>
        <div class="row">
          {/* Browsers have a clipboard for pages on https and loopback only. */}
          {navigator.clipboard && (
            <button
              type="button"
              class="primary"
              onClick={() => void navigator.clipboard.writeText(code).then(() => setCopied(true))}
            >
              {copied ? "Copied" : "Copy"}
            </button>
          )}
          <button>Close</button>
        </div>
      </form>
    </dialog>
  );
}
