//! What must be true: the node, who holds what, and what a request may be answered. Pure.

use std::collections::{BTreeMap, BTreeSet};

use integration::{Held, Instance, NodeState};

use crate::random::{Ask, By, Turn};

/// The two driver versions that have files on the node.
pub(crate) const VERSIONS: [&str; 2] = ["535.309.01", "525.105.17"];
const UVM_MAJORS: [u64; 2] = [511, 507];

/// Of a GPU that NVIDIA's driver does not have, nobody looks before each create whether it is still on the bus.
const NOT_USABLE: [&str; 2] = ["UNKNOWN_GPU", "GPU_UNAVAILABLE"];

/// How many containers are one owner's.
const OWNED: u64 = 4;

/// The first GPU instance of a GPU that is cut.
const FIRST_INSTANCE: u64 = 7;

/// A GPU as it was granted: by its address and by the device number that its container was given; and which part of it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Grant {
    pub(crate) pci: String,
    pub(crate) minor: u64,
    /// GPU instance and compute instance; the whole without.
    pub(crate) part: Option<(u64, u64)>,
}

impl Grant {
    /// Whether two cannot have two holders.
    fn excludes(&self, other: &Self) -> bool {
        let one_gpu = self.pci == other.pci || self.minor == other.minor;
        one_gpu && (self.part == other.part || self.part.is_none() || other.part.is_none())
    }
}

/// A container that has GPUs as long as it lives.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Holder {
    pub(crate) grants: BTreeSet<Grant>,
    /// The low-level runtime knows it.
    pub(crate) known: bool,
    /// Its process runs.
    pub(crate) runs: bool,
    /// Its owner's others, who share as well, may have them too.
    pub(crate) shared: bool,
    /// It was deleted: nobody joins what is left of it.
    pub(crate) left: bool,
}

/// What the node's agent reserved, and the node then.
#[derive(Clone, Debug)]
pub(crate) struct Reserved {
    pub(crate) token: String,
    pub(crate) grants: BTreeSet<Grant>,
    node: NodeState,
    libraries: u64,
}

impl Holder {
    pub(crate) fn lives(&self) -> bool {
        self.known || self.runs
    }
}

#[derive(Clone, Debug)]
pub(crate) struct Model {
    pub(crate) node: NodeState,
    /// How often a library was replaced.
    pub(crate) libraries: u64,
    /// Who lives.
    pub(crate) holders: BTreeMap<u64, Holder>,
    /// What nobody has and nobody else gets.
    pub(crate) reserved: Vec<Reserved>,
}

/// Whose the containers are, in the word of the operator: of the first ones one owner's, of the others nobody's.
pub(crate) fn is_owned(c: u64) -> bool {
    c < OWNED
}

/// What a create must come to.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    /// So many of these.
    Granted { from: BTreeSet<Grant>, many: usize },
    /// The same, or refused because the node is another than when they were reserved.
    Perhaps { from: BTreeSet<Grant>, many: usize },
    /// Refused with one of these codes.
    Refused(&'static [&'static str]),
}

impl Model {
    pub(crate) fn new(node: NodeState) -> Self {
        Self { node, libraries: 0, holders: BTreeMap::new(), reserved: Vec::new() }
    }

    /// What is there: GPUs that NVIDIA's driver has, those that are cut by their parts.
    fn usable(&self) -> BTreeSet<Grant> {
        let mut all = BTreeSet::new();
        for (gpu, _) in self.node.gpus.iter().filter(|(_, held)| *held == Held::Nvidia) {
            let grant = |part| Grant { pci: gpu.pci.clone(), minor: gpu.minor, part };
            let parts = self.node.instances.iter().filter(|instance| instance.gpu == gpu.minor);
            let parts: Vec<_> = parts.map(|instance| grant(Some((instance.gi, instance.ci)))).collect();
            all.extend(if parts.is_empty() { vec![grant(None)] } else { parts });
        }
        all
    }

    /// What of it is to be had; by who shares, what its owner shares already as well.
    fn free(&self, shares: bool) -> BTreeSet<Grant> {
        let in_the_way = self.holders.values().filter(|holder| !shares || !holder.shared || holder.left);
        let reserved = self.reserved.iter().flat_map(|reserved| &reserved.grants);
        let taken: Vec<&Grant> = in_the_way.flat_map(|holder| &holder.grants).chain(reserved).collect();
        self.usable().into_iter().filter(|grant| !taken.iter().any(|other| grant.excludes(other))).collect()
    }

    /// The whole GPUs that are to be had.
    pub(crate) fn free_gpus(&self) -> BTreeSet<Grant> {
        self.free_to(false)
    }

    fn free_to(&self, shares: bool) -> BTreeSet<Grant> {
        self.free(shares).into_iter().filter(|grant| grant.part.is_none()).collect()
    }

    pub(crate) fn answer(&self, c: u64, ask: &Ask) -> Answer {
        // Who is there already is not made a second time.
        if self.holders.contains_key(&c) {
            return Answer::Refused(&["UNSAFE_SPEC"]);
        }
        match ask {
            Ask::Count(many) | Ask::Waiting(many) => self.by_count(*many as usize, false),
            Ask::Shared(_) if !is_owned(c) => Answer::Refused(&["POLICY"]),
            Ask::Shared(many) => self.by_count(*many as usize, true),
            Ask::Reserved => self.by_reservation(),
            Ask::Named { gpu, .. } => self.by_name(*gpu, None),
            Ask::Part { gpu, nth } => self.by_name(*gpu, Some((FIRST_INSTANCE + nth, 0))),
        }
    }

    fn by_reservation(&self) -> Answer {
        let Some(reserved) = self.reserved.first() else { return Answer::Refused(&["CONTRACT_UNTRUSTED"]) };
        let (from, many) = (reserved.grants.clone(), reserved.grants.len());
        match reserved.node == self.node && reserved.libraries == self.libraries {
            true => Answer::Granted { from, many },
            false => Answer::Perhaps { from, many },
        }
    }

    /// What a reservation of so many must come to.
    pub(crate) fn by_count(&self, many: usize, shares: bool) -> Answer {
        let usable = self.usable().iter().filter(|grant| grant.part.is_none()).count();
        let free = self.free_to(shares);
        match many {
            _ if many > usable => Answer::Refused(&NOT_USABLE),
            _ if many > free.len() => Answer::Refused(&["CAPACITY_FULL"]),
            _ => Answer::Granted { from: free, many },
        }
    }

    fn by_name(&self, gpu: u64, part: Option<(u64, u64)>) -> Answer {
        let Some((gpu, _)) = self.node.gpus.get(gpu as usize) else { return Answer::Refused(&[]) };
        let grant = Grant { pci: gpu.pci.clone(), minor: gpu.minor, part };
        if !self.usable().contains(&grant) {
            return Answer::Refused(&NOT_USABLE);
        }
        match self.free(false).contains(&grant) {
            true => Answer::Granted { from: [grant].into(), many: 1 },
            false => Answer::Refused(&["CAPACITY_FULL"]),
        }
    }

    /// The words of a request on this node.
    pub(crate) fn words(&self, ask: &Ask) -> String {
        match ask {
            Ask::Count(many) => format!("QUILT_GPU_COUNT={many}"),
            // Two entries where the spec has one.
            Ask::Shared(many) => format!("QUILT_GPU_COUNT={many}\",\"QUILT_GPU_SHARING=owner"),
            Ask::Waiting(many) => format!("QUILT_GPU_COUNT={many}\",\"QUILT_GPU_WAIT=50s"),
            Ask::Reserved => {
                let first = self.reserved.first().map_or("00000000000000000000000000000000", |first| &first.token);
                format!("QUILT_GPU_CONTRACT={first}")
            }
            Ask::Part { gpu, nth } => {
                let uuid = self.node.gpus.get(*gpu as usize).map(|(gpu, _)| gpu.uuid.clone()).unwrap_or_default();
                format!("QUILT_GPU_IDS=MIG-{uuid}/{}/0", FIRST_INSTANCE + nth)
            }
            Ask::Named { gpu, by } => {
                let name = self.node.gpus.get(*gpu as usize).map(|(gpu, _)| match by {
                    By::Address => gpu.pci.clone(),
                    By::Uuid => gpu.uuid.clone(),
                    By::Minor => gpu.name(),
                });
                format!("QUILT_GPU_IDS={}", name.unwrap_or_default())
            }
        }
    }

    /// The node after this turn. A library of its own version is another matter: see the world.
    pub(crate) fn turned(&self, turn: Turn) -> NodeState {
        let mut node = self.node.clone();
        let other = |pair: [u64; 2], now: u64| if now == pair[0] { pair[1] } else { pair[0] };
        let held = |node: &mut NodeState, gpu: u64, held: Held| {
            if let Some(gpu) = node.gpus.get_mut(gpu as usize) {
                gpu.1 = held;
            }
        };
        match turn {
            Turn::Version => node.version = VERSIONS[usize::from(node.version == VERSIONS[0])].into(),
            Turn::Major => node.uvm = other(UVM_MAJORS, node.uvm),
            Turn::Swap(a, b) => {
                let minor = |gpu: u64| node.gpus[gpu as usize].0.minor;
                let (of_a, of_b) = (minor(a), minor(b));
                node.gpus[a as usize].0.minor = of_b;
                node.gpus[b as usize].0.minor = of_a;
                // Instances are numbered by the minor, and stay their GPU's.
                let moved = |gpu: u64| {
                    if gpu == of_a {
                        of_b
                    } else if gpu == of_b {
                        of_a
                    } else {
                        gpu
                    }
                };
                node.instances = node.instances.iter().map(|one| Instance { gpu: moved(one.gpu), ..*one }).collect();
            }
            Turn::Card(gpu) => {
                let uuid = &mut node.gpus[gpu as usize].0.uuid;
                let first = if uuid.starts_with("GPU-5") { "GPU-7" } else { "GPU-5" };
                uuid.replace_range(..5, first);
            }
            Turn::Gone(gpu) => held(&mut node, gpu, Held::Gone),
            Turn::Vfio(gpu) => held(&mut node, gpu, Held::Vfio),
            Turn::Back(gpu) => held(&mut node, gpu, Held::Nvidia),
            Turn::Library => {}
            Turn::Cut(gpu, many) => {
                let gpu = node.gpus[gpu as usize].0.minor;
                node.instances.retain(|instance| instance.gpu != gpu);
                node.instances.extend((0..many).map(|nth| Instance { gpu, gi: FIRST_INSTANCE + nth, ci: 0 }));
            }
        }
        node
    }

    /// A container lives now, or does not any more.
    pub(crate) fn seen(&mut self, c: u64, holder: Option<Holder>) {
        match holder.filter(Holder::lives) {
            Some(holder) => self.holders.insert(c, holder),
            None => self.holders.remove(&c),
        };
    }

    /// The agent reserved these.
    pub(crate) fn promised(&mut self, token: String, grants: BTreeSet<Grant>) {
        self.reserved.push(Reserved { token, grants, node: self.node.clone(), libraries: self.libraries });
    }

    /// Two that live and have one GPU, by address or by device number, and do not both share it; or one that lives and what is
    /// reserved for another.
    pub(crate) fn double(&self) -> Option<String> {
        let all =
            || self.holders.iter().flat_map(|(c, holder)| holder.grants.iter().map(move |grant| (c, holder, grant)));
        type One<'a> = (&'a u64, &'a Holder, &'a Grant);
        let same = |(a, of_a, x): One<'_>, (b, of_b, y): One<'_>| {
            a < b && x.excludes(y) && !(of_a.shared && of_b.shared && is_owned(*a) && is_owned(*b))
        };
        let reserved = || self.reserved.iter().flat_map(|reserved| &reserved.grants);
        all()
            .find_map(|one| all().find(|two| same(one, *two)).map(|two| format!("{one:?} and {two:?}")))
            .or_else(|| all().find(|(.., x)| reserved().any(|y| x.excludes(y))).map(|one| format!("{one:?}, reserved")))
    }
}
