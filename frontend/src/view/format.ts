/** Numbers and times as short texts. */

const COUNT = new Intl.NumberFormat("en");

export function formatCount(value: number | null | undefined): string {
  return value === null || value === undefined ? "" : COUNT.format(value);
}

/** Up to four digits; very large and very small numbers with an exponent. */
export function formatNumber(value: number | null | undefined): string {
  if (value === null || value === undefined) return "–";
  if (value === 0 || Number.isInteger(value)) return Math.abs(value) < 1e6 ? COUNT.format(value) : value.toExponential(2);
  const size = Math.abs(value);
  if (size < 1e-3 || size >= 1e6) return value.toExponential(2);
  return String(Number(value.toPrecision(4)));
}

/** A mean with its 95 % interval in brackets, as in the terminal: 0.350 (0.281 to 0.420). */
export function formatMean(value: number | null, interval: [number, number] | null): string {
  if (value === null) return "–";
  const [mean, ...ends] = [value, ...(interval ?? [])].map((each) => each.toFixed(3));
  return ends.length ? `${mean} (${ends.join(" to ")})` : mean!;
}

export function formatSeconds(value: number | null | undefined): string {
  if (value === null || value === undefined) return "";
  if (value < 1) return `${Math.round(value * 1000)} ms`;
  if (value < 100) return `${Number(value.toPrecision(3))} s`;
  return value < 6000 ? `${Math.round(value / 60)} min` : `${(value / 3600).toFixed(1)} h`;
}

export function formatPercent(share: number): string {
  return `${Number((100 * share).toPrecision(3))} %`;
}

/** A share with one decimal, as in the tables of an evaluation. */
export function formatShare(share: number): string {
  return `${(100 * share).toFixed(1)} %`;
}

/** A difference with its sign; that of shares in percentage points. */
export function formatDifference(value: number, isShare: boolean): string {
  const text = isShare ? `${(100 * value).toFixed(1)} pp` : formatNumber(Number(value.toPrecision(3)));
  return value > 0 ? `+${text}` : text;
}

export function formatAge(seconds: number): string {
  const age = Date.now() / 1000 - seconds;
  if (age < 90) return "just now";
  if (age < 5400) return `${Math.round(age / 60)} min ago`;
  if (age < 129_600) return `${Math.round(age / 3600)} h ago`;
  return new Date(seconds * 1000).toISOString().slice(0, 10);
}

export function plural(count: number, noun: string): string {
  return `${formatCount(count)} ${noun}${count === 1 ? "" : "s"}`;
}

const STOP_NAMES: Record<string, string> = {
  done: "done",
  no_tool_call: "no tool call",
  max_turns: "out of turns",
  max_tokens: "out of tokens",
  refused: "refused",
  deadline: "deadline",
  broken: "broken",
};

export function stopName(reason: string): string {
  return STOP_NAMES[reason] ?? reason;
}

export function stopTone(reason: string): string {
  if (reason === "done") return "";
  return reason === "broken" || reason === "deadline" ? "bad" : "warn";
}
