import type { Json, JsonObject } from "../shared/json";
import type { Call } from "./game";

/** A Python script that plays the same game with the client. */
export function pythonCode(url: string, hasToken: boolean, task: JsonObject, calls: Call[]): string {
  const connection = hasToken
    ? `ludus.connect(${literal(url)}, token=os.environ["LUDUS_TOKEN"])`
    : `ludus.connect(${literal(url)})`;
  const lines = [
    "import asyncio",
    ...(hasToken ? ["import os"] : []),
    "",
    "import ludus",
    "",
    "",
    "async def main() -> None:",
    `    async with ${connection}.session() as session:`,
    `        result = await session.reset(${resetArguments(task)})`,
    "        print(result.content)",
    ...calls.flatMap(({ tool, args }) => [
      `        result = await session.call(${literal(tool)}, ${literal(args)})`,
      "        print(result.content, result.reward)",
    ]),
    "",
    "",
    "asyncio.run(main())",
  ];
  return lines.join("\n") + "\n";
}

function resetArguments(task: JsonObject): string {
  const names = Object.keys(task);
  if (names.every((name) => /^[A-Za-z_]\w*$/.test(name))) {
    return names.map((name) => `${name}=${literal(task[name] ?? null)}`).join(", ");
  }
  return `**${literal(task)}`;
}

function literal(value: Json): string {
  if (value === null) return "None";
  if (typeof value === "boolean") return value ? "True" : "False";
  if (Array.isArray(value)) return `[${value.map(literal).join(", ")}]`;
  if (typeof value === "object") {
    const items = Object.entries(value).map(([key, item]) => `${literal(key)}: ${literal(item)}`);
    return `{${items.join(", ")}}`;
  }
  // JSON's texts and numbers are Python's, too.
  return JSON.stringify(value);
}
