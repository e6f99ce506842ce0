//! On which terms GPUs are asked for: shared with whom, waited for how long, and what happens when there are none.

use serde::{Serialize, Serializer};

use crate::json::Node;
use crate::read::{FromJson, ReadError, field, only};
use crate::word;

/// The terms of a request. By default nothing is shared, nobody waits, and a full node is a refusal.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
pub struct Terms {
    /// Who else may have the same GPUs.
    pub sharing: Sharing,
    /// Seconds to wait for GPUs that others have.
    pub wait: u64,
    /// What then.
    pub fallback: Fallback,
}

/// Who else may have the same GPUs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Sharing {
    /// Nobody.
    #[default]
    Exclusive,
    /// Other containers of the same owner that say so too.
    Owner,
}

/// What happens when the GPUs cannot be had.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Fallback {
    /// The container is refused.
    #[default]
    Fail,
    /// It starts without a GPU.
    Cpu,
    /// It gets as many of another kind, if those can be had.
    Kind(String),
}

word!(Sharing { Exclusive = "exclusive", Owner = "owner" });

impl FromJson for Terms {
    fn from_json(node: &Node<'_>) -> Result<Self, ReadError> {
        only(node, &["sharing", "wait", "fallback"])?;
        let (sharing, wait, fallback) = (field(node, "sharing")?, field(node, "wait")?, field(node, "fallback")?);
        Ok(Self { sharing, wait, fallback })
    }

    fn absent() -> Option<Self> {
        Some(Self::default())
    }
}

impl Terms {
    pub(super) fn are_default(&self) -> bool {
        *self == Self::default()
    }
}

impl Fallback {
    pub(super) fn of(word: &str) -> Self {
        match word {
            "fail" => Self::Fail,
            "cpu" => Self::Cpu,
            kind => Self::Kind(kind.to_owned()),
        }
    }
}

impl Serialize for Fallback {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(match self {
            Self::Fail => "fail",
            Self::Cpu => "cpu",
            Self::Kind(kind) => kind,
        })
    }
}

impl FromJson for Fallback {
    fn from_json(node: &Node<'_>) -> Result<Self, ReadError> {
        String::from_json(node).map(|word| Self::of(&word))
    }
}

/// The seconds of a time as people write it: `30s`, `5m`, `2h`.
#[must_use]
pub fn seconds(text: &str) -> Option<u64> {
    let unit = match text.as_bytes().last()? {
        b's' => 1,
        b'm' => 60,
        b'h' => 3600,
        _ => return None,
    };
    let number = text.get(..text.len() - 1)?;
    let digits = !number.is_empty() && number.len() <= 9 && number.bytes().all(|b| b.is_ascii_digit());
    number.parse::<u64>().ok().filter(|_| digits).map(|number| number * unit)
}
