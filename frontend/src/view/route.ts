import { useEffect, useState } from "preact/hooks";

/** What the page shows, as in the fragment of its address: `#/episodes?run=runs/a&sort=reward`. */
export interface Route {
  page: string;
  params: URLSearchParams;
}

export type Params = Record<string, string | number | boolean | readonly string[] | null | undefined>;

export function parseRoute(hash: string): Route {
  const [page = "", query = ""] = hash.replace(/^#\/?/, "").split(/\?(.*)/s);
  return { page, params: new URLSearchParams(query) };
}

/** The address of a page; parameters that are empty are left out. */
export function link(page: string, params: Params | URLSearchParams = {}): string {
  const query = params instanceof URLSearchParams ? params : toSearchParams(params);
  const text = query.toString().replaceAll("%2F", "/");
  return `#/${page}${text && `?${text}`}`;
}

export function toSearchParams(params: Params): URLSearchParams {
  const query = new URLSearchParams();
  for (const [name, value] of Object.entries(params)) {
    if (Array.isArray(value)) for (const each of value) query.append(name, each);
    else if (value !== null && value !== undefined && value !== "" && value !== false)
      query.set(name, String(value));
  }
  return query;
}

export function navigate(address: string, options: { replace?: boolean } = {}): void {
  if (options.replace) history.replaceState(null, "", address);
  else history.pushState(null, "", address);
  dispatchEvent(new HashChangeEvent("hashchange"));
}

export function useRoute(): Route {
  const [route, setRoute] = useState(() => parseRoute(location.hash));
  useEffect(() => {
    const onChange = () => setRoute(parseRoute(location.hash));
    addEventListener("hashchange", onChange);
    addEventListener("popstate", onChange);
    return () => {
      removeEventListener("hashchange", onChange);
      removeEventListener("popstate", onChange);
    };
  }, []);
  return route;
}
