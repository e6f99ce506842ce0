#!/usr/bin/env bash
# Runs every test of the workspace against the built programs, and says how many ran on which engine and runtime.
set -eu
cd "$(dirname "$0")/.."

version() {
    local path
    path=$(PATH="$PATH:/usr/sbin:/sbin" command -v "$1" || true)
    [ -n "$path" ] && "$path" --version 2>&1 | head -n 1 || echo "$1 is not installed"
}

# Whoever started us may stand in a control group with a device filter, which everything we start would inherit and no test
# could tell from its own container's: nodes are opened from the top.
top=$(awk '$3 == "cgroup2" { print $2; exit }' /proc/mounts)
{ [ -n "$top" ] && echo $$ >"$top/cgroup.procs"; } 2>/dev/null || true

# Engine tests wait more than they work, so all others run beside them. Both lanes use the programs that are built first.
cargo test --locked --workspace --no-run
lanes=$(mktemp -d)
trap 'kill $(jobs -p) 2>/dev/null || true; rm -rf "$lanes"' EXIT
failed=0
set -o pipefail

# Two at a time: more of them are slower together than one after the other.
tests() { cargo test --locked --no-fail-fast "$@" -- --test-threads 2 2>&1; }

engines="--test engines --test pods"
others=()
for file in integration/tests/*.rs integration/tests/*/main.rs; do
    name=${file#integration/tests/}
    name=${name%/main.rs}
    case " $engines " in *" ${name%.rs} "*) ;; *) others+=(--test "${name%.rs}") ;; esac
done

# shellcheck disable=SC2086 # a list of words
tests -p integration $engines >"$lanes/engines" &
engines_lane=$!
{
    status=0
    tests --workspace --exclude integration || status=1
    tests -p integration --lib "${others[@]}" || status=1
    # Runc's own tests against runc alone.
    integration/conformance/runc.sh --quick 2>&1 || status=1
    exit $status
} | tee "$lanes/others" || failed=1
wait "$engines_lane" || failed=1
cat "$lanes/engines"
log=$lanes/all
cat "$lanes/others" "$lanes/engines" >"$log"

runc=$(version runc)
docker="$(version dockerd), $(version containerd), $runc"
echo
echo "tests by what they ran on:"
awk -v runc="$runc" -v docker="$docker" '
    /Running .*tests\/(engines|harness)/           { on = "every engine: see the table above"; next }
    /Running .*tests\/configure/                  { on = "Docker, containerd and Podman, told by quilt-gpu configure"; next }
    /Running .*tests\/pods/                       { on = "every containerd, by CRI"; next }
    /Running .*tests\/(docker|fixtures)/          { on = docker; next }
    /Running .*tests\/(runc|crash|parallel)/      { on = runc; next }
    /Running .*tests\/docs/                       { on = "Docker 28, by the documents"; next }
    /Running .*tests\/effects/                   { on = "runc, crun and youki, alone and below quilt-gpu: see the line of effects"; next }
    /Running |Doc-tests /                         { on = "no engine"; next }
    /^test result:/ { n[on] += $4; passed += $4; bad += $6; skipped += $8 }
    END {
        for (on in n) printf "  %4d on %s\n", n[on], on
        print passed " passed, " bad " failed, " skipped " skipped"
    }' "$log"
exit "$failed"
