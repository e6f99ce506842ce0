#!/usr/bin/env bash
# Shows that fuzzing finds what it is there to find: plants the bugs of planted.txt in a copy of the tree and says for each
# target how long it took, from the seeds alone. FUZZ_S is the most it may take (300).
set -eu
cd "$(dirname "$0")/.."

copy=$PWD/target/planted
rm -rf "$copy"
mkdir -p "$copy"
git ls-files -z | tar --null -T - -c | tar -x -C "$copy"
python3 - fuzz/planted.txt "$copy" <<'PY'
import re, sys
for line in open(sys.argv[1]):
    if line.startswith("#"):
        continue
    target, file, old, new = (part.replace("\\|", "|") for part in re.split(r"(?<!\\)\|", line.rstrip("\n")))
    path = f"{sys.argv[2]}/{file}"
    text = open(path).read()
    if text.count(old) != 1:
        sys.exit(f"{target}: {file} has not exactly one `{old}`: planted.txt is out of date")
    open(path, "w").write(text.replace(old, new))
PY

build=$PWD/target/fuzz
host=$(rustc +nightly -vV | sed -n 's/^host: //p')
(cd "$copy" && cargo +nightly fuzz build --sanitizer none --fuzz-dir fuzz/libfuzzer --target-dir "$build")
mkdir -p "$copy/bin"
for target in fuzz/libfuzzer/targets/*.rs; do mv "$build/$host/release/$(basename "$target" .rs)" "$copy/bin/"; done
status=0
while IFS='|' read -r target _; do
    [ "${target#\#}" = "$target" ] || continue
    found=$copy/found-$target
    mkdir -p "$found"
    words=()
    [ -f "fuzz/words/$target.dict" ] && words=("-dict=fuzz/words/$target.dict")
    start=$(date +%s%N)
    if "$copy/bin/$target" "$found" "fuzz/corpora/$target" "${words[@]}" -max_total_time="${FUZZ_S:-300}" -timeout=10 \
        -artifact_prefix="$found/" >"$copy/$target.log" 2>&1; then
        echo "$target: NOT found within ${FUZZ_S:-300} s"
        status=1
    else
        echo "$target: found after $((($(date +%s%N) - start) / 1000000)) ms"
    fi
done <fuzz/planted.txt
exit "$status"
