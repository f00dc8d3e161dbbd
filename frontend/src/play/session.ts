import { type Json, type JsonObject, isObject } from "../shared/json";
import { ServerError, fetchJson, token } from "../shared/server";

/** An error frame of the server; the session goes on unless `closed` is set. */
export class RequestError extends Error {
  constructor(
    message: string,
    readonly code: string,
  ) {
    super(message);
  }
}

/** The session has ended, and the game with it. */
export class SessionEnded extends Error {}

export interface StepResult {
  observation: JsonObject;
  reward: number | null;
  done: boolean;
  metadata?: JsonObject;
}

/** The metadata of a result, which versions of OpenEnv have in different places. */
export function metadataOf({ metadata, observation }: StepResult): JsonObject {
  const found = metadata ?? observation.metadata ?? null;
  return isObject(found) ? found : {};
}

interface Frame {
  type: string;
  data?: JsonObject;
}

interface Pending {
  resolve: (frame: Frame) => void;
  reject: (error: Error) => void;
}

const CLOSING_CODES = new Set(["CAPACITY_REACHED", "FACTORY_ERROR", "SESSION_ERROR"]);
const SERVICE_RESTART = 1012;
const LOST = "The connection to the server was lost, and the game with it.";

/** A session on the environment, over a WebSocket of its own. Replies come in the order of requests. */
export class Session {
  private pending: Pending[] = [];
  private ended: Error | null = null;
  /** Called once when the session ends, whoever ends it. */
  onEnd: (error: Error) => void = () => {};

  private constructor(private readonly socket: WebSocket) {
    socket.onmessage = ({ data }) => this.receive(JSON.parse(data as string) as Frame);
    socket.onclose = ({ code }) =>
      this.end(
        new SessionEnded(code === SERVICE_RESTART ? "The server has stopped, and the game with it." : LOST),
      );
  }

  /** Open a session; raises `ServerError` with the reason where there is none. */
  static open(): Promise<Session> {
    const url = new URL("ws", location.href);
    url.protocol = url.protocol.replace("http", "ws");
    const socket = new WebSocket(url, subprotocols());
    return new Promise((resolve, reject) => {
      socket.onopen = () => resolve(new Session(socket));
      // Browsers do not tell pages why an upgrade failed. A request with the same token does.
      socket.onclose = () => fetchJson("interface").then(() => reject(refused()), reject);
    });
  }

  async reset(task: JsonObject): Promise<StepResult> {
    return toResult(await this.request({ type: "reset", data: task }));
  }

  async step(action: JsonObject): Promise<StepResult> {
    return toResult(await this.request({ type: "step", data: action }));
  }

  async state(): Promise<Json> {
    return (await this.request({ type: "state" })).data ?? null;
  }

  /** The tools of this session, as MCP lists them. */
  async listTools(): Promise<JsonObject[]> {
    const call = { jsonrpc: "2.0", id: 1, method: "tools/list", params: {} };
    const { data } = await this.request({ type: "mcp", data: call });
    const result = (data?.result ?? {}) as { tools?: JsonObject[] };
    return result.tools ?? [];
  }

  close(): void {
    this.onEnd = () => {};
    this.socket.close(1000);
  }

  private request(frame: Frame): Promise<Frame> {
    if (this.ended) return Promise.reject(this.ended);
    return new Promise((resolve, reject) => {
      this.pending.push({ resolve, reject });
      this.socket.send(JSON.stringify(frame));
    });
  }

  private receive(frame: Frame): void {
    if (frame.type !== "error") {
      this.pending.shift()?.resolve(frame);
      return;
    }
    const error = new RequestError(String(frame.data?.message), String(frame.data?.code));
    if (CLOSING_CODES.has(error.code)) this.end(new SessionEnded(error.message));
    else this.pending.shift()?.reject(error);
  }

  private end(error: Error): void {
    if (this.ended) return;
    this.ended = error;
    this.pending.forEach(({ reject }) => reject(error));
    this.pending = [];
    this.onEnd(error);
  }
}

function toResult(frame: Frame): StepResult {
  return frame.data as unknown as StepResult;
}

function refused(): ServerError {
  return new ServerError("The server refused the connection. A proxy may not pass WebSockets on.", null);
}

/** The token as a subprotocol: pages cannot set the headers of an upgrade. */
function subprotocols(): string[] {
  if (!token.read()) return ["ludus"];
  const encoded = btoa(token.readBytes()).replaceAll("+", "-").replaceAll("/", "_").replaceAll("=", "");
  return ["ludus", `ludus.token.${encoded}`];
}
