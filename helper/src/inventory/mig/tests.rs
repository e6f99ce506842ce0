use std::collections::BTreeMap;

use contract::inventory::Instances as Named;

use super::*;
use crate::inventory::nodes::AtName;

const PCI: &str = "0000:41:00.0";

/// What procfs, the dev root and a source say of one GPU with device minor 3.
struct Made {
    facts: Facts,
    capabilities: Vec<Capability>,
    nodes: BTreeMap<String, AtName>,
    told: Option<ToldGpu>,
}

fn minor_of(gi: u32, ci: Option<u32>) -> u32 {
    3 + 135 * 3 + 9 * gi + ci.map_or(0, |ci| ci + 1)
}

fn char_node(minor: u32) -> AtName {
    AtName::Char { number: (236, minor), mode: 0o444, owner: (0, 0) }
}

impl Made {
    /// GPU instances with compute instances, everything in order; no source.
    fn new(instances: &[(u32, &[u32])]) -> Self {
        let (mut names, mut capabilities, mut nodes) = (Vec::new(), Vec::new(), BTreeMap::new());
        let mut add = |name: String, minor| {
            capabilities.push(Capability { name, by_file: Some(minor), by_table: Some(minor) });
            nodes.insert(format!("nvidia-caps/nvidia-cap{minor}"), char_node(minor));
        };
        for (gi, cis) in instances {
            add(format!("gpu3/gi{gi}"), minor_of(*gi, None));
            for ci in *cis {
                names.push(format!("gpu3/gi{gi}/ci{ci}"));
                add(format!("gpu3/gi{gi}/ci{ci}"), minor_of(*gi, Some(*ci)));
            }
            names.extend(cis.is_empty().then(|| format!("gpu3/gi{gi}")));
        }
        // Another GPU's are not this one's, whatever their names begin with.
        names.push("gpu31/gi1/ci0".into());
        let facts = Facts { majors: vec![("nvidia-caps".into(), 236)], instances: Named(names), ..Facts::default() };
        Self { facts, capabilities, nodes, told: None }
    }

    fn told(mut self, mig: bool, instances: &[(u32, u32, u32, &str)]) -> Self {
        let one = |&(index, gi, ci, profile): &(u32, u32, u32, &str)| ToldInstance {
            index,
            gi,
            ci,
            uuid: Some(format!("MIG-{gi}-{ci}")),
            profile: Some(profile.into()),
            memory_mb: Some(9856),
        };
        let mig = Some(MigMode { enabled: mig, pending: mig });
        self.told = Some(ToldGpu {
            pci: PCI.into(),
            mig,
            instances: instances.iter().map(one).collect(),
            ..ToldGpu::default()
        });
        self
    }

    fn cut(&self) -> (Gpu, Option<Finding>) {
        let mut gpu = Gpu { pci: PCI.into(), index: Some(1), minor: Some(3), ..Gpu::default() };
        let look = |name: &str| self.nodes.get(name).cloned().unwrap_or(AtName::Missing);
        let dev = DevRoot { path: "/dev", look: &look };
        let instances = Instances { facts: &self.facts, capabilities: &self.capabilities, dev: &dev };
        let finding = instances.cut(&mut gpu, self.told.as_ref());
        (gpu, finding)
    }
}

/// Partitions as `<index> <gi>/<ci> <profile> <uuid> <nodes>`.
fn parts(gpu: &Gpu) -> Vec<String> {
    let part = |part: &Partition| {
        let nodes = part.nodes.read().unwrap();
        let nodes: Vec<String> = nodes.iter().map(|node| format!("{}:{}", node.major, node.minor)).collect();
        let uuid = part.uuid.as_deref().unwrap_or("-");
        format!("{} {}/{} {} {uuid} {}", part.index, part.gi, part.ci, part.profile, nodes.join(","))
    };
    gpu.partitions.iter().map(part).collect()
}

#[test]
fn instances_by_procfs_alone_and_with_what_a_source_tells() {
    let (gpu, finding) = Made::new(&[(11, &[0]), (2, &[0, 1])]).cut();
    let nodes = ["236:426,236:427", "236:426,236:428", "236:507,236:508"];
    let expected: Vec<String> = [(0, "2/0"), (1, "2/1"), (2, "11/0")]
        .iter()
        .zip(nodes)
        .map(|((index, place), nodes)| format!("{index} {place} unknown - {nodes}"))
        .collect();
    assert_eq!((parts(&gpu), finding), (expected, None));
    assert_eq!(gpu.mig, Some(MigMode { enabled: true, pending: true }));
    assert!(gpu.unavailable.is_none() && !gpu.usable());

    let told = [(0, 11, 0, "1g.10gb"), (1, 2, 1, "1c.2g.20gb"), (2, 2, 0, "1c.2g.20gb")];
    let (gpu, _) = Made::new(&[(11, &[0]), (2, &[0, 1])]).told(true, &told).cut();
    assert_eq!(parts(&gpu)[0], "2 2/0 1c.2g.20gb MIG-2-0 236:426,236:427");
    assert_eq!(parts(&gpu)[2], "0 11/0 1g.10gb MIG-11-0 236:507,236:508");

    // A source that calls every instance 0, and one that tells only some.
    let (gpu, _) = Made::new(&[(1, &[0]), (2, &[0])]).told(true, &[(0, 1, 0, "a"), (0, 2, 0, "b")]).cut();
    assert_eq!(gpu.partitions.iter().map(|part| part.index).collect::<Vec<_>>(), [0, 1]);
    let (gpu, _) = Made::new(&[(1, &[0]), (2, &[0])]).told(true, &[(0, 2, 0, "b")]).cut();
    let seen: Vec<_> = gpu.partitions.iter().map(|part| (part.index, part.profile.as_str())).collect();
    assert_eq!(seen, [(0, "unknown"), (1, "b")]);
}

/// D21: neither a whole GPU nor one with instances.
#[test]
fn mig_mode_without_instances() {
    for (made, words) in [
        (Made::new(&[]).told(true, &[]), "there are no instances; make some with `nvidia-smi mig -i 0000:41:00.0 -cgi"),
        (Made::new(&[(1, &[])]).told(true, &[]), "have no compute instances; make them with"),
        // The folder alone says that the mode is on.
        (Made::new(&[(1, &[])]), "have no compute instances"),
    ] {
        let (gpu, _) = made.cut();
        let why = gpu.unavailable.clone().unwrap();
        assert_eq!((why.state, gpu.usable(), gpu.partitions.len()), (State::MigEmpty, false, 0));
        assert!(why.why.contains(words), "{}", why.why);
    }
    for made in [Made::new(&[]), Made::new(&[]).told(false, &[])] {
        let (gpu, _) = made.cut();
        assert!(gpu.usable(), "{gpu:?}");
    }
}

/// A missing capability node means no entry, never the parent.
#[test]
fn an_instance_without_its_node_is_not_granted() {
    type Change = fn(&mut Made);
    let (of_gi, of_ci) = (minor_of(1, None), minor_of(1, Some(0)));
    assert_eq!((of_gi, of_ci), (417, 418));
    let cases: [(Change, State, &str); 8] = [
        (
            |made| drop(made.nodes.remove("nvidia-caps/nvidia-cap417")),
            State::NodeMissing,
            "/dev/nvidia-caps/nvidia-cap417 does not exist; run `nvidia-modprobe -f /proc/driver/nvidia/capabilities/gpu3/mig/gi1/access`, or `mknod -m 444 /dev/nvidia-caps/nvidia-cap417 c 236 417`",
        ),
        (
            |made| drop(made.nodes.remove("nvidia-caps/nvidia-cap418")),
            State::NodeMissing,
            "/dev/nvidia-caps/nvidia-cap418 does not exist; run `nvidia-modprobe -f /proc/driver/nvidia/capabilities/gpu3/mig/gi1/ci0/access`",
        ),
        (
            |made| drop(made.nodes.insert("nvidia-caps/nvidia-cap418".into(), char_node(427))),
            State::NodeMismatch,
            "nvidia-cap418 is device 236:427",
        ),
        (|made| made.facts.majors.clear(), State::NodeMissing, "the kernel has no nvidia-caps devices"),
        (|made| made.capabilities.clear(), State::NodeMissing, "the driver tells no capability for it in /proc/driver"),
        (
            |made| made.capabilities[1].by_file = Some(999),
            State::Ambiguous,
            "capability 999 by its access file and 418 by",
        ),
        (
            |made| (made.capabilities[1].by_file, made.capabilities[1].by_table) = (None, Some(417)),
            State::Ambiguous,
            "gives capability 417 to gpu3/gi1 and to gpu3/gi1/ci0",
        ),
        // The source knows it, procfs does not show it.
        (
            |made| {
                made.facts.instances.0.retain(|name| !name.contains("gi1/"));
                made.capabilities.retain(|capability| !capability.name.contains("gi1"));
            },
            State::NodeMissing,
            "the driver tells no capability for it in /proc/driver/nvidia/capabilities/gpu3/mig/gi1/access",
        ),
    ];
    for (change, state, words) in cases {
        let mut made = Made::new(&[(1, &[0]), (2, &[0])]).told(true, &[(0, 1, 0, "1g.10gb"), (1, 2, 0, "1g.10gb")]);
        change(&mut made);
        let (gpu, finding) = made.cut();
        let first = &gpu.partitions[0];
        let why = first.unavailable.clone().unwrap();
        assert_eq!((why.state, first.nodes.read().unwrap().len()), (state, 0), "{words}");
        assert!(why.why.contains(words), "{} has no {words}", why.why);
        assert!(gpu.unavailable.is_none() && !gpu.usable() && gpu.partitions.len() == 2);
        let message = finding.unwrap().message;
        assert!(
            message.contains(" of 2 MIG instances of 0000:41:00.0 cannot be granted; 1:0: ") && message.contains(words),
            "{message}"
        );
    }
    // By one of the two alone.
    let mut made = Made::new(&[(1, &[0])]);
    made.capabilities.iter_mut().for_each(|capability| capability.by_file = None);
    assert!(made.cut().0.partitions[0].unavailable.is_none());
    made.capabilities
        .iter_mut()
        .for_each(|capability| (capability.by_file, capability.by_table) = (capability.by_table, None));
    assert!(made.cut().0.partitions[0].unavailable.is_none());
}
