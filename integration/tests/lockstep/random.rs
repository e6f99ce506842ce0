//! Sequences of steps from a seed: the same seed is the same sequence, whatever the machine does.

use std::time::Duration;

/// How many containers there are; more than GPUs, so that some are refused.
pub(crate) const CONTAINERS: u64 = 6;
/// How many GPUs the node was built with.
pub(crate) const GPUS: u64 = 4;

/// How many GPUs are ever cut, the first ones, and into how many instances at most.
const CUT: u64 = 2;
const PARTS: u64 = 3;

/// Longest time from a call's start to its end by force. A create takes about half of it.
const LONGEST_MICROS: u64 = 6000;

/// What happens on the node. Numbers name containers (`c`) and GPUs (`gpu`, by place in PCI order).
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// An engine creates a container.
    Create { c: u64, ask: Ask, fate: Fate },
    /// An engine creates a container that waits for GPUs; meanwhile one that has some is deleted, or the other one.
    Wait { c: u64, many: u64, other: u64 },
    /// The node's agent reserves GPUs.
    Reserve { many: u64 },
    /// It gives its oldest reservation up.
    GiveUp,
    /// The container's process is ended and its container deleted.
    Delete { c: u64 },
    /// The same, and the runtime is killed after this time.
    DeleteKilled { c: u64, after: Duration },
    /// The container is deleted, and its process stays: stuck in the driver.
    DeleteLeaving { c: u64 },
    /// The container's process is killed; the low-level runtime still knows the container.
    Crash { c: u64 },
    /// The low-level runtime's folder of the container is removed behind our back.
    Vanish { c: u64 },
    /// The node becomes another.
    Node(Turn),
    /// Somebody refreshes the inventory, and the helper is killed after this time, if any.
    Refresh { killed: Option<Duration> },
    /// Somebody looks at the leases, which reclaims those of the dead.
    Look,
}

/// What a container asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Ask {
    Count(u64),
    /// So many that its owner's others may have too.
    Shared(u64),
    /// So many, and it waits for them.
    Waiting(u64),
    /// What was reserved first.
    Reserved,
    Named {
        gpu: u64,
        by: By,
    },
    /// A MIG instance of this GPU, by its place among those that there can be.
    Part {
        gpu: u64,
        nth: u64,
    },
}

/// How a GPU is named.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum By {
    Address,
    Uuid,
    Minor,
}

/// How a create goes on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Fate {
    /// To its end.
    Whole,
    /// Our runtime is killed after this time.
    Killed(Duration),
    /// The low-level runtime dies before or after it made the container.
    LowLevelDies { after: bool },
    /// The node becomes another after this time.
    Overtaken(Turn, Duration),
}

/// How a node becomes another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Turn {
    /// The other driver version is loaded.
    Version,
    /// nvidia-uvm gets another major.
    Major,
    /// Two addresses exchange their minors.
    Swap(u64, u64),
    /// Another card is in the slot.
    Card(u64),
    /// The GPU is off the bus.
    Gone(u64),
    /// The GPU is bound to vfio-pci.
    Vfio(u64),
    /// NVIDIA's driver has the GPU again.
    Back(u64),
    /// A driver library is replaced by a copy of the same version.
    Library,
    /// The GPU has so many MIG instances now.
    Cut(u64, u64),
}

/// SplitMix64: small, and good enough to choose among steps.
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x2545_F491_4F6C_DD1D))
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    fn below(&mut self, end: u64) -> u64 {
        self.next() % end
    }

    fn moment(&mut self) -> Duration {
        Duration::from_micros(self.below(LONGEST_MICROS))
    }

    pub(crate) fn steps(&mut self, many: usize) -> Vec<Step> {
        (0..many).map(|_| self.step()).collect()
    }

    fn step(&mut self) -> Step {
        let c = self.below(CONTAINERS);
        match self.below(100) {
            0..37 => Step::Create { c, ask: self.ask(), fate: self.fate() },
            37..41 => Step::Wait { c, many: 1 + self.below(3), other: self.below(CONTAINERS) },
            41..44 => Step::Reserve { many: 1 + self.below(2) },
            44 => Step::GiveUp,
            45..48 => Step::Create { c, ask: Ask::Reserved, fate: self.own_fate() },
            48..56 => Step::Delete { c },
            56..63 => Step::DeleteKilled { c, after: self.moment() },
            63..67 => Step::DeleteLeaving { c },
            67..71 => Step::Crash { c },
            71..75 => Step::Vanish { c },
            75..94 => Step::Node(self.turn()),
            94..96 => Step::Refresh { killed: None },
            96..98 => Step::Refresh { killed: Some(self.moment()) },
            _ => Step::Look,
        }
    }

    fn ask(&mut self) -> Ask {
        match self.below(16) {
            12..15 => Ask::Shared(1),
            15 => Ask::Shared(2),
            0..5 => Ask::Count(1),
            5..7 => Ask::Count(2),
            7 => Ask::Count(3),
            8 | 9 => Ask::Part { gpu: self.below(CUT), nth: self.below(PARTS) },
            _ => {
                let by = [By::Address, By::Uuid, By::Minor][self.below(3) as usize];
                Ask::Named { gpu: self.below(GPUS), by }
            }
        }
    }

    fn fate(&mut self) -> Fate {
        match self.below(10) {
            0..5 => Fate::Whole,
            5..8 => Fate::Killed(self.moment()),
            8 => Fate::LowLevelDies { after: self.below(2) == 1 },
            _ => Fate::Overtaken(self.turn(), self.moment()),
        }
    }

    /// One in which the node stays what it is.
    fn own_fate(&mut self) -> Fate {
        match self.fate() {
            Fate::Overtaken(..) => Fate::Whole,
            fate => fate,
        }
    }

    fn turn(&mut self) -> Turn {
        let gpu = self.below(GPUS);
        match self.below(13) {
            0 => Turn::Version,
            1 => Turn::Major,
            2 | 3 => Turn::Swap(gpu, (gpu + 1 + self.below(GPUS - 1)) % GPUS),
            4 => Turn::Card(gpu),
            5 => Turn::Gone(gpu),
            6 => Turn::Vfio(gpu),
            7 | 8 => Turn::Back(gpu),
            9 => Turn::Library,
            _ => Turn::Cut(self.below(CUT), self.below(PARTS + 1)),
        }
    }
}
