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
  APT_CONFIG=$engines/work-apt/$1/apt.conf apt-get -qq source --download-only runc
  mkdir made
  tar -C made --strip-components=1 -xf runc_*.orig.tar.xz
  # In place of a download: the caller names the images.
  printf '#!/bin/sh\nprintf "BUSYBOX_IMAGE=%%s\\\\nDEBIAN_IMAGE=%%s\\\\n" "$BUSYBOX_IMAGE" "$DEBIAN_IMAGE"\n' \
    >made/tests/integration/get-images.sh
  for helper in "$suites"/helpers/*; do
    # shellcheck disable=SC2059 # the format is the caller's
    install -D "$helper" "made/$(printf "$2" "${helper##*/}" "${helper##*/}")"
  done
}
