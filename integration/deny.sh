#!/usr/bin/env bash
# Checks licences, sources and banned crates with cargo-deny, which is installed into .cache when the machine has none.
set -eu
cd "$(dirname "$0")/.."
version=0.20
if command -v cargo-deny >/dev/null 2>&1; then
    deny=cargo-deny
else
    deny=.cache/deny/bin/cargo-deny
    if [ ! -x "$deny" ]; then
        echo "installing cargo-deny $version into .cache (a few minutes, once)"
        cargo install --quiet --debug --locked --root .cache/deny --version "^$version" cargo-deny
    fi
fi
exec "$deny" --log-level error check bans licenses sources
