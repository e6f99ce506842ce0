#!/usr/bin/env bash
# Fuzzes each target, or TARGET alone, for FUZZ_S seconds each, and says how much was tried and what was found. What is new
# and reaches further is kept in .cache/fuzz; what breaks a promise in .cache/fuzz/found, to be put into fuzz/corpora with
# the repair. RUNS bounds the executions instead of the time.
set -eu
cd "$(dirname "$0")/.."

seconds=${FUZZ_S:-60}
mapfile -t targets < <(cd fuzz/libfuzzer/targets && ls | sed 's/\.rs$//')
[ -z "${TARGET:-}" ] || targets=("$TARGET")

fail() { echo "fuzzing: $*" >&2; exit 2; }
cargo +nightly --version >/dev/null 2>&1 || fail "a nightly compiler is needed for coverage: rustup toolchain install nightly --profile minimal"
command -v cargo-fuzz >/dev/null || fail "cargo-fuzz is needed: cargo install --locked cargo-fuzz"

build=$PWD/target/fuzz
host=$(rustc +nightly -vV | sed -n 's/^host: //p')
# Nothing of what is fuzzed is unsafe: a sanitizer would find nothing and take most of the time.
LOG=${LOG:-$(mktemp)}
cargo +nightly fuzz build --sanitizer none --fuzz-dir fuzz/libfuzzer --target-dir "$build" 2>"$LOG" || { cat "$LOG" >&2; fail "the targets do not build"; }

found=.cache/fuzz/found
mkdir -p "$found"
status=0
for target in "${targets[@]}"; do
    mine=.cache/fuzz/$target
    mkdir -p "$mine"
    also=()
    [ "$target" = json ] && also=(integration/samples)
    [ -f "fuzz/words/$target.dict" ] && also+=("-dict=fuzz/words/$target.dict")
    log=.cache/fuzz/$target.log
    bound=(-max_total_time="$seconds")
    [ -z "${RUNS:-}" ] || bound=(-runs="$RUNS")
    "$build/$host/release/$target" "$mine" "fuzz/corpora/$target" "${also[@]}" "${bound[@]}" -print_final_stats=1 \
        -timeout=10 -rss_limit_mb=2048 -artifact_prefix="$found/$target-" >"$log" 2>&1 && verdict=nothing || verdict=FOUND
    runs=$(sed -n 's/^stat::number_of_executed_units: *//p' "$log")
    each=$(sed -n 's/^stat::average_exec_per_sec: *//p' "$log")
    printf '%-13s %10s executions, %6s a second: %s\n' "$target" "${runs:-?}" "${each:-?}" "$verdict"
    if [ "$verdict" = FOUND ]; then
        status=1
        grep -a -m 3 -A 3 -e 'panicked at' -e 'ERROR: ' "$log" | cut -c -400 | sed 's/^/    /' || true
        grep -a 'Test unit written to' "$log" | sed 's/^/    /' || true
    fi
done
exit "$status"
