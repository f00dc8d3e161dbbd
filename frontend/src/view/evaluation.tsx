import { type Json, type JsonObject, isObject } from "../shared/json";
import { IntervalChart } from "./charts";
import { formatCount, formatNumber } from "./format";
import { link } from "./route";
import type { EntryDetail } from "./types";

interface Estimate {
  value: number;
  low: number | null;
  high: number | null;
  n: number;
}

interface Candidate {
  label: string;
  episodes: number;
  broken: number;
  metrics: Record<string, Estimate>;
  deltas: Record<string, Estimate>;
}

const TITLES: Record<string, string> = {
  accuracy: "Accuracy",
  mean_reward: "Mean reward",
  format_compliance: "Format compliance",
  cut_off: "Cut off",
  reply_tokens: "Tokens in a reply",
};

/** The candidates of an evaluation: every metric with its interval, and differences to the first. */
export function Evaluation({ entry }: { entry: EntryDetail }) {
  const candidates = (Array.isArray(entry.record.candidates) ? entry.record.candidates : []).filter(isCandidate);
  const names = [...new Set(candidates.flatMap(({ metrics }) => Object.keys(metrics)))];
  const compared = candidates.filter(({ deltas }) => Object.keys(deltas).length > 0);
  return (
    <>
      {typeof entry.record.stopped === "string" && <p class="notice">Not complete: {entry.record.stopped}</p>}
      {entry.verdicts?.map((verdict) => (
        <p key={verdict} class="notice">
          {verdict}
        </p>
      ))}
      <section class="card scroll-x">
        <table class="data">
          <thead>
            <tr>
              <th>Candidate</th>
              <th class="number">Episodes</th>
              <th class="number">Broken</th>
              {names.map((name) => (
                <th key={name} class="number">
                  {TITLES[name] ?? name}
                </th>
              ))}
            </tr>
          </thead>
          <tbody>
            {candidates.map(({ label, episodes, broken, metrics }) => (
              <tr key={label}>
                <td>
                  <a href={link("episodes", { run: [`${entry.key}/${label}`] })}>{label}</a>
                </td>
                <td class="number">{formatCount(episodes)}</td>
                <td class="number">{formatCount(broken)}</td>
                {names.map((name) => (
                  <td key={name} class="number">
                    {formatEstimate(metrics[name])}
                  </td>
                ))}
              </tr>
            ))}
          </tbody>
        </table>
      </section>
      <div class="chart-grid">
        {names.map((name) => (
          <IntervalChart
            key={name}
            title={`${TITLES[name] ?? name}, 95 % intervals`}
            rows={candidates.flatMap(({ label, metrics }) => (metrics[name] ? [{ label, ...metrics[name] }] : []))}
          />
        ))}
        {compared.length > 0 &&
          names.map((name) => (
            <IntervalChart
              key={`delta ${name}`}
              title={`${TITLES[name] ?? name}: difference from ${candidates[0]?.label}`}
              rows={compared.flatMap(({ label, deltas }) => (deltas[name] ? [{ label, ...deltas[name] }] : []))}
              zero
            />
          ))}
      </div>
    </>
  );
}

function formatEstimate(estimate: Estimate | undefined): string {
  if (!estimate) return "–";
  const value = formatNumber(Number(estimate.value.toPrecision(3)));
  if (estimate.low === null || estimate.high === null) return value;
  return `${value} (${formatNumber(Number(estimate.low.toPrecision(3)))} to ${formatNumber(Number(estimate.high.toPrecision(3)))})`;
}

function isCandidate(value: Json): value is Json & JsonObject & Candidate {
  return isObject(value) && typeof value.label === "string" && isObject(value.metrics) && isObject(value.deltas);
}
