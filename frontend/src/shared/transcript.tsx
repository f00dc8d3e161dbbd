import type { ComponentChildren } from "preact";
import { useState } from "preact/hooks";
import type { Json } from "./json";
import { JsonView } from "./json_view";
import "./transcript.css";

/** One message of a transcript. */
export interface Entry {
  /** `action`: what the agent did; `observation`: what the environment answered. */
  kind: "action" | "observation" | "error" | "system";
  title: string;
  text?: string;
  /** Addresses of images: `data:` URLs or paths on this server. */
  images?: string[];
  reward?: number | null;
  /** The `outcomeTone` of the episode, in the entry that ends it. */
  outcome?: string | undefined;
  done?: boolean;
  /** Short facts that stand beside the title, such as the number of the step. */
  note?: string;
  /** A line below the text, such as the parts of the reward. */
  footer?: string;
  details?: ComponentChildren;
  /** The record behind the entry; a button shows it. */
  raw?: Json;
}

export function Transcript({ entries, label }: { entries: Entry[]; label: string }) {
  return (
    <ol class="transcript" aria-label={label} aria-live="polite">
      {entries.map((entry, index) => (
        <TranscriptEntry key={index} entry={entry} />
      ))}
    </ol>
  );
}

export function TranscriptEntry({ entry }: { entry: Entry }) {
  const [showsRaw, setShowsRaw] = useState(false);
  return (
    <li class={`entry appear ${entry.kind}`}>
      <header>
        <div>
          <strong>{entry.title}</strong> {entry.note}
        </div>
        {entry.reward != null && <Reward value={entry.reward} outcome={entry.outcome} />}
        {entry.done && <span class="badge">done</span>}
        {entry.raw !== undefined && (
          <button
            type="button"
            class="quiet small"
            aria-expanded={showsRaw}
            onClick={() => setShowsRaw(!showsRaw)}
          >
            JSON
          </button>
        )}
      </header>
      {entry.text && <pre>{entry.text}</pre>}
      {entry.images?.map((source) => <img key={source} src={source} alt={`Image: ${entry.title}`} />)}
      {entry.details}
      {entry.footer && <p class="muted small">{entry.footer}</p>}
      {showsRaw && entry.raw !== undefined && <JsonView value={entry.raw} />}
    </li>
  );
}

/** The reward of a step. Only the outcome makes it green: a step of a lost game may have a reward above 0. */
function Reward({ value, outcome }: { value: number; outcome: string | undefined }) {
  const tone = outcome ?? (value < 0 ? "bad" : "");
  return <span class={`badge ${tone}`}>reward {formatReward(value)}</span>;
}

/**
 * The colour of an episode: green only if the task is solved, as the part `solved` of its reward says, or else from a
 * reward of 1 on, as in `ludus eval`. A game that was lost may have a reward above 0.
 */
export function outcomeTone(reward: number | null, solved?: number | null): string {
  if ((solved ?? reward ?? 0) >= 1) return "good";
  return reward !== null && reward < 0 ? "bad" : "";
}

export function formatReward(value: number): string {
  return String(Number(value.toPrecision(4)));
}
