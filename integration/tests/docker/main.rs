//! quilt-gpu under a Docker daemon of the tests' own: what users of `docker run --runtime=quilt-gpu` get, and that
//! everything else is as under plain runc.

mod gpus;
mod grants;
mod groups;
mod layers;
mod ordinary;
mod privileged;
mod refusals;
mod release;

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use integration::{
    Docker, DockerOptions, Error, PROBE_ALL, QuiltOptions, Ran, Result, Rootfs, Seen, Site, root_for, say,
};

const RUNC: &str = "/usr/sbin/runc";
const PROBE: &str = env!("CARGO_BIN_EXE_quilt-probe");

/// The image of all tests: Debian's layout, the probe, a shell.
const IMAGE: &str = "deb:1";

/// A node and a daemon that knows two runtimes: `quilt-gpu`, and `plain`, which is what is below it.
struct Yard {
    // First: its containers use the node.
    docker: Docker,
    site: Site,
}

impl Yard {
    /// Over runc, with so many GPUs. `None` when this is not root.
    fn new(test: &str, gpus: u64) -> Result<Option<Self>> {
        Self::over(test, gpus, RUNC.into())
    }

    /// Over another low-level runtime.
    fn over(test: &str, gpus: u64, low_level: PathBuf) -> Result<Option<Self>> {
        if !root_for(test) {
            return Ok(None);
        }
        let options = QuiltOptions { low_level: vec![low_level.clone()], ..QuiltOptions::default() };
        let site = Site::with(|host| host.gpus(gpus), &options)?;
        let runtimes = vec![("quilt-gpu".into(), site.quilt.runtime()), ("plain".into(), low_level)];
        let docker = Docker::up(&DockerOptions { runtimes, ..DockerOptions::default() })?;
        say(format_args!("{test}: {}, quilt-gpu-runtime, {}", docker.versions()?, site.files));
        let rootfs = Rootfs::debian_like(site.join("debian"), Path::new(PROBE))?;
        docker.import(&rootfs, IMAGE, &["ENV FROM_IMAGE=yes"])?;
        docker.import(&rootfs, "baked:1", &["ENV NVIDIA_VISIBLE_DEVICES=all", "ENV CUDA_VERSION=12.2.0"])?;
        Ok(Some(Self { docker, site }))
    }

    /// `docker run --runtime=quilt-gpu` with these arguments.
    fn run(&self, args: &[&str]) -> Result<Ran> {
        self.docker.run(&[&["--runtime=quilt-gpu"], args].concat())
    }

    /// What the probe sees in a container run with these arguments, which end with the image.
    fn see(&self, args: &[&str]) -> Result<Seen> {
        let ran = self.run(&[&["--rm"], args, &PROBE_ALL].concat())?.checked()?;
        Seen::of(&ran.stdout)
    }

    /// A container in the background that sleeps, and what the probe sees in it.
    fn sleeper(&self, name: &str, args: &[&str]) -> Result<Seen> {
        let call = [&["--detach", "--name", name], args, &[IMAGE, "quilt-probe", "sleep"]].concat();
        self.run(&call)?.checked()?;
        self.look(name)
    }

    /// What the probe sees in a running container.
    fn look(&self, name: &str) -> Result<Seen> {
        let ran = self.docker.client(&[&["exec", name][..], &PROBE_ALL].concat())?.checked()?;
        Seen::of(&ran.stdout)
    }

    /// A field of `docker inspect`.
    fn inspect(&self, name: &str, field: &str) -> Result<String> {
        let ran = self.docker.client(&["inspect", "--format", &format!("{{{{{field}}}}}"), name])?.checked()?;
        Ok(ran.stdout.trim().to_owned())
    }

    /// Waits until a field of `docker inspect` has this value.
    fn wait_for(&self, name: &str, field: &str, value: &str) -> Result<()> {
        let deadline = Instant::now() + Duration::from_secs(20);
        loop {
            let now = self.inspect(name, field)?;
            if now == value {
                return Ok(());
            }
            if Instant::now() > deadline {
                return Err(Error::new(format!("{field} of {name} is {now}, never {value}")));
            }
            std::thread::sleep(Duration::from_millis(50));
        }
    }
}
