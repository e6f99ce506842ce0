# Part of setup.sh: fetches engines and low-level runtimes that this Debian does not have from its later suites, unpacked
# and never installed, into .cache/engines. Each part is on its own: one that the archive no longer has is skipped by name.
#   docker-26 docker-28      folders to be a daemon's PATH     podman-5.4 podman-5.8   root folders
#   low-level                programs by name and version      cni                     network plugins
#   versions                 a line for each: what is really there
engines=$caches/engines
# Another number makes every part anew.
recipe=1

engines() {
  need /usr/bin/podman=podman /usr/bin/conmon=conmon /usr/bin/crun=crun /usr/sbin/runc=runc \
    /usr/bin/containerd=containerd /usr/sbin/dockerd=docker.io /usr/lib/cni/bridge=containernetworking-plugins \
    /usr/bin/newuidmap=uidmap /usr/sbin/iptables=iptables /sbin/ip=iproute2 /usr/bin/protoc=protobuf-compiler \
    /usr/bin/patchelf=patchelf /usr/bin/mmdebstrap=mmdebstrap /usr/bin/bats=bats /usr/bin/gawk=gawk /usr/bin/jq=jq \
    /usr/bin/xz=xz-utils /usr/bin/script=bsdutils /usr/bin/tini-static=tini
  mkdir -p "$engines"/{low-level,stamps,lib}
  # Compiling takes longer than all the fetching: both at once.
  alone compile part low-level/youki compile_youki &
  local compile=$!
  alone fetch fetch_parts
  wait $compile
  write_versions
}

# alone WHAT COMMAND...: two runs at once must not make the same parts.
alone() {
  (
    flock --nonblock 9 || { say "engines: waiting for another run that is to $1"; flock 9; }
    "${@:2}"
  ) 9>"$engines/stamps/$1.lock"
}

fetch_parts() {
  rm -rf "$engines/work-apt"
  part docker-26 fetch_docker trixie
  part lib/trixie fetch_libraries trixie
  part low-level/crun-1.21 fetch_low_level trixie crun
  part podman-5.4 fetch_podman trixie
  part docker-28 fetch_docker sid
  part lib/sid fetch_libraries sid libblake3-0
  part low-level/runc-1.3 fetch_low_level sid runc
  part low-level/crun-1.28 fetch_low_level sid crun
  part podman-5.8 fetch_podman sid
  ln -sfT /usr/sbin/runc "$engines/low-level/runc-1.1"
  ln -sfT /usr/bin/crun "$engines/low-level/crun-1.8"
  ln -sfT /usr/lib/cni "$engines/cni"
  rm -rf "$engines/work-apt"
}

# part NAME COMMAND...: the command makes `made` in a work folder, which becomes NAME when all of it is there.
part() {
  local name=$1 stamp work
  stamp=$engines/stamps/${name//\//-}
  work=$engines/work-${name//\//-}
  shift
  [ "$(cat "$stamp" 2>/dev/null)" != "$recipe $engines" ] || return 0
  say "engines: making $name"
  rm -rf --one-file-system "$stamp" "$work" "${engines:?}/$name"
  mkdir "$work"
  # In the background: as a condition it would run on after an error.
  (cd "$work"; "$@") >"$work/log" 2>&1 &
  if wait $!; then
    mv -T "$work/made" "$engines/$name"
    echo "$recipe $engines" >"$stamp"
    say "engines: $name is there"
  else
    say "engines: skipped $name: $* failed: $(grep -v '^$' "$work/log" | tail -n 1)"
  fi
  rm -rf --one-file-system "$work"
}

# The lists of a suite, fetched once for all parts.
apt_state_of() {
  [ ! -e "$engines/work-apt/$1/ready" ] || return 0
  apt_state "$engines/work-apt/$1" "$1" main
  touch "$engines/work-apt/$1/ready"
}

# unpack SUITE FOLDER PACKAGE...
unpack() {
  local suite=$1 folder=$2 package
  shift 2
  apt_state_of "$suite"
  mkdir -p debs "$folder"
  (cd debs; APT_CONFIG=$engines/work-apt/$suite/apt.conf apt-get -qq download "$@")
  for package in debs/*.deb; do dpkg-deb --extract "$package" "$folder"; done
  rm -r debs
}

# The daemons and clients are Go programs that run on an older C library as well. Containers' init is this Debian's.
fetch_docker() {
  local program
  unpack "$1" tree docker.io docker-cli containerd
  mkdir made
  for program in dockerd docker docker-proxy containerd containerd-shim-runc-v2 ctr; do
    find tree/usr -path "*bin/$program" -type f -exec mv -t made {} +
  done
  cp /usr/bin/tini-static made/docker-init
  for program in dockerd docker docker-proxy containerd containerd-shim-runc-v2 ctr; do [ -x made/$program ]; done
  made/dockerd --version
  made/docker --version
  made/containerd --version
}

fetch_libraries() {
  unpack "$1" tree libc6 libseccomp2 libcap2 libsystemd0 libjson-c5 "${@:2}"
  mkdir made
  find tree/usr/lib/x86_64-linux-gnu -maxdepth 1 \( -type f -o -type l \) -name '*.so*' -exec mv -t made {} +
}

# fetch_low_level SUITE PROGRAM: one that is linked to its own suite's libraries by their full path.
fetch_low_level() {
  local suite=$1 program=$2
  local lib=$engines/lib/$suite
  unpack "$suite" tree "$program"
  find tree/usr -path "*bin/$program" -type f -exec mv -T {} made \;
  # An old-style path, since libraries' own libraries must be found there too.
  patchelf --set-interpreter "$lib/ld-linux-x86-64.so.2" --force-rpath --set-rpath "$lib" made
  ./made --version
}

fetch_podman() {
  local packages=podman,crun,runc,conmon,netavark,aardvark-dns,containernetworking-plugins,iptables,iproute2,jq
  mmdebstrap --mode=root --variant=minbase --skip=check/empty --aptopt='Acquire::Check-Valid-Until "false"' \
    --include=$packages,ca-certificates,uidmap,passt,busybox-static "$1" made \
    "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] $(archive) $1 main"
  [ -x made/usr/bin/podman ]
}

# Not optimised, which takes a third of the time; it then writes a line of its own to standard error.
compile_youki() {
  nice cargo install youki --debug --version 0.7.0 --locked --features v1,v2 --root "$PWD/root" \
    --target-dir "$PWD/target"
  mv root/bin/youki made
  ./made --version
}

# What the folders' names say may be older than what the archive has now.
write_versions() {
  local low
  {
    version docker-20 /usr/sbin/dockerd --version
    version docker-26 "$engines/docker-26/dockerd" --version
    version docker-28 "$engines/docker-28/dockerd" --version
    version containerd-1.6 /usr/bin/containerd --version
    version containerd-1.7 "$engines/docker-26/containerd" --version
    version containerd-2.1 "$engines/docker-28/containerd" --version
    version podman-4.3 /usr/bin/podman --version
    for low in 5.4 5.8; do
      version podman-$low dpkg-query --admindir="$engines/podman-$low/var/lib/dpkg" --show podman
    done
    for low in "$engines"/low-level/*; do version "${low##*/}" "$low" --version; done
    version conmon /usr/bin/conmon --version
    version cni dpkg-query --show containernetworking-plugins
  } >"$engines/versions.new"
  mv "$engines/versions.new" "$engines/versions"
  say "engines: $(tr '\n' ',' <"$engines/versions" | sed 's/,$//; s/,/, /g')"
  awk '{ named = $1; if (sub(/^[a-z]+-/, "", named) && index($2 ".", named ".") != 1)
    print "setup: engines: the archive moved on: " $1 " is " $2 }' "$engines/versions"
}

# version NAME COMMAND...: a line when the command says one.
version() {
  local name=$1 found
  shift
  found=$("$@" 2>/dev/null | grep -oE '[0-9]+(\.[0-9]+)+' | head -n 1) || return 0
  echo "$name $found"
}
