//! quilt-gpu over real runc, driven by its command line: what processes in real containers can open, and what becomes
//! of leases and bundles. Messages are looked at only where a user would.

mod allocation;
mod audit;
mod cdi;
mod company;
mod configuration;
mod exec;
mod faults;
mod field_cases;
mod filters;
mod foreign_cves;
mod grants;
mod groups;
mod hook;
mod joined;
mod lifecycle;
mod lookalikes;
mod mig;
mod nodes;
mod overlooked;
mod own_folders;
mod pods;
mod refusals;
mod reservations;
mod sampled;
mod schema;
mod spellings;
mod tenant;
mod traces;
mod trusted;
mod updates;
mod verify;
mod worlds;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use integration::{
    Bundle, Error, PROBE_ALL, QuiltOptions, Ran, Result, Rootfs, Runc, Seen, Site, Spec, VERSION_1, VERSION_2,
    apart as inside, root_for, run, say,
};

const RUNC: &str = "/usr/sbin/runc";
const CRUN: &str = "/usr/bin/crun";
const PROBE: &str = env!("CARGO_BIN_EXE_quilt-probe");

/// A node, the runtime on it, and a root file system for its containers.
struct Bench {
    // First, so that its containers go before the folder they are in.
    runc: Runc,
    site: Site,
    rootfs: Rootfs,
}

impl Bench {
    /// With so many GPUs, and a root file system that has the probe. `None` when this is not root.
    fn new(test: &str, gpus: u64) -> Result<Option<Self>> {
        Self::on(test, || Site::new(gpus))
    }

    /// On another node.
    fn on(test: &str, site: impl FnOnce() -> Result<Site>) -> Result<Option<Self>> {
        if !root_for(test) {
            return Ok(None);
        }
        let site = site()?;
        say(format_args!("{test}: {}, quilt-gpu-runtime, {}", version(RUNC)?, site.files));
        let runc = site.quilt.runc(site.join("runc"))?;
        let rootfs = Rootfs::debian_like(site.join("debian"), Path::new(PROBE))?;
        Ok(Some(Self { runc, site, rootfs }))
    }

    /// With two GPUs, over this low-level runtime, every call in a mount namespace of its own that `prepare` makes ready.
    fn within(test: &str, low_level: &str, prepare: &str) -> Result<Option<Self>> {
        let options = QuiltOptions { low_level: vec![low_level.into()], ..QuiltOptions::default() };
        let Some(mut bench) = Self::on(test, || Site::with(|host| host.gpus(2), &options))? else { return Ok(None) };
        let program = inside(bench.site.join("ours"), &bench.site.quilt.runtime(), prepare)?;
        bench.runc = Runc::new(program, bench.site.join("runc"))?;
        Ok(Some(bench))
    }

    /// A bundle with a root file system of its own, and a cgroup that no test beside this one has.
    fn bundle(&self, id: &str, spec: &Spec) -> Result<Bundle> {
        self.bundle_in(id, spec, &self.rootfs)
    }

    fn bundle_in(&self, id: &str, spec: &Spec, rootfs: &Rootfs) -> Result<Bundle> {
        Bundle::new(self.home(id, spec), &spec.clone().cgroup(&self.group_of(id, spec)), rootfs)
    }

    /// Where the engine of this spec has its bundles: only there it attests a container's place in a pod.
    fn home(&self, id: &str, spec: &Spec) -> PathBuf {
        let bundle = format!("bundle-{id}");
        let says = |key: &str| spec.json()["annotations"].get(key).is_some();
        if says("io.kubernetes.cri-o.ContainerType") {
            self.site.join(bundle).join("userdata")
        } else if says("io.kubernetes.cri.container-type") {
            self.site.join("k8s.io").join(bundle)
        } else {
            self.site.join(bundle)
        }
    }

    /// A bundle without one, for containers that do not come to be.
    fn sharing(&self, id: &str, spec: &Spec) -> Result<Bundle> {
        Bundle::sharing(self.home(id, spec), &spec.clone().cgroup(&self.group_of(id, spec)), &self.rootfs)
    }

    /// CRI-O's name for the group says that its annotations are its own.
    fn group_of(&self, id: &str, spec: &Spec) -> String {
        let by_crio = spec.json()["annotations"].get("io.kubernetes.cri-o.ContainerType").is_some();
        if by_crio { self.cgroup(id).replacen('/', "/crio-", 1) } else { self.cgroup(id) }
    }

    fn cgroup(&self, id: &str) -> String {
        let folder = self.site.join("");
        format!("/{}-{id}", folder.file_name().unwrap_or_default().to_string_lossy())
    }

    /// A container's whole life, and what its probe saw.
    fn see(&self, id: &str, spec: &Spec) -> Result<Seen> {
        let bundle = self.bundle(id, &spec.clone().args(PROBE_ALL))?;
        Seen::of(&self.runc.whole_life(id, &bundle)?)
    }

    /// A container that sleeps, and what a probe sees in it.
    fn sleeper(&self, id: &str, spec: &Spec) -> Result<Seen> {
        let bundle = self.bundle(id, &spec.clone().args(["quilt-probe", "sleep"]))?;
        self.runc.create(id, &bundle)?.checked()?;
        self.runc.start(id)?.checked()?;
        self.look(id)
    }

    /// What a probe sees in a running container.
    fn look(&self, id: &str) -> Result<Seen> {
        Seen::of(&self.runc.exec(id, &PROBE_ALL)?.checked()?.stdout)
    }

    /// Why the GPUs of a container were given back, as the audit log has it.
    fn ends(&self, id: &str) -> Vec<String> {
        let audit = self.site.quilt.audit();
        let of = audit.iter().filter(|entry| entry["kind"] == "release" && entry["container"] == id);
        of.map(|entry| {
            assert_eq!(entry["gpus"].as_array().map(Vec::len), Some(1), "{entry}");
            entry["message"].as_str().unwrap_or_default().to_owned()
        })
        .collect()
    }

    /// Tries to create a container that must be refused with these words, on standard error and in the last line of
    /// the log; nothing of it may be left.
    fn refused(&self, id: &str, bundle: &Bundle, words: &[&str]) -> Result<Ran> {
        let (config, leases) = (bytes(&bundle.config())?, self.site.leases_on_disk()?);
        let answer = self.runc.create(id, bundle)?;
        assert_eq!(answer.status.code(), Some(1), "{id}: {answer:?}");
        assert_eq!(answer.stdout, "", "{id}");
        let last = self.runc.last_error(id).unwrap_or_default();
        for word in words {
            assert!(answer.stderr.contains(word), "{id}: no {word} in: {}", answer.stderr);
            assert!(last.contains(word), "{id}: no {word} in the last line of the log: {last}");
        }
        assert_eq!(self.runc.state(id)?, None, "{id}");
        assert!(!self.runc.root().join(id).exists(), "{id}");
        assert_eq!(self.site.leases_on_disk()?, leases, "{id}");
        assert!(bytes(&bundle.config())? == config, "{id}: config.json was changed");
        Ok(answer)
    }
}

fn remove(folder: &Path) -> Result<()> {
    fs::remove_dir_all(folder).map_err(|e| Error::new(format!("{}: {e}", folder.display())))
}

fn bytes(path: &Path) -> Result<Vec<u8>> {
    fs::read(path).map_err(|e| Error::new(format!("{}: {e}", path.display())))
}

fn version(program: &str) -> Result<String> {
    let answer = run(Command::new(program).arg("--version"), None, Duration::from_secs(5))?.checked()?;
    Ok(answer.stdout.lines().next().unwrap_or_default().to_owned())
}
