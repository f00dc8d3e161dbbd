import { useEffect, useState } from "preact/hooks";
import { type JsonObject, isObject } from "../shared/json";
import { JsonView } from "../shared/json_view";
import { type Shortcut, useShortcuts } from "../shared/keyboard";
import { useGet } from "./api";
import { formatCount, formatNumber, formatPercent, plural } from "./format";
import { usePagedRows } from "./paged_rows";
import { link, navigate } from "./route";
import type { EntryDetail, Page, RowFacts } from "./types";
import { VirtualList } from "./virtual_list";
import "./dataset.css";

const ROW_HEIGHT = 36;

/** A data set: its rows, how it was curated, and what was left out. */
export function DatasetPage(props: { params: URLSearchParams; onShortcuts: (list: Shortcut[]) => void }) {
  const key = props.params.get("key") ?? "";
  const { data, error } = useGet<EntryDetail>("entry", { key });
  const split = props.params.get("split") ?? data?.splits[0] ?? "train";
  if (!data) return <main class="page">{error ? <p class="notice bad">{error}</p> : <p class="muted">Reading…</p>}</main>;
  const report = isObject(data.record.report) ? data.record.report : {};
  return (
    <main class="page">
      <header class="row">
        <h1>{key}</h1>
        {data.splits.map((name) => (
          <a key={name} class={`badge ${name === split ? "good" : ""}`} href={link("dataset", { key, split: name })}>
            {name}
          </a>
        ))}
      </header>
      <Rows key={`${key} ${split}`} dataset={key} split={split} onShortcuts={props.onShortcuts} />
      {Object.keys(data.record).length > 0 && (
        <>
          <Curation report={report} />
          <section class="card stack">
            <h2>Settings</h2>
            <JsonView value={{ runs: data.record.runs ?? [], settings: data.record.settings ?? {} }} />
          </section>
        </>
      )}
    </main>
  );
}

function Rows(props: { dataset: string; split: string; onShortcuts: (list: Shortcut[]) => void }) {
  const { dataset, split } = props;
  const list = usePagedRows<RowFacts, Page<RowFacts>>("rows", new URLSearchParams({ dataset, split }), 0);
  const [selected, setSelected] = useState(0);
  const open = (number: number) => navigate(link("row", { dataset, split, number: String(number) }));
  const move = (by: number) => setSelected(Math.max(0, Math.min(list.total - 1, selected + by)));
  const shortcuts: Shortcut[] = [
    { key: "j", label: "Next row", run: () => move(1) },
    { key: "k", label: "Previous row", run: () => move(-1) },
    { key: "Enter", label: "Open the row", run: () => open(selected) },
  ];
  useShortcuts(shortcuts);
  useEffect(() => props.onShortcuts(shortcuts), []);
  if (list.error) return <p class="notice bad">{list.error}</p>;
  return (
    <section
      class="card dataset-rows"
      role="grid"
      aria-rowcount={list.total}
      style={{ height: `min(60dvh, ${(list.total + 2) * ROW_HEIGHT}px)` }}
    >
      <h2>{plural(list.total, "row")}</h2>
      <VirtualList
        total={list.total}
        rowHeight={ROW_HEIGHT}
        selected={selected}
        label="Rows"
        onRange={list.load}
        render={(index) => {
          const row = list.row(index);
          const reward = row?.reward ?? row?.chosen_reward;
          return (
            <div class={`dataset-row ${index === selected ? "selected" : ""}`} role="row" onClick={() => open(index)}>
              <span class="number muted">{formatCount(index)}</span>
              <span class="number">{reward !== undefined && formatNumber(reward)}</span>
              <span class="question">{row?.question ?? "…"}</span>
              <span class="mono muted id">{row?.episode_id ?? row?.chosen_id}</span>
            </div>
          );
        }}
      />
    </section>
  );
}

/** How many episodes each filter of `ludus curate` removed. */
function Curation({ report }: { report: JsonObject }) {
  const steps = (Array.isArray(report.steps) ? report.steps : []).filter(isObject);
  const total = typeof report.episodes === "number" ? report.episodes : 0;
  if (!steps.length || !total) return null;
  return (
    <section class="card stack">
      <h2>
        What curation removed <span class="muted">· kept {formatCount(Number(report.kept))} of {plural(total, "episode")}</span>
      </h2>
      <div class="scroll-x">
        <table class="data">
          <thead>
            <tr>
              <th>Filter</th>
              <th class="number">Removed</th>
              <th class="number">Left</th>
              <th />
              <th>Condition</th>
            </tr>
          </thead>
          <tbody>
            {steps.map((step, at) => (
              <tr key={at} class={step.removed ? "" : "muted"}>
                <td>{String(step.reason)}</td>
                <td class="number">{formatCount(Number(step.removed))}</td>
                <td class="number">{formatCount(Number(step.remaining))}</td>
                <td>
                  <span class="share" title={formatPercent(Number(step.remaining) / total)}>
                    <span style={{ width: `${(100 * Number(step.remaining)) / total}%` }} />
                  </span>
                </td>
                <td>{String(step.detail ?? "")}</td>
              </tr>
            ))}
          </tbody>
        </table>
      </div>
    </section>
  );
}
