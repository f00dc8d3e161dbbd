import { useEffect } from "preact/hooks";
import type { Shortcut } from "../shared/keyboard";
import { useGet } from "./api";
import { Curves, Histogram } from "./charts";
import { formatMean, formatNumber, formatSeconds } from "./format";
import { useLibrary } from "./library";
import { link } from "./route";
import type { Comparison, EntryDetail, Stats } from "./types";

const FIGURES: [string, (stats: Stats) => string][] = [
  ["Episodes", ({ episodes }) => formatNumber(episodes)],
  ["Mean reward (95 % interval)", ({ mean, interval }) => formatMean(mean, interval)],
  ["Unscored", ({ episodes, scored }) => formatNumber(episodes - scored)],
  ["Turns, mean", ({ turns }) => formatNumber(turns)],
  ["Reply tokens, mean", ({ tokens }) => formatNumber(tokens)],
  ["Time, mean", ({ seconds }) => formatSeconds(seconds) || "–"],
];

/** Two runs or trainings: what differs in their settings, their curves and rewards. */
export function ComparePage(props: { params: URLSearchParams; onShortcuts: (list: Shortcut[]) => void }) {
  const [first, second] = [props.params.get("first") ?? "", props.params.get("second") ?? ""];
  const { version } = useLibrary();
  const comparison = useGet<Comparison>("compare", { first, second }, version);
  const left = useGet<EntryDetail>("entry", { key: first }, version);
  const right = useGet<EntryDetail>("entry", { key: second }, version);
  useEffect(() => props.onShortcuts([]), []);
  const error = comparison.error || left.error || right.error;
  if (!comparison.data || !left.data || !right.data)
    return <main class="page">{error ? <p class="notice bad">{error}</p> : <p class="muted">Reading…</p>}</main>;
  const { differences, same } = comparison.data;
  const stats = [left.data.stats, right.data.stats];
  return (
    <main class="page">
      <header class="row">
        <h1>
          <a class="series-0" href={link("entry", { key: first })}>
            {first}
          </a>{" "}
          and{" "}
          <a class="series-1" href={link("entry", { key: second })}>
            {second}
          </a>
        </h1>
      </header>
      <section class="card stack">
        <h2>
          {differences.length === 0 ? "The settings are the same" : `${differences.length} settings differ`}
          <span class="muted"> · {same} are the same</span>
        </h2>
        {differences.length > 0 && (
          <div class="scroll-x">
            <table class="data">
              <tbody>
                {differences.map((each) => (
                  <tr key={each.setting}>
                    <td class="mono">{each.setting}</td>
                    <td class="mono series-0">{each.first}</td>
                    <td class="mono series-1">{each.second}</td>
                  </tr>
                ))}
              </tbody>
            </table>
          </div>
        )}
      </section>
      {stats[0] && stats[1] && (
        <>
          <section class="card scroll-x">
            <table class="data">
              <tbody>
                {FIGURES.map(([title, format]) => (
                  <tr key={title}>
                    <td>{title}</td>
                    <td class="number series-0">{format(stats[0]!)}</td>
                    <td class="number series-1">{format(stats[1]!)}</td>
                  </tr>
                ))}
              </tbody>
            </table>
          </section>
          <div class="two">
            <div class="series-0">
              <Histogram title={`Rewards of ${first}`} bins={stats[0].histogram} />
            </div>
            <div class="series-1">
              <Histogram title={`Rewards of ${second}`} bins={stats[1].histogram} />
            </div>
          </div>
        </>
      )}
      <Curves
        runs={[
          { name: first, curves: left.data.curves ?? [] },
          { name: second, curves: right.data.curves ?? [] },
        ]}
      />
    </main>
  );
}
