import { Prose } from "../shared/prose";
import { IntervalChart, seriesClass } from "./estimate_charts";
import { formatCount } from "./format";
import { link } from "./route";
import type { EvaluationDetail, TextTable } from "./types";

const TONES = { better: "good", worse: "bad", "not resolved": "" };

/** The results of an evaluation: verdicts, tables as in the terminal, and intervals. */
export function Evaluation({ path, evaluation }: { path: string; evaluation: EvaluationDetail }) {
  const { candidates, metrics, slices } = evaluation;
  const labels = candidates.map(({ label }) => label);
  const hasDeltas = metrics.some(({ deltas }) => deltas.some((each) => each !== null));
  return (
    <>
      {evaluation.verdicts.length > 0 && (
        <div class="verdicts">
          {evaluation.verdicts.map(({ outcome, text }) => (
            <p key={text} class={`notice ${TONES[outcome]}`}>
              {text}
            </p>
          ))}
        </div>
      )}
      <section class="card stack">
        <h2>Results</h2>
        <ResultTable table={evaluation.results} />
        <ul class="notes">
          {[evaluation.method, ...evaluation.notes].map((note) => (
            <li key={note}>
              <Prose text={note} />
            </li>
          ))}
        </ul>
      </section>
      {slices.map((table) => (
        <section key={table.header[0]} class="card stack">
          <h2>{table.header[0]} by environment and difficulty</h2>
          <ResultTable table={{ header: ["", ...table.header.slice(1)], rows: table.rows }} />
        </section>
      ))}
      <section class="stack">
        <h2>95 % intervals</h2>
        <div class="chart-grid">
          {metrics.map(({ title, is_share, estimates }) => (
            <IntervalChart key={title} title={title} labels={labels} estimates={estimates} isShare={is_share} />
          ))}
        </div>
      </section>
      {hasDeltas && (
        <section class="stack">
          <h2>95 % intervals of the difference from {labels[0]}</h2>
          <div class="chart-grid">
            {metrics.map(({ title, is_share, deltas }) => (
              <IntervalChart key={title} title={title} labels={labels} estimates={deltas} isShare={is_share} isDifference />
            ))}
          </div>
        </section>
      )}
      <section class="card stack">
        <h2>Candidates</h2>
        <div class="scroll-x">
          <table class="data">
            <tbody>
              {candidates.map(({ label, agent, episodes }, at) => (
                <tr key={label}>
                  <td>
                    <a class={seriesClass(at)} href={link("entry", { key: `${path}/${label}` })}>
                      {label}
                    </a>
                  </td>
                  <td class="muted">
                    {Object.entries(agent)
                      .map(([name, value]) => `${name} ${typeof value === "string" ? value : JSON.stringify(value)}`)
                      .join(", ")}
                  </td>
                  <td class="number">
                    <a href={link("episodes", { run: [`${path}/${label}`] })}>{formatCount(episodes)} episodes</a>
                  </td>
                </tr>
              ))}
            </tbody>
          </table>
        </div>
      </section>
    </>
  );
}

/** A table of the terminal; intervals stand out less than the values before them. */
function ResultTable({ table }: { table: TextTable }) {
  const columns = table.header.map((name, at) => (at === 0 || name === "Candidate" ? "" : "number"));
  return (
    <div class="scroll-x">
      <table class="data results">
        <thead>
          <tr>
            {table.header.map((name, at) => (
              <th key={at} class={columns[at]}>
                {name}
              </th>
            ))}
          </tr>
        </thead>
        <tbody>
          {table.rows.map((cells, row) => (
            <tr key={row}>
              {cells.map((cell, at) => {
                const [value, ...interval] = columns[at] ? cell.split(" (") : [cell];
                return (
                  <td key={at} class={columns[at]}>
                    {value} {interval.length > 0 && <span class="muted interval">({interval.join(" (")}</span>}
                  </td>
                );
              })}
            </tr>
          ))}
        </tbody>
      </table>
    </div>
  );
}
