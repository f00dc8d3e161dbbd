import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import { Brand } from "../shared/brand";
import { JsonView } from "../shared/json_view";
import { type Shortcut, ShortcutHelp, useShortcuts } from "../shared/keyboard";
import { ThemeButton } from "../shared/theme";
import { Transcript, formatReward, outcomeTone } from "../shared/transcript";
import { About } from "./about";
import { CodeDialog } from "./code_dialog";
import { Dock } from "./dock";
import { type Call, type EnvironmentInterface, Game, type GameView } from "./game";
import { formatArguments, toEntries } from "./game_entries";
import "./play.css";
import { Setup, useTask, writeAddress } from "./setup";

const FIRST_CONTROL = "textarea, input:not([type=radio]), select, button";

/** The page of an environment: the game, and what the environment is. */
export function PlayPage(props: { environment: EnvironmentInterface; onTokenNeeded: () => void }) {
  const { environment } = props;
  const { game, view } = useGame(environment);
  const task = useTask(environment.task_schema);
  const [showsSetup, setShowsSetup] = useState(true);
  const [selected, setSelected] = useState(0);
  const setup = useRef<HTMLElement>(null);
  const state = useRef<HTMLDetailsElement>(null);
  const dock = useRef<HTMLDivElement>(null);
  const help = useRef<HTMLDialogElement>(null);
  const code = useRef<HTMLDialogElement>(null);
  const started = view.events.length > 0;
  const outcome = outcomeTone(view.reward, view.solved);
  document.title = `${environment.id} · Ludus`;

  const focusIn = (place: { current: HTMLElement | null }) =>
    // After the next rendering, which may replace the form.
    requestAnimationFrame(() => place.current?.querySelector<HTMLElement>(FIRST_CONTROL)?.focus());
  const start = async (again = false) => {
    if (game.view.busy) return;
    if (await game.start(again ? () => view.task : task.read)) {
      writeAddress(game.view.task);
      task.clearSeed();
      setShowsSetup(false);
      focusIn(dock);
    }
  };
  const call = async (next: Call) => {
    if (game.view.busy) return false;
    const accepted = await game.call(next);
    // The button of a choice keeps the focus: the next move is often the same.
    if (game.view.phase !== "playing" || !dock.current?.querySelector("button[type=button]:focus")) {
      focusIn(dock);
    }
    return accepted;
  };
  const openSetup = () => {
    setShowsSetup(true);
    focusIn(setup);
  };
  const closeSetup = () => {
    setShowsSetup(false);
    focusIn(dock);
  };
  const repeat = () => void (started && start(true));
  const showCode = () => started && code.current?.showModal();

  useEffect(() => {
    if (view.needsToken) props.onTokenNeeded();
  }, [view.needsToken]);
  useEffect(() => {
    const height = dock.current?.offsetHeight ?? 0;
    document.documentElement.style.setProperty("--dock-height", `${height}px`);
    if (started) document.querySelector(".transcript > :last-child")?.scrollIntoView({ block: "nearest" });
  }, [view.events, view.error, view.phase]);

  const shortcuts: Shortcut[] = [
    { key: "n", label: "New game: seed and task arguments", run: openSetup },
    { key: "r", label: "Repeat the same task", run: repeat },
    { key: "/", label: "Go to the form of the tool", run: () => focusIn(dock) },
    { key: "s", label: "Show or hide the state", run: () => state.current?.toggleAttribute("open") },
    { key: "c", label: "This game as Python code", run: showCode },
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
        focusIn(dock);
      },
    })),
  ];
  useShortcuts(shortcuts);

  return (
    <div class="play">
      <header class="top">
        <Brand title={environment.id} subtitle={environment.description} />
        <nav class="row">
          <a href="docs">API</a>
          <ThemeButton />
          <button class="quiet" onClick={() => help.current?.showModal()}>
            <kbd>?</kbd> keys
          </button>
        </nav>
      </header>

      <main class="table">
        <section class="card setup" ref={setup}>
          {showsSetup ? (
            <Setup task={task} onStart={() => void start()} onCancel={started ? closeSetup : null} />
          ) : (
            <div class="row">
              <span class="mono">{formatArguments(view.task) || "New game"}</span>
              <span class="spacer" />
              <button class="quiet small" onClick={openSetup}>
                New game
              </button>
              <button class="quiet small" onClick={repeat}>
                Repeat
              </button>
              <button class="quiet small" onClick={showCode}>
                Python
              </button>
            </div>
          )}
          {showsSetup && view.error && <ErrorLine text={view.error} />}
          {view.busy && view.phase === "idle" && <p class="muted">Waiting for a session …</p>}
        </section>
        {started ? (
          <>
            <Transcript entries={toEntries(view.events, outcome)} label="Game" />
            <div class="dock card" ref={dock} aria-busy={view.busy} hidden={showsSetup}>
              {!showsSetup && view.error && <ErrorLine text={view.error} />}
              {view.phase === "over" && <Outcome reward={view.reward} tone={outcome} steps={game.calls.length} />}
              {view.phase === "playing" ? (
                <Dock tools={view.tools ?? []} selected={selected} onSelect={setSelected} onCall={call} />
              ) : (
                <div class="row">
                  <button class="primary" onClick={() => void start()}>
                    New game
                  </button>
                  <button onClick={repeat}>Repeat</button>
                  <button onClick={showCode}>Python code</button>
                </div>
              )}
            </div>
          </>
        ) : (
          <Tools environment={environment} />
        )}
      </main>

      <aside class="side stack">
        {started && (
          <details class="card" ref={state}>
            <summary>
              <h2>State</h2>
            </summary>
            <JsonView value={view.state} />
          </details>
        )}
        <About documentation={environment.documentation} description={environment.description} />
      </aside>

      <ShortcutHelp shortcuts={shortcuts} dialog={help} />
      <CodeDialog game={game} dialog={code} />
    </div>
  );
}

function useGame(environment: EnvironmentInterface): { game: Game; view: GameView } {
  const [, setView] = useState<GameView | null>(null);
  const game = useMemo(() => new Game(environment, setView), [environment]);
  useEffect(() => () => game.close(), [game]);
  return { game, view: game.view };
}

function ErrorLine({ text }: { text: string }) {
  return (
    <p class="notice bad" role="alert">
      {text}
    </p>
  );
}

/** What can be done in a game, before there is one. */
function Tools({ environment }: { environment: EnvironmentInterface }) {
  return (
    <section class="card stack tool-list">
      <h2>Tools</h2>
      {!environment.tools && <p class="muted">They depend on the game, and are listed when one starts.</p>}
      <dl>
        {environment.tools?.map(({ name, description, inputSchema }) => (
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

function Outcome({ reward, tone, steps }: { reward: number | null; tone: string; steps: number }) {
  return (
    <p role="status">
      <strong>The episode is over</strong> after {steps} {steps === 1 ? "step" : "steps"}.{" "}
      <span class={`badge ${tone}`}>{reward === null ? "no reward" : `total reward ${formatReward(reward)}`}</span>
    </p>
  );
}
