import { useEffect, useState } from "preact/hooks";
import { type Shortcut, useShortcuts } from "../shared/keyboard";
import { formatAge, formatCount, formatMean } from "./format";
import { useLibrary } from "./library";
import { link, navigate } from "./route";
import type { Entry } from "./types";

const SECTIONS: [string, (entry: Entry) => boolean][] = [
  ["Trainings", ({ kind }) => kind === "training"],
  ["Evaluations", ({ kind }) => kind === "evaluation"],
  ["Runs", ({ kind }) => kind === "run"],
  ["Data sets", ({ kind }) => kind === "dataset"],
];

export function entryLink({ kind, key }: Entry): string {
  return link(kind === "dataset" ? "dataset" : "entry", { key });
}

/** All runs, trainings, evaluations and data sets; two of the first can be compared. */
export function OverviewPage(props: { onShortcuts: (list: Shortcut[]) => void }) {
  const { state } = useLibrary();
  const [picked, setPicked] = useState<string[]>([]);
  const [selected, setSelected] = useState(-1);
  const entries = state?.entries ?? [];
  const ordered = SECTIONS.flatMap(([, belongs]) => entries.filter(belongs));
  const pick = (key: string) =>
    setPicked(picked.includes(key) ? picked.filter((each) => each !== key) : [...picked.slice(-1), key]);
  const compare = () => picked.length === 2 && navigate(link("compare", { first: picked[0], second: picked[1] }));
  const move = (by: number) => setSelected(Math.max(0, Math.min(ordered.length - 1, selected + by)));
  const shortcuts: Shortcut[] = [
    { key: "j", label: "Next entry", run: () => move(1) },
    { key: "k", label: "Previous entry", run: () => move(-1) },
    { key: "Enter", label: "Open the entry", run: () => ordered[selected] && navigate(entryLink(ordered[selected])) },
    { key: "x", label: "Select the entry", run: () => ordered[selected] && pick(ordered[selected].key) },
    { key: "c", label: "Compare the two selected", run: compare },
    { key: "/", label: "Search episodes", run: () => navigate(link("episodes")) },
  ];
  useShortcuts(shortcuts);
  useEffect(() => props.onShortcuts(shortcuts), []);
  if (!state) return <main class="page"><p class="muted">Reading…</p></main>;
  return (
    <main class="page">
      <header class="row">
        <h1>Overview</h1>
        <span class="muted small mono">{state.folder}</span>
        <span class="spacer" />
        <button type="button" disabled={picked.length !== 2} onClick={compare} title="Select two runs or trainings">
          Compare {picked.length > 0 && `${picked.length} of 2`}
        </button>
      </header>
      {SECTIONS.map(([title, belongs]) => {
        const section = entries.filter(belongs);
        if (!section.length) return null;
        return (
          <section key={title} class="card stack">
            <h2>{title}</h2>
            <div class="scroll-x">
              <table class="data entries">
                <tbody>
                  {section.map((entry) => (
                    <EntryRow
                      key={`${entry.kind}:${entry.key}`}
                      entry={entry}
                      isSelected={entry === ordered[selected]}
                      isPicked={picked.includes(entry.key)}
                      {...(entry.kind === "run" || entry.kind === "training" ? { onPick: () => pick(entry.key) } : {})}
                    />
                  ))}
                </tbody>
              </table>
            </div>
          </section>
        );
      })}
    </main>
  );
}

function EntryRow(props: { entry: Entry; isSelected: boolean; isPicked: boolean; onPick?: () => void }) {
  const { entry } = props;
  return (
    <tr aria-selected={props.isSelected}>
      <td class="pick-cell">
        {props.onPick && (
          <label>
            <input type="checkbox" checked={props.isPicked} onChange={props.onPick} />
            <span class="visually-hidden">Select {entry.key}</span>
          </label>
        )}
      </td>
      <td class="entry-name">
        <a href={entryLink(entry)}>{entry.key}</a> {entry.running && <span class="badge good">live</span>}
        <div class="muted small">{[entry.stage, entry.environment, entry.model, entry.summary].filter(Boolean).join(" · ")}</div>
      </td>
      <td class="number">
        {entry.has_episodes && (
          <a href={link("episodes", { run: [entry.key] })}>{formatCount(entry.episodes)} episodes</a>
        )}
      </td>
      <td class="number">{entry.reward !== null && `mean reward ${formatMean(entry.reward, null)}`}</td>
      <td class="number muted">{formatAge(entry.modified_at)}</td>
    </tr>
  );
}
