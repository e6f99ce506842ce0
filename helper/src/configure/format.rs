//! One interface over the formats: a value is put in under keys, or taken out, in a text. No files.

use serde::{Deserialize, Serialize};

use super::text::{Keys, Trouble, Value};
use super::{json, template, toml};

/// How a foreign file is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Format {
    /// Docker's `daemon.json`.
    Json,
    /// containerd, CRI-O, Podman, microk8s.
    Toml,
    /// k3s and rke2.
    Template,
    /// A file that is ours as a whole.
    Whole,
}

impl Format {
    /// Whether the text can be read.
    pub(super) fn check(self, text: &str) -> Result<(), Trouble> {
        match self {
            Self::Json => json::check(text),
            Self::Toml => toml::check(text),
            Self::Template => template::check(text),
            Self::Whole => Ok(()),
        }
    }

    /// Whether something stands under the keys.
    pub(super) fn has(self, text: &str, keys: &Keys) -> Result<bool, Trouble> {
        match self {
            Self::Json => json::has(text, keys),
            Self::Toml => toml::has(text, keys),
            Self::Template => Ok(template::has(text, keys)),
            Self::Whole => Ok(false),
        }
    }

    /// The string under the keys.
    pub(super) fn word(self, text: &str, keys: &Keys) -> Result<Option<String>, Trouble> {
        match self {
            Self::Json => json::word(text, keys),
            Self::Toml => toml::word(text, keys),
            Self::Template | Self::Whole => Ok(None),
        }
    }

    /// The value under the keys, as it is written.
    pub(super) fn verbatim(self, text: &str, keys: &Keys) -> Result<Option<String>, Trouble> {
        match self {
            Self::Json => json::verbatim(text, keys),
            Self::Toml => toml::verbatim(text, keys),
            Self::Template | Self::Whole => Ok(None),
        }
    }

    /// The text with the value there.
    pub(super) fn set(self, text: &str, keys: &Keys, value: &Value) -> Result<String, Trouble> {
        match self {
            Self::Json => json::set(text, keys, value),
            Self::Toml => toml::set(text, keys, value),
            Self::Template => Ok(template::set(text, keys, value)),
            Self::Whole => Ok(text.to_owned()),
        }
    }

    /// The text with nothing there.
    pub(super) fn unset(self, text: &str, keys: &Keys) -> Result<String, Trouble> {
        match self {
            Self::Json => json::unset(text, keys),
            Self::Toml => toml::unset(text, keys),
            Self::Template => Ok(template::unset(text, keys)),
            Self::Whole => Ok(text.to_owned()),
        }
    }

    /// The text without the object or table there, if nothing is in it and it was not in the text `was` either.
    pub(super) fn tidied(self, text: String, was: &str, keys: &Keys) -> Result<String, Trouble> {
        match self {
            Self::Json if json::is_hollow(&text, keys)? && !json::has(was, keys)? => json::unset(&text, keys),
            Self::Toml => toml::tidied(text, was, keys),
            _ => Ok(text),
        }
    }

    /// Whether nothing but comments and white space is left.
    pub(super) fn is_bare(self, text: &str) -> bool {
        match self {
            Self::Json => text.trim() == "{}" || text.trim().is_empty(),
            Self::Toml => text.lines().all(|line| line.trim().is_empty() || line.trim_start().starts_with('#')),
            Self::Template => text.trim() == template::BASE,
            Self::Whole => text.trim().is_empty(),
        }
    }
}
