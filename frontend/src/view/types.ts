/** The JSON that `ludus.viewer.app` answers with. */
import type { Json, JsonObject } from "../shared/json";

export interface Entry {
  key: string;
  kind: "run" | "training" | "evaluation" | "dataset";
  stage: string;
  environment: string;
  model: string;
  created_at: string | null;
  modified_at: number;
  running: boolean;
  has_episodes: boolean;
  splits: string[];
  episodes: number | null;
  reward: number | null;
  /** Sizes of a data set, or accuracies of an evaluation. */
  summary: string;
}

export interface LibraryState {
  revision: number;
  indexed_bytes: number;
  total_bytes: number;
  error: string;
  folder: string;
  entries: Entry[];
}

export interface Bin {
  low: number;
  high: number;
  count: number;
}

export interface Stats {
  episodes: number;
  scored: number;
  broken: number;
  tasks: number;
  mean: number | null;
  /** The 95 % interval of the mean. */
  interval: [number, number] | null;
  turns: number | null;
  tokens: number | null;
  seconds: number | null;
  cost: number | null;
  malformed_calls: number | null;
  stop_reasons: Record<string, number>;
  histogram: Bin[];
}

export interface Curve {
  key: string;
  title: string;
  /** The chart that it is drawn in, and its name there if that has several. */
  chart: string;
  line: string;
  x: string;
  /** Set and not measured, as the learning rate: it is never smoothed. */
  is_schedule: boolean;
  points: [number, number][];
}

export interface EntryDetail extends Entry {
  record: JsonObject;
  stats?: Stats;
  curves?: Curve[];
  unreadable?: number;
  evaluation?: EvaluationDetail;
}

/** A mean with its 95 % interval, if there is one. */
export interface Estimate {
  value: number;
  low: number | null;
  high: number | null;
  n: number;
}

export interface TextTable {
  header: string[];
  rows: string[][];
}

/** Lists of estimates have one for each candidate, in their order. */
export interface EvaluationDetail {
  /** How the candidates compare with the first. */
  verdicts: { outcome: "better" | "worse" | "not resolved"; text: string }[];
  notes: string[];
  method: string;
  results: TextTable;
  /** By environment and difficulty, a table per metric. */
  slices: TextTable[];
  candidates: { label: string; agent: JsonObject; episodes: number }[];
  metrics: { title: string; is_share: boolean; estimates: (Estimate | null)[]; deltas: (Estimate | null)[] }[];
}

export interface Comparison {
  same: number;
  differences: { setting: string; first: string; second: string }[];
}

export interface EpisodeRow {
  run: string;
  line: number;
  episode_id: string;
  attempt: number;
  reward: number | null;
  /** The part `solved` of the reward, if it has one. */
  solved: number | null;
  stop_reason: string;
  turns: number | null;
  tokens: number | null;
  seconds: number | null;
  cost: number | null;
  step: number | null;
  environment: string;
  model: string | null;
  group_id: string;
  question: string | null;
  error: string | null;
}

export interface Page<Row> {
  total: number;
  offset: number;
  rows: Row[];
}

export interface EpisodePage extends Page<EpisodeRow> {
  revision: number;
  stats?: Stats;
}

export interface ToolCall {
  id?: string;
  function: { name: string; arguments: Json };
}

export interface Message {
  role: string;
  content?: string | { type: string; text?: string; image_url?: { url: string } }[] | null;
  reasoning_content?: string;
  tool_calls?: ToolCall[] | null;
  name?: string;
  weight?: number;
}

export interface Episode {
  episode_id: string;
  attempt: number;
  stop_reason: string;
  reward: number | null;
  usage: { prompt_tokens: number; completion_tokens: number; cost: number | null };
  environment: string;
  task: JsonObject;
  seed: number | null;
  group_id: string;
  agent: JsonObject;
  messages: Message[];
  tools: Json[];
  rewards?: Record<string, number>;
  turn_rewards?: number[];
  progress?: number[];
  explored_turns?: number[];
  tutor_replies?: (Message | null)[];
  done: boolean;
  turns: number;
  malformed_calls: number;
  error?: { kind: string; where: string; message: string } | null;
  timing?: { started_at: string; ended_at: string; model_s: number; environment_s: number } | null;
}

export interface EpisodeDetail {
  run: string;
  line: number;
  episode: Episode;
  has_tokens: boolean;
  attempts: EpisodeRow[];
  advantages: number[] | null;
}

export interface Tokens {
  ids: number[];
  logprobs: (number | null)[];
  mask: number[];
  texts: string[];
  model: string;
}

export interface RowFacts {
  number: number;
  episode_id?: string;
  chosen_id?: string;
  environment?: string;
  reward?: number;
  chosen_reward?: number;
  rejected_reward?: number;
  question: string;
}
