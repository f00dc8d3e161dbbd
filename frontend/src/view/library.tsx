import { createContext } from "preact";
import { useContext, useEffect, useState } from "preact/hooks";
import { get } from "./api";
import type { LibraryState } from "./types";

const POLL_INTERVAL_MS = 2000;
const INDEXING_INTERVAL_MS = 500;
const MIN_REFRESH_MS = 3000;

export interface LiveLibrary {
  state: LibraryState | null;
  /** Changes when pages should ask again: as the revision, but seldom while many episodes are read. */
  version: number | undefined;
  error: string;
}

const NOTHING: LiveLibrary = { state: null, version: undefined, error: "" };
const LibraryContext = createContext(NOTHING);
export const LibraryProvider = LibraryContext.Provider;

export function useLibrary(): LiveLibrary {
  return useContext(LibraryContext);
}

/** Poll the server while the page is visible. The state changes only if something has changed. */
export function usePolledLibrary(): LiveLibrary {
  const [library, setLibrary] = useState(NOTHING);
  useEffect(() => {
    let timer = 0;
    let before = "";
    let version: number | undefined;
    let refreshedAt = 0;
    const poll = async () => {
      let delay = POLL_INTERVAL_MS;
      try {
        const state = await get<LibraryState>("state");
        const isIndexing = state.indexed_bytes < state.total_bytes;
        if (isIndexing) delay = INDEXING_INTERVAL_MS;
        if (!isIndexing || performance.now() - refreshedAt > MIN_REFRESH_MS) {
          version = state.revision;
          refreshedAt = performance.now();
        }
        const text = `${version} ${JSON.stringify(state)}`;
        if (text !== before) setLibrary({ state, version, error: "" });
        before = text;
      } catch (error) {
        before = "";
        setLibrary((last) => ({ ...last, error: (error as Error).message }));
      }
      if (!document.hidden) timer = window.setTimeout(poll, delay);
    };
    const onVisible = () => {
      clearTimeout(timer);
      if (!document.hidden) void poll();
    };
    void poll();
    document.addEventListener("visibilitychange", onVisible);
    return () => {
      clearTimeout(timer);
      document.removeEventListener("visibilitychange", onVisible);
    };
  }, []);
  return library;
}
