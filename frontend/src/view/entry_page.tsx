import { useEffect } from "preact/hooks";
import { type Json, isObject } from "../shared/json";
import { JsonView } from "../shared/json_view";
import type { Shortcut } from "../shared/keyboard";
import { useGet } from "./api";
import { Curves, Histogram } from "./charts";
import { Evaluation } from "./evaluation";
import { formatCount, formatMean, formatNumber, formatPercent, formatSeconds, stopName } from "./format";
import { useLibrary } from "./library";
import { link, navigate } from "./route";
import type { EntryDetail, Stats } from "./types";

/** A run, a training or an evaluation: counts, curves, settings. */
export function EntryPage(props: { params: URLSearchParams; onShortcuts: (list: Shortcut[]) => void }) {
  const key = props.params.get("key") ?? "";
  const { state, version } = useLibrary();
  const changed = `${version} ${state?.entries.find((entry) => entry.key === key)?.modified_at}`;
  const { data, error } = useGet<EntryDetail>("entry", { key }, changed);
  useEffect(() => props.onShortcuts([]), []);
  if (!data) return <main class="page">{error ? <p class="notice bad">{error}</p> : <p class="muted">Reading…</p>}</main>;
  const others = state?.entries.filter((entry) => entry.kind === data.kind && entry.key !== key) ?? [];
  const dataPath = isObject(data.record.data) ? String(data.record.data.path) : "";
  return (
    <main class="page">
      <header class="row">
        <h1>{data.key}</h1>
        <span class="badge">{data.stage}</span>
        {data.running && <span class="badge good">live</span>}
        <span class="spacer" />
        {others.length > 0 && data.kind !== "evaluation" && (
          <label class="row small">
            Compare with
            <select class="inline" value="" onChange={(event) => navigate(link("compare", { first: key, second: event.currentTarget.value }))}>
              <option value="">…</option>
              {others.map((entry) => (
                <option key={entry.key}>{entry.key}</option>
              ))}
            </select>
          </label>
        )}
        {data.has_episodes && (
          <a class="button" href={link("episodes", { run: [key] })}>
            Episodes →
          </a>
        )}
      </header>
      <p class="muted">
        {[data.environment, data.model, data.created_at?.replace("T", " ").slice(0, 16)].filter(Boolean).join(" · ")}
        {dataPath && (
          <>
            {" "}
            · trained on <a href={link("dataset", { key: dataPath })}>{dataPath}</a>
          </>
        )}
      </p>
      {error && <p class="notice bad">{error}</p>}
      {data.unreadable ? <p class="notice">{formatCount(data.unreadable)} lines are not episodes and left out.</p> : null}
      {data.evaluation && <Evaluation path={key} evaluation={data.evaluation} />}
      {data.stats && <Tiles stats={data.stats} />}
      {data.stats && data.stats.episodes > 0 && (
        <div class="two">
          {data.stats.histogram.length > 0 && (
            <Histogram
              title="Episodes by reward"
              bins={data.stats.histogram}
              onPick={({ low, high }) =>
                navigate(link("episodes", { run: [key], where: low === high ? `reward = ${low}` : `reward BETWEEN ${low} AND ${high}` }))
              }
            />
          )}
          <StopReasons stats={data.stats} run={key} />
        </div>
      )}
      {data.curves && data.curves.length > 0 && <Curves runs={[{ name: key, curves: data.curves }]} />}
      <section class="card stack">
        <h2>Settings</h2>
        {typeof data.record.command === "string" && <pre>{data.record.command}</pre>}
        <JsonView value={shownRecord(data)} />
      </section>
    </main>
  );
}

function shownRecord({ record, kind }: EntryDetail): Json {
  const { settings = {}, versions = {}, metrics = {}, devices = [] } = record;
  return kind === "training" ? { settings, metrics, devices, versions } : { settings, versions };
}

export function Tiles({ stats }: { stats: Stats }) {
  const tiles: [string, string][] = [
    ["episodes", formatCount(stats.episodes)],
    ["mean reward", formatMean(stats.mean, stats.interval)],
    ["unscored", formatCount(stats.episodes - stats.scored)],
    ["turns, mean", formatNumber(stats.turns)],
    ["reply tokens, mean", formatNumber(stats.tokens)],
    ["time, mean", formatSeconds(stats.seconds) || "–"],
    ...(stats.cost !== null ? ([["cost", `$${formatNumber(stats.cost)}`]] as [string, string][]) : []),
  ];
  return (
    <div class="tiles">
      {tiles.map(([title, text]) => {
        const [value, interval] = text.split(" (");
        return (
          <div key={title} class="card tile">
            <strong>{value}</strong>
            <span>
              {title} {interval && `(95 % interval ${interval}`}
            </span>
          </div>
        );
      })}
    </div>
  );
}

function StopReasons({ stats, run }: { stats: Stats; run: string }) {
  return (
    <section class="card stack">
      <h2>How episodes ended</h2>
      <table class="data">
        <tbody>
          {Object.entries(stats.stop_reasons).map(([reason, count]) => (
            <tr key={reason}>
              <td>
                <a href={link("episodes", { run: [run], stop: reason })}>{stopName(reason)}</a>
              </td>
              <td class="share-cell">
                <span class="share">
                  <span style={{ width: `${(100 * count) / stats.episodes}%` }} />
                </span>
              </td>
              <td class="number">{formatPercent(count / stats.episodes)}</td>
              <td class="number">{formatCount(count)}</td>
            </tr>
          ))}
        </tbody>
      </table>
    </section>
  );
}
