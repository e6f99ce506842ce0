#!/bin/bash
# Runs runtime-tools' programs, which validate a runtime by the OCI specification, with quilt-gpu-runtime on a node with
# GPUs in front of runc, and compares with runc alone, on this machine in the same run. runc itself does not pass them all:
# a program is lost when it says ok less often, or not ok more often, than with runc alone. Exit status 1 when there is one.
#   runtime-tools.sh [PROGRAM...]
set -uo pipefail
. "$(dirname "$0")/common.sh"

tools=$suites/runtime-tools
[ -d "$tools" ] || die "no runtime-tools: run integration/setup.sh suites"
low_level=$(readlink -f "$engines/low-level/runc-1.1") || die "no runc: run integration/setup.sh engines"
limit=60
install_node bare "$low_level"
install_node gpus "$low_level"

# outcome NODE PROGRAM: "OK NOT_OK STATUS" of one run.
outcome() {
  local tap=$scratch/tap status
  # Programs look for their container's files here, and leave mounts.
  (cd "$tools" && on "$1" env RUNTIME="$scratch/node-$1/runc" timeout "$limit" unshare --mount --propagation slave \
    "programs/$2" >"$tap" 2>"$tap.errors" </dev/null 8>&-)
  status=$?
  [ -z "${KEEP:-}" ] || { mkdir -p "$KEEP"; cat "$tap" "$tap.errors" >"$KEEP/$1-$2"; }
  echo "$(grep -c '^ok' "$tap") $(grep -c '^not ok' "$tap") $status"
}

# worse OURS BARE: whether an outcome is worse than another.
worse() {
  # shellcheck disable=SC2086 # three words each
  set -- $1 $2
  [ "$1" -lt "$4" ] || [ "$2" -gt "$5" ] || { [ "$6" -eq 0 ] && [ "$3" -ne 0 ]; }
}

[ $# -gt 0 ] || set -- $(ls "$tools/programs")
printf '%-34s %20s %20s\n' "program: ok, not ok, exit status" bare gpus
lost=() refused=() oks=(0 0) failures=(0 0)
for name in "$@"; do
  bare=$(outcome bare "$name")
  ours=$(outcome gpus "$name")
  # Some depend on timing: both sides get two more chances.
  for again in 1 2; do
    worse "$ours" "$bare" || break
    ! on_purpose "$scratch/tap.errors" runtime-tools "$name" || break
    say "$name: $ours through quilt-gpu-runtime, $bare bare: again ($again)"
    bare=$(outcome bare "$name")
    ours=$(outcome gpus "$name")
  done
  if worse "$ours" "$bare"; then
    # The last program that ran was ours.
    if on_purpose "$scratch/tap.errors" runtime-tools "$name"; then refused+=("$name"); else lost+=("$name"); fi
  fi
  printf '%-34s %20s %20s\n' "$name" "$bare" "$ours"
  oks=($((oks[0] + ${bare%% *})) $((oks[1] + ${ours%% *})))
  bare=${bare#* } ours=${ours#* }
  failures=($((failures[0] + ${bare%% *})) $((failures[1] + ${ours%% *})))
done
for name in "${refused[@]}"; do echo "refused on purpose: $name"; done
for name in "${lost[@]}"; do echo "LOST: $name"; done
echo "runtime-tools: ${oks[0]} ok and ${failures[0]} not ok bare, ${oks[1]} and ${failures[1]} through quilt-gpu-runtime, ${#refused[@]} refused on purpose, ${#lost[@]} of $# programs lost"
[ ${#lost[@]} -eq 0 ]
