"use strict";

const js = require("@eslint/js");

const rules = {
  eqeqeq: "error",
  "no-shadow": "error",
  "no-unused-expressions": "error",
  "no-use-before-define": ["error", {functions: false}],
  "no-var": "error",
  "prefer-const": "error",
  strict: ["error", "global"],
};
const node = {module: "readonly", require: "readonly"};
const browser = Object.fromEntries(["document", "window", "Option", "Plotly", "ResizeObserver"].map(k => [k, "readonly"]));

module.exports = [
  {...js.configs.recommended, rules: {...js.configs.recommended.rules, ...rules}},
  {files: ["**/*.js"], languageOptions: {ecmaVersion: 2023, sourceType: "commonjs", globals: node}},
  // A classic script: the browser has no `require`; `module` is there for tests alone.
  {
    files: ["**/page.js"],
    languageOptions: {ecmaVersion: 2023, sourceType: "script", globals: {...browser, module: "readonly", require: "off"}},
  },
];
