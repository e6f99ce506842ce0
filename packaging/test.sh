#!/bin/bash
# Packages in clean roots: installed, upgraded while an engine is configured, not removed while a container needs them, then
# removed, after which everything is as it was. As root; makes its roots with mmdebstrap, over the network.
set -euo pipefail
cd "$(dirname "$0")/.."

[ "$(id -u)" = 0 ] || { echo "packages: skipped, clean roots need root"; exit 0; }
work=$(mktemp -d /var/lib/quilt-gpu-packages.XXXXXX)
trap 'rm -rf "$work"' EXIT
packages=$PWD/target/packages
clean=$work/clean
failed() { echo "packages: FAILED: $*" >&2; exit 1; }

# A command in a root, with processes of its own.
within() {
    local root=$1
    shift
    unshare --mount --pid --fork sh -c 'mount -t proc proc "$0/proc" && exec chroot "$0" "$@"' "$root" "$@"
}
# Every file with its mode and content, without what package managers keep for themselves.
listed() {
    (cd "$1" && find . -xdev \( -path ./var/lib/dpkg -o -path ./var/lib/rpm -o -path ./var/log -o -path ./var/cache -o -path ./proc \
        -o -path ./usr/lib/sysimage \) -prune -o \( -type f -o -type l -o -type d \) -printf '%M %p %l\n' | sort)
}
mmdebstrap --quiet --variant=minbase bookworm "$clean" >/dev/null
install -D -m 755 /bin/true "$clean/usr/sbin/runc"
install -d "$clean/etc/docker"
printf '{\n  "debug": false\n}' >"$clean/etc/docker/daemon.json"

# life KIND OLD NEW: through all of it. `install`, `remove` and `purge` are functions of the kind.
life() {
    local kind=$1 old=$2 new=$3 root=$work/$1
    cp -a "$clean" "$root"
    listed "$root" >"$work/before"
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

    "${kind}_install" "$root" "$new" >/dev/null
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
    listed "$root" >"$work/after"
    diff "$work/before" "$work/after" || failed "$kind: something is left, see above"
    echo "packages: $kind: installed, upgraded, kept while used, removed"
}

deb_install() { cp "$2" "$1/package.deb" && within "$1" dpkg --force-confold -i /package.deb && rm "$1/package.deb"; }
deb_remove() { within "$1" dpkg -r quilt-gpu; }
deb_purge() { within "$1" dpkg -P quilt-gpu; }

# rpm is this machine's: the root has none. Scripts run in the root.
rpm_in() {
    local root=$1
    shift
    unshare --mount --pid --fork sh -c 'root=$0; mount -t proc proc "$root/proc" && exec rpm --root "$root" --dbpath /var/lib/rpm --nodeps "$@"' \
        "$root" "$@" 2> >(grep -v "^rpm: " >&2)
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
