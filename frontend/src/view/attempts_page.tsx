import { useEffect, useState } from "preact/hooks";
import type { Shortcut } from "../shared/keyboard";
import { outcomeTone } from "../shared/transcript";
import { get } from "./api";
import { alignMessages, sharedPrefix } from "./alignment";
import { episodeLink } from "./episode_query";
import { formatCount, formatNumber, formatSeconds, plural, stopName, stopTone } from "./format";
import { Calls, MessageEntry, splitContent } from "./messages";
import type { EpisodeDetail, Message } from "./types";
import "./attempts.css";

/** Several attempts side by side; what they have in common is shown once. */
export function AttemptsPage(props: { params: URLSearchParams; onShortcuts: (list: Shortcut[]) => void }) {
  const keys = props.params.getAll("episode");
  const [details, setDetails] = useState<EpisodeDetail[]>([]);
  const [error, setError] = useState("");
  const [open, setOpen] = useState(false);
  useEffect(() => props.onShortcuts([]), []);
  useEffect(() => {
    const requests = keys.map((key) => {
      const colon = key.lastIndexOf(":");
      return get<EpisodeDetail>("episode", { run: key.slice(0, colon), line: key.slice(colon + 1) });
    });
    Promise.all(requests).then(setDetails, (failure: Error) => setError(failure.message));
  }, [keys.join()]);
  if (error) return <main class="page"><p class="notice bad">{error}</p></main>;
  if (!details.length) return <main class="page"><p class="muted">Reading…</p></main>;
  const { common, rows } = alignMessages(details.map(({ episode }) => episode.messages));
  const sameTask = new Set(details.map(({ episode }) => episode.group_id)).size === 1;
  return (
    <main class="page wide-page stack">
      <header class="row">
        <h1>{details.length} episodes side by side</h1>
        <span class="muted">{sameTask ? "attempts at the same task" : "different tasks"}</span>
      </header>
      {common.length > 0 && (
        <details class="card" open={open} onToggle={(event) => setOpen(event.currentTarget.open)}>
          <summary>
            The first {common.length === 1 ? "message is" : `${common.length} messages are`} the same
          </summary>
          {open && (
            <ol class="transcript">
              {common.map((message, at) => (
                <MessageEntry key={at} message={message} />
              ))}
            </ol>
          )}
        </details>
      )}
      <div class="sides" style={{ gridTemplateColumns: `repeat(${details.length}, minmax(min(80vw, 19rem), 1fr))` }}>
        {details.map((detail) => (
          <Head key={`${detail.run}:${detail.line}`} detail={detail} />
        ))}
        {rows.map((row, at) =>
          row.map((message, column) => (
            <div key={`${at}:${column}`} class="side-cell">
              {message && <SideMessage message={message} others={row} isParting={at === 0} />}
            </div>
          )),
        )}
      </div>
    </main>
  );
}

function Head({ detail }: { detail: EpisodeDetail }) {
  const { episode, run, line } = detail;
  const { timing } = episode;
  const seconds = timing ? (Date.parse(timing.ended_at) - Date.parse(timing.started_at)) / 1000 : null;
  return (
    <header class="side-head card">
      <div class="row">
        <a class="mono" href={episodeLink(run, line)}>
          {episode.episode_id}
        </a>
        <span class="spacer" />
        <span class={`badge ${outcomeTone(episode.reward, episode.rewards?.solved)}`}>
          {episode.reward === null ? "unscored" : `reward ${formatNumber(episode.reward)}`}
        </span>
      </div>
      <p class="small muted">
        <span class={`stop-name ${stopTone(episode.stop_reason)}`}>{stopName(episode.stop_reason)}</span> ·{" "}
        {plural(episode.turns, "turn")} · {formatCount(episode.usage.completion_tokens)} tokens · {formatSeconds(seconds)}
        <br />
        {run}
      </p>
    </header>
  );
}

/** A message; where the attempts part, what they share is dimmed. */
function SideMessage(props: { message: Message; others: (Message | undefined)[]; isParting: boolean }) {
  const { message } = props;
  const { text, images } = splitContent(message.content);
  const texts = props.others.flatMap((other) => (other ? [splitContent(other.content).text] : []));
  const shared = props.isParting ? sharedPrefix(texts) : 0;
  return (
    <div class={`entry ${message.role === "assistant" ? "action" : "observation"}`}>
      <header>
        <strong>{message.role === "tool" ? `tool ${message.name ?? ""}` : message.role}</strong>
        {props.isParting && <span class="badge warn">they part here</span>}
      </header>
      {message.reasoning_content && <pre class="muted">{message.reasoning_content}</pre>}
      {text && (
        <pre>
          <span class="shared">{text.slice(0, shared)}</span>
          {text.slice(shared)}
        </pre>
      )}
      {images.map((source) => (
        <img key={source} src={source} alt="" />
      ))}
      {message.tool_calls && <Calls calls={message.tool_calls} />}
    </div>
  );
}
