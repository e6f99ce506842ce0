//! An image with Debian's own apt and dpkg, taken from this machine, and a repository of one package in it: what
//! `apt-get install` does in a container, without any network.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use integration::{Error, Result, Rootfs, run};

/// The library of the package; nothing else brings it.
pub(crate) const LIBRARY: &str = "libquilt-installed.so.1";
const PACKAGE: &str = "libquilt-installed1";
const FOLDER: &str = "usr/lib/x86_64-linux-gnu";
/// What apt runs. Busybox's programs of these names do not know the options.
const PROGRAMS: [&str; 10] = [
    "/usr/bin/apt-get",
    "/usr/bin/dpkg",
    "/usr/bin/dpkg-deb",
    "/usr/bin/dpkg-split",
    "/usr/bin/tar",
    "/usr/bin/rm",
    "/usr/bin/diff",
    "/usr/lib/apt/methods/file",
    "/usr/lib/apt/methods/copy",
    "/usr/lib/apt/methods/store",
];
/// Without these it complains.
const FOLDERS: [&str; 7] = [
    "etc/apt/apt.conf.d",
    "etc/apt/preferences.d",
    "var/cache/apt/archives/partial",
    "var/lib/apt/lists/partial",
    "var/lib/dpkg/alternatives",
    "var/lib/dpkg/updates",
    "var/log/apt",
];
/// Installs it, and says nothing but what apt says.
pub(crate) const INSTALL: &str = "export DEBIAN_FRONTEND=noninteractive; apt-get -q update && apt-get -q install --yes \
                                  libquilt-installed1 && echo 'apt-get is done'";

/// Whether apt, dpkg and ldconfig had nothing to complain of, and the trigger of Debian's C library ran.
pub(crate) fn is_quiet(said: &str) -> bool {
    let complaints = ["W:", "E:", "warning", "error", "busy", "cannot", "ldconfig:", "failed"];
    said.contains("Processing triggers for libc-bin")
        && said.ends_with("apt-get is done\n")
        && !said.lines().any(|line| complaints.iter().any(|word| line.contains(word)))
}

/// Adds all of it to a Debian image.
pub(crate) fn add(rootfs: &Rootfs) -> Result<()> {
    for program in PROGRAMS {
        place(rootfs, Path::new(program), program.trim_start_matches('/'))?;
        for library in needed(Path::new(program))? {
            let name = library.rsplit('/').next().unwrap_or_default();
            place(rootfs, Path::new(&library), &format!("{FOLDER}/{name}"))?;
        }
    }
    // Those of dpkg's table of architectures, without which it knows none.
    for file in ["cputable", "ostable", "tupletable"] {
        place(rootfs, &Path::new("/usr/share/dpkg").join(file), &format!("usr/share/dpkg/{file}"))?;
    }
    registered(rootfs)?;
    repository(rootfs)
}

/// The C library's package, of which nothing is there but what it does when libraries were installed.
fn registered(rootfs: &Rootfs) -> Result<()> {
    let status = "Package: libc-bin\nStatus: install ok installed\nPriority: required\nSection: libs\nMaintainer: nobody\n\
                  Architecture: amd64\nVersion: 1\nDescription: the trigger of the real one\n\n";
    rootfs.write("var/lib/dpkg/status", status.as_bytes())?;
    rootfs.write("var/lib/dpkg/info/libc-bin.list", b"/.\n")?;
    rootfs.write("var/lib/dpkg/triggers/ldconfig", b"libc-bin\n")?;
    for file in ["libc-bin.triggers", "libc-bin.postinst"] {
        place(rootfs, &Path::new("/var/lib/dpkg/info").join(file), &format!("var/lib/dpkg/info/{file}"))?;
    }
    rootfs.write("var/lib/dpkg/triggers/File", b"")?;
    rootfs.write("etc/apt/apt.conf", b"APT::Sandbox::User \"root\";\nDir::Bin::methods \"/usr/lib/apt/methods\";\n")?;
    rootfs.write("etc/apt/sources.list", b"deb [trusted=yes] file:/repository ./\n")?;
    for folder in FOLDERS {
        fs::create_dir_all(rootfs.path.join(folder)).map_err(|e| failed(folder, &e))?;
    }
    Ok(())
}

/// The package, which asks for nothing but that trigger, and what lists it.
fn repository(rootfs: &Rootfs) -> Result<()> {
    let work = integration::Scratch::new()?;
    let tree = Rootfs { path: work.join("tree") };
    let control = format!(
        "Package: {PACKAGE}\nVersion: 1\nArchitecture: amd64\nMaintainer: nobody <nobody@example.org>\nDescription: one library\n"
    );
    tree.write("DEBIAN/control", control.as_bytes())?;
    tree.write("DEBIAN/triggers", b"activate-noawait ldconfig\n")?;
    fs::create_dir_all(tree.path.join(FOLDER)).map_err(|e| failed(FOLDER, &e))?;
    tree.write("library.c", b"int quilt(void) { return 1; }\n")?;
    let library = tree.path.join(FOLDER).join(format!("{LIBRARY}.0"));
    let mut cc = Command::new("cc");
    cc.args(["-shared", "-fPIC", "-nostdlib", &format!("-Wl,-soname,{LIBRARY}"), "-o"]).arg(&library);
    tool(cc.arg(tree.path.join("library.c")))?;
    symlink(format!("{LIBRARY}.0"), library.with_file_name(LIBRARY)).map_err(|e| failed("link", &e))?;
    fs::remove_file(tree.path.join("library.c")).map_err(|e| failed("remove", &e))?;
    let name = format!("{PACKAGE}_1_amd64.deb");
    let package = rootfs.path.join("repository").join(&name);
    fs::create_dir(rootfs.path.join("repository")).map_err(|e| failed("repository", &e))?;
    tool(Command::new("dpkg-deb").args(["--root-owner-group", "--build"]).arg(&tree.path).arg(&package))?;
    let digest = tool(Command::new("sha256sum").arg(&package))?;
    let digest = digest.split(' ').next().unwrap_or_default();
    let size = fs::metadata(&package).map_err(|e| failed(&name, &e))?.len();
    let list = format!("{control}Filename: ./{name}\nSize: {size}\nSHA256: {digest}\n");
    rootfs.write("repository/Packages", list.as_bytes())
}

/// A file of this machine, in the place of whatever is there.
fn place(rootfs: &Rootfs, from: &Path, to: &str) -> Result<()> {
    let target = rootfs.path.join(to);
    if let Some(parent) = target.parent() {
        fs::create_dir_all(parent).map_err(|e| failed(to, &e))?;
    }
    // A link of busybox's would be written through.
    let _ = fs::remove_file(&target);
    fs::copy(from, &target).map(drop).map_err(|e| failed(&from.display().to_string(), &e))
}

/// The libraries that this machine's loader gives a program.
fn needed(program: &Path) -> Result<Vec<String>> {
    let listing = tool(Command::new("/lib64/ld-linux-x86-64.so.2").arg("--list").arg(program))?;
    let paths = listing.lines().filter_map(|line| line.split_once(" => ")?.1.split(' ').next());
    Ok(paths.filter(|path| path.starts_with('/')).map(str::to_owned).collect())
}

fn tool(command: &mut Command) -> Result<String> {
    Ok(run(command, None, Duration::from_secs(60))?.checked()?.stdout)
}

fn failed(what: &str, cause: &std::io::Error) -> Error {
    Error::new(format!("{what}: {cause}"))
}
