//! File systems that lie where a path does not tell: engines mount any type as a volume for whoever asks.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use integration::{Error, Result};
use nix::mount::{MntFlags, MsFlags, mount, umount2};

use crate::case::{Bare, Case, Verdict, case, tree};
use crate::life::Run;
use crate::world::shown;

const UNSAFE: &str = "UNSAFE_SPEC";
const SYSFS: &str = "(: >>/t/kernel/mm/transparent_hugepage/enabled) 2>/dev/null && echo LEAK it can be written";
const PROC: &str = "(: >>/t/sys/kernel/core_pattern) 2>/dev/null && echo LEAK programs of the host can be named";
const BINFMT: &str = "(: >>/t/register) 2>/dev/null && echo LEAK programs can be registered";
const RECORD: &str =
    "[ -e /t/quilt/state ] || [ -e /t/quilt/config.toml ] && echo LEAK the record and the configuration";

pub(crate) fn cases() -> Vec<Case> {
    let volume = "volumes/v/_data";
    vec![
        there("A26", "a sysfs that is mounted as a volume", volume, |_, at| put("sysfs", at, ""))
            .script(SYSFS)
            .refused(UNSAFE, "mount-sysfs-rw"),
        there("A26", "a sysfs in a folder of the tenant's", "mine", |_, at| put("sysfs", at, ""))
            .script(SYSFS)
            .refused(UNSAFE, "mount-sysfs-rw"),
        there("A27", "a procfs that is mounted as a volume", volume, |_, at| put("proc", at, ""))
            .script(PROC)
            .refused(UNSAFE, "mount-procfs-rw"),
        there("A27", "programs for others' files, mounted as a volume", volume, |_, at| put("binfmt_misc", at, ""))
            .script(BINFMT)
            .refused(UNSAFE, "mount-procfs-rw"),
        there("A31", "files that debug the kernel, mounted as a volume", volume, |_, at| put("debugfs", at, ""))
            .bare(Bare::Closed)
            .hardened(Verdict::Refused(UNSAFE, "mount-sysfs-rw")),
        there("A16 A30", "an overlay over our record, mounted before", "mine", |run, at| {
            put("overlay", at, &layers(run, &above(run)))
        })
        .script(RECORD)
        .refused(UNSAFE, "mount-reserved-source"),
        there("A16 A30", "an overlay over a link that led to our record", volume, |run, at| {
            let link = at.with_extension("link");
            odd(&link, symlink(above(run), &link))?;
            put("overlay", at, &layers(run, &link))?;
            odd(&link, fs::remove_file(&link).and_then(|()| symlink(run.tenant("plain"), &link)))
        })
        .script(RECORD)
        .refused(UNSAFE, "mount-unresolvable"),
        there("A16 L", "an overlay over the tenant's own folders", "mine", |run, at| {
            put("overlay", at, &layers(run, &run.tenant("links")))
        })
        .script("[ -e /t/file ] || exit 1")
        .bare(Bare::Closed),
    ]
}

/// A folder on the host in which something is mounted while the container lives, and that is bound.
fn there(ids: &'static str, what: &'static str, inside: &'static str, make: fn(&Run<'_>, &Path) -> Result<()>) -> Case {
    let at = move |run: &Run<'_>| run.world.site.join(format!("elsewhere/{}", run.id)).join(inside);
    let drive = move |run: &Run<'_>, bundle: &integration::Bundle| {
        let mounted = Mounted(at(run));
        odd(&mounted.0, fs::create_dir_all(&mounted.0))?;
        make(run, &mounted.0)?;
        run.live(bundle)
    };
    case(ids, what, move |run| tree(at(run), &[])).drive(drive).exposes()
}

/// What must be gone before the fixture's folder is removed.
struct Mounted(PathBuf);

impl Drop for Mounted {
    fn drop(&mut self) {
        let _ = umount2(&self.0, MntFlags::MNT_DETACH);
    }
}

fn put(kind: &str, at: &Path, options: &str) -> Result<()> {
    odd(at, mount(Some("volume"), at, Some(kind), MsFlags::empty(), Some(options)))
}

fn layers(run: &Run<'_>, first: &Path) -> String {
    format!("lowerdir={}:{}", shown(first), shown(&run.tenant("plain")))
}

fn above(run: &Run<'_>) -> PathBuf {
    run.state().ancestors().nth(2).map(Path::to_owned).unwrap_or_default()
}

fn odd<T, E: std::fmt::Display>(at: &Path, done: std::result::Result<T, E>) -> Result<T> {
    done.map_err(|e| Error::new(format!("{}: {e}", shown(at))))
}
