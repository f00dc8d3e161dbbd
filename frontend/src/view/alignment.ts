import type { Message } from "./types";

export interface Alignment {
  /** The messages that all episodes begin with. */
  common: Message[];
  /** After them, the messages of each episode by place; undefined where one has ended. */
  rows: (Message | undefined)[][];
}

export function alignMessages(episodes: Message[][]): Alignment {
  const texts = episodes.map((messages) => messages.map(withoutIds));
  const shortest = Math.min(...episodes.map((messages) => messages.length));
  let length = 0;
  while (length < shortest && texts.every((each) => each[length] === texts[0]![length])) length += 1;
  const longest = Math.max(...episodes.map((messages) => messages.length));
  const rows = [];
  for (let at = length; at < longest; at++) rows.push(episodes.map((messages) => messages[at]));
  return { common: episodes[0]?.slice(0, length) ?? [], rows };
}

/** A message as text to compare: ids of calls differ although the calls are the same. */
function withoutIds(message: Message): string {
  const calls = message.tool_calls?.map((call) => call.function);
  return JSON.stringify([message.role, message.content ?? "", message.reasoning_content ?? "", calls ?? []]);
}

/** How many characters all texts begin with, up to the last word that is complete in them. */
export function sharedPrefix(texts: string[]): number {
  if (texts.length < 2) return 0;
  const shortest = Math.min(...texts.map((text) => text.length));
  let length = 0;
  while (length < shortest && texts.every((text) => text[length] === texts[0]![length])) length += 1;
  return length;
}
