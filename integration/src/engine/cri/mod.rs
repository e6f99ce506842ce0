//! containerd through CRI, as kubelet drives it. As an [`Engine`] it gives every container a pod of its own with the
//! host's network; pods of other shapes are made by its own calls.

mod client;
mod log;
mod pods;

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use k8s_cri::v1::{ContainerConfig, ContainerStatus, StatusRequest, StatusResponse};

use self::client::{Client, Told, Trouble, as_error, as_ran};
use super::containerd::Containerd;
use super::image::Words;
use super::{Ask, Engine, Ground, Source};
use crate::error::{Error, Result};
use crate::process::Ran;
use crate::rootfs::Rootfs;

pub use pods::{Container, Pod, PodAsk};

/// The namespace of everything that CRI makes.
const NAMESPACE: &str = "k8s.io";

/// How long the plugin may take to be ready, and to know an image.
const UP: Duration = Duration::from_secs(20);

/// A container of the engine's, and what it takes to make it once more.
#[derive(Clone, Debug)]
struct Placed {
    ask: Ask,
    pod: Pod,
    container: Container,
    attempt: u32,
}

/// A containerd with its CRI plugin.
#[derive(Debug)]
pub struct Cri {
    daemon: Containerd,
    client: Client,
    ground: Ground,
    /// Whether it knows pods with user namespaces; 1.6 would overlook the wish.
    maps: bool,
    placed: Mutex<HashMap<String, Placed>>,
}

impl Cri {
    /// Starts a release: `1.6`.
    ///
    /// # Errors
    /// It is missing, or does not come up: its last words.
    pub fn on(release: &str, ground: &Ground) -> Result<Self> {
        let daemon = Containerd::on(release, ground)?;
        let client = Client::new(daemon.socket());
        let maps = release != "1.6";
        let cri = Self { daemon, client, ground: ground.clone(), maps, placed: Mutex::default() };
        cri.wait_ready()?;
        cri.daemon.import_pause()?;
        Ok(cri)
    }

    fn wait_ready(&self) -> Result<()> {
        let deadline = Instant::now() + UP;
        loop {
            match self.status() {
                Ok(_) => return Ok(()),
                Err(error) if Instant::now() > deadline => return Err(error),
                Err(_) => std::thread::sleep(Duration::from_millis(20)),
            }
        }
    }

    /// What the plugin says of itself, `crictl info`.
    ///
    /// # Errors
    /// It does not answer.
    pub fn status(&self) -> Result<StatusResponse> {
        as_error(self.client.talk("status", async |cri| cri.status(StatusRequest { verbose: true }).await))
    }

    /// Makes a pod.
    ///
    /// # Errors
    /// The engine's words.
    pub fn pod(&self, ask: &PodAsk) -> Result<Pod> {
        as_error(self.run_pod(ask))
    }

    /// Creates a container in a pod, which has the annotations: of `ask`'s only the node's are the container's own. `change`
    /// is for what has no words there.
    ///
    /// # Errors
    /// The engine's words.
    pub fn create(&self, pod: &Pod, ask: &Ask, change: impl FnOnce(&mut ContainerConfig)) -> Result<Container> {
        as_error(self.create_in(pod, ask, 0, change))
    }

    /// Creates it once more, after its end.
    ///
    /// # Errors
    /// The engine's words.
    pub fn create_again(&self, pod: &Pod, ask: &Ask, attempt: u32) -> Result<Container> {
        as_error(self.create_in(pod, ask, attempt, |_| ()))
    }

    /// Starts a created container; this is when the runtime is called.
    ///
    /// # Errors
    /// The call could not be made.
    pub fn launch(&self, container: &Container) -> Result<Ran> {
        as_ran(self.start_in(container))
    }

    /// Waits for the end of a container and removes it: its status and output.
    ///
    /// # Errors
    /// It does not end.
    pub fn finish(&self, container: &Container) -> Result<Ran> {
        as_error(self.end_of(container))
    }

    /// Runs a command in a container.
    ///
    /// # Errors
    /// The call could not be made.
    pub fn exec_in(&self, container: &Container, args: &[&str]) -> Result<Ran> {
        as_ran(self.exec_sync(container, args))
    }

    /// Stops a container, at once.
    ///
    /// # Errors
    /// The call could not be made.
    pub fn halt(&self, container: &Container) -> Result<Ran> {
        as_ran(self.stop_container(container))
    }

    /// Gives a container half a CPU.
    ///
    /// # Errors
    /// The call could not be made.
    pub fn resize(&self, container: &Container) -> Result<Ran> {
        as_ran(self.update_container(container))
    }

    /// What `crictl inspect` shows: state, reason, message and exit code.
    ///
    /// # Errors
    /// There is no such container.
    pub fn look(&self, container: &Container) -> Result<ContainerStatus> {
        as_error(self.status_of(container)).map(|(status, _)| status)
    }

    /// The process of a running container.
    ///
    /// # Errors
    /// There is none.
    pub fn pid(&self, container: &Container) -> Result<i32> {
        let (_, info) = as_error(self.status_of(container))?;
        let pid = info["pid"].as_i64().and_then(|pid| i32::try_from(pid).ok()).filter(|pid| *pid > 0);
        pid.ok_or_else(|| Error::new(format!("{} has no process", container.id)))
    }

    /// The process of a pod's own container.
    ///
    /// # Errors
    /// There is none.
    pub fn sandbox_pid(&self, pod: &Pod) -> Result<i32> {
        as_error(self.pid_of_sandbox(pod))
    }

    /// Stops and removes a pod and its containers.
    ///
    /// # Errors
    /// The engine's words.
    pub fn drop_pod(&self, pod: &Pod) -> Result<()> {
        as_error(self.remove_pod(pod)).map(drop)
    }

    /// Everything that it has on disk.
    pub fn folder(&self) -> &Path {
        self.daemon.folder()
    }

    /// The folder of a container or sandbox: its `config.json`, and `log.json` while it is there.
    pub fn bundle(&self, id: &str) -> PathBuf {
        self.daemon.bundle(NAMESPACE, id)
    }

    /// A place for CDI files, which releases from 1.7 on read.
    pub fn cdi_folder(&self) -> PathBuf {
        self.daemon.folder().join("cdi")
    }

    /// What the daemon and its shims logged.
    pub fn log(&self) -> String {
        self.daemon.log()
    }

    /// A pod for one container, and that container, which is then to be started. Nothing is left where it is refused.
    fn place(&self, ask: &Ask) -> Told<Placed> {
        if ask.user_namespace && !self.maps {
            return Err(Error::new("this containerd knows no pods with user namespaces").into());
        }
        let pod = self.run_pod(&PodAsk {
            name: format!("pod-{}", ask.name),
            annotations: ask.annotations.clone(),
            privileged: ask.privileged,
            // Kubernetes has no pods with both a user namespace and the host's network.
            cni: ask.user_namespace,
            user_namespace: ask.user_namespace,
            through: ask.through,
            ..PodAsk::default()
        })?;
        match self.create_in(&pod, ask, 0, |_| ()) {
            Ok(container) => Ok(Placed { ask: ask.clone(), pod, container, attempt: 0 }),
            Err(trouble) => {
                self.remove_pod(&pod)?;
                Err(trouble)
            }
        }
    }

    fn placed(&self, name: &str) -> Told<Placed> {
        let placed = self.placed.lock().unwrap_or_else(PoisonError::into_inner);
        let unknown = || client::ran(format!("find {name}"), 1, String::new(), format!("no container {name}"));
        placed.get(name).cloned().ok_or_else(|| Trouble::Engine(unknown()))
    }

    fn remember(&self, placed: Placed) {
        let mut all = self.placed.lock().unwrap_or_else(PoisonError::into_inner);
        all.insert(placed.ask.name.clone(), placed);
    }

    /// What kubelet does: the same container of the same pod, once more.
    fn again(&self, name: &str) -> Told<Ran> {
        let old = self.placed(name)?;
        self.stop_container(&old.container)?;
        self.remove_container(&old.container)?;
        let attempt = old.attempt + 1;
        let container = self.create_in(&old.pod, &old.ask, attempt, |_| ())?;
        self.remember(Placed { container: container.clone(), attempt, ..old });
        self.start_in(&container)
    }
}

impl Engine for Cri {
    fn versions(&self) -> Result<String> {
        self.daemon.versions("CRI", &self.ground.plain)
    }

    fn cdi(&self) -> Option<PathBuf> {
        self.daemon.knows_cdi().then(|| self.cdi_folder())
    }

    fn keeps(&self) -> (&'static str, PathBuf) {
        ("run/containerd", self.daemon.folder().join("state"))
    }

    fn sources(&self) -> &'static [Source] {
        &[Source::PodAnnotation]
    }

    fn import(&self, name: &str, rootfs: &Rootfs, env: &[(&str, &str)], labels: &[(&str, &str)]) -> Result<()> {
        self.daemon.import(NAMESPACE, name, rootfs, &Words { env, labels, command: &["sh"] })
    }

    fn run(&self, ask: &Ask) -> Result<Ran> {
        as_ran(self.place(ask).and_then(|placed| {
            let ran = self.start_in(&placed.container).and_then(|_| self.end_of(&placed.container));
            self.remove_pod(&placed.pod)?;
            ran
        }))
    }

    fn start(&self, ask: &Ask) -> Result<Ran> {
        as_ran(self.place(ask).and_then(|placed| {
            let container = placed.container.clone();
            self.remember(placed);
            self.start_in(&container)
        }))
    }

    fn exec(&self, name: &str, args: &[&str]) -> Result<Ran> {
        as_ran(self.placed(name).and_then(|placed| self.exec_sync(&placed.container, args)))
    }

    fn stop(&self, name: &str) -> Result<Ran> {
        as_ran(self.placed(name).and_then(|placed| self.stop_container(&placed.container)))
    }

    fn restart(&self, name: &str) -> Result<Ran> {
        as_ran(self.again(name))
    }

    fn remove(&self, name: &str) -> Result<Ran> {
        let known = self.placed.lock().unwrap_or_else(PoisonError::into_inner).remove(name);
        match known {
            Some(placed) => as_ran(self.remove_pod(&placed.pod)),
            // Its pod was refused already.
            None => Ok(client::ran(format!("remove {name}"), 0, String::new(), String::new())),
        }
    }

    fn update(&self, name: &str) -> Option<Result<Ran>> {
        Some(as_ran(self.placed(name).and_then(|placed| self.update_container(&placed.container))))
    }

    fn crash(&mut self) -> Option<Result<()>> {
        Some(self.daemon.crash().and_then(|()| self.wait_ready()))
    }
}
