import { useState } from "preact/hooks";
import { post } from "./api";
import type { EpisodeQuery } from "./episode_query";
import type { Picked } from "./episodes_page";
import { formatCount, plural } from "./format";
import { link } from "./route";
import type { ExportResult } from "./types";

const KINDS = [
  ["sft", "rows for SFT: whole conversations"],
  ["dpo", "pairs for DPO: a better and a worse attempt"],
  ["episodes", "episodes as they are"],
] as const;

/** Export the selected episodes, or all of the filter, to a data set. */
export function ExportDialog(props: {
  dialog: { current: HTMLDialogElement | null };
  query: EpisodeQuery;
  picked: Picked;
  total: number;
}) {
  const [out, setOut] = useState("data/picked");
  const [to, setTo] = useState<string>("sft");
  const [busy, setBusy] = useState(false);
  const [error, setError] = useState("");
  const [result, setResult] = useState<ExportResult | null>(null);
  const count = props.picked.size || props.total;
  const submit = async () => {
    setBusy(true);
    setError("");
    setResult(null);
    const { run, where, search, stop, group } = props.query;
    const picked = [...props.picked.values()].map(({ run, episode_id, attempt }) => ({ run, episode_id, attempt }));
    const filter = picked.length ? {} : { runs: run, where, search, stop_reason: stop, group_id: group };
    try {
      setResult(await post<ExportResult>("export", { out, to, picked, ...filter }));
    } catch (failure) {
      setError((failure as Error).message);
    }
    setBusy(false);
  };
  return (
    <dialog ref={props.dialog} aria-label="Export" onClose={() => setResult(null)}>
      <form
        method="dialog"
        class="stack"
        onSubmit={(event) => {
          event.preventDefault();
          void submit();
        }}
      >
        <h2>Export {plural(count, props.picked.size ? "selected episode" : "episode")}</h2>
        <label>
          Format
          <select value={to} onChange={(event) => setTo(event.currentTarget.value)}>
            {KINDS.map(([kind, title]) => (
              <option key={kind} value={kind}>
                {title}
              </option>
            ))}
          </select>
        </label>
        <label>
          Folder
          <input value={out} required onInput={(event) => setOut(event.currentTarget.value)} />
        </label>
        <p class="muted small">Curation leaves out broken episodes and duplicates.</p>
        {error && (
          <p class="notice bad" role="alert">
            {error}
          </p>
        )}
        {result && <Result result={result} />}
        <div class="row">
          <button type="submit" class="primary" disabled={busy || !count}>
            {busy ? "Writing…" : "Export"}
          </button>
          <button type="button" onClick={() => props.dialog.current?.close()}>
            Close
          </button>
        </div>
      </form>
    </dialog>
  );
}

function Result({ result }: { result: ExportResult }) {
  const rows = Object.values(result.report.rows).reduce((sum, each) => sum + each, 0);
  const left = Object.entries(result.report.left_out).filter(([reason]) => reason !== "where");
  return (
    <div class="notice stack" role="status">
      <span>
        {plural(rows, "row")} written to <a href={link("dataset", { key: result.out })}>{result.out}</a>
        {left.length > 0 && `; left out: ${left.map(([reason, count]) => `${reason} ${formatCount(count)}`).join(", ")}`}
      </span>
      <span>The same on the command line:</span>
      <pre>{result.command}</pre>
    </div>
  );
}
