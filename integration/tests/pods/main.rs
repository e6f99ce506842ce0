//! quilt-gpu as a runtime class: pods and their containers, made through CRI as kubelet makes them, on every containerd
//! that is here.

mod life;
mod refusals;
mod requests;
mod shape;

use std::fs;
use std::path::{Path, PathBuf};

use integration::engine::{Ask, Container, Cri, Engine, Ground, Kit, Pod, PodAsk};
use integration::{Error, Groups, PROBE_ALL, Ran, Result, Rootfs, Seen, Site, root_for, say};

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

/// A node and a containerd that knows two handlers: `quilt-gpu`, and `plain`, which is what is below it.
struct Yard {
    // First: its containers use the node.
    cri: Cri,
    site: Site,
    release: &'static str,
}

/// Runs a test on every release that is here. `wrap` may put a program before the runtime.
fn on_each_with(
    test: &str,
    gpus: u64,
    wrap: impl Fn(&Site) -> Result<PathBuf>,
    body: impl Fn(&mut Yard) -> Result<()>,
) -> Result<()> {
    if !root_for(test) {
        return Ok(());
    }
    let kit = Kit::default();
    for release in RELEASES {
        let programs = match kit.containerd(release) {
            Ok(programs) => programs,
            Err(why) => {
                say(format_args!("SKIPPED {test} on containerd {release}: {why}"));
                continue;
            }
        };
        let site = Site::new(gpus)?;
        let quilt = wrap(&site)?;
        let mut yard = Yard::over(site, &quilt, &programs, release)?;
        say(format_args!("{test}: {}, quilt-gpu-runtime", yard.cri.versions()?));
        body(&mut yard).map_err(|e| Error::new(format!("containerd {release}: {e}")))?;
    }
    Ok(())
}

/// The same with the runtime itself.
fn on_each(test: &str, gpus: u64, body: impl Fn(&mut Yard) -> Result<()>) -> Result<()> {
    on_each_with(test, gpus, |site| Ok(site.quilt.runtime()), body)
}

impl Yard {
    fn over(site: Site, quilt: &Path, programs: &Path, release: &'static str) -> Result<Self> {
        let ground = Ground {
            quilt: quilt.into(),
            plain: RUNC.into(),
            groups: Groups::Hybrid,
            shown: Vec::new(),
            remapped: false,
        };
        let cri = Cri::up(programs, Kit::default().cni().ok().as_deref(), &ground)?;
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
fn device_filter(pid: i32) -> String {
    let groups = fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap();
    let group = groups.lines().find_map(|line| line.split_once(":devices:")).unwrap().1;
    fs::read_to_string(format!("/sys/fs/cgroup/devices{group}/devices.list")).unwrap()
}
