import type { Json } from "../shared/json";
import { type Entry, TranscriptEntry, outcomeTone } from "../shared/transcript";
import { LongText } from "./long_text";
import { formatNumber } from "./format";
import type { Episode, Message, ToolCall } from "./types";

const SHOWN_IMAGE = /^data:image\/(png|jpeg|gif|webp);base64,/;

export interface MessageParts {
  text: string;
  /** Only images that are part of the episode: others would have to be fetched. */
  images: string[];
}

export function splitContent(content: Message["content"]): MessageParts {
  if (content === null || content === undefined) return { text: "", images: [] };
  if (typeof content === "string") return { text: content, images: [] };
  const urls = content.flatMap((part) => (part.image_url ? [part.image_url.url] : []));
  const texts = content.flatMap((part) => (part.text === undefined ? [] : [part.text]));
  const hidden = urls.filter((url) => !SHOWN_IMAGE.test(url)).map((url) => `[image: ${url.slice(0, 200)}]`);
  return { text: [...texts, ...hidden].join("\n"), images: urls.filter((url) => SHOWN_IMAGE.test(url)) };
}

/** Arguments of a call, indented where they are JSON and as they are otherwise. */
export function formatArguments(value: Json): string {
  if (typeof value !== "string") return JSON.stringify(value, null, 2);
  try {
    const parsed = JSON.parse(value) as Json;
    const short = JSON.stringify(parsed);
    return short.length < 80 ? short : JSON.stringify(parsed, null, 2);
  } catch {
    return value;
  }
}

export function Calls({ calls }: { calls: ToolCall[] }) {
  return (
    <>
      {calls.map((call, at) => (
        <pre key={at} class="call">
          <strong>{call.function.name}</strong>
          <LongText text={`(${formatArguments(call.function.arguments)})`} />
        </pre>
      ))}
    </>
  );
}

const KINDS: Record<string, Entry["kind"]> = { assistant: "action", system: "system" };

/** A message of a conversation, with what is known about its turn. */
export function MessageEntry(props: {
  message: Message;
  title?: string;
  reward?: number | undefined;
  outcome?: string | undefined;
  note?: string;
  tutor?: Message | null | undefined;
}) {
  const { message } = props;
  const { text, images } = splitContent(message.content);
  const entry: Entry = {
    kind: KINDS[message.role] ?? "observation",
    title: props.title ?? (message.role === "tool" ? `tool ${message.name ?? ""}` : message.role),
    images,
    note: props.note ?? "",
    reward: props.reward ?? null,
    outcome: props.outcome,
    details: (
      <>
        {message.reasoning_content && (
          <details class="reasoning" open={message.reasoning_content.length < 2000}>
            <summary>Reasoning</summary>
            <pre>
              <LongText text={message.reasoning_content} />
            </pre>
          </details>
        )}
        {text && (
          <pre>
            <LongText text={text} />
          </pre>
        )}
        {message.tool_calls && <Calls calls={message.tool_calls} />}
        {props.tutor && (
          <details>
            <summary>The tutor would have replied</summary>
            <pre>{splitContent(props.tutor.content).text}</pre>
            {props.tutor.tool_calls && <Calls calls={props.tutor.tool_calls} />}
          </details>
        )}
      </>
    ),
  };
  return <TranscriptEntry entry={entry} />;
}

/** The transcript of an episode: every reply with the reward of its turn, the last one in the colour of the outcome. */
export function EpisodeTranscript(props: { episode: Episode; advantages: number[] | null }) {
  const { episode, advantages } = props;
  const lastReply = episode.messages.findLastIndex((message) => message.role === "assistant");
  const outcome = outcomeTone(episode.reward, episode.rewards?.solved);
  let turn = -1;
  return (
    <ol class="transcript" aria-label="Transcript">
      {episode.messages.map((message, at) => {
        if (message.role !== "assistant") return <MessageEntry key={at} message={message} />;
        turn += 1;
        const progress = episode.progress?.[turn + 1];
        const notes = [
          `turn ${turn + 1}`,
          episode.explored_turns?.includes(turn) && "random action",
          progress !== undefined && `progress ${formatNumber(progress)}`,
          advantages?.[turn] !== undefined && `advantage ${formatNumber(advantages[turn])}`,
        ];
        return (
          <MessageEntry
            key={at}
            message={message}
            reward={episode.turn_rewards?.[turn]}
            outcome={at === lastReply ? outcome : undefined}
            note={notes.filter(Boolean).join(" · ")}
            tutor={episode.tutor_replies?.[turn]}
          />
        );
      })}
    </ol>
  );
}
