import { useEffect, useRef, useState } from "preact/hooks";
import { get } from "./api";
import type { Page } from "./types";

const PAGE_ROWS = 100;

export interface PagedRows<Row, Answer> {
  total: number;
  /** The answer with the first page. */
  first: Answer | null;
  error: string;
  loading: boolean;
  row: (index: number) => Row | undefined;
  load: (first: number, end: number) => void;
}

/**
 * Rows of a long list, loaded page by page as they become visible.
 *
 * When `version` changes, the list is asked for again; rows stay until newer ones arrive.
 */
export function usePagedRows<Row, Answer extends Page<Row> & { revision?: number }>(
  name: string,
  query: URLSearchParams,
  version: unknown,
): PagedRows<Row, Answer> {
  const text = query.toString();
  const rows = useRef(new Map<number, Row>());
  const pending = useRef(new Set<number>());
  const shown = useRef<[number, number]>([0, PAGE_ROWS]);
  const asked = useRef("");
  const revision = useRef<number | undefined>(undefined);
  const [state, setState] = useState<{ total: number; first: Answer | null; error: string; text: string }>({
    total: 0,
    first: null,
    error: "",
    text: "",
  });
  const [, redraw] = useState(0);

  const fetchPage = async (page: number, question: string) => {
    const params = new URLSearchParams(text);
    params.set("offset", String(page * PAGE_ROWS));
    params.set("limit", String(PAGE_ROWS));
    if (revision.current !== undefined) params.set("revision", String(revision.current));
    pending.current.add(page);
    try {
      const answer = await get<Answer>(name, params);
      if (asked.current !== question) return null;
      answer.rows.forEach((row, at) => rows.current.set(answer.offset + at, row));
      return answer;
    } finally {
      if (asked.current === question) pending.current.delete(page);
    }
  };

  const load = (first: number, end: number, force = false) => {
    shown.current = [first, end];
    const question = asked.current;
    for (let page = Math.floor(first / PAGE_ROWS); page * PAGE_ROWS < end; page++) {
      const isLoaded = rows.current.has(Math.max(first, page * PAGE_ROWS));
      if ((isLoaded && !force) || pending.current.has(page)) continue;
      fetchPage(page, question).then(
        (answer) => answer && redraw((count) => count + 1),
        () => undefined,
      );
    }
  };

  useEffect(() => {
    const question = `${text} ${version}`;
    const isNewList = !asked.current.startsWith(`${text} `);
    // The first answer may have come before the library's state, and be as new.
    if (!isNewList && version !== undefined && revision.current === version) return;
    asked.current = question;
    pending.current = new Set();
    revision.current = undefined;
    fetchPage(0, question).then(
      (answer) => {
        if (!answer) return;
        revision.current = answer.revision;
        const kept = answer.rows.map((row, at) => [answer.offset + at, row] as const);
        if (isNewList) rows.current = new Map(kept);
        setState({ total: answer.total, first: answer, error: "", text });
        const [first, end] = isNewList ? [0, PAGE_ROWS] : shown.current;
        if (end > PAGE_ROWS) load(Math.max(first, PAGE_ROWS), Math.min(end, answer.total), true);
      },
      (error: Error) => {
        if (asked.current === question) setState((before) => ({ ...before, error: error.message, text }));
      },
    );
  }, [text, version]);

  return { ...state, loading: state.text !== text, row: (index) => rows.current.get(index), load };
}
