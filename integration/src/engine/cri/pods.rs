//! Pods and their containers, in the steps that kubelet takes.

use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};
use std::{fs, iter};

use k8s_cri::v1::{
    CdiDevice, ContainerConfig, ContainerMetadata, ContainerState, ContainerStatus, ContainerStatusRequest,
    CreateContainerRequest, Device, ExecSyncRequest, IdMapping, ImageSpec, KeyValue, LinuxContainerConfig,
    LinuxContainerResources, LinuxContainerSecurityContext, LinuxPodSandboxConfig, LinuxSandboxSecurityContext, Mount,
    NamespaceMode, NamespaceOption, PodSandboxConfig, PodSandboxMetadata, PodSandboxStatusRequest,
    RemoveContainerRequest, RemovePodSandboxRequest, RunPodSandboxRequest, StartContainerRequest, StopContainerRequest,
    StopPodSandboxRequest, UpdateContainerResourcesRequest, UserNamespace,
};
use serde_json::Value;

use super::Cri;
use super::client::{Told, ran};
use super::log::streams;
use crate::engine::containerd::reference;
use crate::engine::{Ask, Through};
use crate::error::{Context, Error, Result};
use crate::process::{Ran, text};

/// How long a container may take to end by itself.
const END: Duration = Duration::from_secs(60);

/// Pods of one name, one after the other, are still different pods.
static NEXT: AtomicU32 = AtomicU32::new(0);

/// Ids of a pod with a user namespace: those of no user.
const MAP: IdMapping = IdMapping { host_id: 100_000, container_id: 0, length: 65_536 };

/// A pod, as its user describes it.
#[derive(Clone, Debug, Default)]
pub struct PodAsk {
    /// Its name, unique in the engine.
    pub name: String,
    /// Annotations.
    pub annotations: Vec<(String, String)>,
    /// Labels.
    pub labels: Vec<(String, String)>,
    /// A network of its own, made by CNI plugins, in place of the host's.
    pub cni: bool,
    /// Whether its containers may be privileged.
    pub privileged: bool,
    /// A user namespace with other ids.
    pub user_namespace: bool,
    /// The handler.
    pub through: Through,
    /// Names no handler: the daemon's default is taken.
    pub unnamed: bool,
}

impl PodAsk {
    /// A pod with the host's network.
    pub fn new(name: &str) -> Self {
        Self { name: name.into(), ..Self::default() }
    }

    /// One more annotation.
    #[must_use]
    pub fn annotated(mut self, key: &str, value: &str) -> Self {
        self.annotations.push((key.into(), value.into()));
        self
    }
}

/// A pod that is up: its sandbox.
#[derive(Clone, Debug)]
pub struct Pod {
    /// The sandbox's id.
    pub id: String,
    config: PodSandboxConfig,
}

/// A container that was created.
#[derive(Clone, Debug)]
pub struct Container {
    /// Its id.
    pub id: String,
    log: PathBuf,
}

/// The calls; for each the trouble that the engine has with it stays apart from ours.
impl Cri {
    pub(super) fn run_pod(&self, ask: &PodAsk) -> Told<Pod> {
        let config = self.pod_config(ask);
        let runtime_handler = match ask.through {
            _ if ask.unnamed => "",
            Through::Quilt => "quilt-gpu",
            Through::Plain => "plain",
        }
        .to_owned();
        let request = RunPodSandboxRequest { config: Some(config.clone()), runtime_handler };
        let answer =
            self.client.talk(&format!("run pod {}", ask.name), async |cri| cri.run_pod_sandbox(request).await)?;
        Ok(Pod { id: answer.pod_sandbox_id, config })
    }

    fn pod_config(&self, ask: &PodAsk) -> PodSandboxConfig {
        let uid = format!("{}-{}", ask.name, NEXT.fetch_add(1, Ordering::Relaxed));
        let security_context = LinuxSandboxSecurityContext {
            namespace_options: Some(namespaces(ask)),
            privileged: ask.privileged,
            ..LinuxSandboxSecurityContext::default()
        };
        PodSandboxConfig {
            hostname: if ask.cni { ask.name.clone() } else { String::new() },
            log_directory: self.daemon.folder().join("logs").join(&uid).display().to_string(),
            metadata: Some(PodSandboxMetadata { name: ask.name.clone(), uid, namespace: "tests".into(), attempt: 0 }),
            labels: ask.labels.iter().cloned().collect(),
            annotations: ask.annotations.iter().cloned().collect(),
            linux: Some(LinuxPodSandboxConfig {
                cgroup_parent: self.daemon.cgroup(),
                security_context: Some(security_context),
                ..LinuxPodSandboxConfig::default()
            }),
            ..PodSandboxConfig::default()
        }
    }

    pub(super) fn create_in(
        &self,
        pod: &Pod,
        ask: &Ask,
        attempt: u32,
        change: impl FnOnce(&mut ContainerConfig),
    ) -> Told<Container> {
        let log_path = format!("{}-{attempt}.log", ask.name);
        let mut config = container_config(pod, ask)?;
        config.metadata = Some(ContainerMetadata { name: ask.name.clone(), attempt });
        config.log_path.clone_from(&log_path);
        change(&mut config);
        let log = PathBuf::from(&pod.config.log_directory).join(log_path);
        let request = CreateContainerRequest {
            pod_sandbox_id: pod.id.clone(),
            config: Some(config),
            sandbox_config: Some(pod.config.clone()),
        };
        let what = format!("create container {}", ask.name);
        let id = self.client.talk(&what, async |cri| cri.create_container(request).await)?.container_id;
        Ok(Container { id, log })
    }

    pub(super) fn start_in(&self, container: &Container) -> Told<Ran> {
        let request = StartContainerRequest { container_id: container.id.clone() };
        let what = format!("start container {}", container.id);
        self.client.talk(&what, async |cri| cri.start_container(request).await)?;
        Ok(ran(what, 0, format!("{}\n", container.id), String::new()))
    }

    pub(super) fn status_of(&self, container: &Container) -> Told<(ContainerStatus, Value)> {
        let request = ContainerStatusRequest { container_id: container.id.clone(), verbose: true };
        let answer = self.client.talk("container status", async |cri| cri.container_status(request).await)?;
        let status = answer.status.ok_or_else(|| Error::new("a container without a status"))?;
        Ok((status, parsed(answer.info.get("info"))?))
    }

    pub(super) fn end_of(&self, container: &Container) -> Told<Ran> {
        let deadline = Instant::now() + END;
        let status = loop {
            let status = self.status_of(container)?.0;
            if status.state == ContainerState::ContainerExited as i32 {
                break status;
            }
            if Instant::now() > deadline {
                return Err(Error::new(format!("{} did not end within {} s", container.id, END.as_secs())).into());
            }
            std::thread::sleep(Duration::from_millis(10));
        };
        self.remove_container(container)?;
        let log = fs::read_to_string(&container.log).cannot(|| format!("read {}", container.log.display()))?;
        let (out, err) = streams(&log);
        Ok(ran(format!("container {}", container.id), status.exit_code, out, err))
    }

    pub(super) fn exec_sync(&self, container: &Container, args: &[&str]) -> Told<Ran> {
        let cmd: Vec<String> = args.iter().map(|arg| (*arg).to_owned()).collect();
        let request = ExecSyncRequest { container_id: container.id.clone(), cmd, timeout: 30 };
        let answer = self.client.talk("exec", async |cri| cri.exec_sync(request).await)?;
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let command = format!("exec {args:?} in {}", container.id);
        Ok(ran(command, answer.exit_code, text(&answer.stdout), text(&answer.stderr)))
    }

    pub(super) fn stop_container(&self, container: &Container) -> Told<Ran> {
        let request = StopContainerRequest { container_id: container.id.clone(), timeout: 0 };
        let what = format!("stop container {}", container.id);
        self.client.talk(&what, async |cri| cri.stop_container(request).await)?;
        Ok(ran(what, 0, String::new(), String::new()))
    }

    pub(super) fn remove_container(&self, container: &Container) -> Told<()> {
        let request = RemoveContainerRequest { container_id: container.id.clone() };
        self.client.talk("remove container", async |cri| cri.remove_container(request).await)?;
        Ok(())
    }

    pub(super) fn remove_pod(&self, pod: &Pod) -> Told<Ran> {
        let what = format!("remove pod {}", pod.id);
        let request = StopPodSandboxRequest { pod_sandbox_id: pod.id.clone() };
        self.client.talk(&what, async |cri| cri.stop_pod_sandbox(request).await)?;
        let request = RemovePodSandboxRequest { pod_sandbox_id: pod.id.clone() };
        self.client.talk(&what, async |cri| cri.remove_pod_sandbox(request).await)?;
        Ok(ran(what, 0, String::new(), String::new()))
    }

    pub(super) fn update_container(&self, container: &Container) -> Told<Ran> {
        let linux =
            LinuxContainerResources { cpu_period: 100_000, cpu_quota: 50_000, cpu_shares: 512, ..Default::default() };
        let request = UpdateContainerResourcesRequest {
            container_id: container.id.clone(),
            linux: Some(linux),
            ..UpdateContainerResourcesRequest::default()
        };
        let what = format!("update container {}", container.id);
        self.client.talk(&what, async |cri| cri.update_container_resources(request).await)?;
        Ok(ran(what, 0, String::new(), String::new()))
    }

    pub(super) fn pid_of_sandbox(&self, pod: &Pod) -> Told<i32> {
        let request = PodSandboxStatusRequest { pod_sandbox_id: pod.id.clone(), verbose: true };
        let answer = self.client.talk("pod status", async |cri| cri.pod_sandbox_status(request).await)?;
        let pid = parsed(answer.info.get("info"))?["pid"].as_i64().and_then(|pid| i32::try_from(pid).ok());
        Ok(pid.ok_or_else(|| Error::new(format!("the sandbox of {} has no pid", pod.id)))?)
    }
}

fn namespaces(ask: &PodAsk) -> NamespaceOption {
    let network = if ask.cni { NamespaceMode::Pod } else { NamespaceMode::Node };
    let user = || UserNamespace { mode: NamespaceMode::Pod as i32, uids: vec![MAP], gids: vec![MAP] };
    NamespaceOption {
        network: network as i32,
        pid: NamespaceMode::Container as i32,
        userns_options: ask.user_namespace.then(user),
        ..NamespaceOption::default()
    }
}

fn container_config(pod: &Pod, ask: &Ask) -> Result<ContainerConfig> {
    let sandbox = pod.config.linux.as_ref().and_then(|linux| linux.security_context.as_ref());
    let security_context = LinuxContainerSecurityContext {
        namespace_options: sandbox.and_then(|context| context.namespace_options.clone()),
        privileged: ask.privileged,
        ..LinuxContainerSecurityContext::default()
    };
    let mount = |(source, target): &(PathBuf, String)| {
        Ok(Mount { host_path: text(source)?.into(), container_path: target.clone(), ..Mount::default() })
    };
    let device = |path: &PathBuf| {
        let path = text(path)?.to_owned();
        Ok(Device { host_path: path.clone(), container_path: path, permissions: "rwm".into() })
    };
    Ok(ContainerConfig {
        image: Some(ImageSpec { image: reference(&ask.image), ..ImageSpec::default() }),
        command: ask.args.clone(),
        envs: ask.env.iter().map(|(key, value)| KeyValue { key: key.clone(), value: value.clone() }).collect(),
        mounts: ask.binds.iter().map(mount).collect::<Result<_>>()?,
        devices: ask.devices.iter().map(device).collect::<Result<_>>()?,
        cdi_devices: ask.cdi.iter().map(|name| CdiDevice { name: name.clone() }).collect(),
        annotations: ask.node_annotations.iter().cloned().collect(),
        linux: Some(LinuxContainerConfig { security_context: Some(security_context), resources: None }),
        ..ContainerConfig::default()
    })
}

/// What a verbose answer adds, which is JSON in a string.
fn parsed(info: Option<&String>) -> Result<Value> {
    let text = iter::once("{}").chain(info.map(String::as_str)).last().unwrap_or_default();
    serde_json::from_str(text).cannot(|| format!("parse {text:?}"))
}
