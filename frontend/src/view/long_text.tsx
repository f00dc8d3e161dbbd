import { useState } from "preact/hooks";
import { formatCount } from "./format";

const MAX_CHARS = 4000;

/** A text whose end is hidden until it is asked for, if it is long. */
export function LongText({ text }: { text: string }) {
  const [open, setOpen] = useState(false);
  if (open || text.length <= MAX_CHARS * 1.2) return <>{text}</>;
  return (
    <>
      {text.slice(0, MAX_CHARS)}…{" "}
      <button type="button" class="quiet more" onClick={() => setOpen(true)}>
        {formatCount(text.length - MAX_CHARS)} more characters
      </button>
    </>
  );
}
