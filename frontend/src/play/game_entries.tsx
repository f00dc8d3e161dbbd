import { type Json, type JsonObject, isObject } from "../shared/json";
import { JsonFields } from "../shared/json_view";
import { type Entry, formatReward } from "../shared/transcript";
import type { GameEvent } from "./game";
import { viewObservation } from "./observation";
import type { StepResult } from "./session";

/** The transcript of a game: two entries for each call. */
export function toEntries(events: GameEvent[]): Entry[] {
  return events.flatMap((event, step): Entry[] => {
    if (event.kind === "reset") {
      return [{ ...toEntry(event.result), title: "Start" }];
    }
    const { tool, args } = event.call;
    const action: Entry = { kind: "action", title: `${tool}(${formatArguments(args)})`, note: `${step}` };
    return [action, { ...toEntry(event.result), title: "Environment" }];
  });
}

function toEntry(result: StepResult): Omit<Entry, "title"> {
  const view = viewObservation(result.observation);
  return {
    kind: view.error ? "error" : "observation",
    text: [view.error && `Error: ${view.error}`, view.text].filter(Boolean).join("\n"),
    images: view.images,
    reward: result.reward,
    done: result.done,
    footer: describeMetadata(result.metadata ?? result.observation.metadata ?? null),
    details: Object.keys(view.fields).length > 0 && <JsonFields value={view.fields} />,
    raw: result as unknown as Json,
  };
}

/** The parts of the reward, and the progress, where the environment tells them. */
function describeMetadata(metadata: Json): string {
  if (!isObject(metadata)) return "";
  const parts = isObject(metadata.rewards) ? Object.entries(metadata.rewards) : [];
  const notes = parts.map(([name, value]) => `${name} ${formatReward(Number(value))}`);
  if (typeof metadata.progress === "number") {
    notes.push(`progress ${Math.round(metadata.progress * 100)} %`);
  }
  return notes.join(" · ");
}

export function formatArguments(values: JsonObject): string {
  return Object.entries(values)
    .map(([name, value]) => `${name}=${JSON.stringify(value)}`)
    .join(", ");
}
