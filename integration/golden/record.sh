#!/usr/bin/env bash
# Asks NVIDIA's generator about the nodes of integration/tests/peer and keeps its answers in nvidia-ctk-1.18.0/*.json.
#
#   record.sh TRIXIE
#
# TRIXIE is a root file system that has the generator at /out/nvidia-ctk and the C library it was built with: see the
# README there. Nothing is made in this machine's /dev: it sees the fixture as its whole world.
set -eu
[ $# = 1 ] || { sed -n '2,8s/^# \?//p' "$0" >&2; exit 2; }
trixie=$(realpath "$1")
here=$(cd "$(dirname "$0")" && pwd)
cd "$here/../.."

work=$(mktemp -d /var/lib/quilt-gpu-record-XXXXXX)
trap 'rm -rf "$work"' EXIT
QUILT_PEER_LAY_OUT=$work cargo test --locked -q -p integration --test peer lay_out

for root in "$work"/*; do
    topology=$(basename "$root")
    mkdir -p "$root/opt/c" "$root/tmp"
    for library in ld-linux-x86-64.so.2 libc.so.6 libgcc_s.so.1; do
        cp -L "$trixie/usr/lib/x86_64-linux-gnu/$library" "$root/opt/c/"
    done
    cp "$trixie/out/nvidia-ctk" "$root/opt/c/"
    # The fixture has no C library, and no loader that would find one.
    env -i PATH=/usr/sbin:/usr/bin chroot "$root" /opt/c/ld-linux-x86-64.so.2 \
        --library-path /opt/c:/usr/lib/x86_64-linux-gnu /opt/c/nvidia-ctk --quiet \
        cdi generate --mode nvml --format json --nvidia-cdi-hook-path /usr/bin/nvidia-cdi-hook \
        --device-name-strategy index --device-name-strategy uuid >"$root/tmp/answer.json"
    python3 -m json.tool --indent 1 "$root/tmp/answer.json" "$here/nvidia-ctk-1.18.0/$topology.json"
done
