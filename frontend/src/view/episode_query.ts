import { type Params, link, navigate, toSearchParams } from "./route";

/** The filter and order of the episodes table, which is part of the address. */
export interface EpisodeQuery {
  run: string[];
  where: string;
  search: string;
  stop: string;
  group: string;
  sort: string;
  descending: boolean;
}

export function readQuery(params: URLSearchParams): EpisodeQuery {
  return {
    run: params.getAll("run"),
    where: params.get("where") ?? "",
    search: params.get("search") ?? "",
    stop: params.get("stop") ?? "",
    group: params.get("group") ?? "",
    sort: params.get("sort") ?? "line",
    descending: params.get("descending") === "true",
  };
}

/** The parameters of a query as the server takes them. */
export function toParams(query: EpisodeQuery): URLSearchParams {
  const sort = query.sort === "line" ? "" : query.sort;
  return toSearchParams({ ...query, sort } as unknown as Params);
}

/** Show the table with another filter, from its beginning. */
export function changeQuery(query: EpisodeQuery, change: Partial<EpisodeQuery>, replace = false): void {
  navigate(link("episodes", toParams({ ...query, ...change })), { replace });
}

/** The address of an episode; with its place in a list, from where j and k go on. */
export function episodeLink(run: string, line: number, list?: { query: EpisodeQuery; at: number }): string {
  const params = toSearchParams({ of: run, line: String(line) });
  if (list) {
    for (const [name, value] of toParams(list.query)) params.append(name, value);
    params.set("at", String(list.at));
  }
  return link("episode", params);
}
