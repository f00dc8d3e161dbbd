import { createHash } from "node:crypto";
import { readdirSync, readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import type { Plugin } from "vite";

const IGNORED = new Set(["node_modules", "README.md"]);

/**
 * Write `manifest.json` beside the built files: the SHA-256 of every source and every built file.
 * A test compares them with the files in the repository, without Node.
 */
export function writeManifest(root: string, outDir: string): Plugin {
  return {
    name: "ludus-manifest",
    apply: "build",
    closeBundle() {
      const manifest = { sources: hashFiles(root), built: hashFiles(outDir, ["manifest.json"]) };
      writeFileSync(join(outDir, "manifest.json"), JSON.stringify(manifest, null, 1) + "\n");
    },
  };
}

function hashFiles(folder: string, ignored: string[] = []): Record<string, string> {
  const hashes: Record<string, string> = {};
  for (const path of listFiles(folder)) {
    if (!ignored.includes(path)) {
      hashes[path] = createHash("sha256").update(readFileSync(join(folder, path))).digest("hex");
    }
  }
  return hashes;
}

function listFiles(folder: string, prefix = ""): string[] {
  return readdirSync(join(folder, prefix), { withFileTypes: true })
    .filter((entry) => !entry.name.startsWith(".") && !IGNORED.has(entry.name))
    .flatMap((entry) => {
      const path = prefix ? `${prefix}/${entry.name}` : entry.name;
      return entry.isDirectory() ? listFiles(folder, path) : [path];
    })
    .sort();
}
