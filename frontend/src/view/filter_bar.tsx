import { useEffect, useRef, useState } from "preact/hooks";
import { type EpisodeQuery, changeQuery } from "./episode_query";
import { formatCount, stopName } from "./format";
import { useLibrary } from "./library";
import type { Stats } from "./types";

const TYPING_PAUSE_MS = 250;
const EXAMPLES = [
  "reward >= 1",
  "reward < 0.2 AND turns > 2",
  "stop_reason = 'max_tokens'",
  "error IS NOT NULL",
  "malformed_calls > 0",
  "task->>'$.seed' = '7'",
  "list_contains(list_transform(messages, lambda m: m.role), 'tool')",
];
const COLUMNS =
  "episode_id, attempt, stop_reason, reward, usage, environment, task, seed, group_id, agent, messages, tools, " +
  "rewards, done, turns, tool_calls, malformed_calls, error, timing, run, provider, model, cost";

/** Search, SQL condition, run and stop reason. Typing is applied after a short pause. */
export function FilterBar(props: {
  query: EpisodeQuery;
  stats: Stats | undefined;
  searchField: { current: HTMLInputElement | null };
  error: string;
}) {
  const { query } = props;
  const { state } = useLibrary();
  const runs = state?.entries.filter((entry) => entry.has_episodes) ?? [];
  const reasons = Object.entries(props.stats?.stop_reasons ?? {});
  if (query.stop && !reasons.some(([reason]) => reason === query.stop)) reasons.push([query.stop, 0]);
  const current = useRef(query);
  current.current = query;
  const change = (part: Partial<EpisodeQuery>) => changeQuery(current.current, part, true);
  return (
    <form class="filters" onSubmit={(event) => event.preventDefault()} role="search">
      <label class="filter-search">
        <span>Search</span>
        <Typed
          value={query.search}
          onChange={(search) => change({ search })}
          field={props.searchField}
          type="search"
          placeholder="text of messages and calls"
        />
      </label>
      <label class="filter-where">
        <span>Where</span>
        <Typed
          value={query.where}
          onChange={(where) => change({ where })}
          class="mono"
          placeholder="SQL as for curate --where, such as reward >= 1 AND turns < 4"
          list="where-examples"
          aria-invalid={props.error !== ""}
          title={`Columns: ${COLUMNS}`}
        />
        <datalist id="where-examples">
          {EXAMPLES.map((example) => (
            <option key={example} value={example} />
          ))}
        </datalist>
      </label>
      <label class="filter-run">
        <span>Run</span>
        <select
          value={query.run.length === 1 ? query.run[0] : query.run.length ? "several" : ""}
          onChange={(event) => change({ run: event.currentTarget.value ? [event.currentTarget.value] : [] })}
        >
          <option value="">all runs</option>
          {query.run.length > 1 && <option value="several">{query.run.length} runs</option>}
          {runs.map(({ key }) => (
            <option key={key} value={key}>
              {key}
            </option>
          ))}
        </select>
      </label>
      <label class="filter-stop">
        <span>Ended by</span>
        <select value={query.stop} onChange={(event) => change({ stop: event.currentTarget.value })}>
          <option value="">anything</option>
          {reasons.map(([reason, count]) => (
            <option key={reason} value={reason}>
              {stopName(reason)} ({formatCount(count)})
            </option>
          ))}
        </select>
      </label>
      {query.group && (
        <button type="button" onClick={() => change({ group: "" })} title="Show all tasks again">
          task {query.group.slice(0, 8)} ✕
        </button>
      )}
      {props.error && (
        <p class="notice bad filter-error" role="alert">
          {props.error}
        </p>
      )}
    </form>
  );
}

/** A field whose value is applied after a pause in typing, or at once with Enter. */
function Typed(props: {
  value: string;
  onChange: (value: string) => void;
  field?: { current: HTMLInputElement | null };
  class?: string;
  type?: "search" | "text";
  placeholder: string;
  list?: string | undefined;
  title?: string;
  "aria-invalid"?: boolean;
}) {
  const { value, onChange, field, list, type = "text", ...attributes } = props;
  const [text, setText] = useState(value);
  const timer = useRef(0);
  const applied = useRef(value);
  useEffect(() => {
    // Someone else changed the filter: a link, the histogram, the way back.
    if (value !== applied.current) setText(value);
    applied.current = value;
  }, [value]);
  const apply = (next: string) => {
    clearTimeout(timer.current);
    if (next === applied.current) return;
    applied.current = next;
    onChange(next);
  };
  return (
    <input
      {...attributes}
      type={type}
      list={list}
      {...(field ? { ref: field } : {})}
      value={text}
      spellcheck={false}
      autocomplete="off"
      onInput={(event) => {
        const next = event.currentTarget.value;
        setText(next);
        clearTimeout(timer.current);
        timer.current = window.setTimeout(() => apply(next), TYPING_PAUSE_MS);
      }}
      onKeyDown={(event) => {
        if (event.key === "Enter") apply(event.currentTarget.value);
        if (event.key === "Enter" || event.key === "Escape") event.currentTarget.blur();
      }}
    />
  );
}
