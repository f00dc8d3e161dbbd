import { useEffect, useRef } from "preact/hooks";

/** A shortcut: its key as in `KeyboardEvent.key`, what it does in words, and the action. */
export interface Shortcut {
  key: string;
  label: string;
  run: () => void;
  /** Whether it works while a field has the focus; only for keys that type nothing. */
  inFields?: boolean;
}

/** Handle single-key shortcuts of the page. Keys with Ctrl, Alt or Meta stay the browser's. */
export function useShortcuts(shortcuts: Shortcut[]): void {
  const current = useRef(shortcuts);
  current.current = shortcuts;
  useEffect(() => {
    const onKey = (event: KeyboardEvent) => {
      if (event.ctrlKey || event.altKey || event.metaKey || event.isComposing) return;
      if (document.querySelector("dialog[open]")) return;
      // Enter on a link or a button presses it.
      if (event.key === "Enter" && isControl(event.target)) return;
      const shortcut = current.current.find(({ key }) => key === event.key);
      if (!shortcut || (isField(event.target) && !shortcut.inFields)) return;
      event.preventDefault();
      // After the button that was clicked last, so that Enter belongs to the page again.
      if (isControl(event.target)) event.target.blur();
      shortcut.run();
    };
    document.addEventListener("keydown", onKey);
    return () => document.removeEventListener("keydown", onKey);
  }, []);
}

function isControl(target: EventTarget | null): target is HTMLElement {
  return target instanceof HTMLElement && target.matches("a, button, summary");
}

function isField(target: EventTarget | null): boolean {
  return target instanceof HTMLElement && target.matches("input:not([type=checkbox]), textarea, select, [contenteditable]");
}

const KEY_NAMES: Record<string, string> = { Escape: "Esc", " ": "Space" };

/** The dialog that lists the shortcuts. Open it with `showModal()` of its element. */
export function ShortcutHelp(props: {
  shortcuts: Shortcut[];
  dialog: { current: HTMLDialogElement | null };
}) {
  return (
    <dialog ref={props.dialog} aria-label="Keyboard shortcuts">
      <form method="dialog" class="stack">
        <h2>Keyboard</h2>
        <table class="shortcuts">
          <tbody>
            {props.shortcuts.map(({ key, label }) => (
              <tr key={key}>
                <td>
                  <kbd>{KEY_NAMES[key] ?? key}</kbd>
                </td>
                <td>{label}</td>
              </tr>
            ))}
          </tbody>
        </table>
        <button>Close</button>
      </form>
    </dialog>
  );
}
