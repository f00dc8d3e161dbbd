import type { Json } from "./json";
import { StoredValue } from "./storage";

const storedToken = new StoredValue("sessionStorage", "ludus-token");

/** The server did not answer, or refused; the message is one line for the user. */
export class ServerError extends Error {
  constructor(
    message: string,
    readonly status: number | null,
  ) {
    super(message);
  }

  get needsToken(): boolean {
    return this.status === 401;
  }
}

export const token = {
  read: (): string => storedToken.read() ?? "",
  /** The token in UTF-8, one character for each byte: what headers and base64 take. */
  readBytes: (): string => String.fromCharCode(...new TextEncoder().encode(token.read())),
  store: (value: string): void => storedToken.write(value),
};

/** Request JSON from the server of this page, with the token if there is one. */
export async function fetchJson<T = Json>(path: string, options: RequestInit = {}): Promise<T> {
  const response = await request(path, options);
  const body = await response.text();
  if (response.ok) return JSON.parse(body) as T;
  throw new ServerError(describeFailure(response, body), response.status);
}

/** Like `fetch`, with the token; raises `ServerError` only where there is no answer. */
export async function request(path: string, options: RequestInit = {}): Promise<Response> {
  const headers = new Headers(options.headers);
  if (token.read()) headers.set("Authorization", `Bearer ${token.readBytes()}`);
  try {
    return await fetch(path, { ...options, headers });
  } catch {
    throw new ServerError("The server does not answer. Check that it is running.", null);
  }
}

function describeFailure(response: Response, body: string): string {
  try {
    const { detail } = JSON.parse(body) as { detail?: unknown };
    if (typeof detail === "string") return detail;
    if (detail !== undefined) return JSON.stringify(detail);
  } catch {
    // Not JSON: a proxy answered.
  }
  return `The server answered ${response.status} ${response.statusText}.`;
}
