#!/bin/bash
# Installs what the tests and the demo need on a Debian 12 machine, as root:
#   setup.sh demo      what builds, and busybox        (demo, tests)
#   setup.sh runtime   the same, runc and small tools  (tests)
#   setup.sh docker    Docker's daemon and client      (tests; no daemon is started)
#   setup.sh driver    NVIDIA's libraries into .cache  (tests; stand-ins serve where they are missing)
#   setup.sh musl      musl's loader into .cache  (tests)
#   setup.sh engines   every other engine and runtime into .cache, and what drives them  (tests)
#   setup.sh suites    runc's own tests into .cache  (tests, make conformance)
#   setup.sh browser   a browser and its root file system into .cache  (make browser)
#   setup.sh runtime-tools    programs that validate runtimes into .cache  (make conformance)
#   setup.sh packages  what makes packages and clean roots  (make packages-test)
# Several words do several things. Quick when all is there; says what it installs.
set -euo pipefail
workspace=$(cd "$(dirname "$0")/.." && pwd)
caches=${QUILT_TEST_CACHE:-$workspace/.cache}
cache=$caches/driver

say() { printf 'setup: %s\n' "$*"; }

# need FILE=PACKAGE...: installs the packages whose file is missing.
need() {
  local pair missing=()
  for pair in "$@"; do
    [ -e "${pair%%=*}" ] || missing+=("${pair#*=}")
  done
  [ ${#missing[@]} -eq 0 ] && return
  say "apt-get install ${missing[*]}"
  refresh_lists
  # 101 from policy-rc.d: packages start no services. One that exists is left alone.
  local policy=/usr/sbin/policy-rc.d ours= failed=
  if [ ! -e $policy ]; then
    printf '#!/bin/sh\nexit 101\n' >$policy
    chmod 755 $policy
    ours=1
  fi
  DEBIAN_FRONTEND=noninteractive apt-get -qq -o DPkg::Lock::Timeout=300 install --yes --no-remove \
    --no-install-recommends "${missing[@]}" >/dev/null || failed=1
  [ -z "$ours" ] || rm $policy
  [ -z "$failed" ]
}

lists_are_new=
refresh_lists() {
  [ -n "$lists_are_new" ] || apt-get -qq update
  lists_are_new=1
}

# What builds, and what the demonstration's containers contain. It needs no low-level runtime: the embedded one serves.
demo() {
  need /bin/busybox=busybox-static /usr/bin/cc=gcc /usr/include/stdio.h=libc6-dev /usr/bin/readelf=binutils \
    /usr/bin/protoc=protobuf-compiler "/usr/lib/$(uname -m)-linux-gnu/libseccomp.a=libseccomp-dev"
  # A dynamic busybox does not run in an empty root.
  if LC_ALL=C ldd /bin/busybox >/dev/null 2>&1; then
    say "apt-get install busybox-static (in place of busybox)"
    refresh_lists
    DEBIAN_FRONTEND=noninteractive apt-get -qq install --yes busybox-static >/dev/null
  fi
  musl_std
}

# What the static programs are linked with. Without rustup, or out of its reach, they are linked with glibc.
musl_std() (
  cd "$workspace"
  target=$(uname -m)-unknown-linux-musl
  compgen -G "$(rustc --print sysroot)/lib/rustlib/$target/lib/libstd-*" >/dev/null && return
  say "rustup target add $target"
  rustup --quiet target add "$target" || say "no $target: the static programs are linked with glibc"
)

runtime() {
  demo
  need /usr/sbin/runc=runc /usr/bin/crun=crun /usr/bin/jq=jq /usr/bin/strace=strace /usr/bin/valgrind=valgrind
}

docker() {
  # By Debian's paths: a client elsewhere on PATH may be another version.
  need /usr/sbin/dockerd=docker.io /usr/bin/docker=docker.io /usr/bin/containerd=containerd \
    /usr/sbin/runc=runc /sbin/ip=iproute2 /usr/sbin/iptables=iptables /usr/bin/nsenter=util-linux \
    /usr/bin/docker-compose=docker-compose
}

# The archive's packages, unpacked, never installed: libraries into lib/, programs into bin/.
driver() {
  if [ -f "$cache/real/version" ]; then
    say "driver files $(cat "$cache/real/version") are in $cache/real"
    return
  fi
  mkdir -p "$cache"
  local work
  work=$(mktemp -d "$cache/work.XXXXXX")
  # In the background: as a condition it would run on after an error.
  fetch_driver "$work" &
  if wait $!; then
    say "driver files $(cat "$cache/real/version"), from Debian's non-free archive, are now in $cache/real"
  else
    say "the archive does not offer the driver: tests use stand-ins"
  fi
  rm -rf "$work"
}

packages="libcuda1 libcudadebugger1 libnvidia-ml1 libnvidia-cfg1 libnvidia-ptxjitcompiler1
  libnvidia-encode1 libnvcuvid1 nvidia-smi nvidia-driver-bin nvidia-cuda-mps"

release() { (. /etc/os-release && echo "$VERSION_CODENAME"); }

# Where the machine's own apt fetches Debian from.
archive() {
  [ -n "$(find /var/lib/apt/lists -name '*Packages*' -print -quit)" ] || refresh_lists
  apt-get indextargets --format '$(ORIGIN) $(CODENAME) $(COMPONENT) $(REPO_URI)' |
    awk -v release="$(release)" '$1 == "Debian" && $2 == release && $3 == "main" { print $4; exit }'
}

# apt_state FOLDER SUITE COMPONENT...: an apt of its own with up-to-date lists; used by APT_CONFIG=FOLDER/apt.conf.
apt_state() {
  local folder=$1 suite=$2 site
  shift 2
  site=$(archive)
  [ -n "$site" ]
  mkdir -p "$folder"/{state/lists/partial,cache/archives/partial}
  printf "%s [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] $site $suite $*\\n" deb deb-src \
    >"$folder/sources.list"
  # A suite that moves may be past its date on a machine whose clock runs ahead.
  cat >"$folder/apt.conf" <<EOF
Dir::State "$folder/state";
Dir::State::status "/dev/null";
Dir::Cache "$folder/cache";
Dir::Etc::sourcelist "$folder/sources.list";
Dir::Etc::sourceparts "/dev/null";
Acquire::Languages "none";
Acquire::Check-Valid-Until "false";
APT::Architecture "amd64";
APT::Sandbox::User "root";
EOF
  APT_CONFIG=$folder/apt.conf apt-get -qq update
}

fetch_driver() {
  local work=$1
  mkdir -p "$work"/{debs,tree,real/lib,real/bin}
  apt_state "$work/apt" "$(release)" non-free non-free-firmware
  export APT_CONFIG=$work/apt/apt.conf
  say "apt-get download, to unpack and not to install:" $packages
  # shellcheck disable=SC2086 # a list of words
  (cd "$work/debs" && apt-get -qq download $packages)
  for package in "$work"/debs/*.deb; do dpkg-deb --extract "$package" "$work/tree"; done

  local library
  library=$(find "$work/tree" -name 'libcuda.so.[0-9]*.*' -type f -print -quit)
  find "$work/tree/usr/lib" -name 'lib*.so.[0-9]*' -type f -exec mv -t "$work/real/lib" {} +
  find "$work/tree/usr" -name 'nvidia-*' -type f -perm -100 ! -name '*.sh' -exec mv -t "$work/real/bin" {} +
  echo "${library##*/libcuda.so.}" >"$work/real/version"
  mv -T "$work/real" "$cache/real"
}

# The other C library's loader, unpacked, never installed.
musl() {
  [ -f "$caches/musl/libc.so" ] && return
  local work
  work=$(mktemp -d)
  [ -n "$(find /var/lib/apt/lists -name '*Packages*' -print -quit)" ] || refresh_lists
  say "apt-get download musl, to unpack and not to install"
  (cd "$work" && apt-get -qq -o APT::Sandbox::User=root download musl && dpkg-deb --extract musl_*.deb tree)
  mkdir -p "$caches/musl"
  mv -T "$work"/tree/lib/x86_64-linux-musl/libc.so "$caches/musl/libc.so"
  rm -rf "$work"
}

browser() {
  local root=$caches/browser mirror=http://deb.debian.org
  if [ -x "$root/usr/bin/chromium-headless-shell" ]; then
    say "a browser is in $root"
    return
  fi
  need /usr/bin/mmdebstrap=mmdebstrap
  rm -rf "$root.new"
  mkdir -p "$caches"
  mmdebstrap --quiet --mode=root --variant=minbase --include=chromium-headless-shell,fonts-dejavu-core bookworm \
    "$root.new" "deb $mirror/debian bookworm main" "deb $mirror/debian-security bookworm-security main"
  mv -T "$root.new" "$root"
  say "a browser is now in $root"
}

# shellcheck source=integration/engines.sh
. "$workspace/integration/engines.sh"
# shellcheck source=integration/suites.sh
. "$workspace/integration/suites.sh"

[ $# -gt 0 ] || set -- help
for task in "$@"; do
  case $task in
    demo|runtime|docker|driver|musl|engines|suites|browser) $task ;;
    runtime-tools) runtime_tools ;;
    packages) need /usr/bin/mmdebstrap=mmdebstrap /usr/bin/rpmbuild=rpm /usr/bin/jq=jq ;;
    *) sed -n '2,14s/^# \{0,1\}//p' "$0"; exit 2 ;;
  esac
done
