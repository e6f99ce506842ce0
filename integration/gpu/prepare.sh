#!/bin/bash
# Lays out target/gpu, which is all that run.sh needs on a machine with a GPU: our programs, and a root file system with
# this machine's C library and the programs that look around in it. `make gpu-prepare` builds them first.
#   prepare.sh STATIC DYNAMIC TESTS     the folders that cargo built into
set -euo pipefail
cd "$(dirname "$0")/../.."
static=$1 dynamic=$2 tests=$3
out=target/gpu
rm -rf "$out"
mkdir -p "$out/bin" "$out"/rootfs/{dev,etc,proc,sys,tmp,usr/bin,usr/lib/x86_64-linux-gnu,usr/lib64}
for link in bin lib lib64; do ln -s "usr/$link" "$out/rootfs/$link"; done
cp "$static/quilt-gpu-runtime" "$static/quilt-gpu-hook" "$dynamic/quilt-gpu" "$out/bin/"
cp "$tests/quilt-cuda" "$tests/quilt-probe" "$out/rootfs/usr/bin/"
strip "$out"/rootfs/usr/bin/quilt-*

# The loader, and what our programs and NVIDIA's need of the C library.
cp -L /lib64/ld-linux-x86-64.so.2 "$out/rootfs/usr/lib64/"
for name in libc.so.6 libm.so.6 libgcc_s.so.1 libdl.so.2 libpthread.so.0 librt.so.1 libutil.so.1; do
  cp -L "/lib/x86_64-linux-gnu/$name" "$out/rootfs/usr/lib/x86_64-linux-gnu/"
done
printf '12.0\n' >"$out/rootfs/etc/debian_version"
printf 'root:x:0:0:root:/:/bin/false\n' >"$out/rootfs/etc/passwd"

# A low-level runtime, for a machine without one: it must not need libraries.
for low_level in /usr/bin/crun /usr/sbin/runc "${QUILT_TEST_CACHE:-.cache}"/engines/*/crun*; do
  if [ -x "$low_level" ] && [ -f "$low_level" ] && LC_ALL=C ldd "$low_level" 2>&1 | grep -q 'not a dynamic executable'; then
    cp -L "$low_level" "$out/bin/low-level"
    break
  fi
done
du -sh "$out" | sed 's/^/prepared: /'
