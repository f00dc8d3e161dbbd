import { type Json, type JsonObject, isObject } from "../shared/json";
import type { Schema } from "../shared/schema";
import { ServerError } from "../shared/server";
import { Session, SessionEnded, type StepResult, metadataOf } from "./session";

export interface Tool {
  name: string;
  description: string;
  inputSchema: Schema;
}

/** The reply of `/interface`. */
export interface EnvironmentInterface {
  id: string;
  description: string;
  documentation: string;
  tools: Tool[] | null;
  calls_by_name: boolean;
  task_schema: Schema;
}

export interface Call {
  tool: string;
  args: JsonObject;
}

/** What happened in a game, in order. */
export type GameEvent =
  | { kind: "reset"; task: JsonObject; result: StepResult }
  | { kind: "call"; call: Call; result: StepResult };

/** `idle`: no game yet, or it was lost. */
export type Phase = "idle" | "playing" | "over";

export interface GameView {
  phase: Phase;
  /** Whether the server has not answered yet. */
  busy: boolean;
  events: GameEvent[];
  task: JsonObject;
  tools: Tool[] | null;
  /** The sum of the rewards; null while there was none. */
  reward: number | null;
  /** The sum of the parts `solved` of the rewards; null while there was none. */
  solved: number | null;
  state: Json;
  error: string | null;
  needsToken: boolean;
}

const MAX_RANDOM_SEED = 100_000;
/** Decimals of a sum of rewards: more of them are rounding errors. */
const REWARD_DIGITS = 12;

/** A player's games on a session of their own. `onChange` gets a new view after each change. */
export class Game {
  view: GameView;
  private session: Session | null = null;

  constructor(
    private readonly environment: EnvironmentInterface,
    private readonly onChange: (view: GameView) => void,
  ) {
    this.view = {
      phase: "idle",
      busy: false,
      events: [],
      task: {},
      tools: environment.tools,
      reward: null,
      solved: null,
      state: null,
      error: null,
      needsToken: false,
    };
  }

  get calls(): Call[] {
    return this.view.events.flatMap((event) => (event.kind === "call" ? [event.call] : []));
  }

  /** Start an episode; the first one opens the session. `readTask` raises what is wrong with it. */
  async start(readTask: () => JsonObject): Promise<boolean> {
    return this.attempt(async () => {
      const task = this.withSeed(readTask());
      this.session ??= await this.openSession();
      const result = await this.session.reset(task);
      const tools = this.environment.tools ?? ((await this.session.listTools()) as unknown as Tool[]);
      const events: GameEvent[] = [{ kind: "reset", task, result }];
      this.update({ events, ...addUp(events), task, tools });
      await this.settle(result);
    });
  }

  /** Call a tool. False where the call was refused, so that it can be corrected. */
  async call(call: Call): Promise<boolean> {
    return this.attempt(async () => {
      const result = await this.session!.step(this.toAction(call));
      const events: GameEvent[] = [...this.view.events, { kind: "call", call, result }];
      this.update({ events, ...addUp(events) });
      await this.settle(result);
    });
  }

  close(): void {
    this.session?.close();
  }

  /** A game without a seed gets one, so that it can be repeated. */
  private withSeed(task: JsonObject): JsonObject {
    if (!("seed" in (this.environment.task_schema.properties ?? {})) || "seed" in task) return task;
    return { seed: Math.floor(Math.random() * MAX_RANDOM_SEED), ...task };
  }

  private toAction({ tool, args }: Call): JsonObject {
    if (!this.environment.calls_by_name) return args;
    return { type: "call_tool", tool_name: tool, arguments: args };
  }

  private async openSession(): Promise<Session> {
    const session = await Session.open();
    session.onEnd = (error) => {
      this.session = null;
      this.update({ phase: "idle", error: error.message });
    };
    return session;
  }

  /** Read the state after a reply. A broken state must not hide a reply that has arrived. */
  private async settle({ done }: StepResult): Promise<void> {
    const state = await this.session!.state().catch((error: Error) => {
      if (error instanceof SessionEnded) throw error;
      return error.message;
    });
    this.update({ state, phase: done ? "over" : "playing" });
  }

  /** Run a request; an error becomes the line that the page shows. */
  private async attempt(request: () => Promise<void>): Promise<boolean> {
    this.update({ busy: true, error: null });
    try {
      await request();
      this.update({ busy: false });
      return true;
    } catch (error) {
      const needsToken = error instanceof ServerError && error.needsToken;
      this.update({ busy: false, error: (error as Error).message, needsToken });
      return false;
    }
  }

  private update(change: Partial<GameView>): void {
    this.view = { ...this.view, ...change };
    this.onChange(this.view);
  }
}

/** The reward of a game, and its part `solved`, as the record of an episode has them. */
function addUp(events: GameEvent[]): { reward: number | null; solved: number | null } {
  const results = events.map(({ result }) => result);
  return { reward: sum(results.map(({ reward }) => reward)), solved: sum(results.map(solvedPart)) };
}

function solvedPart(result: StepResult): number | null {
  const { rewards } = metadataOf(result);
  return isObject(rewards) && typeof rewards.solved === "number" ? rewards.solved : null;
}

/** The sum of the values that are known; null if none is. */
function sum(values: (number | null)[]): number | null {
  const known = values.filter((value) => value !== null);
  if (known.length === 0) return null;
  const total = known.reduce((before, value) => before + value, 0);
  // Shares of 1 such as 0.5 / 37 add up to 1, not to 0.9999999999999999, which is no success.
  return known.length > 1 ? Number(total.toFixed(REWARD_DIGITS)) : total;
}
