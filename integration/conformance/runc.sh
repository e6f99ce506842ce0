#!/bin/bash
# Runs runc's own tests with quilt-gpu-runtime in front of runc, and compares with runc alone, on this machine in the same
# run: only what passes alone and fails through quilt-gpu-runtime counts. Exit status 1 when there is such a test.
#   runc.sh            every test, three times: alone, on a node without GPUs, on a node with two
#   runc.sh --quick    about a third of the tests, once, on a node with GPUs; alone only what failed
#   runc.sh FILE...    only the tests of these files
#   NODES=gpus         only on this node; NODES=engine: quilt-gpu-engine alone in runc's place. What fails there by design
#                      stands in the list `engine` beside this file, with the reason; what is listed and passes is told
#   RUNC_VERSION=1.3   another runc and its tests (default 1.1)
#   CG=v2              on cgroup v2, in a mount namespace of its own (default: what the machine has)
set -uo pipefail
if [ "${CG:-}" = v2 ] && [ -z "${CONFORMANCE_IN_V2:-}" ]; then
  export CONFORMANCE_IN_V2=1
  exec unshare --mount --propagation private bash -c \
    'umount --lazy /sys/fs/cgroup && mount -t cgroup2 none /sys/fs/cgroup && exec "$@"' v2 "$0" "$@"
fi
. "$(dirname "$0")/common.sh"

version=${RUNC_VERSION:-1.1}
low_level=$(readlink -f "$engines/low-level/runc-$version") || die "no runc $version: run integration/setup.sh engines"
tests=$suites/runc-$version/tests/integration
[ -d "$tests" ] || die "no tests of runc $version: run integration/setup.sh suites"
export BUSYBOX_IMAGE=$suites/busybox.tar DEBIAN_IMAGE=$suites/debian.tar

quick_files="create delete exec state start start_hello start_detached kill list ps hooks tty mounts dev run version"
# One of idmap's hangs with and without us until the time is over.
left_out=" ${LEAVE_OUT:-idmap} "
limit=150

# A line for each test: NODE FILE STATUS NAME, with tabs.
results=$scratch/results
: >"$results"

# bats NODE FILE [NAME]: the lines of a file's tests, or of one test.
bats_lines() {
  local node=$1 file=$2 words
  words=(timeout "$limit" bats --tap)
  [ $# -lt 3 ] || words+=(--filter "^$(sed 's/[][\.*^$+?(){}|/]/\\&/g' <<<"$3")\$")
  # Tests of terminals need one to be there.
  (cd "$tests" && on "$node" env RUNC="$scratch/node-$node/runc" script --quiet --return --command \
    "$(printf '%q ' "${words[@]}" "$file.bats")" /dev/null </dev/null 8>&-) | tr -d '\r' >"$scratch/tap"
  [ -z "${KEEP:-}" ] || { mkdir -p "$KEEP"; cat "$scratch/tap" >>"$KEEP/$node-$file.tap"; }
  awk -v OFS='\t' -v node="$node" -v file="$file" '
    !/^(not )?ok [0-9]+ / { next }
    { status = "ok"; name = $0 }
    /^not / { status = "fail" }
    / # skip/ { status = "skip"; sub(/ *# skip.*/, "", name) }
    { sub(/^(not )?ok [0-9]+ /, "", name); sub(/ +$/, "", name); print node, file, status, name }' "$scratch/tap"
}

status_of() { # NODE FILE NAME
  awk -F '\t' -v node="$1" -v file="$2" -v name="$3" '$1 == node && $2 == file && $4 == name { found = $3 }
    END { print found ? found : "missing" }' "$results"
}

# What the file calls its tests, also those that were not reached.
names_of() { sed -nE 's/^@test "(.*)" \{.*/\1/p' "$tests/$1.bats"; }

# What the engine alone does not do, by design: FILE, name of the test, reason, with tabs.
gaps=$(dirname "$0")/engine
listed() { awk -F '\t' -v file="$1" -v name="$2" '$1 == file && $2 == name { found = 1 } END { exit !found }' "$gaps"; }

# weigh NODE FILE NAME: whether a test that failed through us is lost. Under load some fail now and then, so both sides get
# two more chances, alone.
weigh() {
  local node=$1 file=$2 name=$3 bare chance
  if [ "$node" = engine ] && listed "$file" "$name"; then
    echo "$node	$file	refused	$name" >>"$results"
    return
  fi
  bare=$(status_of bare "$file" "$name")
  for chance in 1 2; do
    case $(bats_lines "$node" "$file" "$name" | cut -f 3) in
      ok)
        say "$file: \"$name\" failed on node $node and passed when run again alone"
        echo "$node	$file	ok	$name" >>"$results"
        return
        ;;
    esac
    if on_purpose "$scratch/tap" runc "$file" "$name"; then
      say "$file: \"$name\" is refused on purpose on node $node"
      echo "$node	$file	refused	$name" >>"$results"
      return
    fi
    bare=$(bats_lines bare "$file" "$name" | cut -f 3)
    if [ "$bare" != ok ]; then
      # Not ours: without us it fails as well.
      say "$file: \"$name\" fails on node $node, and so does runc alone (${bare:-no answer})"
      echo "bare	$file	${bare:-fail}	$name" >>"$results"
      return
    fi
    echo "bare	$file	ok	$name" >>"$results"
  done
  say "LOST on node $node: $file: \"$name\""
  echo "$node	$file	lost	$name" >>"$results"
}

# A later line about a test is the truer one.
last_words() { awk -F '\t' '{ last[$1 FS $2 FS $4] = $3 } END { for (test in last) print test FS last[test] }' "$results"; }

count() { # NODE STATUS [FILE]
  last_words | awk -F '\t' -v node="$1" -v status="$2" -v file="${3:-}" '
    $1 == node && $4 == status && (file == "" || $2 == file) { n++ } END { print n + 0 }'
}

# Whatever the reason.
bad() { # NODE FILE
  echo $(($(count "$1" fail "$2") + $(count "$1" lost "$2") + $(count "$1" refused "$2")))
}

table() {
  local node file
  printf '%-26s' "ok/failed/skipped"
  printf '%14s' "$@"
  echo
  for file in $files; do
    printf '%-26s' "$file"
    for node in "$@"; do
      printf '%14s' "$(count "$node" ok "$file")/$(bad "$node" "$file")/$(count "$node" skip "$file")"
    done
    echo
  done
}

if [ "${1:-}" = --quick ]; then
  files=$quick_files
  nodes=${NODES:-gpus}
  sides=$nodes
else
  nodes=${NODES:-empty gpus}
  sides="bare $nodes"
  files=$*
  [ $# -gt 0 ] || files=$(cd "$tests" && for file in *.bats; do [[ $left_out == *" ${file%.bats} "* ]] || echo "${file%.bats}"; done)
fi
for node in bare $nodes; do install_node "$node" "$low_level"; done

say "$("$low_level" --version | head -n 1), cgroup $([ "$(stat -f -c %T /sys/fs/cgroup)" = cgroup2fs ] && echo v2 || echo v1)"
for file in $files; do
  for side in $sides; do bats_lines "$side" "$file" >>"$results"; done
  printf 'conformance: %s:' "$file"
  for side in $sides; do printf ' %s %s ok' "$side" "$(count "$side" ok "$file")"; done
  echo
done

for node in $nodes; do
  for file in $files; do
    while read -r name; do
      theirs=$(status_of bare "$file" "$name")
      ours=$(status_of "$node" "$file" "$name")
      case $theirs:$ours in
        # Both the same, or a quick run in which nothing failed.
        ok:ok|fail:*|skip:*|missing:ok|missing:skip) ;;
        # A full run that never got there alone either.
        missing:missing) [ "$sides" = "$nodes" ] && weigh "$node" "$file" "$name" ;;
        *) weigh "$node" "$file" "$name" ;;
      esac
    done < <(names_of "$file")
  done
done

# shellcheck disable=SC2086 # lists of words
table $sides
lost=0
passed=0
for node in $nodes; do
  n=$(count "$node" lost)
  passed=$((passed + $(count "$node" ok)))
  lost=$((lost + n))
  last_words | awk -F '\t' -v node="$node" '$1 == node && $4 == "lost" { print "LOST on node " node ": " $2 ": " $3 }' | sort
  if [ "$node" = engine ]; then
    while IFS=$'\t' read -r file name _; do
      [ "$(status_of engine "$file" "$name")" != ok ] || say "passes on the engine and stands in its list: $file: $name"
    done < <(grep -v '^#' "$gaps")
  fi
  way="through quilt-gpu-runtime"
  [ "$node" != engine ] || way="on quilt-gpu-engine, $(count "$node" refused) in its list"
  if [ "$sides" = "$nodes" ]; then
    echo "runc suite, quick: $(count "$node" ok) pass $way, $n lost"
  else
    echo "runc suite: $(count bare ok) pass bare, $(count "$node" ok) pass $way (node $node), $(count "$node" refused) refused on purpose, $n lost"
  fi
done
# Nothing lost is no news where nothing ran.
[ "$passed" -gt 0 ] || die "no test passed"
exit $((lost > 0))
