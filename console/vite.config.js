import { fileURLToPath } from "node:url";

import { defineConfig } from "vite";

// Relative addresses: the console works under whatever path the server mounts it.
export default defineConfig({
  base: "./",
  resolve: {
    alias: [
      { find: /^react\/jsx-(dev-)?runtime$/, replacement: "preact/jsx-runtime" },
      { find: /^react-dom\/client$/, replacement: "preact/compat/client" },
      { find: /^react(-dom)?$/, replacement: "preact/compat" },
      { find: /^markdown-to-jsx(\/.*)?$/, replacement: fileURLToPath(new URL("src/form/plain-text.ts", import.meta.url)) },
    ],
  },
  build: {
    outDir: "../src/opwire/console/static",
    emptyOutDir: true,
    target: "es2022",
    assetsInlineLimit: 0, // the policy has no `data:` for fonts and styles
    cssCodeSplit: false,
    modulePreload: { polyfill: false },
    license: { fileName: "licenses.md" },
    // Imported by a part of the form generator that is for its tests, and is shaken off.
    rolldownOptions: {
      external: ["@rjsf/validator-ajv8"],
      onwarn: (warning, warn) => warning.code !== "MODULE_LEVEL_DIRECTIVE" && warn(warning), // "use client"
    },
  },
});
