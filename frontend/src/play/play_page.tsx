import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import { JsonView } from "../shared/json_view";
import { type Shortcut, ShortcutHelp, useShortcuts } from "../shared/keyboard";
import { token } from "../shared/server";
import { ThemeButton } from "../shared/theme";
import { Transcript, formatReward } from "../shared/transcript";
import { About } from "./about";
import { Dock } from "./dock";
import { type Call, type EnvironmentInterface, Game, type GameView } from "./game";
import { toEntries } from "./game_entries";
import "./play.css";
import { pythonCode } from "./python_code";
import { Setup, useTask, writeAddress } from "./setup";

const FIRST_CONTROL = "textarea, input:not([type=radio]), input:checked, select, button";

/** The page of an environment: a game, the form of a new one, and what the environment is. */
export function PlayPage(props: { environment: EnvironmentInterface; onTokenNeeded: () => void }) {
  const { environment } = props;
  const { game, view } = useGame(environment);
  const task = useTask(environment.task_schema);
  const [selected, setSelected] = useState(0);
  const setup = useRef<HTMLDetailsElement>(null);
  const side = useRef<HTMLDetailsElement>(null);
  const dock = useRef<HTMLDivElement>(null);
  const help = useRef<HTMLDialogElement>(null);
  const code = useRef<HTMLDialogElement>(null);
  const started = view.events.length > 0;

  const focusDock = () => dock.current?.querySelector<HTMLElement>(FIRST_CONTROL)?.focus();
  const start = async (again = false) => {
    if (view.busy) return;
    if (await game.start(again ? view.task : task.read())) {
      writeAddress(game.view.task);
      focusDock();
    }
  };
  const call = async (next: Call) => {
    if (view.busy) return false;
    const accepted = await game.call(next);
    focusDock();
    return accepted;
  };
  const openSetup = () => {
    if (setup.current) setup.current.open = true;
    setup.current?.querySelector<HTMLElement>("input, textarea, select, button")?.focus();
  };

  useEffect(() => {
    if (view.needsToken) props.onTokenNeeded();
  }, [view.needsToken]);
  // The end of an episode replaces the form by buttons, which get the focus.
  useEffect(() => {
    if (view.phase === "over") focusDock();
  }, [view.phase]);
  useEffect(() => {
    const height = dock.current?.offsetHeight ?? 0;
    document.documentElement.style.setProperty("--dock-height", `${height}px`);
    document.querySelector(".transcript > :last-child")?.scrollIntoView({ block: "nearest" });
  }, [view.events, view.error]);

  const shortcuts: Shortcut[] = [
    { key: "n", label: "New game: seed and task arguments", run: openSetup },
    { key: "r", label: "Repeat the same task", run: () => void (started && start(true)) },
    { key: "/", label: "Go to the form of the tool", run: focusDock },
    { key: "s", label: "Show or hide the state", run: () => side.current?.toggleAttribute("open") },
    { key: "c", label: "This game as Python code", run: () => started && code.current?.showModal() },
    { key: "?", label: "This list", run: () => help.current?.showModal() },
    {
      key: "Escape",
      label: "Leave a field, so that single keys work",
      run: () => (document.activeElement as HTMLElement | null)?.blur(),
      inFields: true,
    },
    ...(view.tools ?? []).slice(0, 9).map(({ name }, index) => ({
      key: String(index + 1),
      label: `Tool ${name}`,
      run: () => {
        setSelected(index);
        requestAnimationFrame(focusDock);
      },
    })),
  ];
  useShortcuts(shortcuts);

  return (
    <div class="play">
      <header class="top">
        <div>
          <h1>{environment.id}</h1>
          <p class="muted">{environment.description}</p>
        </div>
        <nav class="row">
          <a href="docs">API</a>
          <ThemeButton />
          <button class="quiet" onClick={() => help.current?.showModal()}>
            <kbd>?</kbd> keys
          </button>
        </nav>
      </header>

      <Setup task={task} details={setup} started={started} onStart={() => void start()} />

      <main class="table">
        {started && <Transcript entries={toEntries(view.events)} label="Game" />}
        {!started && <Tools environment={environment} />}
        <div class="dock card" ref={dock} aria-busy={view.busy}>
          {view.error && (
            <p class="notice bad" role="alert">
              {view.error}
            </p>
          )}
          {view.phase === "over" && <Outcome reward={view.reward} steps={game.calls.length} />}
          {view.phase === "playing" ? (
            <Dock tools={view.tools ?? []} selected={selected} onSelect={setSelected} onCall={call} />
          ) : (
            <div class="row">
              <button class="primary" autofocus onClick={() => void start()}>
                {view.busy ? "Starting …" : started ? "New game" : "Start a game"}
              </button>
              {started && <button onClick={() => void start(true)}>Same task again</button>}
              {started && <button onClick={() => code.current?.showModal()}>Copy as Python</button>}
            </div>
          )}
        </div>
      </main>

      <aside class="side stack">
        {started && (
          <details class="card" ref={side}>
            <summary>
              <h2>State</h2>
            </summary>
            <JsonView value={view.state} />
          </details>
        )}
        <details class="card" open>
          <summary>
            <h2>About</h2>
          </summary>
          <About documentation={environment.documentation} />
        </details>
      </aside>

      <ShortcutHelp shortcuts={shortcuts} dialog={help} />
      <CodeDialog game={game} view={view} dialog={code} />
    </div>
  );
}

function useGame(environment: EnvironmentInterface): { game: Game; view: GameView } {
  const [, setView] = useState<GameView | null>(null);
  const game = useMemo(() => new Game(environment, setView), [environment]);
  useEffect(() => () => game.close(), [game]);
  return { game, view: game.view };
}

/** What can be done in a game, before there is one. */
function Tools({ environment }: { environment: EnvironmentInterface }) {
  if (!environment.tools) return null;
  return (
    <section class="card stack tool-list">
      <h2>Tools</h2>
      <dl>
        {environment.tools.map(({ name, description, inputSchema }) => (
          <div key={name}>
            <dt class="mono">
              {name}({Object.keys(inputSchema.properties ?? {}).join(", ")})
            </dt>
            <dd class="muted">{description}</dd>
          </div>
        ))}
      </dl>
    </section>
  );
}

function Outcome({ reward, steps }: { reward: number | null; steps: number }) {
  return (
    <p class="outcome" role="status">
      <strong>The episode is over.</strong> {steps} {steps === 1 ? "step" : "steps"},{" "}
      {reward === null ? "no reward" : `reward ${formatReward(reward)}`}
    </p>
  );
}

function CodeDialog(props: {
  game: Game;
  view: GameView;
  dialog: { current: HTMLDialogElement | null };
}) {
  const [copied, setCopied] = useState(false);
  const url = new URL(".", location.href).href.replace(/\/$/, "");
  const code = pythonCode(url, token.read() !== "", props.view.task, props.game.calls);
  const copy = () => void navigator.clipboard?.writeText(code).then(() => setCopied(true));
  return (
    <dialog ref={props.dialog} class="wide" aria-label="Python code" onClose={() => setCopied(false)}>
      <form method="dialog" class="stack">
        <h2>This game as Python code</h2>
        <pre class="code">{code}</pre>
        <div class="row">
          <button type="button" class="primary" onClick={copy}>
            {copied ? "Copied" : "Copy"}
          </button>
          <button>Close</button>
        </div>
      </form>
    </dialog>
  );
}
