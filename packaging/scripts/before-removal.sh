#!/bin/sh
# Before the files go: not while containers need them, and not before engines have forgotten the runtime.
used() {
    # Docker's containers, running or not, on its usual data root.
    grep -l '"Runtime":"quilt-gpu"' /var/lib/docker/containers/*/hostconfig.json 2>/dev/null || :
    # What containerd runs, Docker's too; k3s and rke2 have it elsewhere.
    grep -l quilt-gpu-runtime /run/containerd/io.containerd.runtime.v2.task/*/*/options.json \
        /run/docker/containerd/daemon/io.containerd.runtime.v2.task/*/*/options.json \
        /run/k3s/containerd/io.containerd.runtime.v2.task/*/*/options.json 2>/dev/null || :
    # Monitors of Podman and CRI-O name the runtime in their command line.
    for process in /proc/[0-9]*/cmdline; do
        tr '\0' '\n' <"$process" 2>/dev/null | grep -qx '/.*/quilt-gpu-runtime' && echo "${process%/cmdline}" || :
    done
    # Who has a GPU.
    find /run/quilt-gpu/leases -type f ! -name 'wait-*' ! -name '.*' -name '*@*' 2>/dev/null || :
}
in_use=$(used | head -n 10)
if [ -n "$in_use" ]; then
    echo "quilt-gpu: containers are left that were made through it; remove them first:" >&2
    echo "$in_use" | sed 's/^/  /' >&2
    exit 1
fi
quilt-gpu configure --undo --all
if [ -d /run/systemd/system ]; then
    systemctl disable quilt-gpu-inventory.service quilt-gpu-cdi.service >/dev/null 2>&1 || :
fi
