import { useEffect, useState } from "preact/hooks";
import { StoredValue } from "./storage";

const THEMES = ["auto", "light", "dark"] as const;
type Theme = (typeof THEMES)[number];
const storedTheme = new StoredValue("localStorage", "ludus-theme");

/** A button that goes from the system's colours to light, to dark and back. */
export function ThemeButton() {
  const [theme, setTheme] = useState<Theme>(readTheme);
  useEffect(() => {
    if (theme === "auto") delete document.documentElement.dataset.theme;
    else document.documentElement.dataset.theme = theme;
    storedTheme.write(theme);
  }, [theme]);
  const next = THEMES[(THEMES.indexOf(theme) + 1) % THEMES.length]!;
  return (
    <button type="button" class="quiet" onClick={() => setTheme(next)} title={`Colours: ${theme}`}>
      <span aria-hidden="true">◐</span> <span class="visually-hidden">Colours: </span>
      {theme}
    </button>
  );
}

function readTheme(): Theme {
  const stored = storedTheme.read();
  return THEMES.find((theme) => theme === stored) ?? "auto";
}
