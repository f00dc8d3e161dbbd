import { type Json, type JsonObject, isObject } from "../shared/json";
import { JsonFields } from "../shared/json_view";
import { type Entry, formatReward } from "../shared/transcript";
import type { GameEvent } from "./game";
import { viewObservation } from "./observation";
import { type StepResult, metadataOf } from "./session";

/** The transcript of a game: two entries for each call. `outcome` is the colour of the reward at its end. */
export function toEntries(events: GameEvent[], outcome: string): Entry[] {
  return events.flatMap((event, step): Entry[] => {
    if (event.kind === "reset") {
      return [{ ...toEntry(event.result, outcome), title: "Start" }];
    }
    const { tool, args } = event.call;
    const action: Entry = { kind: "action", title: `${tool}(${formatArguments(args)})`, note: `${step}` };
    return [action, { ...toEntry(event.result, outcome), title: "Environment" }];
  });
}

function toEntry(result: StepResult, outcome: string): Omit<Entry, "title"> {
  const view = viewObservation(result.observation);
  return {
    kind: view.error ? "error" : "observation",
    text: [view.error && `Error: ${view.error}`, view.text].filter(Boolean).join("\n"),
    images: view.images,
    reward: result.reward,
    outcome: result.done ? outcome : undefined,
    done: result.done,
    footer: describeMetadata(metadataOf(result)),
    details: Object.keys(view.fields).length > 0 && <JsonFields value={view.fields} />,
    raw: result as unknown as Json,
  };
}

/** The parts of the reward, and the progress, where the environment tells them. */
function describeMetadata({ rewards, progress }: JsonObject): string {
  const parts = isObject(rewards) ? Object.entries(rewards) : [];
  const notes = parts.map(([name, value]) => `${name} ${formatReward(Number(value))}`);
  if (typeof progress === "number") {
    notes.push(`progress ${Math.round(progress * 100)} %`);
  }
  return notes.join(" · ");
}

export function formatArguments(values: JsonObject): string {
  return Object.entries(values)
    .map(([name, value]) => `${name}=${JSON.stringify(value)}`)
    .join(", ");
}
