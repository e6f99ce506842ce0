//! Section G: hostile images and what is mounted over what is injected.

use std::fs;
use std::io::Write;
use std::os::unix::fs::symlink;
use std::path::Path;

use integration::{Error, Result, Rootfs, Spec};

use crate::case::{Bare, Case, Verdict, at, case};
use crate::life::Run;
use crate::world::{Place, node, shown};

const UNSAFE: &str = "UNSAFE_SPEC";
const FOLDER: &str = "usr/lib/x86_64-linux-gnu";

/// Who was given a GPU has the driver's library where the image has a pipe.
const COVERED: &str = "[ ! -e /dev/nvidiactl ] || [ -f /usr/lib/x86_64-linux-gnu/libcuda.so.1 ] || exit 1; \
     [ -e /dev/nvidiactl ] || [ -p /usr/lib/x86_64-linux-gnu/libcuda.so.1 ] || exit 1";

fn made<T>(result: std::io::Result<T>) -> Result<()> {
    result.map(drop).map_err(|e| Error::new(format!("change the image: {e}")))
}

/// Puts a link in the place of a folder of the image's.
fn instead(root: &Rootfs, name: &str, target: &str) -> Result<()> {
    let path = root.path.join(name);
    made(fs::remove_dir_all(&path).and_then(|()| symlink(target, &path)))
}

/// From anywhere in an image to a folder of the host's.
fn climb(to: &Path) -> String {
    format!("{}{}", "../".repeat(24), shown(to).trim_start_matches('/'))
}

pub(crate) fn cases() -> Vec<Case> {
    [covered(), links(), brought()].into_iter().flatten().collect()
}

fn covered() -> Vec<Case> {
    let libraries = |options: &'static [&'static str]| {
        move |run: &Run<'_>| {
            let folder = run.world.rootfs.path.join(FOLDER);
            Spec::new().bind(&folder, &format!("/{FOLDER}"), options)
        }
    };
    vec![
        case("G1 G5 Q56 CVE-2024-45310", "a volume over the folder of the driver's libraries", libraries(&[]))
            .asking(Verdict::Refused(UNSAFE, "target-in-volume")),
        case("G5 Q56", "the same, shared with the host", libraries(&["rshared"]))
            .asking(Verdict::Refused(UNSAFE, "target-in-volume"))
            .hardened(Verdict::Noted("mount-shared")),
        case("G1", "a volume over a node that is granted", |run| {
            Spec::new().bind(&run.tenant("zero"), "/dev/nvidiactl", &[])
        })
        .asking(Verdict::Refused(UNSAFE, "target-in-volume")),
        case("G6 CVE-2025-52881 CVE-2025-62596", "a volume over the driver's folder in /proc", |run| {
            Spec::new().bind(&run.tenant("plain"), "/proc/driver", &[])
        })
        .bare(Bare::Fails)
        .always(Verdict::Fails),
        case("G6 CVE-2025-52881 CVE-2025-62596", "a folder in the place of /proc", |run| {
            Spec::new().bind(&run.tenant("plain"), "/proc", &[])
        })
        .bare(Bare::Fails)
        .always(Verdict::Fails),
        case("G6 CVE-2025-52881", "a folder in the place of /proc, where the runtime lets it", |run| {
            Spec::new().bind(&run.tenant("plain"), "/proc", &[])
        })
        .script("grep -q plain /proc/file || exit 1")
        .only_on(&[(Place::Youki, Bare::Closed)]),
        case("G4", "a root that is read-only", |_| at("/root/readonly", true.into())),
    ]
}

fn links() -> Vec<Case> {
    let differs = Bare::Unasked("runtimes refuse this, or mend it");
    vec![
        case("G2 Q55 CVE-2026-41579 CVE-2026-47766", "an image whose /dev leads to a folder of the host's", |_| {
            Spec::new()
        })
        .image(|run, root| instead(root, "dev", &climb(&run.trap)))
        .exposes()
        .on(Place::Crun, Bare::Fails)
        .refused(UNSAFE, "rootfs-type"),
        case("G2 Q55", "an image whose /dev is its /etc", |_| Spec::new())
            .image(|_, root| instead(root, "dev", "../etc"))
            .bare(differs)
            .refused(UNSAFE, "rootfs-type"),
        case("G2 Q55 CVE-2023-27561 CVE-2023-28642 CVE-2025-54867", "an image whose /proc is a link", |_| Spec::new())
            .image(|_, root| instead(root, "proc", "tmp"))
            .bare(differs)
            .on(Place::Youki, differs)
            .refused(UNSAFE, "rootfs-type"),
        case(
            "G2 CVE-2021-30465 CVE-2024-0133 CVE-2024-0134",
            "an image whose libraries lead to a folder of the host's",
            // Its own loader finds them by the folder's other name.
            |_| Spec::new().env("LD_LIBRARY_PATH", "/usr/lib/real"),
        )
        .image(|run, root| {
            made(fs::rename(root.path.join(FOLDER), root.path.join("usr/lib/real")))?;
            made(symlink(climb(&run.trap), root.path.join(FOLDER)))
        })
        .script("[ -L /usr/lib/x86_64-linux-gnu ] || exit 1"),
        case("G3", "a pipe where a library comes", |_| Spec::new())
            .image(|_, root| {
                let path = root.path.join(FOLDER).join("libcuda.so.1");
                made(nix::unistd::mkfifo(&path, nix::sys::stat::Mode::S_IRWXU).map_err(Into::into))
            })
            .script(COVERED),
        case("G3", "a folder where a program comes", |_| Spec::new())
            .image(|_, root| made(fs::create_dir_all(root.path.join("usr/bin/nvidia-smi"))))
            .asking(Verdict::Fails),
        case("G3", "a loop where a library comes", |_| Spec::new())
            .image(|_, root| made(symlink("libcuda.so.1", root.path.join(FOLDER).join("libcuda.so.1"))))
            .asking(Verdict::Fails),
    ]
}

fn brought() -> Vec<Case> {
    vec![
        case("G7 Q67", "nodes that the image brings", |_| Spec::new())
            .image(|_, root| {
                made(fs::create_dir_all(root.path.join("opt")))?;
                node(&root.path.join("opt/n"), "c", 195, 1)?;
                node(&root.path.join("opt/tty7"), "c", 511, 2)
            })
            .brings_a_node(),
        case("G8 Q57", "a pipe for a linker's cache", |_| Spec::new())
            .image(|_, root| {
                let path = root.path.join("etc/ld.so.cache");
                made(nix::unistd::mkfifo(&path, nix::sys::stat::Mode::S_IRWXU).map_err(Into::into))
            })
            // Or the image's own loader would wait for it.
            .script("[ -p /etc/ld.so.cache ] && rm /etc/ld.so.cache; true"),
        case("G8 Q57 CVE-2026-47262", "a linker's cache of a gigabyte", |_| Spec::new()).image(|_, root| {
            made(fs::File::create(root.path.join("etc/ld.so.cache")).and_then(|file| file.set_len(1 << 30)))
        }),
        case("G8 Q57 CVE-2025-23267", "a linker's cache that leads to a file of the host's", |_| Spec::new())
            .image(|run, root| made(symlink(climb(&run.trap.join("plain")), root.path.join("etc/ld.so.cache")))),
        case("G8 Q57 CVE-2025-23267", "an image whose /etc leads to a folder of the host's", |_| Spec::new())
            .image(|run, root| instead(root, "etc", &climb(&run.trap))),
        case("G8 Q57", "a linker's cache of noise", |_| Spec::new())
            .image(|_, root| root.write("etc/ld.so.cache", &b"\x93noise".repeat(999))),
        case("G8 Q57", "a linker's cache whose places lie behind its end", |_| Spec::new()).image(|_, root| {
            let mut cache = b"glibc-ld.so.cache1.1".to_vec();
            cache.extend([0xff_u8; 12]);
            cache.extend([0xff_u8; 64]);
            made(fs::File::create(root.path.join("etc/ld.so.cache")).and_then(|mut file| file.write_all(&cache)))
        }),
        case(
            "G9 CVE-2025-31133 CVE-2025-62161 CVE-2025-52565",
            "a /dev/null and a console that are other files",
            |_| Spec::new(),
        )
        .image(|run, root| {
            made(symlink(climb(&run.trap.join("null")), root.path.join("dev/null")))?;
            made(symlink("pts/0", root.path.join("dev/console")))
        }),
        case("G9", "a /dev/null that is a GPU", |_| Spec::new())
            .image(|_, root| node(&root.path.join("dev/null"), "c", 195, 0)),
    ]
}
