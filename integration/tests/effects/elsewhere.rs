//! File systems that lie where a path does not tell: engines mount any type as a volume for whoever asks.

use std::fs;
use std::os::fd::AsRawFd;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use integration::{Error, Result};
use nix::mount::{MntFlags, MsFlags, mount, umount2};

use crate::case::{Bare, Case, Verdict, case, tree};
use crate::life::{OWN, Outcome, Run};
use crate::world::{World, node, shown};

const UNSAFE: &str = "UNSAFE_SPEC";
const SYSFS: &str = "(: >>/t/kernel/mm/transparent_hugepage/enabled) 2>/dev/null && echo LEAK it can be written";
const PROC: &str = "(: >>/t/sys/kernel/core_pattern) 2>/dev/null && echo LEAK programs of the host can be named";
const BINFMT: &str = "(: >>/t/register) 2>/dev/null && echo LEAK programs can be registered";
// Kernels that are locked down let nobody write these.
const READS: &str = "head -n 1 /t/sched/debug 2>/dev/null | grep -q . && echo LEAK what the kernel does";
const APPENDS: &str = "(: >>/t/tracing_on) 2>/dev/null && echo LEAK it can be written";
const MAKES: &str = "mkdir /t/made 2>/dev/null && rmdir /t/made && echo LEAK it can be written";
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
        kernels("files that debug the kernel, as a volume", "debugfs", READS),
        kernels("files that trace the kernel, as a volume", "tracefs", APPENDS),
        kernels("programs that are kept in the kernel, as a volume", "bpf", MAKES),
        there("A30", "a volume that is a second mount of the record", volume, |run, at| again(&run.state(), at))
            .script("[ -w /t ] && echo LEAK it can be written")
            .refused(UNSAFE, "mount-reserved-source"),
        there("A30 CVE-2019-5736", "a volume that is a second mount of our programs", volume, |run, at| {
            again(run.stand.quilt(run.by).programs().first().unwrap_or(&run.trap), at)
        })
        .script("[ -w /t/quilt-gpu-runtime ] || [ -w /t/quilt-gpu ] && echo LEAK our programs can be written")
        .refused(UNSAFE, "mount-reserved-source"),
        case("A27 L", "a procfs inside a tree that is read-only", |run| tree(mine(run), &["ro"]))
            .drive(|run, bundle| {
                let mounted = Mounted(mine(run).join("inside"));
                odd(&mounted.0, fs::create_dir_all(&mounted.0))?;
                put("proc", &mounted.0, "")?;
                run.live(bundle)
            })
            .script("(: >>/t/inside/sys/kernel/core_pattern) 2>/dev/null && echo LEAK programs of the host can be named; [ -e /t/inside/1/status ] || exit 1")
            .exposes()
            .always(Verdict::Noted("mount-kernel-files"))
            .hardened(Verdict::Refused(UNSAFE, "mount-procfs")),
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
        case("A23 Q19", "a source whose server never answers", |run| tree(dead(run).join("x"), &[]))
            .drive(unanswered)
            .bare(Bare::Unasked("it waits for ever"))
            .refused(UNSAFE, "mount-unresolvable"),
    ]
}

fn mine(run: &Run<'_>) -> PathBuf {
    run.world.site.join(OWN).join(&run.id).join("mine")
}

fn dead(run: &Run<'_>) -> PathBuf {
    run.world.site.join(OWN).join(&run.id).join("dead")
}

/// The kernel asks a server that reads nothing. It is gone, and whoever still waits is told so, once its end is closed.
fn unanswered(run: &Run<'_>, bundle: &integration::Bundle) -> Result<Outcome> {
    let mounted = Mounted(dead(run));
    odd(&mounted.0, fs::create_dir_all(&mounted.0))?;
    let server = odd(&mounted.0, fs::File::options().read(true).write(true).open("/dev/fuse"))?;
    let options = format!("fd={},rootmode=40000,user_id=0,group_id=0", server.as_raw_fd());
    put("fuse", &mounted.0, &options)?;
    let outcome = run.live(bundle);
    drop(server);
    outcome
}

/// Files of the kernel that are no road to a GPU by themselves; `hardened` wants none of them writable.
fn kernels(what: &'static str, kind: &'static str, script: &'static str) -> Case {
    there("A31", what, "volumes/v/_data", move |_, at| put(kind, at, ""))
        .script(script)
        .always(Verdict::Passes(""))
        .hardened(Verdict::Refused(UNSAFE, "mount-sysfs-rw"))
}

/// A folder on the host in which something is mounted while the container lives, and that is bound.
fn there(
    ids: &'static str,
    what: &'static str,
    inside: &'static str,
    make: impl Fn(&Run<'_>, &Path) -> Result<()> + Send + Sync + 'static,
) -> Case {
    let at = move |run: &Run<'_>| run.world.site.join(OWN).join(&run.id).join(inside);
    let drive = move |run: &Run<'_>, bundle: &integration::Bundle| {
        let mounted = Mounted(at(run));
        odd(&mounted.0, fs::create_dir_all(&mounted.0))?;
        make(run, &mounted.0)?;
        run.live(bundle)
    };
    case(ids, what, move |run| tree(at(run), &[])).drive(drive).exposes()
}

/// What must be gone before the fixture's folder is removed.
pub(crate) struct Mounted(PathBuf);

impl Mounted {
    /// The root of the container that has a GPU, with a file and a node in it.
    pub(crate) fn root_of_holder(run: &Run<'_>, at: &Path) -> Result<Self> {
        let root = run.world.site.join(format!("bundle-{}/rootfs", World::holder_of(run.by)));
        odd(&root, fs::write(root.join("secret"), "another tenant's"))?;
        if !root.join("node").exists() {
            node(&root.join("node"), "c", 195, 3)?;
        }
        odd(at, mount(Some(&root), at, None::<&str>, MsFlags::MS_BIND, None::<&str>))?;
        Ok(Self(at.to_owned()))
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        let _ = umount2(&self.0, MntFlags::MNT_DETACH);
    }
}

fn put(kind: &str, at: &Path, options: &str) -> Result<()> {
    odd(at, mount(Some("volume"), at, Some(kind), MsFlags::empty(), Some(options)))
}

fn again(folder: &Path, at: &Path) -> Result<()> {
    odd(at, mount(Some(folder), at, None::<&str>, MsFlags::MS_BIND, None::<&str>))
}

fn layers(run: &Run<'_>, first: &Path) -> String {
    format!("lowerdir={}:{}", shown(first), shown(&run.tenant("plain")))
}

fn above(run: &Run<'_>) -> PathBuf {
    run.state().ancestors().nth(2).map(Path::to_owned).unwrap_or_default()
}

/// A file system of this type with these character devices in it.
pub(crate) fn shown_as(
    ids: &'static str,
    what: &'static str,
    inside: &'static str,
    kind: &'static str,
    nodes: &'static [(&'static str, u64, u64)],
) -> Case {
    there(ids, what, inside, move |_, at| {
        put(kind, at, "")?;
        nodes.iter().try_for_each(|(name, major, minor)| node(&at.join(name), "c", *major, *minor))
    })
}

pub(crate) fn odd<T, E: std::fmt::Display>(at: &Path, done: std::result::Result<T, E>) -> Result<T> {
    done.map_err(|e| Error::new(format!("{}: {e}", shown(at))))
}
