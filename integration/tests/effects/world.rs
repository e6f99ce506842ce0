//! What every case finds: a node with GPUs, quilt-gpu on it in both profiles, the bare low-level runtimes beside it, and the
//! folders, links and nodes that a tenant could point at. Made once, read by all; what a case changes lies in its own folder.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use integration::engine::Kit;
use integration::{
    Binaries, Bundle, Error, Quilt, QuiltOptions, Result, Rootfs, Runc, Site, Spec, VERSION_1, VERSION_2, apart, run,
};

const PROBE: &str = env!("CARGO_BIN_EXE_quilt-probe");

/// GPUs of the node.
pub(crate) const GPUS: u64 = 4;

/// A low-level runtime on a version of control groups.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Place {
    /// Debian's runc on the machine as it is.
    Runc,
    /// The same on version 2 alone.
    Runc2,
    /// Debian's crun on version 1 alone.
    Crun,
    /// A crun that reads JSON as others do.
    Crun128,
    /// A crun on version 2 alone.
    Crun2,
    /// youki on version 1.
    Youki,
}

/// All of them.
const PLACES: [Place; 6] = [Place::Runc, Place::Runc2, Place::Crun, Place::Crun128, Place::Crun2, Place::Youki];

impl Place {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Runc => "runc",
            Self::Runc2 => "runc-v2",
            Self::Crun => "crun",
            Self::Crun128 => "crun-1.28",
            Self::Crun2 => "crun-v2",
            Self::Youki => "youki",
        }
    }

    fn program(self) -> &'static str {
        match self {
            Self::Runc | Self::Runc2 => "runc-1.1",
            Self::Crun => "crun-1.8",
            Self::Crun128 | Self::Crun2 => "crun-1.28",
            Self::Youki => "youki",
        }
    }

    fn prepare(self) -> &'static str {
        match self {
            Self::Runc => "",
            Self::Runc2 | Self::Crun2 => VERSION_2,
            Self::Crun | Self::Crun128 | Self::Youki => VERSION_1,
        }
    }
}

/// Who runs a container.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum By {
    /// The low-level runtime alone.
    Bare,
    /// quilt-gpu as it comes.
    Standard,
    /// The same, and the container asks for a GPU as well.
    Asking,
    /// quilt-gpu in its stricter profile.
    Hardened,
}

/// One low-level runtime: alone, and below either profile.
pub(crate) struct Stand {
    pub(crate) bare: Runc,
    standard: (Quilt, Runc),
    hardened: (Quilt, Runc),
}

impl Stand {
    pub(crate) fn runc(&self, by: By) -> &Runc {
        match by {
            By::Bare => &self.bare,
            By::Standard | By::Asking => &self.standard.1,
            By::Hardened => &self.hardened.1,
        }
    }

    /// The installation that a case would have to get past.
    pub(crate) fn quilt(&self, by: By) -> &Quilt {
        match by {
            By::Hardened => &self.hardened.0,
            _ => &self.standard.0,
        }
    }
}

/// What stands at a place; the reason if its low-level runtime is not on this machine.
type Found = std::result::Result<Arc<Stand>, String>;

/// All of it. Containers that stay go with the stands, which go before the folder.
pub(crate) struct World {
    stands: Mutex<Vec<(Place, Found)>>,
    holders: Mutex<Vec<(&'static str, i32)>>,
    daemon: Daemon,
    /// Shared by most containers, which leave mount points in it.
    pub(crate) rootfs: Rootfs,
    /// What images of a case's own are copied from.
    pub(crate) image: Rootfs,
    pub(crate) site: Site,
    containers: AtomicUsize,
}

/// A process of the host's whose executable stands for an engine's.
struct Daemon(Child);

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl World {
    pub(crate) fn new() -> Result<Self> {
        let site = Site::with(|host| host.gpus(GPUS).drm(true), &QuiltOptions::default())?;
        more_drivers(&site).map_err(|e| Error::new(format!("load more drivers: {e}")))?;
        let rootfs = Rootfs::debian_like(site.join("debian"), Path::new(PROBE))?;
        let image = rootfs.copy_to(site.join("image"))?;
        let state = "/run/runc";
        fs::create_dir_all(state).map_err(|e| Error::new(format!("make {state}: {e}")))?;
        tenant(&site).map_err(|e| Error::new(format!("lay out the tenant's folders: {e}")))?;
        for (name, major, minor) in
            [("tenant/innocent", 195, 0), ("tenant/deep/a/b/gpu", 195, 1), ("tenant/nodes/n", 195, 2)]
        {
            node(&site.join(name), "c", major, minor)?;
        }
        for (name, kind, major, minor) in [
            ("zero", "c", 1, 5),
            ("disk", "b", 7, 0),
            ("vfio", "c", 10, 196),
            ("uverbs0", "c", 231, 192),
            ("fuse", "c", 10, 229),
            ("mem", "c", 1, 1),
            ("kmem", "c", 1, 2),
            ("port", "c", 1, 4),
        ] {
            node(&site.join(format!("tenant/{name}")), kind, major, minor)?;
        }
        for (name, major) in MAJORS {
            node(&site.join(format!("tenant/{name}")), "c", major, 0)?;
        }
        for (name, minor) in MISC {
            node(&site.join(format!("tenant/{name}")), "c", 10, minor)?;
        }
        let sleep = Command::new("/bin/busybox").args(["sleep", "3600"]).stdin(Stdio::null()).spawn();
        let daemon = Daemon(sleep.map_err(|e| Error::new(format!("start busybox: {e}")))?);
        let (stands, holders) = (Mutex::default(), Mutex::default());
        Ok(Self { stands, holders, daemon, rootfs, image, site, containers: AtomicUsize::new(0) })
    }

    /// A low-level runtime with all that stands over it.
    pub(crate) fn stand(&self, place: Place) -> Found {
        let mut stands = self.stands.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, stand)) = stands.iter().find(|(at, _)| *at == place) {
            return stand.clone();
        }
        let made = self.put_up(place).map(Arc::new);
        stands.push((place, made.clone()));
        made
    }

    fn put_up(&self, place: Place) -> std::result::Result<Stand, String> {
        let low_level = Kit::default().low_level(place.program())?;
        let make = || -> Result<Stand> {
            let folder = self.site.join(place.name());
            fs::create_dir_all(&folder).map_err(|e| Error::new(e.to_string()))?;
            let in_namespace = |name: &str, program: &Path| match place.prepare() {
                "" => Ok(program.to_owned()),
                prepare => apart(folder.join(name), program, prepare),
            };
            let over = |profile: &str| -> Result<(Quilt, Runc)> {
                let options = QuiltOptions { low_level: vec![low_level.clone()], ..QuiltOptions::default() };
                let quilt = Quilt::install(
                    folder.join(profile).join("quilt"),
                    &self.site.host,
                    &Binaries::locate()?,
                    &options,
                )?;
                let config = fs::read_to_string(quilt.config()).map_err(|e| Error::new(e.to_string()))?;
                let config = config.replace("[policy]\n", &format!("[policy]\nprofile = \"{profile}\"\n"));
                fs::write(quilt.config(), config).map_err(|e| Error::new(e.to_string()))?;
                let program = in_namespace(&format!("runtime-{profile}"), &quilt.runtime())?;
                Ok((quilt, Runc::new(program, folder.join(format!("{profile}-runs")))?))
            };
            let bare = Runc::new(in_namespace("runtime-bare", &low_level)?, folder.join("bare-runs"))?;
            Ok(Stand { bare, standard: over("standard")?, hardened: over("hardened")? })
        };
        make().map_err(|e| e.to_string())
    }

    /// The container that has a GPU and stays, in the ledger of that profile.
    pub(crate) fn holder_of(by: By) -> &'static str {
        if by == By::Hardened { "holder-hardened" } else { "holder" }
    }

    /// Its first process.
    pub(crate) fn holder(&self, by: By) -> Result<i32> {
        let name = Self::holder_of(by);
        let mut holders = self.holders.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, pid)) = holders.iter().find(|(held, _)| *held == name) {
            return Ok(*pid);
        }
        let stand = self.stand(Place::Runc).map_err(Error::new)?;
        let runc = stand.runc(if by == By::Hardened { by } else { By::Standard });
        let spec =
            Spec::new().env("QUILT_GPU_IDS", "nvidia3").args(["quilt-probe", "sleep"]).cgroup(&self.cgroup(name));
        let bundle = Bundle::new(self.site.join(format!("bundle-{name}")), &spec, &self.image)?;
        runc.create(name, &bundle)?.checked()?;
        runc.start(name)?.checked()?;
        let pid = first_process(&bundle)?;
        holders.push((name, pid));
        Ok(pid)
    }

    /// Where the executable of an engine's daemon is seen.
    pub(crate) fn daemon(&self) -> String {
        format!("/proc/{}/exe", self.daemon.0.id())
    }

    /// A control group of the container's own.
    pub(crate) fn cgroup(&self, id: &str) -> String {
        let folder = self.site.folder().file_name().unwrap_or_default().to_string_lossy();
        format!("/{folder}-{id}")
    }

    /// One more container is asked for: its number.
    pub(crate) fn next(&self) -> usize {
        self.containers.fetch_add(1, Ordering::Relaxed)
    }

    pub(crate) fn containers(&self) -> usize {
        self.containers.load(Ordering::Relaxed)
    }
}

/// The pid that a runtime wrote for the container of this bundle.
pub(crate) fn first_process(bundle: &Bundle) -> Result<i32> {
    let path = bundle.path.join("init.pid");
    let text = fs::read_to_string(&path).map_err(|e| Error::new(format!("read {}: {e}", path.display())))?;
    text.trim().parse().map_err(|e| Error::new(format!("{}: {e}: {text:?}", path.display())))
}

/// Drivers that give out GPUs or their memory beside NVIDIA's first, with majors that no driver of the machine has.
const MAJORS: [(&str, u64); 5] = [
    ("nvhost-ctrl", 505),
    ("nvidia-nvlink", 506),
    ("gdrdrv", 507),
    ("nvidia-nvswitch", 508),
    ("nvidia-caps-imex-channels", 509),
];
/// The same as minors of major 10.
const MISC: [(&str, u64); 3] = [("nvmap", 124), ("dxg", 126), ("iommu", 127)];

/// Lets the node's kernel tell of them.
fn more_drivers(site: &Site) -> std::io::Result<()> {
    let (devices, misc) = (site.host.root.join("proc/devices"), site.host.root.join("proc/misc"));
    let line = |(name, number): &(&str, u64)| format!("{number:3} {name}\n");
    let known = fs::read_to_string(&devices)?;
    let more: String = MAJORS.iter().map(line).collect();
    fs::write(devices, known.replacen("\nBlock devices:", &format!("{more}\nBlock devices:"), 1))?;
    fs::write(misc, MISC.iter().map(line).collect::<String>())
}

/// Folders and links that belong to a tenant.
fn tenant(site: &Site) -> std::io::Result<()> {
    let at = |name: &str| site.join("tenant").join(name);
    for folder in ["deep/a/b", "nodes", "volume/..2026", "links", "plain"] {
        fs::create_dir_all(at(folder))?;
    }
    fs::write(at("volume/..2026/key"), "value\n")?;
    symlink("..2026", at("volume/..data"))?;
    symlink("..data/key", at("volume/key"))?;
    symlink(site.host.node("nvidia0"), at("links/gpu"))?;
    symlink("gpu", at("links/second"))?;
    symlink("loop", at("links/loop"))?;
    symlink(site.host.root.join("dev"), at("links/dev"))?;
    fs::write(at("plain/file"), "plain\n")?;
    for name in ["nvidia0", "\u{ff4e}vidia0", "\u{202e}0aidivn"] {
        fs::write(at(name), "a file by a GPU's name\n")?;
    }
    for folder in ["char", "dri/by-path"] {
        fs::create_dir_all(site.host.node(folder))?;
    }
    symlink("../nvidia0", site.host.node("char/195:0"))?;
    symlink("../renderD128", site.host.node("dri/by-path/pci-0000:01:00.0-render"))?;
    fs::hard_link(site.host.node("nvidia0"), site.host.node("innocent"))
}

/// A device node made by the machine's mknod.
pub(crate) fn node(path: &Path, kind: &str, major: u64, minor: u64) -> Result<()> {
    let mut mknod = Command::new("mknod");
    mknod.arg("-m").arg("666").arg(path).args([kind, &major.to_string(), &minor.to_string()]);
    run(&mut mknod, None, Duration::from_secs(5))?.checked().map(drop)
}

/// Low-level runtimes that are not on this machine.
pub(crate) fn missing(world: &World) -> Vec<String> {
    let why = |place: Place| world.stand(place).err().map(|why| format!("{}: {why}", place.name()));
    PLACES.into_iter().filter_map(why).collect()
}

pub(crate) fn shown(path: &Path) -> String {
    path.display().to_string()
}
