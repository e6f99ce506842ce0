//! What the driver's own interfaces tell beyond what the kernel does: one form for NVML and for `nvidia-smi -q -x`.
//!
//! Sources write it, and what puts the inventory together reads it; nothing here does I/O or judges.

use std::fmt;

use contract::gpu::{Link, MigMode, Unavailable};
use contract::{record, word};
use serde::Serialize;

/// The names of the sources, the more trusted first.
pub(crate) const NVML: &str = "nvml";
pub(crate) const SMI: &str = "nvidia-smi";

/// What came of asking a source.
pub(crate) type Answer = Result<Told, Silence>;

/// What one source told.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub(crate) struct Told {
    /// Which: [`NVML`], [`SMI`].
    pub(crate) source: String,
    /// Version of the driver.
    pub(crate) driver_version: Option<String>,
    /// Highest CUDA version that it serves, as in `12.4`.
    pub(crate) cuda_version: Option<String>,
    /// GPUs that the source lists.
    pub(crate) gpus: Vec<ToldGpu>,
    /// How they are connected.
    pub(crate) links: Vec<Link>,
}

/// What it told of one GPU; what it did not tell is absent.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub(crate) struct ToldGpu {
    /// PCI address as sysfs writes it; the one thing that must be told.
    pub(crate) pci: String,
    pub(crate) uuid: Option<String>,
    pub(crate) minor: Option<u32>,
    pub(crate) model: Option<String>,
    pub(crate) memory_mb: Option<u64>,
    pub(crate) compute_capability: Option<String>,
    pub(crate) virtualization: Option<String>,
    pub(crate) mig: Option<MigMode>,
    pub(crate) instances: Vec<ToldInstance>,
    /// Lost or failing, in the source's judgement.
    pub(crate) unavailable: Option<Unavailable>,
    /// What it does at this moment.
    pub(crate) live: Live,
}

/// What a GPU does at the moment of the question: for who looks, and never stored. What the source does not tell is absent.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub(crate) struct Live {
    /// Of the last second, how much of it something was computed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) utilization_percent: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) memory_used_mb: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) temperature_c: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) power_mw: Option<u32>,
}

impl ToldGpu {
    /// Whether the source could look at the GPU, and not only name it.
    pub(crate) fn says_something(&self) -> bool {
        *self != Self { pci: self.pci.clone(), ..Self::default() }
    }
}

/// A MIG compute instance.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub(crate) struct ToldInstance {
    /// Position among the MIG devices of its GPU.
    pub(crate) index: u32,
    pub(crate) gi: u32,
    pub(crate) ci: u32,
    pub(crate) uuid: Option<String>,
    /// `1g.10gb`, as the source names it or as its attributes say.
    pub(crate) profile: Option<String>,
    pub(crate) memory_mb: Option<u64>,
}

/// Why a source told nothing.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct Silence {
    /// Which.
    pub(crate) source: String,
    pub(crate) kind: Kind,
    /// What was attempted, and the cause.
    pub(crate) why: String,
}

/// What a silence means for the other sources.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Kind {
    /// The library is not the loaded module's: no other source will fare better.
    Mismatch,
    /// It did not answer in time: neither will another.
    Slow,
    /// Anything else.
    Failed,
}

record!(Told { source, driver_version, cuda_version, gpus, links });
record!(ToldGpu {
    pci,
    uuid,
    minor,
    model,
    memory_mb,
    compute_capability,
    virtualization,
    mig,
    instances,
    unavailable,
    live
});
record!(Live { utilization_percent, memory_used_mb, temperature_c, power_mw });
record!(ToldInstance { index, gi, ci, uuid, profile, memory_mb });
record!(Silence { source, kind, why });
word!(Kind { Mismatch = "mismatch", Slow = "slow", Failed = "failed" });

impl Silence {
    /// A source that failed.
    pub(crate) fn failed(source: &str, why: impl fmt::Display) -> Self {
        Self { source: source.to_owned(), kind: Kind::Failed, why: why.to_string() }
    }
}

/// An answer on its way between two of our processes.
#[derive(Debug, Serialize)]
pub(crate) struct Message {
    told: Option<Told>,
    silence: Option<Silence>,
}

record!(Message { told, silence });

impl From<Answer> for Message {
    fn from(answer: Answer) -> Self {
        match answer {
            Ok(told) => Self { told: Some(told), silence: None },
            Err(silence) => Self { told: None, silence: Some(silence) },
        }
    }
}

impl Message {
    /// The answer; `None` when it holds neither.
    pub(crate) fn answer(self) -> Option<Answer> {
        self.told.map(Ok).or(self.silence.map(Err))
    }
}
