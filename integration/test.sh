#!/usr/bin/env bash
# Runs every test of the workspace against the built programs, and says how many ran on which engine and runtime.
set -eu
cd "$(dirname "$0")/.."

version() {
    local path
    path=$(PATH="$PATH:/usr/sbin:/sbin" command -v "$1" || true)
    [ -n "$path" ] && "$path" --version 2>&1 | head -n 1 || echo "$1 is not installed"
}

log=$(mktemp)
trap 'rm -f "$log"' EXIT
failed=0
set -o pipefail
# Two at a time: engine tests are slower together than one after the other.
cargo test --locked --workspace --no-fail-fast -- --test-threads 2 2>&1 | tee "$log" || failed=1

runc=$(version runc)
docker="$(version dockerd), $(version containerd), $runc"
echo
echo "tests by what they ran on:"
awk -v runc="$runc" -v docker="$docker" '
    /Running .*tests\/(engines|harness)/           { on = "every engine: see the table above"; next }
    /Running .*tests\/pods/                       { on = "every containerd, by CRI"; next }
    /Running .*tests\/(docker|fixtures)/          { on = docker; next }
    /Running .*tests\/(runc|crash|parallel)/      { on = runc; next }
    /Running .*tests\/effects/                   { on = "runc, crun and youki, alone and below quilt-gpu: see the line of effects"; next }
    /Running |Doc-tests /                         { on = "no engine"; next }
    /^test result:/ { n[on] += $4; passed += $4; bad += $6; skipped += $8 }
    END {
        for (on in n) printf "  %4d on %s\n", n[on], on
        print passed " passed, " bad " failed, " skipped " skipped"
    }' "$log"
exit "$failed"
