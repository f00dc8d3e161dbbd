import icon from "./icon.svg?no-inline";

/** The name of what a page is about, beside the sign of Ludus. */
export function Brand({ title, subtitle }: { title: string; subtitle: string }) {
  return (
    <div class="brand">
      <img src={icon} alt="Ludus" width={26} height={26} />
      <h1>{title}</h1>
      {subtitle && <p class="muted">{subtitle}</p>}
    </div>
  );
}
