import { resolve } from "node:path";
import { defineConfig } from "vite";
import { writeManifest } from "./manifest.ts";

const root = import.meta.dirname;
const outDir = resolve(root, "../src/ludus/web/static");

// File names have no hashes, so that a change of one page changes one file in the repository.
// The servers send entity tags instead.
export default defineConfig({
  root,
  base: "./",
  plugins: [writeManifest(root, outDir)],
  build: {
    outDir,
    emptyOutDir: true,
    target: "es2022",
    sourcemap: false,
    modulePreload: false,
    license: { fileName: "licenses.md" },
    rolldownOptions: {
      input: ["play", "api", "view"].map((page) => resolve(root, `${page}.html`)),
      output: {
        entryFileNames: "assets/[name].js",
        chunkFileNames: "assets/[name].js",
        assetFileNames: "assets/[name][extname]",
        codeSplitting: {
          groups: [{ name: "shared", test: /node_modules|src\/shared/ }],
        },
      },
    },
  },
  // `npm run dev` serves the pages from their sources, beside a `ludus serve` on port 8000.
  server: {
    proxy: Object.fromEntries(
      ["/ws", "/interface", "/openapi.json"].map((path) => [
        path,
        { target: "http://127.0.0.1:8000", ws: path === "/ws" },
      ]),
    ),
  },
});
