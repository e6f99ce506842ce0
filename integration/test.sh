#!/usr/bin/env bash
# Runs every test of the workspace against the built programs, and says on what they ran.
set -eu
cd "$(dirname "$0")/.."

echo "engines and runtimes of this run:"
for program in runc dockerd containerd crun; do
    path=$(PATH="$PATH:/usr/sbin:/sbin" command -v "$program" || true)
    echo "  $program: $([ -n "$path" ] && "$path" --version 2>&1 | head -n 1 || echo 'not installed')"
done

# One engine test at a time: they share the machine's cgroups and network namespaces.
log=$(mktemp)
trap 'rm -f "$log"' EXIT
set -o pipefail
cargo test --locked --workspace --no-fail-fast -- --test-threads 2 2>&1 | tee "$log" || failed=1
awk '/^test result:/ { passed += $4; failed += $6; skipped += $8 } END { print passed " passed, " failed " failed, " skipped " skipped" }' "$log"
exit "${failed:-0}"
