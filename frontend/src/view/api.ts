import { useEffect, useRef, useState } from "preact/hooks";
import { fetchJson } from "../shared/server";
import { type Params, toSearchParams } from "./route";

/** Ask the server. The path of this page holds the token, so that relative addresses have it too. */
export function get<Answer>(name: string, params: Params | URLSearchParams = {}): Promise<Answer> {
  const query = params instanceof URLSearchParams ? params : toSearchParams(params);
  return fetchJson<Answer>(`./api/${name}?${query}`);
}

export interface Loaded<Answer> {
  data: Answer | null;
  error: string;
  /** Whether `data` answers an earlier question. */
  stale: boolean;
}

/** Ask again whenever the question or `version` changes; the last answer stays until the next. */
export function useGet<Answer>(name: string, params: Params, version: unknown = 0): Loaded<Answer> {
  const question = `${name}?${toSearchParams(params)}`;
  const [loaded, setLoaded] = useState<Loaded<Answer> & { question: string }>({
    data: null,
    error: "",
    stale: true,
    question: "",
  });
  const latest = useRef("");
  latest.current = `${question} ${version}`;
  useEffect(() => {
    const asked = latest.current;
    get<Answer>(name, params).then(
      (data) => asked === latest.current && setLoaded({ data, error: "", stale: false, question }),
      (error: Error) =>
        asked === latest.current &&
        setLoaded((before) => ({ data: before.data, error: error.message, stale: true, question })),
    );
  }, [question, version]);
  return { ...loaded, stale: loaded.stale || loaded.question !== question };
}
