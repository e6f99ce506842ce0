#!/bin/bash
# Makes packages of what `make build` built: packaging/build.sh [tar] [deb] [rpm], all of them by default, in target/packages.
# VERSION=1.2.3 overrides the workspace's. rpm needs rpmbuild; what is missing is said and passed over, unless it was named.
set -euo pipefail
cd "$(dirname "$0")/.."

name=quilt-gpu
version=${VERSION:-$(sed -n '/^\[workspace.package\]/,/^\[/s/^version = "\(.*\)"/\1/p' Cargo.toml)}
machine=$(uname -m)
deb_arch=$(dpkg --print-architecture 2>/dev/null || echo amd64)
summary="Exactly the NVIDIA GPU that a container was granted, and no other"
out=target/packages
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir -p "$out"

# Files as they lie on a node. The link to the low-level runtime is the node's: it is made there.
stage() {
    local root=$1 zsh=$2
    make --no-print-directory install DESTDIR="$root" PREFIX=/usr SYSCONF=/etc >/dev/null
    rm -f "$root/etc/quilt-gpu/low-level-runtime"
    local helper=$root/usr/bin/quilt-gpu share=$root/usr/share doc=$root/usr/share/doc/$name
    install -d "$share/bash-completion/completions" "$share/zsh/$zsh" "$share/fish/vendor_completions.d" "$doc"
    "$helper" completions bash >"$share/bash-completion/completions/quilt-gpu"
    "$helper" completions zsh >"$share/zsh/$zsh/_quilt-gpu"
    "$helper" completions fish >"$share/fish/vendor_completions.d/quilt-gpu.fish"
    gzip -9nf "$share"/man/man1/*.1
    install -m 644 README.md CHANGELOG.md LICENSE docs/*.md "$doc"
    packaging/sbom.sh "$name" "$version" >"$doc/sbom.cdx.json"
    find "$root" -type d -exec chmod 755 {} +
}

tarball() {
    local tree=$work/$name-$version-linux-$machine
    stage "$tree" vendor-completions
    install -m 755 packaging/scripts/before-removal.sh "$tree/before-removal.sh"
    tar --sort=name --owner=0 --group=0 --numeric-owner -C "$work" -czf "$out/$name-$version-linux-$machine.tar.gz" "${tree##*/}"
}

deb() {
    local root=$work/deb
    stage "$root" vendor-completions
    install -d "$root/DEBIAN"
    printf '/etc/quilt-gpu/config.toml\n' >"$root/DEBIAN/conffiles"
    cat >"$root/DEBIAN/control" <<CONTROL
Package: $name
Version: $version
Architecture: $deb_arch
Maintainer: quilt-gpu developers
Section: admin
Priority: optional
Installed-Size: $(du -sk --exclude=DEBIAN "$root" | cut -f1)
Depends: libc6 (>= $(glibc "$root/usr/bin/quilt-gpu"))
Recommends: runc | crun
Description: $summary
 An OCI runtime for Docker, containerd, CRI-O and Podman. GPUs are allocated
 exclusively; every other road to a GPU in a container's spec is refused; every
 decision is recorded.
CONTROL
    script "$root/DEBIAN/postinst" after-installation.sh '[ "$1" = configure ] || exit 0'
    script "$root/DEBIAN/prerm" before-removal.sh '[ "$1" = remove ] || exit 0'
    script "$root/DEBIAN/postrm" after-removal.sh '[ "$1" = purge ] || exit 0'
    dpkg-deb --root-owner-group -Zxz --build "$root" "$out/${name}_${version}_$deb_arch.deb" >/dev/null
}

# A maintainer's script: when it applies, then what it does.
script() {
    { printf '#!/bin/sh\nset -e\n%s\n' "$3" && grep -v '^#!' "packaging/scripts/$2"; } >"$1"
    chmod 755 "$1"
}

# The newest glibc that the helper asks for; the other programs ask for none.
glibc() { grep -aoE 'GLIBC_2\.[0-9]+' "$1" | sort -V | tail -n 1 | cut -d_ -f2; }

rpm() {
    local root=$work/rpm top=$work/rpmbuild
    stage "$root" site-functions
    mkdir -p "$top"
    {
        cat <<SPEC
Name: $name
Version: ${version%%-*}
Release: 1
Summary: $summary
License: Apache-2.0
# The helper loads NVML by itself; nothing else is linked but glibc.
AutoReqProv: no
Requires: glibc >= $(glibc "$root/usr/bin/quilt-gpu")
Recommends: runc
%description
An OCI runtime for Docker, containerd, CRI-O and Podman. GPUs are allocated exclusively; every other road to a GPU in a
container's spec is refused; every decision is recorded.
%post
$(grep -v '^#!' packaging/scripts/after-installation.sh)
%preun
[ "\$1" = 0 ] || exit 0
$(grep -v '^#!' packaging/scripts/before-removal.sh)
%files
%config(noreplace) /etc/quilt-gpu/config.toml
%dir /etc/quilt-gpu
SPEC
        (cd "$root" && find usr ! -type d -printf '/%p\n' && find usr/share/quilt-gpu usr/share/doc/quilt-gpu \
            usr/share/zsh usr/share/fish -type d -printf '%%dir /%p\n')
    } >"$work/$name.spec"
    rpmbuild -bb --quiet --buildroot "$root" --define "_topdir $top" --define '_build_id_links none' \
        --define '__os_install_post %{nil}' --define "_rpmdir $PWD/$out" --define '_rpmfilename %{NAME}-%{VERSION}-%{RELEASE}.%{ARCH}.rpm' \
        "$work/$name.spec" >"$work/rpm.log" 2>&1 || { cat "$work/rpm.log" >&2; return 1; }
}

[ $# -gt 0 ] || { set -- tar deb; command -v rpmbuild >/dev/null && set -- "$@" rpm || echo "no rpmbuild here: no .rpm"; }
for kind; do
    case $kind in
        tar) tarball ;;
        deb | rpm) "$kind" ;;
        *) echo "usage: $0 [tar] [deb] [rpm]" >&2; exit 2 ;;
    esac
done
(cd "$out" && ls -l -- *"$version"*)
