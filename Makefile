# quilt-gpu: `make demo` shows the main job, `make test` passes the tests; each installs what it needs and says so.

HOST    := $(shell rustc -vV 2>/dev/null | sed -n 's/^host: //p')
# musl's programs start sooner: they do not ask the processor what it is, which takes a virtual machine a fifth of a millisecond.
# Where rustc has no musl (make prepare asks rustup for it) glibc serves.
MUSL    := $(shell uname -m)-unknown-linux-musl
LINKED  := $(if $(wildcard $(shell rustc --print sysroot 2>/dev/null)/lib/rustlib/$(MUSL)/lib/libstd-*),$(MUSL),$(HOST))
STATIC  := target/static
DYNAMIC := target/release
PREFIX  ?= /usr/local
DESTDIR ?=
SYSCONF ?= /etc
CARGO   ?= cargo
export FUZZ_S TARGET
# What engines are told, under share/quilt-gpu.
ENGINES := daemon.json containerd-version-2.toml containerd-version-3.toml crio.conf podman.conf
# What a cluster is told, under share/quilt-gpu/kubernetes.
MANIFESTS := $(notdir $(wildcard configs/kubernetes/*))
# What looks at the GPUs before engines start, and tells engines of them that ask by CDI.
UNITS   := quilt-gpu-inventory.service quilt-gpu-cdi.service quilt-gpu-broker.socket quilt-gpu-broker.service

.PHONY: build static dynamic prepare demo test bench conformance fuzz mutants gpu-prepare gpu browser lint install uninstall clean
.PHONY: packages packages-test image

build: static dynamic

# No interpreter, relocations packed, no unwind tables: what stands between an engine and runc is small and starts fast.
STATIC_FLAGS := -C target-feature=+crt-static -C link-arg=-Wl,-z,pack-relative-relocs -C link-arg=-Wl,-T,$(CURDIR)/shim/no-unwind.ld

# The engine by itself: what its libraries ask of crates that both use would make the runtime larger.
ENGINE_FLAGS := -C target-feature=+crt-static -C link-arg=-Wl,-z,pack-relative-relocs
LIBSECCOMP   := LIBSECCOMP_LINK_TYPE=static LIBSECCOMP_LIB_PATH=/usr/lib/$(shell uname -m)-linux-gnu

# Without --target, +crt-static would also reach proc-macros and build scripts, which cannot be static.
static:
	RUSTFLAGS="$(STATIC_FLAGS)" $(CARGO) build --locked --release --target $(LINKED) -p shim -p hook
	$(LIBSECCOMP) RUSTFLAGS="$(ENGINE_FLAGS)" $(CARGO) build --locked --release --target $(HOST) -p engine
	mkdir -p $(STATIC)
	ln -f $(addprefix target/$(LINKED)/release/quilt-gpu-,runtime hook) target/$(HOST)/release/quilt-gpu-engine $(STATIC)

dynamic:
	$(CARGO) build --locked --release -p helper

# rustup brings no linker: what is missing is installed before anything is built.
prepare:
	integration/setup.sh runtime

demo:
	integration/setup.sh demo
	@$(MAKE) --no-print-directory build
	$(DYNAMIC)/quilt-gpu demo --runtime $(STATIC)/quilt-gpu-runtime

lint:
	$(CARGO) fmt --all --check
	$(CARGO) clippy --locked --workspace --all-targets -- -D warnings
	integration/deny.sh

test: prepare
	@$(MAKE) --no-print-directory --jobs 2 --output-sync=target fetched checked
	integration/test.sh

# What tests are run on comes over the network while the processors build.
.PHONY: fetched checked
fetched:
	integration/setup.sh docker driver musl engines suites

checked: build lint

# Other projects' tests of runtimes, against the bare runtime. CG=v2: on cgroup v2. RUNC_VERSION=1.3: with that runc.
# QUICK=1: the part of runc's that make test runs as well. NODES=engine: on quilt-gpu-engine alone.
conformance: prepare build
	integration/setup.sh engines
	integration/setup.sh $(if $(QUICK),suites,runtime-tools)
	integration/conformance/runc.sh $(if $(QUICK),--quick)
	$(if $(QUICK),,integration/conformance/runtime-tools.sh)

# What it costs, into docs/benchmarks.md. PEER=DIR: beside NVIDIA's nvidia-container-runtime and nvidia-cdi-hook, built there.
# ROUNDS=100: starts of each. All of it has a mount namespace of its own: crun takes control groups of one version only, and a
# node has bundles and state in memory, and its log on a disk. What is made lies in /var/lib, as in the tests.
bench: prepare build
	RUSTFLAGS="$(STATIC_FLAGS)" $(CARGO) build --locked --release --target $(HOST) -p floor
	RUSTFLAGS="$(STATIC_FLAGS)" $(CARGO) build --locked --release --target $(LINKED) -p floor
	ln -f target/$(HOST)/release/quilt-floor $(STATIC)/quilt-floor
	ln -f target/$(LINKED)/release/quilt-floor $(STATIC)/quilt-floor-linked-alike
	$(CARGO) build --locked -p integration --bin quilt-stub
	$(CARGO) build --locked -p bench
	disk=$$(mktemp -d /var/tmp/quilt-bench.XXXXXX) && trap 'rm -rf "$$disk"' EXIT && QUILT_BENCH_DISK="$$disk" \
	    unshare --mount --propagation private sh -ec '{ umount /sys/fs/cgroup/unified 2>/dev/null || true; }; \
	    mount -t tmpfs -o mode=0755 quilt-bench /var/lib; exec target/debug/quilt-bench run docs $(or $(ROUNDS),100)'

# New inputs for every reader of hostile input, FUZZ_S seconds each; TARGET=guard: that one alone. Needs a nightly compiler
# and cargo-fuzz. What is known already is tried by make test, on any compiler.
fuzz:
	fuzz/run.sh

# Hours, and `cargo install cargo-mutants`.
mutants:
	$(CARGO) mutants -p guard --jobs 2

# The report's page in a real browser, in a root file system of its own (700 MB in .cache).
browser: build
	integration/setup.sh browser
	$(CARGO) test --locked -p integration --test browser

# What only a machine with a GPU can show. The first builds, anywhere; the second needs nothing but target/gpu and
# integration/gpu/run.sh, no network, and at most eight minutes.
gpu-prepare: build
	$(CARGO) build --locked -p integration --bin quilt-cuda --bin quilt-probe
	integration/gpu/prepare.sh $(STATIC) $(DYNAMIC) target/debug

gpu:
	integration/gpu/run.sh

# Installs what `make build` built.
install:
	@test -x $(STATIC)/quilt-gpu-runtime -a -x $(DYNAMIC)/quilt-gpu || { echo "nothing is built yet: run make build first"; exit 1; }
	install -D -m 0755 $(STATIC)/quilt-gpu-runtime $(DESTDIR)$(PREFIX)/bin/quilt-gpu-runtime
	install -D -m 0755 $(STATIC)/quilt-gpu-hook $(DESTDIR)$(PREFIX)/bin/quilt-gpu-hook
	install -D -m 0755 $(STATIC)/quilt-gpu-engine $(DESTDIR)$(PREFIX)/bin/quilt-gpu-engine
	install -D -m 0755 $(DYNAMIC)/quilt-gpu $(DESTDIR)$(PREFIX)/bin/quilt-gpu
	$(DYNAMIC)/quilt-gpu man $(DESTDIR)$(PREFIX)/share/man/man1
	test -e $(DESTDIR)$(SYSCONF)/quilt-gpu/config.toml || install -D -m 0644 configs/config.toml $(DESTDIR)$(SYSCONF)/quilt-gpu/config.toml
	install -d $(DESTDIR)$(PREFIX)/share/quilt-gpu
	for file in $(ENGINES); do sed 's|/usr/local/bin|$(PREFIX)/bin|' configs/$$file > $(DESTDIR)$(PREFIX)/share/quilt-gpu/$$file || exit 1; done
	install -m 0644 configs/logrotate.conf $(DESTDIR)$(PREFIX)/share/quilt-gpu/logrotate.conf
	install -d $(DESTDIR)$(PREFIX)/share/quilt-gpu/kubernetes
	install -m 0644 $(MANIFESTS:%=configs/kubernetes/%) $(DESTDIR)$(PREFIX)/share/quilt-gpu/kubernetes
	install -d $(DESTDIR)$(PREFIX)/share/quilt-gpu/hooks.d
	for file in configs/hooks.d/*.json; do sed 's|/usr/local/bin|$(PREFIX)/bin|' $$file > $(DESTDIR)$(PREFIX)/share/quilt-gpu/hooks.d/$${file##*/} || exit 1; done
	install -D -m 0644 configs/tmpfiles.conf $(DESTDIR)$(PREFIX)/lib/tmpfiles.d/quilt-gpu.conf
	install -D -m 0644 configs/udev/71-quilt-gpu.rules $(DESTDIR)$(PREFIX)/lib/udev/rules.d/71-quilt-gpu.rules
	install -d $(DESTDIR)$(PREFIX)/lib/systemd/system
	for unit in $(UNITS); do sed 's|/usr/local/bin|$(PREFIX)/bin|' configs/systemd/$$unit > $(DESTDIR)$(PREFIX)/lib/systemd/system/$$unit || exit 1; done
	test -L $(DESTDIR)$(SYSCONF)/quilt-gpu/low-level-runtime || ln -s "$$(PATH="$$PATH:/usr/sbin:/sbin" command -v runc || PATH="$$PATH:/usr/sbin:/sbin" command -v crun || echo $(PREFIX)/bin/quilt-gpu-engine)" $(DESTDIR)$(SYSCONF)/quilt-gpu/low-level-runtime

# A tarball, a .deb and, where rpmbuild is, an .rpm of what `make build` built, in target/packages.
packages: build
	packaging/build.sh

# The image of the installer for Kubernetes, by Docker: IMAGE=registry/name:tag. BASE=image: on another than Debian 12.
IMAGE ?= quilt-gpu-installer:$(shell sed -n '/^\[workspace.package\]/,/^\[/s/^version = "\(.*\)"/\1/p' Cargo.toml)
image: build
	rm -rf target/image
	install -D -t target/image/usr/bin $(STATIC)/quilt-gpu-runtime $(STATIC)/quilt-gpu-hook $(DYNAMIC)/quilt-gpu
	docker build $(BASE:%=--build-arg BASE=%) --file configs/kubernetes/Dockerfile --tag $(IMAGE) target/image

# Each of them installed, upgraded and removed in clean roots, which come over the network.
packages-test: build
	integration/setup.sh packages
	packaging/test.sh

# Leaves the configuration and the audit log.
uninstall:
	rm -f $(DESTDIR)$(PREFIX)/bin/quilt-gpu-runtime $(DESTDIR)$(PREFIX)/bin/quilt-gpu-hook $(DESTDIR)$(PREFIX)/bin/quilt-gpu-engine $(DESTDIR)$(PREFIX)/bin/quilt-gpu
	rm -f $(DESTDIR)$(PREFIX)/lib/udev/rules.d/71-quilt-gpu.rules $(UNITS:%=$(DESTDIR)$(PREFIX)/lib/systemd/system/%)
	rm -f $(DESTDIR)$(PREFIX)/lib/tmpfiles.d/quilt-gpu.conf $(DESTDIR)$(PREFIX)/share/man/man1/quilt-gpu*.1
	rm -rf $(DESTDIR)$(PREFIX)/share/quilt-gpu

clean:
	$(CARGO) clean
	rm -rf .cache
