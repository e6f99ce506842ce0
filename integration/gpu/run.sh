#!/bin/bash
# What only a machine with an NVIDIA GPU can show, in one go: at most eight minutes, no network, as root, from target/gpu
# (made by `make gpu-prepare`, on any machine). Nothing is installed and nothing is left behind; the driver is not touched.
#   integration/gpu/run.sh [--prepared DIR] [--low-level RUNC_OR_CRUN]
# Without a GPU it goes as far as it can, lists what it skipped, and exits 0. With one, 1 means that something failed.
set -uo pipefail
cd "$(dirname "$0")/../.." || exit 2
prepared=target/gpu low_level=
while [ $# -gt 0 ]; do
  case $1 in
    --prepared) prepared=$2; shift 2 ;;
    --low-level) low_level=$2; shift 2 ;;
    *) sed -n '2,6s/^# //p' "$0" >&2; exit 2 ;;
  esac
done
prepared=$(readlink -f "$prepared") || exit 2
for file in bin/quilt-gpu bin/quilt-gpu-runtime bin/quilt-gpu-hook rootfs/usr/bin/quilt-cuda rootfs/usr/bin/quilt-probe; do
  [ -x "$prepared/$file" ] || { echo "gpu: $prepared/$file is missing: run make gpu-prepare" >&2; exit 2; }
done
[ "$(id -u)" = 0 ] || { echo "gpu: leases, device nodes and containers need root" >&2; exit 2; }
PATH=$PATH:/usr/sbin:/sbin

passed=0 failed=0 skipped=()
began=$SECONDS
ok() { passed=$((passed + 1)); printf 'ok       %s\n' "$*"; }
bad() { failed=$((failed + 1)); printf 'FAILED   %s\n' "$*"; }
skip() { skipped+=("$*"); printf 'skipped  %s\n' "$*"; }
told() { sed 's/^/         | /'; }
# Eight minutes in all, one in each step.
limited() { [ $((SECONDS - began)) -lt 480 ] || return 124; timeout --kill-after=5 60 "$@"; }

# Below /run: every folder above our configuration must be root's alone.
work=$(mktemp -d -p /run quilt-gpu-check.XXXXXX) || exit 2
declare -A made=()
cleanup() {
  for id in "${!made[@]}"; do timeout 20 "${runtime[@]}" delete --force "$id" >/dev/null 2>&1; done
  rm -rf "$work"
}
trap cleanup EXIT
trap 'exit 130' INT TERM

runtime=(env "QUILT_GPU_CONFIG=$work/etc/config.toml" "$prepared/bin/quilt-gpu-runtime" --root "$work/root")
quilt() { limited "$prepared/bin/quilt-gpu" --config "$work/etc/config.toml" "$@"; }

# bundle NAME REQUEST COMMAND...: REQUEST is an annotation as "key": "value", or nothing.
bundle() {
  local name=$1 request=$2 folder=$work/bundles/$1 args
  shift 2
  args=$(printf ', "%s"' "$@")
  mkdir -p "$folder/rootfs"
  cp -a "$prepared/rootfs/." "$folder/rootfs/"
  cat >"$folder/config.json" <<SPEC
{"ociVersion": "1.0.2",
 "process": {"args": [${args#, }], "cwd": "/", "user": {"uid": 0, "gid": 0}, "env": ["PATH=/usr/bin"],
  "capabilities": {"bounding": ["CAP_MKNOD"], "effective": ["CAP_MKNOD"], "permitted": ["CAP_MKNOD"]}, "noNewPrivileges": true},
 "root": {"path": "rootfs"}, "annotations": {$request},
 "mounts": [{"destination": "/proc", "type": "proc", "source": "proc"},
  {"destination": "/dev", "type": "tmpfs", "source": "tmpfs", "options": ["nosuid", "strictatime", "mode=755", "size=65536k"]}],
 "linux": {"cgroupsPath": "/$name-$$", "resources": {"devices": [{"allow": false, "access": "rwm"}]},
  "namespaces": [{"type": "pid"}, {"type": "ipc"}, {"type": "uts"}, {"type": "mount"}]}}
SPEC
}

# run NAME REQUEST COMMAND...: the whole container; its output and the runtime's.
run() {
  bundle "$@"
  made[$1]=1
  limited "${runtime[@]}" run --bundle "$work/bundles/$1" "$1" 2>&1
  local status=$?
  timeout 20 "${runtime[@]}" delete --force "$1" >/dev/null 2>&1
  return $status
}

nodes() { find /dev -name 'nvidia*' -printf '%p ' 2>/dev/null | tr ' ' '\n' | sort; }

# --- what there is -----------------------------------------------------------------------------------------------
if [ -z "$low_level" ]; then
  for name in runc crun "$prepared/bin/low-level"; do
    command -v "$name" >/dev/null && { low_level=$(command -v "$name"); break; }
  done
fi
mkdir -p "$work"/{etc,state,log,root,bundles}
chmod 700 "$work"
cat >"$work/etc/config.toml" <<CONFIG
[paths]
state_dir = "$work/state"
log_dir = "$work/log"
helper = "$prepared/bin/quilt-gpu"
hook = "$prepared/bin/quilt-gpu-hook"
[runtime]
low_level = ["${low_level:-/usr/sbin/runc}"]
CONFIG
chmod 600 "$work/etc/config.toml"

containers=
if [ -z "$low_level" ]; then
  skip "everything in containers: there is no runc or crun; give one with --low-level"
else
  bundle bare '' /usr/bin/quilt-probe env
  if answer=$(limited "$low_level" --root "$work/bare" run --bundle "$work/bundles/bare" bare 2>&1); then
    ok "$("$low_level" --version | head -n 1) makes containers here"
    containers=1
  else
    echo "$answer" | head -n 5 | told
    skip "everything in containers: $low_level cannot make any here"
  fi
  timeout 20 "$low_level" --root "$work/bare" delete --force bare >/dev/null 2>&1
fi

# --- discovery, and what it does to /dev ---------------------------------------------------------------------------
before=$(nodes)
if answer=$(quilt inventory refresh 2>&1); then ok "quilt-gpu inventory refresh"; else bad "quilt-gpu inventory refresh"; fi
echo "$answer" | head -n 40 | told
[ "$(nodes)" = "$before" ] && ok "it made no node in /dev" || bad "it changed /dev: $(diff <(echo "$before") <(nodes) | grep '^[<>]' | tr '\n' ' ')"
metrics=$(quilt inventory --format prometheus)
# Every GPU that a container could get: PCI address, name and UUID.
usable=$(sed -n 's/^quilt_gpu_usable{pci="\(.*\)"} 1$/\1/p' <<<"$metrics" | sort)
total=$(grep -c '^quilt_gpu_info{' <<<"$metrics")
count=$(grep -c . <<<"$usable")
field() { sed -n "s/^quilt_gpu_info{pci=\"$1\".*,$2=\"\\([^\"]*\\)\".*/\\1/p" <<<"$metrics"; }
echo "gpu: $total GPUs, $count of them usable"

if [ -n "$containers" ]; then
  if answer=$(run none '' /usr/bin/quilt-probe devices); then
    if grep -q nvidia <<<"$answer"; then bad "a container without GPUs sees: $answer"; else ok "a container without GPUs starts and sees none"; fi
  else
    bad "a container without GPUs does not start: $answer"
  fi
fi

if [ "$total" -eq 0 ]; then
  if [ -n "$containers" ]; then
    answer=$(run refused '"quilt.gpu/count": "1"' /usr/bin/quilt-cuda)
    grep -q UNKNOWN_GPU <<<"$answer" && ok "a request on a node without GPUs is UNKNOWN_GPU" || bad "a request gave: $answer"
  fi
  skip "discovery against nvidia-smi: this machine has no NVIDIA GPU"
  skip "cuInit and a kernel in a granted container"
  skip "nvidia-smi in a container sees the granted GPU alone"
  skip "mknod of another minor is EPERM"
  skip "a second create is CAPACITY_FULL"
  skip "what initialising NVML does to /dev"
elif [ "$count" -eq 0 ]; then
  bad "there are GPUs, and none is usable: the findings above say why"
else
  # --- against nvidia-smi ----------------------------------------------------------------------------------------
  before=$(nodes)
  if smi=$(limited nvidia-smi --query-gpu=pci.bus_id,uuid --format=csv,noheader 2>&1); then
    # 00000000:1A:00.0, GPU-… as sysfs spells it.
    theirs=$(tr 'A-F' 'a-f' <<<"$smi" | sed 's/^0\{0,4\}\([0-9a-f]\{4,8\}:\)/\1/; s/, / /' | sort)
    ours=$(while read -r pci; do echo "$pci $(field "$pci" uuid)"; done <<<"$usable" | sort)
    if [ "$theirs" = "$ours" ]; then ok "addresses and UUIDs are nvidia-smi's"; else
      bad "nvidia-smi and the inventory differ"; diff <(echo "$theirs") <(echo "$ours") | told
    fi
    after=$(nodes)
    [ "$after" = "$before" ] && ok "initialising NVML made no node here" \
      || { ok "initialising NVML changes /dev, as noted"; diff <(echo "$before") <(echo "$after") | grep '^[<>]' | told; }
  else
    skip "discovery against nvidia-smi: $(head -n 1 <<<"$smi")"
  fi

  pci=$(head -n 1 <<<"$usable") name=$(field "$pci" id) uuid=$(field "$pci" uuid)
  if [ -z "$containers" ]; then
    # What can be shown without containers: the kernel itself, by the host's loader.
    if answer=$(limited "$prepared/rootfs/usr/bin/quilt-cuda"); then ok "cuInit and a kernel, on the host: $answer"; else bad "cuInit and a kernel, on the host: $answer"; fi
  else
    # --- CUDA on what was granted ----------------------------------------------------------------------------------
    if answer=$(run cuda "\"quilt.gpu/ids\": \"$name\"" /usr/bin/quilt-cuda) && grep -q '"devices":1[,}]' <<<"$answer"; then
      ok "cuInit and a kernel on $name: $answer"
    else
      bad "cuInit and a kernel on $name: $answer"
    fi
    # --- nvidia-smi sees one -------------------------------------------------------------------------------------------
    answer=$(run smi "\"quilt.gpu/ids\": \"$name\"" /usr/bin/nvidia-smi -L)
    if [ "$(grep -c '^GPU ' <<<"$answer")" = 1 ] && grep -q "${uuid:-GPU}" <<<"$answer"; then
      ok "nvidia-smi in the container sees $name alone"
    else
      bad "nvidia-smi in the container: $answer"
    fi
    # --- other minors ------------------------------------------------------------------------------------------------
    # runc lets every container make nodes and open none; crun lets it make none either.
    minor=${name#nvidia}
    answer=$(run mknod "\"quilt.gpu/ids\": \"$name\"" /usr/bin/quilt-probe numbers 195 0 15)
    others=$(grep '"minor":' <<<"$answer" | grep -v '"minor":'"$minor"'[,}]')
    if [ "$(grep -c . <<<"$others")" -ge 15 ] && ! grep -v EPERM <<<"$others" | grep -q .; then
      ok "mknod of $(grep -c . <<<"$others") other minors, and opening them, is EPERM"
    else
      bad "another minor is not EPERM: $(grep -v EPERM <<<"$answer")"
    fi
    # --- no second container -------------------------------------------------------------------------------------------
    bundle holder "\"quilt.gpu/count\": \"$count\"" /usr/bin/quilt-probe sleep 300
    made[holder]=1
    # A container's output must not be ours: whoever reads it would wait for the container's end.
    if limited "${runtime[@]}" create --bundle "$work/bundles/holder" holder >"$work/holder" 2>&1 </dev/null; then
      answer=$(run second '"quilt.gpu/count": "1"' /usr/bin/quilt-cuda)
      grep -q CAPACITY_FULL <<<"$answer" && ok "with all $count GPUs held, a second create is CAPACITY_FULL" \
        || bad "with all $count GPUs held, a second create gave: $answer"
    else
      bad "a container with all $count GPUs: $(cat "$work/holder")"
    fi
    timeout 20 "${runtime[@]}" delete --force holder >/dev/null 2>&1
    quilt lease list | grep -q '^no GPU is leased' && ok "every lease ended with its container" || { bad "leases are left"; quilt lease list | told; }
  fi
fi

echo
echo "gpu: $passed passed, $failed failed, ${#skipped[@]} skipped, in $((SECONDS - began)) s"
[ "$failed" -eq 0 ]
