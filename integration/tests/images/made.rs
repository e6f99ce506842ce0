//! The images of `matrix.txt`, made from what the machine has, and what is special about containers of theirs.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use integration::{Bundle, DriverFiles, Error, Result, Rootfs, Spec, run};

const DEBIAN: &str = "usr/lib/x86_64-linux-gnu";
const MUSL: &str = "lib/ld-musl-x86_64.so.1";
/// An empty file of a driver that no node has.
pub(crate) const LEFTOVER: &str = "libcuda.so.450.80.02";
/// Where the first id of a container with a user namespace is on the node.
const MAPPED: u32 = 100_000;

/// The programs that images get to load libraries with.
pub(crate) struct Programs {
    glibc: PathBuf,
    musl: PathBuf,
    libc: PathBuf,
}

impl Programs {
    /// Compiles them into `folder`.
    pub(crate) fn make(folder: &Path) -> Result<Self> {
        let cache = std::env::var_os("QUILT_TEST_CACHE").map(PathBuf::from);
        let workspace = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap_or(Path::new("."));
        let libc = cache.unwrap_or_else(|| workspace.join(".cache")).join("musl/libc.so");
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/images/loads.c");
        let programs = Self { glibc: folder.join("loads"), musl: folder.join("loads-musl"), libc };
        let cc = || {
            let mut cc = Command::new("cc");
            cc.arg("-O1").arg(&source).arg("-o");
            cc
        };
        done(cc().arg(&programs.glibc))?;
        if programs.libc.exists() {
            let flags = ["-DMUSL", "-nostdlib", "-fno-stack-protector", "-Wl,-dynamic-linker,/lib/ld-musl-x86_64.so.1"];
            let home = programs.libc.parent().unwrap_or(Path::new("/"));
            done(cc().arg(&programs.musl).args(flags).arg("-L").arg(home).arg("-l:libc.so"))?;
        }
        Ok(programs)
    }
}

/// One image: its files, and what a container of it is like.
pub(crate) struct Image {
    pub(crate) rootfs: Rootfs,
    /// Whether only libraries that need nothing can be loaded there.
    pub(crate) bare: bool,
    /// Whether there is a shell.
    pub(crate) shell: bool,
    kind: Kind,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Plain,
    ReadOnly,
    Frozen,
    Mapped,
}

impl Image {
    /// The image of this name. An error names what is missing on this machine.
    pub(crate) fn make(name: &str, folder: PathBuf, programs: &Programs) -> Result<Self> {
        let debian = || Rootfs::debian_like(folder.clone(), &programs.glibc);
        let glibc = |rootfs: Rootfs| {
            fs::copy("/sbin/ldconfig", rootfs.path.join("usr/bin/ldconfig"))
                .map_err(|e| failed("copy ldconfig", &e))?;
            Ok(rootfs)
        };
        let plain = |rootfs| Self { rootfs, bare: false, shell: true, kind: Kind::Plain };
        Ok(match name {
            "debian" => plain(glibc(debian()?)?.with_ld_cache()?),
            "debian, apt" => {
                let rootfs = glibc(debian()?)?;
                crate::apt::add(&rootfs)?;
                plain(rootfs.with_ld_cache()?)
            }
            "debian, no cache" => plain(glibc(debian()?)?),
            "debian, /usr not merged" => plain(glibc(split(debian()?)?)?.with_ld_cache()?),
            "lib64" => plain(glibc(Rootfs::lib64_like(folder, &programs.glibc)?)?.with_ld_cache()?),
            "distroless" => Self { shell: false, ..plain(distroless(debian()?)?) },
            "busybox" => plain(Rootfs::busybox(folder)?),
            "musl" => Self { bare: true, ..plain(musl(Rootfs::busybox(folder)?, programs)?) },
            "musl, search path of its own" => {
                let rootfs = musl(Rootfs::busybox(folder)?, programs)?;
                rootfs.write("etc/ld-musl-x86_64.path", b"/lib/x86_64-linux-musl\n/usr/lib/x86_64-linux-musl\n")?;
                Self { bare: true, ..plain(rootfs) }
            }
            "older driver" => {
                let rootfs = glibc(debian()?)?;
                DriverFiles::stand_in("525.105.17")?.install_libraries(&rootfs.path.join(DEBIAN))?;
                plain(rootfs.with_ld_cache()?)
            }
            "newer driver, found first" => {
                let rootfs = glibc(debian()?)?;
                newer(&rootfs, "usr/local/nvidia/lib64")?;
                rootfs.write("etc/ld.so.conf.d/000-nvidia.conf", b"/usr/local/nvidia/lib64\n")?;
                plain(rootfs.with_ld_cache()?)
            }
            "empty driver files" => {
                let rootfs = glibc(debian()?)?;
                for file in ["libcuda.so.1", LEFTOVER, "libnvidia-ml.so.1", "libnvidia-ml.so"] {
                    rootfs.write(&format!("{DEBIAN}/{file}"), b"")?;
                }
                plain(rootfs.with_ld_cache()?)
            }
            "compatibility libraries" => Self::with_compatibility(folder, programs, "525.105.17")?,
            "read-only" => Self { kind: Kind::ReadOnly, ..plain(glibc(debian()?)?.with_ld_cache()?) },
            "on a read-only file system" => Self { kind: Kind::Frozen, ..plain(glibc(debian()?)?.with_ld_cache()?) },
            "user namespace" => Self { kind: Kind::Mapped, ..plain(glibc(debian()?)?.with_ld_cache()?) },
            _ => return Err(Error::new(format!("no image is called {name:?}"))),
        })
    }

    /// One with the libraries that `cuda-compat` of this driver's version brings.
    pub(crate) fn with_compatibility(folder: PathBuf, programs: &Programs, version: &str) -> Result<Self> {
        let rootfs = Rootfs::debian_like(folder, &programs.glibc)?;
        fs::copy("/sbin/ldconfig", rootfs.path.join("usr/bin/ldconfig")).map_err(|e| failed("copy ldconfig", &e))?;
        let compat = rootfs.path.join("usr/local/cuda-12.8/compat");
        fs::create_dir_all(&compat).map_err(|e| failed("create", &e))?;
        DriverFiles::stand_in(version)?.install_libraries(&compat)?;
        let brings = ["libcuda.so", "libcudadebugger.so", "libnvidia-nvvm.so", "libnvidia-ptxjitcompiler.so"];
        for entry in fs::read_dir(&compat).map_err(|e| failed("list", &e))?.flatten() {
            let name = entry.file_name().to_string_lossy().into_owned();
            if !brings.iter().any(|brought| name.starts_with(brought)) {
                fs::remove_file(entry.path()).map_err(|e| failed("remove", &e))?;
            }
        }
        link("cuda-12.8", &rootfs.path.join("usr/local/cuda"))?;
        Ok(Self { rootfs: rootfs.with_ld_cache()?, bare: false, shell: true, kind: Kind::Plain })
    }

    /// What the spec says of it.
    pub(crate) fn spec(&self, spec: Spec) -> Spec {
        match self.kind {
            Kind::Plain | Kind::Frozen => spec,
            Kind::ReadOnly => spec.edit(|document| document["root"]["readonly"] = true.into()),
            Kind::Mapped => spec.user_namespace(MAPPED, 65536),
        }
    }

    /// Makes its copy in a bundle what an engine makes of it. What is returned undoes it.
    pub(crate) fn ready(&self, bundle: &Bundle) -> Result<Frozen> {
        let root = bundle.path.join("rootfs");
        match self.kind {
            Kind::Plain | Kind::ReadOnly => Ok(Frozen(None)),
            Kind::Mapped => {
                done(Command::new("chown").args(["-R", "-h", &format!("{MAPPED}:{MAPPED}")]).arg(&root))?;
                Ok(Frozen(None))
            }
            Kind::Frozen => self.freeze(&root),
        }
    }

    /// The same of a root file system elsewhere, as far as it is about mounts.
    pub(crate) fn freeze(&self, root: &Path) -> Result<Frozen> {
        if self.kind != Kind::Frozen {
            return Ok(Frozen(None));
        }
        done(Command::new("mount").arg("--bind").arg(root).arg(root))?;
        let frozen = Frozen(Some(root.to_owned()));
        done(Command::new("mount").args(["-o", "remount,bind,ro"]).arg(root))?;
        Ok(frozen)
    }
}

/// A root file system that is mounted read-only while this lives.
pub(crate) struct Frozen(Option<PathBuf>);

impl Drop for Frozen {
    fn drop(&mut self) {
        if let Some(root) = &self.0 {
            let _ = done(Command::new("umount").arg("-l").arg(root));
        }
    }
}

/// /lib, /lib64 and /bin as folders of their own; the C library stays in /lib.
fn split(rootfs: Rootfs) -> Result<Rootfs> {
    for name in ["lib", "lib64", "bin", "sbin"] {
        fs::remove_file(rootfs.path.join(name)).map_err(|e| failed("unlink", &e))?;
        fs::create_dir(rootfs.path.join(name)).map_err(|e| failed("create", &e))?;
    }
    link("../usr/bin/busybox", &rootfs.path.join("bin/sh"))?;
    let rename = |from: &str, to: &str| {
        fs::rename(rootfs.path.join(from), rootfs.path.join(to)).map_err(|e| failed("rename", &e))
    };
    rename("usr/lib/x86_64-linux-gnu", "lib/x86_64-linux-gnu")?;
    rename("usr/lib64/ld-linux-x86-64.so.2", "lib64/ld-linux-x86-64.so.2")?;
    fs::create_dir(rootfs.path.join(DEBIAN)).map_err(|e| failed("create", &e))?;
    Ok(rootfs)
}

/// The C library and one program, and nothing else that could help.
fn distroless(rootfs: Rootfs) -> Result<Rootfs> {
    fs::remove_dir_all(rootfs.path.join("etc")).map_err(|e| failed("remove /etc", &e))?;
    for entry in fs::read_dir(rootfs.path.join("usr/bin")).map_err(|e| failed("list", &e))?.flatten() {
        if entry.file_name() != "quilt-probe" {
            fs::remove_file(entry.path()).map_err(|e| failed("remove", &e))?;
        }
    }
    Ok(rootfs)
}

fn musl(rootfs: Rootfs, programs: &Programs) -> Result<Rootfs> {
    if !programs.libc.exists() {
        return Err(Error::new("musl's loader is missing: `integration/setup.sh musl` fetches it"));
    }
    for (from, to) in [(&programs.libc, MUSL), (&programs.musl, "usr/bin/quilt-probe")] {
        fs::copy(from, rootfs.path.join(to)).map_err(|e| failed(to, &e))?;
    }
    Ok(rootfs)
}

fn newer(rootfs: &Rootfs, folder: &str) -> Result<()> {
    let folder = rootfs.path.join(folder);
    fs::create_dir_all(&folder).map_err(|e| failed("create", &e))?;
    DriverFiles::stand_in("570.148.08")?.install_libraries(&folder)
}

fn link(target: &str, at: &Path) -> Result<()> {
    symlink(target, at).map_err(|e| failed("link", &e))
}

fn done(command: &mut Command) -> Result<()> {
    run(command, None, Duration::from_secs(60))?.checked().map(drop)
}

fn failed(what: &str, cause: &std::io::Error) -> Error {
    Error::new(format!("{what}: {cause}"))
}
