//! Root file systems to run containers in, made from what the machine has: a static busybox, or
//! the machine's C library in the layout of one or the other family of distributions.
//!
//! Nothing is downloaded, and nothing of the machine is changed.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use crate::error::{Context, Error, Result};
use crate::process::{text, tool};

const BUSYBOX: &str = "/bin/busybox";
const LOADER: &str = "/lib64/ld-linux-x86-64.so.2";
const DEBIAN_FOLDER: &str = "usr/lib/x86_64-linux-gnu";
const LIB64_FOLDER: &str = "usr/lib64";

/// Parts of the C library that NVIDIA's files need and a present-day program does not.
const OLDER_PARTS: [&str; 5] = ["libdl.so.2", "libm.so.6", "libpthread.so.0", "librt.so.1", "libutil.so.1"];

/// A root file system on disk.
#[derive(Clone, Debug)]
pub struct Rootfs {
    /// The folder that becomes a container's `/`.
    pub path: PathBuf,
}

impl Rootfs {
    /// Busybox and nothing else: no loader, no libraries.
    ///
    /// # Errors
    /// Busybox is missing (`setup.sh runtime` installs it), or a file cannot be made.
    pub fn busybox(path: impl Into<PathBuf>) -> Result<Self> {
        let root = Self { path: path.into() };
        root.skeleton("busybox")?;
        Ok(root)
    }

    /// The machine's C library in Debian's folders, `probe` at /usr/bin/quilt-probe, busybox for a
    /// shell, no /etc/ld.so.cache.
    ///
    /// # Errors
    /// As [`Rootfs::busybox`]; or the machine's own layout is not Debian's.
    pub fn debian_like(path: impl Into<PathBuf>, probe: &Path) -> Result<Self> {
        let root = Self { path: path.into() };
        root.skeleton("debian")?;
        root.folder(DEBIAN_FOLDER)?;
        root.write("etc/debian_version", b"12.0\n")?;
        root.write("etc/ld.so.conf", b"include /etc/ld.so.conf.d/*.conf\n")?;
        root.write(
            "etc/ld.so.conf.d/x86_64-linux-gnu.conf",
            b"/usr/local/lib/x86_64-linux-gnu\n/lib/x86_64-linux-gnu\n/usr/lib/x86_64-linux-gnu\n",
        )?;
        root.copy_program(probe, DEBIAN_FOLDER)?;
        root.copy(Path::new(LOADER), "usr/lib64/ld-linux-x86-64.so.2")?;
        Ok(root)
    }

    /// The same below /usr/lib64, with a loader that searches there: Debian's, in which the names
    /// of its folders are overwritten.
    ///
    /// # Errors
    /// As [`Rootfs::debian_like`].
    pub fn lib64_like(path: impl Into<PathBuf>, probe: &Path) -> Result<Self> {
        let root = Self { path: path.into() };
        root.skeleton("lib64-like")?;
        // The machine's ldconfig does not search there unasked, this family's would.
        root.write("etc/ld.so.conf", b"/usr/lib64\n")?;
        root.copy_program(probe, LIB64_FOLDER)?;
        root.copy(Path::new(LOADER), "usr/lib64/ld-linux-x86-64.so.2")?;
        let loader = root.path.join("usr/lib64/ld-linux-x86-64.so.2");
        let mut bytes = fs::read(&loader).cannot(|| format!("read {}", loader.display()))?;
        search_lib64(&mut bytes)?;
        fs::write(&loader, bytes).cannot(|| format!("write {}", loader.display()))?;
        Ok(root)
    }

    /// Adds /etc/ld.so.cache, made by the machine's ldconfig.
    ///
    /// # Errors
    /// ldconfig fails.
    pub fn with_ld_cache(self) -> Result<Self> {
        tool("/sbin/ldconfig", ["-X", "-r", text(&self.path)?])?;
        Ok(self)
    }

    /// An independent copy at `path`.
    ///
    /// # Errors
    /// cp fails.
    pub fn copy_to(&self, path: impl Into<PathBuf>) -> Result<Self> {
        let path = path.into();
        tool("cp", ["-a", text(&self.path)?, text(&path)?])?;
        Ok(Self { path })
    }

    /// A tar of it, as `docker import` takes it.
    ///
    /// # Errors
    /// tar fails.
    pub fn tar(&self, archive: &Path) -> Result<()> {
        tool("tar", ["--numeric-owner", "-C", text(&self.path)?, "-cf", text(archive)?, "."])?;
        Ok(())
    }

    /// Writes a file, with its parents.
    ///
    /// # Errors
    /// The path that cannot be made.
    pub fn write(&self, name: &str, content: &[u8]) -> Result<()> {
        let path = self.path.join(name);
        if let Some(parent) = path.parent() {
            fs::create_dir_all(parent).cannot(|| format!("create {}", parent.display()))?;
        }
        fs::write(&path, content).cannot(|| format!("write {}", path.display()))
    }

    /// Folders, links of a merged /usr, users, and busybox under all its names.
    fn skeleton(&self, id: &str) -> Result<()> {
        for folder in ["dev", "etc", "proc", "root", "run", "sys", "tmp", "var", "usr/bin", "usr/lib", "usr/lib64"] {
            self.folder(folder)?;
        }
        for (link, target) in [("bin", "usr/bin"), ("sbin", "usr/bin"), ("lib", "usr/lib"), ("lib64", "usr/lib64")] {
            self.link(link, target)?;
        }
        self.write("etc/os-release", format!("ID={id}\nNAME=\"{id} test root\"\n").as_bytes())?;
        self.write("etc/passwd", b"root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534::/:/bin/sh\n")?;
        self.write("etc/group", b"root:x:0:\nvideo:x:44:\nnogroup:x:65534:\n")?;
        self.copy(Path::new(BUSYBOX), "usr/bin/busybox")
            .map_err(|e| Error::new(format!("{e}; `integration/setup.sh runtime` installs busybox-static")))?;
        for applet in tool(BUSYBOX, ["--list"])?.lines().filter(|a| *a != "busybox") {
            self.link(&format!("usr/bin/{applet}"), "busybox")?;
        }
        Ok(())
    }

    /// The program, and the libraries that the machine's loader would give it.
    fn copy_program(&self, program: &Path, folder: &str) -> Result<()> {
        self.copy(program, "usr/bin/quilt-probe")?;
        let listing = tool(LOADER, ["--list", text(program)?])?;
        let needed: Vec<&Path> =
            listing.lines().filter_map(|line| line.split_once(" => ")?.1.split(' ').next()).map(Path::new).collect();
        let libc = needed.iter().find(|path| path.ends_with("libc.so.6"));
        let Some(home) = libc.and_then(|path| path.parent()) else {
            return Err(Error::new(format!(
                "{} does not load the C library dynamically: {listing}",
                program.display()
            )));
        };
        let older = OLDER_PARTS.map(|name| home.join(name));
        for library in needed.into_iter().chain(older.iter().map(PathBuf::as_path)) {
            if let Some(name) = library.file_name().and_then(|n| n.to_str()) {
                self.copy(library, &format!("{folder}/{name}"))?;
            }
        }
        Ok(())
    }

    fn folder(&self, name: &str) -> Result<()> {
        let path = self.path.join(name);
        fs::create_dir_all(&path).cannot(|| format!("create {}", path.display()))
    }

    fn link(&self, name: &str, target: &str) -> Result<()> {
        let path = self.path.join(name);
        symlink(target, &path).cannot(|| format!("link {}", path.display()))
    }

    fn copy(&self, source: &Path, name: &str) -> Result<()> {
        let target = self.path.join(name);
        fs::copy(source, &target).cannot(|| format!("copy {} to {}", source.display(), target.display()))?;
        Ok(())
    }
}

/// Overwrites Debian's library folders by /lib64 and /usr/lib64 at equal length; the longer name
/// ends in the shorter one, so one replacement does both.
fn search_lib64(loader: &mut [u8]) -> Result<()> {
    const OLD: &[u8; 22] = b"/lib/x86_64-linux-gnu/";
    const NEW: &[u8; 22] = b"/lib64////////////////";
    let mut found = 0;
    for at in 0..loader.len() {
        if let Some(place) = loader.get_mut(at..at + OLD.len()).filter(|p| **p == OLD[..]) {
            place.copy_from_slice(NEW);
            found += 1;
        }
    }
    if found == 0 {
        return Err(Error::new(format!("{LOADER} does not name Debian's library folders")));
    }
    Ok(())
}
