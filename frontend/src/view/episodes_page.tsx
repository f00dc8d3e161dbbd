import { useEffect, useRef, useState } from "preact/hooks";
import { type Shortcut, useShortcuts } from "../shared/keyboard";
import { Histogram } from "./charts";
import { EpisodeTable } from "./episode_table";
import { type EpisodeQuery, changeQuery, episodeLink, readQuery, toParams } from "./episode_query";
import { FilterBar } from "./filter_bar";
import { formatCount, formatMean, formatNumber, plural } from "./format";
import { useLibrary } from "./library";
import { usePagedRows } from "./paged_rows";
import { link, navigate } from "./route";
import type { EpisodePage, EpisodeRow, Stats } from "./types";
import "./episodes.css";

export type Picked = Map<string, EpisodeRow>;

export function rowKey(row: { run: string; line: number }): string {
  return `${row.run}:${row.line}`;
}

/** The table of all episodes. */
export function EpisodesPage(props: { params: URLSearchParams; onShortcuts: (list: Shortcut[]) => void }) {
  const { version } = useLibrary();
  const query = readQuery(props.params);
  const list = usePagedRows<EpisodeRow, EpisodePage>("episodes", toParams(query), version);
  const [selected, setSelected] = useState(Number(props.params.get("at") ?? 0));
  const [picked, setPicked] = useState<Picked>(new Map());
  const search = useRef<HTMLInputElement>(null);
  const filterText = toParams(query).toString();
  const shownFilter = useRef(filterText);
  useEffect(() => {
    if (shownFilter.current !== filterText) setSelected(0);
    shownFilter.current = filterText;
  }, [filterText]);

  const open = (index: number) => {
    const row = list.row(index);
    if (!row) return;
    // So that the way back leads to this row.
    const here = toParams(query);
    here.set("at", String(index));
    navigate(link("episodes", here), { replace: true });
    navigate(episodeLink(row.run, row.line, { query, at: index }));
  };
  const pick = (row: EpisodeRow | undefined) => {
    if (!row) return;
    const next = new Map(picked);
    if (!next.delete(rowKey(row))) next.set(rowKey(row), row);
    setPicked(next);
  };
  const move = (by: number) => setSelected(Math.max(0, Math.min(list.total - 1, selected + by)));
  const compare = () => {
    if (picked.size > 1) navigate(link("attempts", { episode: [...picked.keys()] }));
  };
  const shortcuts: Shortcut[] = [
    { key: "j", label: "Next episode", run: () => move(1) },
    { key: "k", label: "Previous episode", run: () => move(-1) },
    { key: "Enter", label: "Open the episode", run: () => open(selected) },
    { key: "x", label: "Select the episode", run: () => pick(list.row(selected)) },
    { key: "c", label: "Selected episodes side by side", run: compare },
    { key: "/", label: "Search", run: () => search.current?.focus() },
  ];
  useShortcuts(shortcuts);
  useEffect(() => props.onShortcuts(shortcuts), []);

  const stats = list.first?.stats;
  return (
    <main class="episodes">
      <FilterBar query={query} stats={stats} searchField={search} error={list.error} />
      <div class="episodes-body">
        <section class="episodes-list card" aria-busy={list.loading}>
          <header class="row">
            <strong>{stats ? plural(list.total, "episode") : "Reading…"}</strong>
            {stats && stats.mean !== null && (
              <span class="muted" title="In brackets: the 95 % interval">
                mean reward {formatMean(stats.mean, stats.interval)}
              </span>
            )}
            <span class="spacer" />
            {picked.size > 0 && (
              <>
                <span class="badge">{formatCount(picked.size)} selected</span>
                <button type="button" disabled={picked.size < 2 || picked.size > 16} onClick={compare}>
                  Compare
                </button>
                <button type="button" class="quiet" onClick={() => setPicked(new Map())}>
                  Clear
                </button>
              </>
            )}
          </header>
          <EpisodeTable {...{ list, query, selected, picked, open, pick }} />
        </section>
        {stats && <Sidebar query={query} stats={stats} />}
      </div>
    </main>
  );
}

function Sidebar({ query, stats }: { query: EpisodeQuery; stats: Stats }) {
  const addCondition = (condition: string) =>
    changeQuery(query, { where: query.where ? `(${query.where}) AND ${condition}` : condition });
  return (
    <aside class="episodes-side stack">
      {stats.histogram.length > 0 && (
        <Histogram
          title="Reward"
          bins={stats.histogram}
          onPick={({ low, high }) =>
            addCondition(low === high ? `reward = ${low}` : `reward BETWEEN ${low} AND ${high}`)
          }
        />
      )}
      <dl class="card facts">
        <dt>Tasks, about</dt>
        <dd>{formatCount(stats.tasks)}</dd>
        <dt>Unscored</dt>
        <dd>{formatCount(stats.episodes - stats.scored)}</dd>
        <dt>Turns, mean</dt>
        <dd>{formatNumber(stats.turns)}</dd>
        <dt>Reply tokens, mean</dt>
        <dd>{formatNumber(stats.tokens)}</dd>
        <dt>Malformed calls</dt>
        <dd>{formatNumber(stats.malformed_calls)}</dd>
        {stats.cost !== null && (
          <>
            <dt>Cost</dt>
            <dd>${formatNumber(stats.cost)}</dd>
          </>
        )}
      </dl>
    </aside>
  );
}
