import { createContext } from "preact";
import { useContext, useEffect, useState } from "preact/hooks";
import { get } from "./api";
import type { LibraryState } from "./types";

const POLL_INTERVAL_MS = 2000;
const INDEXING_INTERVAL_MS = 500;

export interface LiveLibrary {
  state: LibraryState | null;
  error: string;
}

const LibraryContext = createContext<LiveLibrary>({ state: null, error: "" });
export const LibraryProvider = LibraryContext.Provider;

export function useLibrary(): LiveLibrary {
  return useContext(LibraryContext);
}

/** Poll the server while the page is visible. The state changes only if something has changed. */
export function usePolledLibrary(): LiveLibrary {
  const [library, setLibrary] = useState<LiveLibrary>({ state: null, error: "" });
  useEffect(() => {
    let timer = 0;
    let before = "";
    const poll = async () => {
      let delay = POLL_INTERVAL_MS;
      try {
        const state = await get<LibraryState>("state");
        if (state.indexed_bytes < state.total_bytes) delay = INDEXING_INTERVAL_MS;
        const text = JSON.stringify(state);
        if (text !== before) setLibrary({ state, error: "" });
        before = text;
      } catch (error) {
        before = "";
        setLibrary(({ state }) => ({ state, error: (error as Error).message }));
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
