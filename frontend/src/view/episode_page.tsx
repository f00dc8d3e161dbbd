import { useEffect, useState } from "preact/hooks";
import type { Json } from "../shared/json";
import { JsonView } from "../shared/json_view";
import { type Shortcut, useShortcuts } from "../shared/keyboard";
import { outcomeTone } from "../shared/transcript";
import { get, useGet } from "./api";
import { episodeLink, readQuery, toParams } from "./episode_query";
import { formatCount, formatNumber, formatSeconds, stopName, stopTone } from "./format";
import { EpisodeTranscript } from "./messages";
import { link, navigate } from "./route";
import { TokensView } from "./tokens_view";
import type { Episode, EpisodeDetail, EpisodePage as Rows } from "./types";
import "./episode.css";

type Tab = "transcript" | "tokens" | "fields";

/** One episode: its transcript, tokens or fields, and the other attempts at its task. */
export function EpisodePage(props: { params: URLSearchParams; onShortcuts: (list: Shortcut[]) => void }) {
  const { params } = props;
  const [run, line] = [params.get("of") ?? "", Number(params.get("line") ?? 0)];
  const query = readQuery(params);
  const at = params.has("at") ? Number(params.get("at")) : null;
  const { data, error } = useGet<EpisodeDetail>("episode", { run, line: String(line) });
  const tab = (params.get("tab") as Tab | null) ?? "transcript";

  const back = () => {
    const list = toParams(query);
    if (at !== null) list.set("at", String(at));
    navigate(link("episodes", list));
  };
  const step = async (by: number) => {
    if (at === null || at + by < 0) return;
    const list = toParams(query);
    list.set("offset", String(at + by));
    list.set("limit", "1");
    const [row] = (await get<Rows>("episodes", list)).rows;
    if (row) navigate(withTab(episodeLink(row.run, row.line, { query, at: at + by }), tab), { replace: true });
  };
  const showTab = (next: Tab) => navigate(withTab(location.hash, next), { replace: true });
  const sideBySide = () => data && data.attempts.length > 1 && navigate(attemptsLink(data));
  const shortcuts: Shortcut[] = [
    { key: "j", label: "Next episode of the list", run: () => void step(1) },
    { key: "k", label: "Previous episode of the list", run: () => void step(-1) },
    { key: "Escape", label: "Back to the list", run: back },
    { key: "t", label: "Transcript or tokens", run: () => showTab(tab === "tokens" ? "transcript" : "tokens") },
    { key: "c", label: "Attempts at the task side by side", run: sideBySide },
  ];
  useShortcuts(shortcuts);
  useEffect(() => props.onShortcuts(shortcuts), []);
  useEffect(() => scrollTo(0, 0), [run, line]);

  if (!data) return <main class="page">{error ? <p class="notice bad">{error}</p> : <p class="muted">Reading…</p>}</main>;
  const { episode } = data;
  const tabs: [Tab, string][] = [
    ["transcript", "Transcript"],
    ...(data.has_tokens ? ([["tokens", "Tokens"]] as [Tab, string][]) : []),
    ["fields", "All fields"],
  ];
  return (
    <main class="page">
      <header class="row episode-head">
        <button type="button" class="quiet" onClick={back}>
          ← Episodes
        </button>
        <h1 class="mono">{episode.episode_id}</h1>
        <span class={`badge ${outcomeTone(episode.reward, episode.rewards?.solved)}`}>
          {episode.reward === null ? "unscored" : `reward ${formatNumber(episode.reward)}`}
        </span>
        <span class={`badge ${stopTone(episode.stop_reason)}`}>{stopName(episode.stop_reason)}</span>
        <span class="spacer" />
        <button type="button" disabled={!at} onClick={() => void step(-1)}>
          ↑ <kbd>k</kbd>
        </button>
        <button type="button" disabled={at === null} onClick={() => void step(1)}>
          ↓ <kbd>j</kbd>
        </button>
      </header>
      {error && <p class="notice bad">{error}</p>}
      {episode.error && (
        <p class="notice bad">
          <strong>
            {episode.error.kind} in the {episode.error.where}
          </strong>
          <br />
          {episode.error.message}
        </p>
      )}
      <div class="episode-body">
        <div class="stack episode-main">
          <div class="row" role="tablist">
            {tabs.map(([name, title]) => (
              <button key={name} type="button" role="tab" aria-selected={tab === name} class={tab === name ? "primary" : "quiet"} onClick={() => showTab(name)}>
                {title}
              </button>
            ))}
          </div>
          {tab === "tokens" && data.has_tokens && <TokensView run={run} line={line} advantages={data.advantages} />}
          {tab === "fields" && (
            <div class="card">
              <JsonView value={episode as unknown as Json} />
            </div>
          )}
          {(tab === "transcript" || (tab === "tokens" && !data.has_tokens)) && (
            <EpisodeTranscript key={`${run}:${line}`} episode={episode} advantages={data.advantages} />
          )}
        </div>
        <aside class="stack episode-side">
          <Facts episode={episode} run={run} advantages={data.advantages} />
          <Attempts detail={data} />
        </aside>
      </div>
    </main>
  );
}

function withTab(address: string, tab: Tab): string {
  const [page = "", query = ""] = address.split(/\?(.*)/s);
  const params = new URLSearchParams(query);
  if (tab === "transcript") params.delete("tab");
  else params.set("tab", tab);
  return `${page}?${params.toString().replaceAll("%2F", "/")}`;
}

function attemptsLink({ run, line, attempts }: EpisodeDetail): string {
  const others = attempts.filter((each) => each.line !== line).slice(0, 7);
  return link("attempts", { episode: [`${run}:${line}`, ...others.map((each) => `${each.run}:${each.line}`)] });
}

function Facts({ episode, run, advantages }: { episode: Episode; run: string; advantages: number[] | null }) {
  const { timing, usage } = episode;
  const seconds = timing ? (Date.parse(timing.ended_at) - Date.parse(timing.started_at)) / 1000 : null;
  const parts = Object.entries(episode.rewards ?? {});
  const [open, setOpen] = useState(false);
  return (
    <section class="card stack">
      <dl class="facts">
        <dt>Run</dt>
        <dd>
          <a href={link("entry", { key: run })}>{run}</a>
        </dd>
        <dt>Environment</dt>
        <dd>{episode.environment}</dd>
        <dt>Agent</dt>
        <dd>{String(episode.agent.model ?? episode.agent.provider ?? "")}</dd>
        {parts.map(([name, value]) => (
          <>
            <dt>Reward: {name}</dt>
            <dd>{formatNumber(value)}</dd>
          </>
        ))}
        {advantages?.length && new Set(advantages).size === 1 && (
          <>
            <dt>Advantage</dt>
            <dd>{formatNumber(advantages[0])}</dd>
          </>
        )}
        <dt>Turns</dt>
        <dd>
          {episode.turns}
          {episode.malformed_calls > 0 && `, ${episode.malformed_calls} malformed calls`}
        </dd>
        <dt>Tokens</dt>
        <dd>
          {formatCount(usage.prompt_tokens)} prompt, {formatCount(usage.completion_tokens)} reply
        </dd>
        {usage.cost !== null && (
          <>
            <dt>Cost</dt>
            <dd>${formatNumber(usage.cost)}</dd>
          </>
        )}
        {episode.attempt > 1 && (
          <>
            <dt>Attempt</dt>
            <dd>{episode.attempt}</dd>
          </>
        )}
      </dl>
      {timing && seconds !== null && (
        <Timing total={seconds} model={timing.model_s} environment={timing.environment_s} started={timing.started_at} />
      )}
      <details open={open} onToggle={(event) => setOpen(event.currentTarget.open)}>
        <summary>Task, agent and tools</summary>
        {open && <JsonView value={{ task: episode.task, agent: episode.agent, tools: episode.tools } as Json} />}
      </details>
    </section>
  );
}

function Timing(props: { total: number; model: number; environment: number; started: string }) {
  const whole = Math.max(props.total, props.model + props.environment, 1e-9);
  const width = (part: number) => ({ width: `${(100 * part) / whole}%` });
  return (
    <div>
      <div class="timing" role="img" aria-label="Share of model and environment in the time">
        <span class="timing-model" style={width(props.model)} />
        <span class="timing-environment" style={width(props.environment)} />
      </div>
      <p class="small muted">
        {formatSeconds(props.total)}: model {formatSeconds(props.model)}, environment {formatSeconds(props.environment)}
        <br />
        {props.started.replace("T", " ").slice(0, 19)} UTC
      </p>
    </div>
  );
}

function Attempts({ detail }: { detail: EpisodeDetail }) {
  if (detail.attempts.length < 2) return null;
  return (
    <section class="card stack">
      <div class="row">
        <h2>{detail.attempts.length} attempts at this task</h2>
        <span class="spacer" />
        <a href={attemptsLink(detail)}>Side by side</a>
      </div>
      <ol class="attempt-list">
        {detail.attempts.map((each) => (
          <li key={each.line}>
            <a class={`badge ${outcomeTone(each.reward, each.solved)}`} href={episodeLink(each.run, each.line)} aria-current={each.line === detail.line} title={each.episode_id}>
              {each.reward === null ? "–" : formatNumber(each.reward)}
            </a>
          </li>
        ))}
      </ol>
    </section>
  );
}
