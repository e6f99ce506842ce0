//! Driver libraries and programs for fixtures: NVIDIA's own where `setup.sh driver` could fetch
//! them, small stand-ins with the right names, SONAMEs and one entry point each everywhere else.
//!
//! Never run these on the machine itself: as root, NVIDIA's `nvidia-smi` makes `/dev/nvidiactl`.

use std::fmt;
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use crate::binaries::workspace;
use crate::error::{Context, Error, Result};

/// Base name, what follows `.so.` in the SONAME (none: the driver version), an entry point.
const LIBRARIES: [(&str, Option<&str>, &str); 16] = [
    ("libcuda", Some("1"), "cuInit"),
    ("libcudadebugger", Some("1"), "InitializeDebuggerApi"),
    ("libnvidia-ml", Some("1"), "nvmlInit_v2"),
    ("libnvidia-cfg", Some("1"), "nvCfgInit"),
    ("libnvidia-nvvm", Some("4"), "nvvmVersion"),
    ("libnvidia-ptxjitcompiler", Some("1"), "nvPTXCompilerInit"),
    ("libnvidia-opencl", Some("1"), "clIcdInit"),
    ("libnvidia-allocator", Some("1"), "nvAllocatorInit"),
    ("libnvidia-encode", Some("1"), "NvEncodeAPICreateInstance"),
    ("libnvcuvid", Some("1"), "cuvidGetDecoderCaps"),
    ("libnvidia-fbc", Some("1"), "NvFBCCreateInstance"),
    ("libnvidia-opticalflow", Some("1"), "NvOFAPICreateInstanceCuda"),
    ("libGLX_nvidia", Some("0"), "glxInit"),
    ("libEGL_nvidia", Some("0"), "eglInit"),
    ("libnvidia-glcore", None, "glcoreInit"),
    ("libnvidia-eglcore", None, "eglcoreInit"),
];

const PROGRAMS: [&str; 5] =
    ["nvidia-smi", "nvidia-debugdump", "nvidia-persistenced", "nvidia-cuda-mps-control", "nvidia-cuda-mps-server"];

/// Fails like NVIDIA's own without a driver, and like it needs libnvidia-ml to get that far.
const STAND_IN_PROGRAM: &str = r#"
#include <dlfcn.h>
#include <stdio.h>
int main(void) {
    if (!dlopen("libnvidia-ml.so.1", RTLD_NOW)) {
        puts("NVIDIA-SMI couldn't find libnvidia-ml.so library in your system.");
        return 12;
    }
    puts("NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver.");
    return 9;
}
"#;

/// The version that stand-ins have when nothing else is asked for.
const STAND_IN_VERSION: &str = "535.309.01";

/// Where the files come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// NVIDIA's, from the distribution's archive; what that lacks is filled up with stand-ins.
    Real,
    /// Made here.
    StandIn,
}

/// A folder with `lib/` and `bin/` of one driver version.
#[derive(Clone, Debug)]
pub struct DriverFiles {
    /// Where they come from.
    pub kind: Kind,
    /// The driver version in the file names.
    pub version: String,
    dir: PathBuf,
}

impl DriverFiles {
    /// The real files if `setup.sh driver` has put them into the cache, else stand-ins.
    ///
    /// # Errors
    /// The cache cannot be read or written, or there is no C compiler to make stand-ins with.
    pub fn prepare() -> Result<Self> {
        let real = cache().join("real");
        match fs::read_to_string(real.join("version")) {
            Ok(version) => Ok(Self { kind: Kind::Real, version: version.trim().to_owned(), dir: real }),
            Err(_) => Self::stand_in(STAND_IN_VERSION),
        }
    }

    /// Stand-ins of this version; made once, then taken from the cache.
    ///
    /// # Errors
    /// As [`DriverFiles::prepare`].
    pub fn stand_in(version: &str) -> Result<Self> {
        let dir = cache().join(format!("stand-in-{version}"));
        if !dir.is_dir() {
            make_stand_ins(&dir, version)?;
        }
        Ok(Self { kind: Kind::StandIn, version: version.to_owned(), dir })
    }

    /// Puts the libraries, with the links that `ldconfig` and the packages make, into `folder`.
    ///
    /// # Errors
    /// A file cannot be copied or a link made.
    pub fn install_libraries(&self, folder: &Path) -> Result<()> {
        let stand_ins = Self::stand_in(&self.version)?;
        for (base, suffix, _) in LIBRARIES {
            let file = format!("{base}.so.{}", self.version);
            copy_first(&[&self.dir, &stand_ins.dir], &format!("lib/{file}"), folder)?;
            let Some(suffix) = suffix else { continue };
            let soname = format!("{base}.so.{suffix}");
            link(&file, &folder.join(&soname))?;
            link(&soname, &folder.join(format!("{base}.so")))?;
        }
        Ok(())
    }

    /// Puts the programs into `folder`.
    ///
    /// # Errors
    /// A file cannot be copied.
    pub fn install_programs(&self, folder: &Path) -> Result<()> {
        let stand_ins = Self::stand_in(&self.version)?;
        for program in PROGRAMS {
            copy_first(&[&self.dir, &stand_ins.dir], &format!("bin/{program}"), folder)?;
        }
        Ok(())
    }
}

/// For test output.
impl fmt::Display for DriverFiles {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.kind {
            Kind::Real => write!(f, "driver files: NVIDIA's own, {}", self.version),
            Kind::StandIn => write!(
                f,
                "driver files: stand-ins, {} (`integration/setup.sh driver` fetches NVIDIA's own)",
                self.version
            ),
        }
    }
}

/// The folder that survives between runs and is never committed; `setup.sh` knows it too.
fn cache() -> PathBuf {
    let root = std::env::var_os("QUILT_TEST_CACHE").map(PathBuf::from);
    root.unwrap_or_else(|| workspace().join(".cache")).join("driver")
}

fn copy_first(sources: &[&Path], name: &str, folder: &Path) -> Result<()> {
    let found = sources.iter().map(|dir| dir.join(name)).find(|p| p.is_file());
    let Some((source, leaf)) = found.as_ref().and_then(|s| Some((s, s.file_name()?))) else {
        return Err(Error::new(format!("no driver file {name} in {sources:?}")));
    };
    let target = folder.join(leaf);
    fs::copy(source, &target).cannot(|| format!("copy {} to {}", source.display(), target.display()))?;
    Ok(())
}

/// Makes a link, replacing one that another driver version left.
fn link(target: &str, at: &Path) -> Result<()> {
    let _ = fs::remove_file(at);
    std::os::unix::fs::symlink(target, at).cannot(|| format!("link {}", at.display()))
}

/// Builds beside `dir` and moves the whole in: another process may be doing the same.
fn make_stand_ins(dir: &Path, version: &str) -> Result<()> {
    let parent = dir.parent().unwrap_or(dir);
    fs::create_dir_all(parent).cannot(|| format!("create {}", parent.display()))?;
    let draft = tempfile::tempdir_in(parent).cannot(|| format!("write to {}", parent.display()))?;
    for folder in ["lib", "bin"] {
        let folder = draft.path().join(folder);
        fs::create_dir(&folder).cannot(|| format!("create {}", folder.display()))?;
    }
    let mut compilers = Vec::new();
    for (base, suffix, entry) in LIBRARIES {
        let soname = format!("{base}.so.{}", suffix.unwrap_or(version));
        let out = draft.path().join(format!("lib/{base}.so.{version}"));
        let flags = ["-shared", "-fPIC", "-nostdlib", &format!("-Wl,-soname,{soname}")];
        let source = format!("int {entry}(void) {{ return 100; }}\n");
        compilers.push((compile(&flags, &source, &out)?, out));
    }
    for program in PROGRAMS {
        let out = draft.path().join("bin").join(program);
        compilers.push((compile(&[], STAND_IN_PROGRAM, &out)?, out));
    }
    for (mut compiler, out) in compilers {
        let status = compiler.wait().cannot(|| "wait for cc".into())?;
        if !status.success() {
            return Err(Error::new(format!("cannot make {}: cc: {status}", out.display())));
        }
    }
    use std::os::unix::fs::PermissionsExt;
    fs::set_permissions(draft.path(), fs::Permissions::from_mode(0o755))
        .and_then(|()| fs::rename(draft.path(), dir))
        .or_else(|cause| if dir.is_dir() { Ok(()) } else { Err(cause) })
        .cannot(|| format!("put stand-ins at {}", dir.display()))
}

fn compile(flags: &[&str], source: &str, out: &Path) -> Result<Child> {
    let mut compiler = Command::new("cc")
        .args(flags)
        .args(["-x", "c", "-", "-o"])
        .arg(out)
        .stdin(Stdio::piped())
        .spawn()
        .cannot(|| "start cc, which makes the stand-ins (Debian: gcc)".into())?;
    if let Some(mut input) = compiler.stdin.take() {
        input.write_all(source.as_bytes()).cannot(|| "write to cc".into())?;
    }
    Ok(compiler)
}
