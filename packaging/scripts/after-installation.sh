#!/bin/sh
# After the files are there, also of an upgrade: containers that run keep their paths, and nothing is restarted.
link=/etc/quilt-gpu/low-level-runtime
if [ ! -L $link ]; then
    for program in /usr/local/sbin/runc /usr/sbin/runc /usr/bin/runc /usr/sbin/crun /usr/bin/crun /usr/libexec/crio/crun /usr/bin/quilt-gpu-engine; do
        if [ -x $program ]; then
            ln -s $program $link
            break
        fi
    done
fi
install -d -m 0700 /run/quilt-gpu /var/log/quilt-gpu
if [ -d /run/systemd/system ]; then
    systemctl daemon-reload || :
    # Not quilt-gpu-cdi.service: by its file engines hand out GPUs, and whether they may is the operator's to say.
    systemctl enable quilt-gpu-inventory.service >/dev/null 2>&1 || :
    udevadm control --reload 2>/dev/null || :
fi
if [ ! -d /var/lib/quilt-gpu/configured ]; then
    echo "quilt-gpu: next: quilt-gpu inventory refresh; quilt-gpu configure ENGINE (docker, containerd, crio, podman, k3s, rke2, microk8s)"
fi
