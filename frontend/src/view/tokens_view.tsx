import { useState } from "preact/hooks";
import { useGet } from "./api";
import { formatCount, formatNumber } from "./format";
import type { Tokens } from "./types";
import "./tokens_view.css";

const MAX_TOKENS = 20_000;
const LEVELS = 5;
type Colouring = "mask" | "logprob" | "advantage";

/** The tokens of a local policy's episode, coloured by mask, log-probability or advantage. */
export function TokensView(props: { run: string; line: number; advantages: number[] | null }) {
  const [colouring, setColouring] = useState<Colouring>("mask");
  const [model, setModel] = useState("");
  const { data, error } = useGet<Tokens>("tokens", { run: props.run, line: String(props.line), model });
  const kinds: [Colouring, string][] = [
    ["mask", "Mask"],
    ["logprob", "Log-probability"],
    ...(props.advantages ? ([["advantage", "Advantage"]] as [Colouring, string][]) : []),
  ];
  return (
    <section class="card stack">
      <div class="row" role="radiogroup" aria-label="Colour tokens by">
        {kinds.map(([kind, title]) => (
          <button
            key={kind}
            type="button"
            role="radio"
            aria-checked={colouring === kind}
            class={colouring === kind ? "primary" : ""}
            onClick={() => setColouring(kind)}
          >
            {title}
          </button>
        ))}
        <Legend colouring={colouring} />
      </div>
      {error && (
        <form class="stack" onSubmit={(event) => event.preventDefault()}>
          <p class="notice bad">{error}</p>
          <label>
            Tokenizer of another model: a folder, or a name in the local cache
            <input onChange={(event) => setModel(event.currentTarget.value)} />
          </label>
        </form>
      )}
      {!data && !error && <p class="muted">Loading the tokenizer…</p>}
      {data && (
        <>
          <p class="muted small">
            {formatCount(data.ids.length)} tokens, {formatCount(data.mask.filter(Boolean).length)} sampled by {data.model}
          </p>
          <pre class="tokens">{renderTokens(data, colouring, props.advantages)}</pre>
        </>
      )}
    </section>
  );
}

function renderTokens(tokens: Tokens, colouring: Colouring, advantages: number[] | null) {
  const largest = Math.max(1e-9, ...(advantages ?? []).map(Math.abs));
  let turn = -1;
  return tokens.texts.slice(0, MAX_TOKENS).map((text, at) => {
    const sampled = tokens.mask[at] === 1;
    // The environment's tokens separate the turns.
    if (sampled && tokens.mask[at - 1] !== 1) turn += 1;
    const logprob = tokens.logprobs[at] ?? null;
    const advantage = sampled ? (advantages?.[turn] ?? null) : null;
    const facts = [
      `id ${tokens.ids[at]}`,
      sampled ? `turn ${turn + 1}` : "not sampled",
      logprob !== null && `log-probability ${formatNumber(logprob)} (${formatNumber(100 * Math.exp(logprob))} %)`,
      advantage !== null && `advantage ${formatNumber(advantage)}`,
    ];
    return (
      <span key={at} class={tokenClass(colouring, sampled, logprob, advantage === null ? null : advantage / largest)} title={facts.filter(Boolean).join("\n")}>
        {text}
      </span>
    );
  });
}

function tokenClass(colouring: Colouring, sampled: boolean, logprob: number | null, advantage: number | null): string {
  if (!sampled) return "token prompt";
  if (colouring === "mask") return "token sampled";
  if (colouring === "logprob") {
    // -ln 2, -ln 4 and so on: each level is half as likely as the one before.
    return logprob === null ? "token" : `token surprise-${Math.min(LEVELS, Math.floor(-logprob / Math.LN2))}`;
  }
  if (advantage === null) return "token";
  return `token ${advantage < 0 ? "below" : "above"}-${Math.ceil(Math.abs(advantage) * LEVELS)}`;
}

function Legend({ colouring }: { colouring: Colouring }) {
  const samples: Record<Colouring, [string, string][]> = {
    mask: [
      ["sampled", "sampled by the policy"],
      ["prompt", "prompt and environment"],
    ],
    logprob: [
      ["surprise-0", "certain"],
      ["surprise-2", "1 in 4"],
      ["surprise-5", "1 in 32 or less"],
    ],
    advantage: [
      ["below-5", "worse than its group"],
      ["above-5", "better"],
    ],
  };
  return (
    <span class="row small tokens">
      {samples[colouring].map(([name, title]) => (
        <span key={name} class={`token ${name}`}>
          {title}
        </span>
      ))}
    </span>
  );
}
