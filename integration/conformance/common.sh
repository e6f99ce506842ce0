# Part of the conformance runs: where things lie, and nodes on which quilt-gpu stands in front of a low-level runtime.
# Expects `set -u` and makes `scratch`, which is removed at the end.
workspace=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
engines=${QUILT_TEST_CACHE:-$workspace/.cache}/engines
suites=$engines/suites

say() { printf 'conformance: %s\n' "$*"; }

die() {
  say "$*" >&2
  exit 2
}

# What was built: by rustc's name for this host, which is not known to every root.
built_runtime() {
  find "$workspace/target" -path '*-*/release/quilt-gpu-runtime' -type f -print -quit
}
quilt=${QUILT_GPU_RUNTIME:-$(built_runtime)}
engine=${quilt%/*}/quilt-gpu-engine
[ -x "$quilt" ] || die "quilt-gpu-runtime is not built: run make build first"

# Two runs of a suite would take each other's containers away: names and cgroups are its own.
[ "$(id -u)" = 0 ] || die "needs root, to make containers"
exec 8>"/run/lock/quilt-gpu-conformance-$(basename "$0" .sh)"
flock --nonblock 8 || { say "waiting for another run"; flock 8; }

# A folder that only root can write, on a file system that takes device nodes: /tmp is neither.
# Programs of other users inside containers have to come through.
scratch=$(mktemp -d /var/lib/quilt-gpu-conformance.XXXXXX)
chmod 755 "$scratch"
mkdir "$scratch/tmp"
export TMPDIR=$scratch/tmp

# Tests that fail or are ended leave programs, containers and mounts. They are known by paths that are this run's alone.
clean() {
  local state id
  for state in "$scratch"/tmp/bats-run-*/runc.*/state; do
    for id in "$state"/*; do
      [ ! -d "$id" ] || "$low_level" --root "$state" delete --force "${id##*/}" ||
        "$engine" --root "$state" delete --force "${id##*/}"
    done
  done
  pgrep --full -- "$scratch/" | while read -r id; do [ "$id" = $$ ] || kill "$id"; done
  awk -v below="$scratch/" 'index($5, below) == 1 { print $5 }' /proc/self/mountinfo | sort -r |
    while read -r mount; do umount -l "$mount"; done
  rm -rf --one-file-system "$scratch"
}
trap clean EXIT
trap 'exit 130' INT TERM

# install_node NAME LOW_LEVEL: quilt-gpu on a node of its own. `empty` has no GPU; on `gpus` there are two to be guarded;
# on `bare` there is no quilt-gpu, on `engine` its own low-level runtime and nothing else. Each has what a suite tests as
# `runc`, since help texts show the name a program has.
install_node() {
  local folder=$scratch/node-$1
  local host=$folder/host
  mkdir "$folder"
  case $1 in
    bare) ln -s "$2" "$folder/runc" && return ;;
    engine) ln -s "$engine" "$folder/runc" && return ;;
  esac
  ln -s "$quilt" "$folder/runc"
  mkdir -p "$folder"/{state,log} "$host"/{dev,sys/bus/pci/devices,proc/sys/kernel/random}
  cp /proc/sys/kernel/random/boot_id "$host/proc/sys/kernel/random/boot_id"
  printf 'Character devices:\n  1 mem\n  5 /dev/tty\n 10 misc\n136 pts\n' >"$host/proc/devices"
  if [ "$1" = gpus ]; then
    printf '195 nvidia-frontend\n236 nvidia-caps\n511 nvidia-uvm\n' >>"$host/proc/devices"
    mknod "$host/dev/nvidia0" c 195 0
    mknod "$host/dev/nvidia1" c 195 1
    mknod "$host/dev/nvidiactl" c 195 255
    mknod "$host/dev/nvidia-uvm" c 511 0
  fi
  printf '\nBlock devices:\n  7 loop\n259 blkext\n' >>"$host/proc/devices"
  cat >"$folder/config.toml" <<EOF
[paths]
state_dir = "$folder/state"
log_dir = "$folder/log"
helper = "$workspace/target/release/quilt-gpu"

[host]
root = "$host"
driver_root = "$host"
dev_root = "$host/dev"
nvml = "off"

[runtime]
low_level = ["$2"]
EOF
  ln -s "$2" "$folder/low-level-runtime"
}

# on NODE COMMAND...: quilt-gpu, if it is called at all, is that of this node.
on() { env QUILT_GPU_CONFIG="$scratch/node-$1/config.toml" "${@:2}"; }

# on_purpose OUTPUT SUITE WORD...: whether the list beside this file has the test, and its output is a refusal of ours.
on_purpose() {
  local output=$1 line
  shift
  line=$(IFS=$'\t' && echo "$*")
  grep -qxF -- "$line" "$(dirname "${BASH_SOURCE[0]}")/refused" && grep -q 'quilt-gpu: UNSAFE_SPEC' "$output"
}
