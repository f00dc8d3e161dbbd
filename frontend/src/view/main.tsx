import { render } from "preact";
import { useRef, useState } from "preact/hooks";
import "../shared/base.css";
import { type Shortcut, ShortcutHelp, useShortcuts } from "../shared/keyboard";
import { ThemeButton } from "../shared/theme";
import { AttemptsPage } from "./attempts_page";
import { ComparePage } from "./compare_page";
import { DatasetPage } from "./dataset_page";
import { EntryPage } from "./entry_page";
import { EpisodePage } from "./episode_page";
import { EpisodesPage } from "./episodes_page";
import { formatPercent } from "./format";
import { LibraryProvider, useLibrary, usePolledLibrary } from "./library";
import { OverviewPage } from "./overview_page";
import { link, navigate, useRoute } from "./route";
import { RowPage } from "./row_page";
import "./view.css";

const PAGES = {
  "": OverviewPage,
  entry: EntryPage,
  compare: ComparePage,
  episodes: EpisodesPage,
  episode: EpisodePage,
  attempts: AttemptsPage,
  dataset: DatasetPage,
  row: RowPage,
};

function App() {
  const library = usePolledLibrary();
  const { page, params } = useRoute();
  const [pageShortcuts, setPageShortcuts] = useState<Shortcut[]>([]);
  const help = useRef<HTMLDialogElement>(null);
  const shortcuts: Shortcut[] = [
    { key: "o", label: "Overview", run: () => navigate(link("")) },
    { key: "l", label: "All episodes", run: () => navigate(link("episodes")) },
    { key: "?", label: "This list", run: () => help.current?.showModal() },
  ];
  useShortcuts(shortcuts);
  const Page = PAGES[page as keyof typeof PAGES] ?? OverviewPage;
  return (
    <LibraryProvider value={library}>
      <nav class="bar" aria-label="Pages">
        <a class="brand" href={link("")} aria-current={page === "" && "page"}>
          Ludus
        </a>
        <a href={link("episodes")} aria-current={["episodes", "episode", "attempts"].includes(page) && "page"}>
          Episodes
        </a>
        <IndexProgress />
        <span class="spacer" />
        <button type="button" class="quiet keys" onClick={() => help.current?.showModal()} title="Keyboard shortcuts">
          <kbd>?</kbd>
        </button>
        <ThemeButton />
      </nav>
      {library.error && (
        <p class="notice bad" role="alert">
          {library.error}
        </p>
      )}
      <Page key={page === "episodes" ? page : undefined} params={params} onShortcuts={setPageShortcuts} />
      <ShortcutHelp shortcuts={[...pageShortcuts, ...shortcuts]} dialog={help} />
    </LibraryProvider>
  );
}

function IndexProgress() {
  const { state } = useLibrary();
  if (!state) return null;
  if (state.error) return <span class="badge bad">{state.error}</span>;
  if (state.indexed_bytes >= state.total_bytes) {
    return state.entries.some((entry) => entry.running) ? <span class="badge good">live</span> : null;
  }
  return (
    <span class="badge" role="status">
      reading {formatPercent(state.indexed_bytes / state.total_bytes)}
    </span>
  );
}

render(<App />, document.getElementById("app")!);
