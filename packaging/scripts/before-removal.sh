#!/bin/sh
# Before the files go: not while containers need them, and not before engines have forgotten the runtime.
# ROOT is for tests: the node below another folder.
root=${ROOT:-}
state=$(sed -n "s/^[[:space:]]*state_dir[[:space:]]*=[[:space:]]*[\"']\([^\"']*\)[\"'].*/\1/p" "$root/etc/quilt-gpu/config.toml" 2>/dev/null | tail -n 1)
# Whether these are the words of a monitor of Podman or CRI-O whose runtime is ours: whoever else mentions it runs nothing with it.
is_monitor() {
    read -r program || return 1
    case ${program##*/} in conmon | conmonrs) ;; *) return 1 ;; esac
    before=
    while read -r word; do
        case $before,$word in
            -r,*/quilt-gpu-runtime | --runtime,*/quilt-gpu-runtime | *,--runtime=*/quilt-gpu-runtime) return 0 ;;
            -r,*/quilt-gpu | --runtime,*/quilt-gpu | *,--runtime=*/quilt-gpu) return 0 ;;
        esac
        before=$word
    done
    return 1
}
used() {
    # Docker's containers, running or not, on its usual data root.
    grep -l '"Runtime":"quilt-gpu"' "$root"/var/lib/docker/containers/*/hostconfig.json 2>/dev/null || :
    # What containerd runs, Docker's too; k3s, rke2 and microk8s have it elsewhere.
    grep -l quilt-gpu-runtime "$root"/run/containerd/io.containerd.runtime.v2.task/*/*/options.json \
        "$root"/run/docker/containerd/daemon/io.containerd.runtime.v2.task/*/*/options.json \
        "$root"/run/k3s/containerd/io.containerd.runtime.v2.task/*/*/options.json \
        "$root"/var/snap/microk8s/common/run/containerd/io.containerd.runtime.v2.task/*/*/options.json 2>/dev/null || :
    for process in "$root"/proc/[0-9]*/cmdline; do
        # What has a second number in a namespace of its own is in a container, whatever it calls itself.
        tr '\0' '\n' 2>/dev/null <"$process" | is_monitor &&
            ! grep -qs '^NSpid:.*[0-9][[:space:]]\{1,\}[0-9]' "${process%/*}/status" && echo "${process%/*}" || :
    done
    # Who has a GPU, where the configuration keeps that.
    find "$root${state:-/run/quilt-gpu}/leases" -type f ! -name 'wait-*' ! -name '.*' -name '*@*' 2>/dev/null || :
}
in_use=$(used | head -n 10)
if [ -n "$in_use" ]; then
    echo "quilt-gpu: containers are left that were made through it; remove them first:" >&2
    echo "$in_use" | sed 's/^/  /' >&2
    exit 1
fi
quilt-gpu configure --undo --all
if [ -d /run/systemd/system ]; then
    systemctl disable --now quilt-gpu-broker.socket quilt-gpu-broker.service >/dev/null 2>&1 || :
    systemctl disable quilt-gpu-inventory.service quilt-gpu-cdi.service >/dev/null 2>&1 || :
fi
