import { useLibrary } from "./library";
import { outcomeTone } from "../shared/transcript";
import { VirtualList } from "./virtual_list";
import { type EpisodeQuery, changeQuery, episodeLink } from "./episode_query";
import { type Picked, rowKey } from "./episodes_page";
import { formatCount, formatNumber, formatSeconds, stopName, stopTone } from "./format";
import type { PagedRows } from "./paged_rows";
import type { EpisodePage, EpisodeRow } from "./types";

const ROW_HEIGHT = 36;
const COLUMNS: { name: string; title: string; class: string; first?: "descending" }[] = [
  { name: "reward", title: "Reward", class: "number", first: "descending" },
  { name: "stop", title: "Ended by", class: "stop" },
  { name: "turns", title: "Turns", class: "number wide", first: "descending" },
  { name: "tokens", title: "Tokens", class: "number wide", first: "descending" },
  { name: "seconds", title: "Time", class: "number wide", first: "descending" },
  { name: "step", title: "Step", class: "number step" },
];

export function EpisodeTable(props: {
  list: PagedRows<EpisodeRow, EpisodePage>;
  query: EpisodeQuery;
  selected: number;
  picked: Picked;
  open: (index: number) => void;
  pick: (row: EpisodeRow) => void;
}) {
  const { list, query, picked } = props;
  const { state } = useLibrary();
  const hasSteps = state?.entries.some((entry) => entry.stage === "grpo" && entry.has_episodes) ?? false;
  const severalRuns = (state?.entries.filter((entry) => entry.has_episodes).length ?? 0) > 1;
  const sort = (name: string, first = false) =>
    changeQuery(query, { sort: name, descending: query.sort === name ? !query.descending : first });
  const header = (name: string, title: string, style: string, first?: "descending") => (
    <span
      key={name}
      class={style}
      role="columnheader"
      aria-sort={query.sort === name ? (query.descending ? "descending" : "ascending") : "none"}
    >
      <button type="button" class="quiet" onClick={() => sort(name, first === "descending")}>
        {title}
        {query.sort === name && name !== "line" && <span aria-hidden="true">{query.descending ? " ↓" : " ↑"}</span>}
      </button>
    </span>
  );
  return (
    <div class={`table ${hasSteps ? "with-steps" : ""} ${severalRuns ? "with-runs" : ""}`} role="grid" aria-rowcount={list.total}>
      <div class="table-row table-head" role="row">
        <span />
        {COLUMNS.map(({ name, title, class: style, first }) => header(name, title, style, first))}
        <span class="question">Question</span>
        {header("line", "Run", "run wide")}
        {header("episode", "Episode", "id wide")}
      </div>
      <VirtualList
        total={list.total}
        rowHeight={ROW_HEIGHT}
        selected={props.selected}
        label="Episodes"
        onRange={list.load}
        render={(index) => {
          const row = list.row(index);
          return (
            <div
              class={`table-row ${index === props.selected ? "selected" : ""}`}
              role="row"
              aria-rowindex={index + 1}
              aria-selected={index === props.selected}
              onClick={() => props.open(index)}
            >
              {row ? <Cells row={row} at={index} query={query} isPicked={picked.has(rowKey(row))} pick={props.pick} /> : <span class="loading" />}
            </div>
          );
        }}
      />
      {list.total === 0 && !list.loading && !list.error && <p class="muted empty">No episode matches.</p>}
    </div>
  );
}

function Cells(props: {
  row: EpisodeRow;
  at: number;
  query: EpisodeQuery;
  isPicked: boolean;
  pick: (row: EpisodeRow) => void;
}) {
  const { row, at, query } = props;
  return (
    <>
      <label class="pick" onClick={(event) => event.stopPropagation()}>
        <input type="checkbox" checked={props.isPicked} onChange={() => props.pick(row)} />
        <span class="visually-hidden">Select {row.episode_id}</span>
      </label>
      <span class="number">
        <span class={`badge ${outcomeTone(row.reward, row.solved)}`}>
          {row.reward === null ? "unscored" : formatNumber(row.reward)}
        </span>
      </span>
      <span class="stop" title={row.error ?? ""}>
        <span class={`stop-name ${stopTone(row.stop_reason)}`}>{stopName(row.stop_reason)}</span>
      </span>
      <span class="number wide">{formatCount(row.turns)}</span>
      <span class="number wide">{formatCount(row.tokens)}</span>
      <span class="number wide">{formatSeconds(row.seconds)}</span>
      <span class="number step">{formatCount(row.step)}</span>
      <span class="question">{row.question}</span>
      <span class="run wide" title={row.run}>
        {row.run.split("/").at(-1)}
      </span>
      <a
        class="id wide mono"
        href={episodeLink(row.run, row.line, { query, at })}
        tabIndex={-1}
        onClick={(event) => {
          // The row opens it here; with Ctrl or Shift the browser opens it elsewhere.
          if (event.ctrlKey || event.metaKey || event.shiftKey) event.stopPropagation();
          else event.preventDefault();
        }}
      >
        {row.episode_id}
      </a>
    </>
  );
}
