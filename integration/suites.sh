# Part of setup.sh: other people's test suites for low-level runtimes, into .cache/engines/suites.
#   runc-1.1 runc-1.3        runc's own tests, from Debian's source packages of this release and of sid
#   runtime-tools            programs that validate a runtime by the OCI specification, compiled in a root of Debian's Go
suites=$engines/suites

suites() {
  need /usr/sbin/runc=runc /usr/bin/bats=bats /usr/bin/gawk=gawk /usr/bin/jq=jq /usr/bin/xz=xz-utils \
    /usr/bin/script=bsdutils /usr/bin/mmdebstrap=mmdebstrap /bin/busybox=busybox-static
  mkdir -p "$suites" "$engines/stamps"
  alone fetch fetch_suites
}

fetch_suites() {
  rm -rf "$engines/work-apt"
  part suites/busybox.tar make_busybox_image
  # Only the hooks' tests need more than a busybox: a program that is linked dynamically, and its ldconfig.
  part suites/debian.tar mmdebstrap --mode=root --variant=essential --format=tar "$(release)" made \
    "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] $(archive) $(release) main"
  part suites/helpers fetch_helpers sid
  part suites/runc-1.1 fetch_runc_suite "$(release)" contrib/cmd/%s/%s
  part suites/runc-1.3 fetch_runc_suite sid tests/cmd/_bin/%.0s%s
  rm -rf "$engines/work-apt"
}

runtime_tools() {
  suites
  alone compile part suites/runtime-tools compile_runtime_tools trixie
}

make_busybox_image() {
  local applet
  mkdir -p root/{bin,sbin,usr/bin,dev,proc,sys,tmp,etc,root,var}
  cp /bin/busybox root/bin/busybox
  for applet in $(/bin/busybox --list); do
    [ -e "root/bin/$applet" ] || ln -s busybox "root/bin/$applet"
  done
  echo root:x:0:0:root:/root:/bin/sh >root/etc/passwd
  echo root:x:0: >root/etc/group
  tar -C root -cf made .
}

# Programs that the tests start; static, so one suite's serve all.
fetch_helpers() {
  unpack "$1" tree runc
  mkdir made
  local program
  for program in recvtty sd-helper seccompagent fs-idmap pidfd-kill remap-rootfs; do
    find tree/usr -path "*bin/$program" -type f -exec mv -t made {} +
  done
  [ -x made/recvtty ]
}

# fetch_runc_suite RELEASE WHERE: the tests of the release's runc; WHERE is printf's format for a helper's place.
fetch_runc_suite() {
  local helper
  apt_state_of "$1"
  APT_CONFIG=$engines/work-apt/$1/apt.conf apt-get -qq source --download-only --tar-only runc
  mkdir made
  tar -C made --strip-components=1 -xf runc_*.orig.tar.xz
  # In place of a download: the caller names the images.
  printf '#!/bin/sh\nprintf "BUSYBOX_IMAGE=%%s\\\\nDEBIAN_IMAGE=%%s\\\\n" "$BUSYBOX_IMAGE" "$DEBIAN_IMAGE"\n' \
    >made/tests/integration/get-images.sh
  for helper in "$suites"/helpers/*; do
    [ -e "$helper" ] || continue
    # shellcheck disable=SC2059 # the format is the caller's
    install -D "$helper" "made/$(printf "$2" "${helper##*/}" "${helper##*/}")"
  done
}

# Compiled in a root of its own, of which only the programs stay.
compile_runtime_tools() {
  local name=golang-github-opencontainers-runtime-tools place packages
  apt_state_of "$1"
  APT_CONFIG=$engines/work-apt/$1/apt.conf apt-get -qq source --download-only --tar-only $name
  # The package itself for what it depends on, then what only its programs need.
  packages=golang-go,$name-dev,$(printf 'golang-github-%s-dev,' google-uuid urfave-cli mrunalp-fileutils \
    opencontainers-selinux hashicorp-go-multierror moby-sys)golang-golang-x-sys-dev
  mmdebstrap --mode=root --variant=apt --skip=check/empty --include="$packages" "$1" root \
    "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] $(archive) $1 main"
  place=root/go/src/github.com/opencontainers/runtime-tools
  mkdir -p $place/made root/go/src/github.com/mndrix/tap-go
  tar -C $place --strip-components=1 -xf ${name}_*.orig.tar.xz
  cp "$workspace/integration/conformance/tap.go" root/go/src/github.com/mndrix/tap-go/
  chroot root env --chdir="/${place#root/}" PATH=/usr/bin:/bin HOME=/root GO111MODULE=off \
    GOROOT=/usr/lib/go GOPATH=/go:/usr/share/gocode CGO_ENABLED=0 GOFLAGS=-buildvcs=false \
    sh -c 'mkdir made/programs && go build -o made/programs ./validation/... && go build -o made/runtimetest ./cmd/runtimetest'
  mv $place/rootfs-amd64.tar.gz $place/made/
  mv $place/made made
}
