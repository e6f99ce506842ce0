//! What the process that asks NVML about use tells: the form between two of our processes.

use contract::record;
use serde::Serialize;

use crate::inventory::told::Silence;

/// The use of all GPUs.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub(crate) struct Usage {
    pub(crate) gpus: Vec<UsedGpu>,
}

/// The use of one; what is not told is absent.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub(crate) struct UsedGpu {
    /// PCI address as sysfs writes it.
    pub(crate) pci: String,
    /// Share of time in percent that something ran on it.
    pub(crate) busy_percent: Option<u32>,
    pub(crate) memory_used_mb: Option<u64>,
    pub(crate) memory_total_mb: Option<u64>,
    pub(crate) processes: Vec<Process>,
}

/// A process that has the GPU open.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub(crate) struct Process {
    pub(crate) pid: u32,
    pub(crate) memory_mb: Option<u64>,
    /// GPU and compute instance that it uses, with MIG.
    pub(crate) gi: Option<u32>,
    pub(crate) ci: Option<u32>,
}

/// An answer on its way between two of our processes.
#[derive(Debug, Serialize)]
pub(crate) struct Message {
    usage: Option<Usage>,
    silence: Option<Silence>,
}

record!(Usage { gpus });
record!(UsedGpu { pci, busy_percent, memory_used_mb, memory_total_mb, processes });
record!(Process { pid, memory_mb, gi, ci });
record!(Message { usage, silence });

impl From<Result<Usage, Silence>> for Message {
    fn from(answer: Result<Usage, Silence>) -> Self {
        match answer {
            Ok(usage) => Self { usage: Some(usage), silence: None },
            Err(silence) => Self { usage: None, silence: Some(silence) },
        }
    }
}

impl Message {
    /// The answer; `None` when it holds neither.
    pub(crate) fn answer(self) -> Option<Result<Usage, Silence>> {
        self.usage.map(Ok).or(self.silence.map(Err))
    }
}
