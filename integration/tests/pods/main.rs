//! quilt-gpu as a runtime class: pods and their containers, made through CRI as kubelet makes them, on every containerd
//! that is here.

mod installer;
mod life;
mod refusals;
mod requests;
mod shape;

use std::fs;
use std::path::{Path, PathBuf};

use integration::engine::{Ask, Container, Cri, Engine, Ground, Kit, Pod, PodAsk};
use integration::{
    Error, Groups, PROBE_ALL, QuiltOptions, Ran, Result, Rootfs, Scratch, Seen, Site, root_for, runc_that_gets_along,
    say,
};

const RUNC: &str = "/usr/sbin/runc";
const PROBE: &str = env!("CARGO_BIN_EXE_quilt-probe");

/// Releases of containerd, oldest first.
const RELEASES: [&str; 3] = ["1.6", "1.7", "2.1"];

/// The image of most containers: Debian's layout, the probe, a shell.
const IMAGE: &str = "deb:1";
/// The same, as images for CUDA are.
const BAKED: &str = "baked:1";
/// The same, with labels that are words of a request.
const LABELLED: &str = "labelled:1";
/// One that wants all GPUs in every way that other tools know.
const WISHING: &str = "wishing:1";

/// A node and a containerd that knows two handlers: `quilt-gpu`, and `plain`, which is what is below it.
struct Yard {
    // First: its containers use the node.
    cri: Cri,
    site: Site,
    release: &'static str,
}

/// What a yard can differ in.
struct Like {
    groups: Groups,
    /// Another low-level runtime than Debian's runc.
    low_level: Option<&'static str>,
    /// The runtime of the handler `quilt-gpu`.
    wrap: fn(&Site) -> Result<PathBuf>,
}

impl Default for Like {
    fn default() -> Self {
        Self { groups: Groups::Hybrid, low_level: None, wrap: |site| Ok(site.quilt.runtime()) }
    }
}

/// Runs a test on every release that is here.
fn on_each(test: &str, gpus: u64, body: impl Fn(&mut Yard) -> Result<()>) -> Result<()> {
    on_each_like(&Like::default(), test, gpus, body)
}

fn on_each_like(like: &Like, test: &str, gpus: u64, body: impl Fn(&mut Yard) -> Result<()>) -> Result<()> {
    if !root_for(test) {
        return Ok(());
    }
    for release in RELEASES {
        let kit = Kit::default();
        let low_level = like.low_level.map(|name| kit.low_level(name)).transpose();
        let low_level = match kit.containerd(release).and(low_level) {
            Ok(low_level) => low_level,
            Err(why) => {
                say(format_args!("SKIPPED {test} on containerd {release}: {why}"));
                continue;
            }
        };
        let tools = Scratch::new()?;
        let runc = low_level.unwrap_or_else(|| RUNC.into());
        let low_level = runc_that_gets_along(tools.path(), &runc)?;
        let mut yard = Yard::new(like, release, gpus, low_level)?;
        say(format_args!("{test}: {}, cgroups {}", yard.cri.versions()?, like.groups.name()));
        body(&mut yard).map_err(|e| Error::new(format!("containerd {release}: {e}")))?;
    }
    Ok(())
}

impl Yard {
    fn new(like: &Like, release: &'static str, gpus: u64, low_level: PathBuf) -> Result<Self> {
        let options = QuiltOptions { low_level: vec![low_level.clone()], ..QuiltOptions::default() };
        let site = Site::with(|host| host.gpus(gpus), &options)?;
        let ground = Ground {
            quilt: (like.wrap)(&site)?,
            plain: low_level,
            groups: like.groups,
            shown: Vec::new(),
            remapped: false,
            hooks: None,
        };
        let cri = Cri::on(release, &ground)?;
        let rootfs = Rootfs::debian_like(site.join("debian"), Path::new(PROBE))?;
        cri.import(IMAGE, &rootfs, &[("FROM_IMAGE", "yes")], &[])?;
        Ok(Self { cri, site, release })
    }

    /// The same root file system as another image.
    fn image(&self, name: &str, env: &[(&str, &str)], labels: &[(&str, &str)]) -> Result<()> {
        self.cri.import(name, &Rootfs { path: self.site.join("debian") }, env, labels)
    }

    /// A pod on the host's network.
    fn pod(&self, name: &str, annotations: &[(&str, &str)]) -> Result<Pod> {
        let ask = PodAsk::new(name);
        self.cri.pod(&annotations.iter().fold(ask, |ask, (key, value)| ask.annotated(key, value)))
    }

    /// Creates and starts a container.
    fn started(&self, pod: &Pod, ask: &Ask) -> Result<Container> {
        let container = self.cri.create(pod, ask, |_| ())?;
        self.cri.launch(&container)?.checked()?;
        Ok(container)
    }

    /// A container that cannot be started, and how its user is told.
    fn refused(&self, pod: &Pod, ask: &Ask) -> Result<(Container, Ran)> {
        let container = self.cri.create(pod, ask, |_| ())?;
        let ran = self.cri.launch(&container)?;
        assert!(!ran.ok(), "{}: {ask:?} was started", self.release);
        Ok((container, ran))
    }

    /// What the probe sees in a running container.
    fn look(&self, container: &Container) -> Result<Seen> {
        Seen::of(&self.cri.exec_in(container, &PROBE_ALL)?.checked()?.stdout)
    }

    /// What the probe sees as a container's own command.
    fn see(&self, pod: &Pod, ask: &Ask) -> Result<Seen> {
        let args = PROBE_ALL.map(str::to_owned).into();
        let container = self.started(pod, &Ask { args, ..ask.clone() })?;
        Seen::of(&self.cri.finish(&container)?.checked()?.stdout)
    }
}

/// A container that sleeps.
fn sleeper(name: &str) -> Ask {
    Ask::new(name, IMAGE, ["quilt-probe", "sleep"])
}

/// What the kernel lets a process's cgroup open, in its own words.
fn device_filter(pid: i32) -> Result<String> {
    let read = |path: String| fs::read_to_string(&path).map_err(|e| Error::new(format!("{path}: {e}")));
    let groups = read(format!("/proc/{pid}/cgroup"))?;
    let group = groups.lines().find_map(|line| line.split_once(":devices:")).map_or("", |(_, group)| group);
    read(format!("/sys/fs/cgroup/devices{group}/devices.list"))
}
