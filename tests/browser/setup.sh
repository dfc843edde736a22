#!/usr/bin/env bash
# Installs what the tests of a report's page need: Chromium and its driver (Debian packages, if this is root), and ESLint
# (npm, into node_modules here). What cannot be installed is named, and the tests that need it are skipped.
set -uo pipefail
cd "$(dirname "$0")"

if ! command -v chromium >/dev/null || ! command -v chromedriver >/dev/null; then
  export DEBIAN_FRONTEND=noninteractive
  { [ "$(id -u)" = 0 ] && apt-get update -qq &&
    timeout 900 apt-get install -y -qq --no-install-recommends chromium chromium-driver; } >/dev/null 2>&1 ||
    echo "chromium and chromium-driver could not be installed: tests in a browser are skipped" >&2
fi

if ! command -v npm >/dev/null; then
  echo "there is no npm: the script of the page is not linted" >&2
elif [ ! -d node_modules ] || [ package-lock.json -nt node_modules ]; then
  timeout 300 npm ci --silent --no-audit --no-fund && touch node_modules ||
    echo "npm ci failed: the script of the page is not linted" >&2
fi
exit 0
