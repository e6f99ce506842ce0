#!/bin/bash
# Packages in clean roots: installed, upgraded below a container that runs, not removed while one needs them, then removed, after
# which everything is as it was. As root; makes its roots with mmdebstrap, over the network. The GPU is made up.
set -euo pipefail
cd "$(dirname "$0")/.."

[ "$(id -u)" = 0 ] || { echo "packages: skipped, clean roots need root"; exit 0; }
work=$(mktemp -d /var/lib/quilt-gpu-packages.XXXXXX)
keeper=
ended() {
    [ -z "$keeper" ] || kill -KILL "$keeper"
    # Where a test failed, its container's.
    find /sys/fs/cgroup -depth -type d -name "${work##*/}" -exec rmdir {} + 2>/dev/null || true
    rm -rf "$work"
}
trap ended EXIT
packages=$PWD/target/packages
clean=$work/clean
failed() { echo "packages: FAILED: $*" >&2; exit 1; }

# A root comes to life: with processes, mounts and control groups of its own, until it is halted, which ends all of them.
boot() {
    mkfifo "$work/ready"
    # A mount by itself: low-level runtimes leave no root that is none.
    unshare --mount --pid --fork --kill-child sh -ec 'mount --bind "$0" "$0"; mount -t proc proc "$0/proc"; mount --rbind /sys "$0/sys"
        echo >"$1"; sleep infinity & wait' "$1" "$work/ready" &
    keeper=$!
    read -r _ <"$work/ready"
    rm "$work/ready"
}
halt() {
    kill -KILL "$keeper"
    wait "$keeper" 2>/dev/null || true
    keeper=
}
# A program of this machine, with what the living root mounts and runs; a command in the root.
beside() { nsenter --target "$(tr -d " " </proc/$keeper/task/$keeper/children)" --mount --pid "$@"; }
within() { beside chroot "$@"; }
# Every file with its mode and content, without what package managers keep for themselves.
listed() {
    (cd "$1" && find . -xdev \( -path ./var/lib/dpkg -o -path ./var/lib/rpm -o -path ./var/log -o -path ./var/cache -o -path ./proc \
        -o -path ./usr/lib/sysimage \) -prune -o \( -type f -o -type l -o -type d \) -printf '%M %p %l\n' | sort)
}
# A kernel with NVIDIA's driver and one GPU, below /node of a root.
node() {
    local version=550.54.15 node=$1/node pci=0000:01:00.0 name
    local bus=$node/sys/bus/pci/devices/$pci information=$node/proc/driver/nvidia/gpus/$pci/information
    install -d "$bus" "${information%/*}" "$node/dev" "$node/usr/lib64"
    for name in vendor=0x10de device=0x20b0 class=0x030200 numa_node=-1; do echo "${name#*=}" >"$bus/${name%=*}"; done
    ln -s ../../drivers/nvidia "$bus/driver"
    printf 'Model: \t\t NVIDIA A100-SXM4-40GB\nGPU UUID: \t GPU-5d1f0c01-11aa-4b6c-9d3e-0a1b2c3d4e5f\nDevice Minor: \t 0\n' >"$information"
    echo "NVRM version: NVIDIA UNIX x86_64 Kernel Module  $version  x" >"$node/proc/driver/nvidia/version"
    printf 'Character devices:\n195 nvidia\n195 nvidiactl\n511 nvidia-uvm\n' >"$node/proc/devices"
    for name in nvidia0=195:0 nvidiactl=195:255 nvidia-uvm=511:0 nvidia-uvm-tools=511:1; do
        mknod -m 666 "$node/dev/${name%=*}" c "$(expr "$name" : '.*=\(.*\):')" "${name#*:}"
    done
    for name in libcuda libnvidia-ml libnvidia-ptxjitcompiler; do
        cc -shared -nostdlib "-Wl,-soname,$name.so.1" -x c /dev/null -o "$node/usr/lib64/$name.so.$version"
        ln -s "$name.so.$version" "$node/usr/lib64/$name.so.1"
    done
}
mmdebstrap --quiet --variant=minbase --include=runc,busybox-static bookworm "$clean" >/dev/null
node "$clean"
install -d "$clean/etc/docker"
printf '{\n  "debug": false\n}' >"$clean/etc/docker/daemon.json"

# A container with the GPU, and calls for it.
job() {
    local root=$1
    shift
    QUILT_GPU_CONFIG=/etc/quilt-gpu/job.toml within "$root" quilt-gpu-runtime --root /srv/job/state "$@"
}
job_starts() {
    local root=$1 rootfs=$1/srv/job/rootfs
    install -d "$rootfs"/{bin,dev,proc,sys,etc,tmp,usr/lib64}
    sed 's|^\[host\]$|&\nroot = "/node"\nnvml = "off"|' "$root/etc/quilt-gpu/config.toml" >"$root/etc/quilt-gpu/job.toml"
    cp "$root/bin/busybox" "$rootfs/bin/sleep"
    within "$root" runc spec --bundle /srv/job
    jq --arg group "/${work##*/}" '.process += {terminal: false, args: ["sleep", "3600"]} | .process.env += ["QUILT_GPU_COUNT=1"]
        | .linux.cgroupsPath = $group' "$root/srv/job/config.json" >"$work/config.json"
    cp "$work/config.json" "$root/srv/job/config.json"
    # A run, whose hooks are named in its spec: what a create adds there lies outside packages.
    job "$root" run --detach --bundle /srv/job job </dev/null >"$work/job" 2>&1 || failed "no container: $(cat "$work/job")"
}
# What the GPU's grant put into the spec lies where the spec says, and the container is as it was.
job_goes_on() {
    local root=$1 path
    [ "$(job "$root" state job | jq -r .status)" = running ] || failed "the container does not run after an upgrade"
    jq -r '[.mounts[]? | select(.options | index("bind") or index("rbind")) | .source] + [.hooks[]?[]?.path] | .[]' \
        "$root/srv/job/config.json" >"$work/paths"
    grep -q /node/ "$work/paths" && grep -q /usr/bin/quilt-gpu "$work/paths" || failed "the spec names no paths of ours: $(cat "$work/paths")"
    while read -r path; do within "$root" test -e "$path" </dev/null || failed "an upgrade took $path from below a container"; done <"$work/paths"
}
job_ends() {
    local root=$1 tries=100
    job "$root" kill job KILL
    until [ "$(job "$root" state job | jq -r .status)" = stopped ]; do
        [ $((tries -= 1)) -gt 0 ] || failed "the container does not end"
        sleep 0.05
    done
    job "$root" delete job
    [ -z "$(ls "$root/run/quilt-gpu/leases")" ] || failed "a lease is left of a container that was deleted: $(ls "$root/run/quilt-gpu/leases")"
    rm -r "$root/srv/job" "$root/etc/quilt-gpu/job.toml"
}

# life KIND OLD NEW: through all of it. `install`, `remove` and `purge` are functions of the kind.
life() {
    local kind=$1 old=$2 new=$3 root=$work/$1
    cp -a "$clean" "$root"
    listed "$root" >"$work/before"
    boot "$root"
    "${kind}_install" "$root" "$old" >/dev/null
    [ "$(readlink "$root/etc/quilt-gpu/low-level-runtime")" = /usr/sbin/runc ] || failed "$kind: no low-level runtime is named"
    within "$root" quilt-gpu version >/dev/null || failed "$kind: the helper does not start"
    within "$root" quilt-gpu-runtime --version >/dev/null || failed "$kind: the runtime does not start"
    local file
    for file in usr/share/man/man1/quilt-gpu.1.gz usr/share/bash-completion/completions/quilt-gpu usr/share/doc/quilt-gpu/sbom.cdx.json \
        usr/lib/systemd/system/quilt-gpu-inventory.service usr/lib/systemd/system/quilt-gpu-broker.socket usr/lib/udev/rules.d/71-quilt-gpu.rules usr/lib/tmpfiles.d/quilt-gpu.conf; do
        [ -s "$root/$file" ] || failed "$kind: no $file"
    done
    within "$root" quilt-gpu configure docker --default >/dev/null
    within "$root" quilt-gpu configure crio >/dev/null
    grep -q '"default-runtime": "quilt-gpu"' "$root/etc/docker/daemon.json" || failed "$kind: docker is not configured"
    echo '# of the operator' >>"$root/etc/quilt-gpu/config.toml"

    job_starts "$root"
    "${kind}_install" "$root" "$new" >/dev/null
    job_goes_on "$root"
    if "${kind}_remove" "$root" >"$work/said" 2>&1; then failed "$kind: removed below a container that runs"; fi
    grep -q "/run/quilt-gpu/leases/0000:01:00.0@" "$work/said" || failed "$kind: does not say who has a GPU: $(cat "$work/said")"
    job_goes_on "$root"
    job_ends "$root"
    grep -q '# of the operator' "$root/etc/quilt-gpu/config.toml" || failed "$kind: an upgrade took the operator's configuration"
    grep -q quilt-gpu "$root/etc/docker/daemon.json" || failed "$kind: an upgrade took the entry in daemon.json"

    local container=$root/var/lib/docker/containers/abc
    install -d "$container"
    echo '{"Runtime":"quilt-gpu"}' >"$container/hostconfig.json"
    if "${kind}_remove" "$root" >"$work/said" 2>&1; then failed "$kind: removed below a container"; fi
    grep -q "containers/abc/hostconfig.json" "$work/said" || failed "$kind: does not say which container: $(cat "$work/said")"
    within "$root" quilt-gpu version >/dev/null || failed "$kind: a refused removal left nothing that starts"
    grep -q quilt-gpu "$root/etc/docker/daemon.json" || failed "$kind: a refused removal took the entry in daemon.json"
    rm -r "$root/var/lib/docker"

    "${kind}_remove" "$root" >"$work/said" 2>&1 || failed "$kind: $(cat "$work/said")"
    cmp "$clean/etc/docker/daemon.json" "$root/etc/docker/daemon.json" || failed "$kind: daemon.json is not as it was"
    [ -e "$root/etc/quilt-gpu/config.toml" ] || [ -e "$root/etc/quilt-gpu/config.toml.rpmsave" ] || failed "$kind: no configuration is kept"
    "${kind}_purge" "$root" >/dev/null 2>&1
    halt
    listed "$root" >"$work/after"
    diff "$work/before" "$work/after" || failed "$kind: something is left, see above"
    echo "packages: $kind: installed, upgraded below a container, kept while used, removed"
}

deb_install() { cp "$2" "$1/package.deb" && within "$1" dpkg --force-confold -i /package.deb && rm "$1/package.deb"; }
deb_remove() { within "$1" dpkg -r quilt-gpu; }
deb_purge() { within "$1" dpkg -P quilt-gpu; }

# rpm is this machine's: the root has none. Scripts run in the root.
rpm_in() {
    local root=$1
    shift
    beside rpm --root "$root" --dbpath /var/lib/rpm --nodeps "$@" 2> >(grep -v "^rpm: " >&2)
}
rpm_install() { rpm_in "$1" -U "$2"; }
rpm_remove() { rpm_in "$1" -e quilt-gpu; }
rpm_purge() { rm -rf "$1"/{etc,run,var/lib,var/log}/quilt-gpu "$1/var/lib/rpm"; }

kinds=(deb)
command -v rpmbuild >/dev/null && kinds+=(rpm) || echo "packages: no .rpm: rpmbuild is not here"
for version in 0.1.0 0.1.1; do VERSION=$version packaging/build.sh tar "${kinds[@]}" >/dev/null; done
life deb "$packages"/quilt-gpu_0.1.0_*.deb "$packages"/quilt-gpu_0.1.1_*.deb
[ ${#kinds[@]} = 1 ] || life rpm "$packages"/quilt-gpu-0.1.0-1.*.rpm "$packages"/quilt-gpu-0.1.1-1.*.rpm

tar -C "$work" -xzf "$packages"/quilt-gpu-0.1.1-linux-*.tar.gz
"$work"/quilt-gpu-0.1.1-linux-*/usr/bin/quilt-gpu version >/dev/null || failed "the tarball's helper does not start"
jq -e '.components | length > 20 and all(.name != "" and .version != "")' \
    "$work"/quilt-gpu-0.1.1-linux-*/usr/share/doc/quilt-gpu/sbom.cdx.json >/dev/null || failed "the list of components is short"
echo "packages: tarball: programs, manual, completions, list of components"
