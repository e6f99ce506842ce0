//! MIG instances of GPUs, from the driver's capability files and what a source tells of them. No I/O.
//!
//! Procfs says which instances there are; a source adds UUID, profile and memory. An instance that lacks a capability node
//! cannot be granted: never is its GPU instead.

use contract::gpu::{Gpu, MigMode, Partition, State, UNKNOWN_PROFILE, Unavailable};
use contract::inventory::{DeviceNode, Facts, Finding, Role};
use node::mig::Capability;

use super::nodes::{DevRoot, Trouble};
use super::told::{ToldGpu, ToldInstance};

/// Where the driver shows capabilities.
const CAPABILITIES: &str = "/proc/driver/nvidia/capabilities";

/// What the node says about instances.
pub(crate) struct Instances<'a> {
    pub(crate) facts: &'a Facts,
    pub(crate) capabilities: &'a [Capability],
    pub(crate) dev: &'a DevRoot<'a>,
}

impl Instances<'_> {
    /// Gives a GPU its partitions and its MIG mode.
    pub(crate) fn cut(&self, gpu: &mut Gpu, told: Option<&ToldGpu>) -> Option<Finding> {
        let shown = gpu.minor.map(|minor| self.of(minor)).unwrap_or_default();
        let told_ones = told.map(|told| told.instances.as_slice()).unwrap_or_default();
        gpu.mig = told.and_then(|told| told.mig).or(gpu.mig);
        if !shown.is_empty() {
            // Instances are there only in MIG mode, whatever was told a moment before.
            let pending = gpu.mig.is_none_or(|mig| mig.pending);
            gpu.mig = Some(MigMode { enabled: true, pending });
        }
        let mut places: Vec<(u32, u32)> = shown.iter().filter_map(|(gi, ci)| Some((*gi, (*ci)?))).collect();
        places.extend(told_ones.iter().map(|one| (one.gi, one.ci)));
        places.sort_unstable();
        places.dedup();
        if places.is_empty() && gpu.mig.is_some_and(|mig| mig.enabled) && gpu.unavailable.is_none() {
            gpu.unavailable = Some(empty(gpu, !shown.is_empty()));
        }
        let by_source = positions(&places, told_ones);
        gpu.partitions = (0..)
            .zip(&places)
            .map(|(position, &(gi, ci))| {
                let told = told_ones.iter().find(|one| (one.gi, one.ci) == (gi, ci));
                let index = if by_source { told.map_or(position, |told| told.index) } else { position };
                self.partition(gpu, index, (gi, ci), told)
            })
            .collect();
        finding(gpu)
    }

    /// The instances of the GPU with this device minor; a GPU instance without a compute instance has no second number.
    fn of(&self, minor: u32) -> Vec<(u32, Option<u32>)> {
        let start = format!("gpu{minor}/gi");
        let place = |name: &String| {
            let rest = name.strip_prefix(&start)?;
            match rest.split_once("/ci") {
                Some((gi, ci)) => Some((gi.parse().ok()?, Some(ci.parse().ok()?))),
                None => Some((rest.parse().ok()?, None)),
            }
        };
        self.facts.instances.0.iter().filter_map(place).collect()
    }

    fn partition(&self, gpu: &Gpu, index: u32, (gi, ci): (u32, u32), told: Option<&ToldInstance>) -> Partition {
        let instance = format!("gpu{}/gi{gi}", gpu.minor.map_or_else(|| "?".to_owned(), |minor| minor.to_string()));
        let node = |name: &str| self.node(name, Role::Caps);
        let nodes = node(&instance).and_then(|of_gpu| Ok(vec![of_gpu, node(&format!("{instance}/ci{ci}"))?]));
        let (nodes, unavailable) = match nodes {
            Ok(nodes) => (nodes, None),
            Err(why) => (Vec::new(), Some(why)),
        };
        Partition {
            kind: "mig".into(),
            index,
            gi,
            ci,
            profile: told.and_then(|told| told.profile.clone()).unwrap_or_else(|| UNKNOWN_PROFILE.to_owned()),
            uuid: told.and_then(|told| told.uuid.clone()),
            memory_mb: told.and_then(|told| told.memory_mb),
            nodes: nodes.into(),
            unavailable,
        }
    }

    /// The nodes that manage all instances, as far as they are what the driver says.
    pub(crate) fn management(&self) -> impl Iterator<Item = DeviceNode> {
        let names = [("config", Role::MigConfig), ("monitor", Role::MigMonitor)];
        names.into_iter().filter_map(|(name, role)| self.node(name, role).ok())
    }

    /// The node of a capability: an instance's, or one that concerns all.
    fn node(&self, instance: &str, role: Role) -> Result<DeviceNode, Unavailable> {
        let file = match instance.split_once('/') {
            Some((gpu, rest)) => format!("{CAPABILITIES}/{gpu}/mig/{rest}/access"),
            None => format!("{CAPABILITIES}/mig/{instance}"),
        };
        let Some(minor) = self.minor(instance)? else {
            let why = format!("the driver tells no capability for it in {file}");
            return Err(Unavailable::new(State::NodeMissing, why));
        };
        let Some((_, major)) = self.facts.majors.iter().find(|(name, _)| name == "nvidia-caps") else {
            return Err(Unavailable::new(
                State::NodeMissing,
                "the kernel has no nvidia-caps devices; run `nvidia-modprobe`",
            ));
        };
        let number = (*major, minor);
        self.dev.node(&format!("nvidia-caps/nvidia-cap{minor}"), number, role).map_err(|trouble| match trouble {
            Trouble::Missing(path) => {
                let mode = if role == Role::MigConfig { "400" } else { "444" };
                let mend = format!("run `nvidia-modprobe -f {file}`, or `mknod -m {mode} {path} c {major} {minor}`");
                Unavailable::new(State::NodeMissing, format!("{path} does not exist; {mend}"))
            }
            Trouble::Mismatch(message) => Unavailable::new(State::NodeMismatch, message),
        })
    }

    /// The minor of an instance's capability; its file and the driver's table must agree, and no other instance have it.
    fn minor(&self, instance: &str) -> Result<Option<u32>, Unavailable> {
        let told = |capability: &Capability| capability.by_file.or(capability.by_table);
        let Some(own) = self.capabilities.iter().find(|capability| capability.name == instance) else {
            return Ok(None);
        };
        if let (Some(file), Some(table)) = (own.by_file, own.by_table)
            && file != table
        {
            let why = format!("{instance} has capability {file} by its access file and {table} by mig-minors");
            return Err(Unavailable::new(State::Ambiguous, why));
        }
        let minor = told(own);
        let twin = self.capabilities.iter().find(|other| other.name != instance && told(other) == minor);
        match (minor, twin) {
            (Some(minor), Some(twin)) => {
                let why = format!("the driver gives capability {minor} to {instance} and to {}", twin.name);
                Err(Unavailable::new(State::Ambiguous, why))
            }
            _ => Ok(minor),
        }
    }
}

/// Whether the source's positions tell instances apart: some sources call all of them 0.
fn positions(places: &[(u32, u32)], told: &[ToldInstance]) -> bool {
    let mut indexes: Vec<u32> = told.iter().map(|one| one.index).collect();
    indexes.sort_unstable();
    indexes.dedup();
    indexes.len() == places.len() && told.len() == places.len()
}

/// D21: only the mode survives a boot.
fn empty(gpu: &Gpu, cut: bool) -> Unavailable {
    let pci = &gpu.pci;
    let why = if cut {
        format!(
            "MIG mode is on, and its GPU instances have no compute instances; make them with `nvidia-smi mig -i {pci} -cci`"
        )
    } else {
        format!(
            "MIG mode is on and there are no instances; make some with `nvidia-smi mig -i {pci} -cgi PROFILE -C`, or leave the mode with `nvidia-smi -i {pci} -mig 0`"
        )
    };
    Unavailable::new(State::MigEmpty, why)
}

/// What is wrong with a GPU's instances.
fn finding(gpu: &Gpu) -> Option<Finding> {
    let unusable = || gpu.partitions.iter().filter(|part| part.unavailable.is_some());
    let first = unusable().next()?;
    let why = first.unavailable.as_ref()?;
    let (bad, all, name) = (unusable().count(), gpu.partitions.len(), gpu.short_name(first));
    let message = format!("{bad} of {all} MIG instances of {} cannot be granted; {name}: {}", gpu.pci, why.why);
    Some(Finding { code: "mig-instance".into(), stops: false, message })
}

#[cfg(test)]
mod tests;
