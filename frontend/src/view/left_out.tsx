import { useState } from "preact/hooks";
import { useGet } from "./api";
import { episodeLink } from "./episode_query";
import { formatCount } from "./format";
import type { LeftOut } from "./types";

const SHOWN = 100;

/** The episodes that curation removed, each with its reason. */
export function LeftOutList({ dataset }: { dataset: string }) {
  const [reason, setReason] = useState("");
  const [offset, setOffset] = useState(0);
  const { data } = useGet<LeftOut>("left_out", { dataset, reason, offset: String(offset), limit: String(SHOWN) });
  if (!data) return null;
  if (!data.listed) {
    return (
      <p class="muted small">
        <code>ludus curate --explain</code> lists every removed episode with its reason, to be read here.
      </p>
    );
  }
  return (
    <section class="card stack">
      <div class="row">
        <h2>Removed episodes</h2>
        <select
          class="inline"
          aria-label="Reason"
          value={reason}
          onChange={(event) => {
            setReason(event.currentTarget.value);
            setOffset(0);
          }}
        >
          <option value="">all reasons</option>
          {Object.entries(data.counts).map(([name, count]) => (
            <option key={name} value={name}>
              {name} ({formatCount(count)})
            </option>
          ))}
        </select>
        <span class="spacer" />
        <button type="button" disabled={offset === 0} onClick={() => setOffset(offset - SHOWN)}>
          ←
        </button>
        <span class="small muted">
          {formatCount(Math.min(offset + 1, data.total))} to {formatCount(Math.min(offset + SHOWN, data.total))} of {formatCount(data.total)}
        </span>
        <button type="button" disabled={offset + SHOWN >= data.total} onClick={() => setOffset(offset + SHOWN)}>
          →
        </button>
      </div>
      <div class="scroll-x left-out">
        <table class="data">
          <tbody>
            {data.rows.map((row) => (
              <tr key={`${row.file}:${row.line}`}>
                <td>{row.reason}</td>
                <td class="mono id">
                  {row.run ? <a href={episodeLink(row.run, row.line - 1)}>{row.episode_id ?? "unreadable"}</a> : row.episode_id}
                </td>
                <td class="muted">
                  {row.file}:{row.line}
                </td>
              </tr>
            ))}
          </tbody>
        </table>
      </div>
    </section>
  );
}
