//! What one container asks for, and where it said so.
//!
//! The values are strings from annotations or environment; the JSON of a control plane has types. Both become one
//! [`Request`], checked for shape here and against the node by the ledger.

mod document;
mod terms;

use serde::Serialize;

pub use document::from_json;
pub use terms::{Fallback, Sharing, Terms, seconds};

use crate::capability::Capabilities;
use crate::json::Node;
use crate::read::{FromJson, ReadError};
use crate::refusal::{Code, Refusal};
use crate::{record, word};

/// Where a request was read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Source {
    /// `quilt.gpu/…` in the spec's annotations.
    Annotation,
    /// `QUILT_GPU_…` in the process environment.
    Environment,
    /// A JSON document of the control plane.
    Json,
    /// The operator's command line.
    CommandLine,
    /// Names of CDI devices, in annotations or put in by an engine.
    Cdi,
    /// `NVIDIA_VISIBLE_DEVICES` and what stands for it.
    VisibleDevices,
}

impl Source {
    /// Whether its names are those of other tools too: `0` is a GPU's index, `all` is every GPU, and twice is once.
    #[must_use]
    pub fn counts_gpus(self) -> bool {
        matches!(self, Self::Cdi | Self::VisibleDevices)
    }
}

/// What one container asks for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Request {
    /// Where it was read.
    pub source: Source,
    /// How many GPUs; at least one.
    pub count: u32,
    /// Which GPUs, as they were named; empty when only the count was given, else `count` of them.
    pub ids: Vec<String>,
    /// Product match, in lower case (`a100`).
    pub kind: Option<String>,
    /// MIG profile (`1g.10gb`).
    pub profile: Option<String>,
    /// Driver capabilities asked for.
    pub capabilities: Capabilities,
    /// Shared with whom, waited for how long, and what then.
    #[serde(skip_serializing_if = "Terms::are_default")]
    pub terms: Terms,
    /// Where each word stands, for refusals. Not part of the document.
    #[serde(skip)]
    pub places: Places,
}

impl Request {
    /// Whether a word was given.
    pub(crate) fn says(&self, word: &str) -> bool {
        self.places.of(word).is_some()
    }

    /// Whether it asks for whatever there is, up to its count: the one name `all`.
    #[must_use]
    pub fn wants_all(&self) -> bool {
        self.source.counts_gpus() && matches!(self.ids.as_slice(), [id] if id == ALL)
    }

    /// Whether both ask for the same; where the words stand does not count.
    #[must_use]
    pub fn is_same(&self, other: &Self) -> bool {
        Self { places: other.places.clone(), ..self.clone() } == *other
    }

    /// Where a word stands (`count`, `ids`, `kind` …); when it was not given, the word that makes this a request.
    #[must_use]
    pub fn place(&self, word: &str) -> &str {
        [word, "ids", "count"].into_iter().find_map(|word| self.places.of(word)).unwrap_or_default()
    }
}

/// Where the words of a request stand: JSON pointers, or flags of a command line.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Places(Vec<(&'static str, String)>);

impl Places {
    fn of(&self, word: &str) -> Option<&str> {
        self.0.iter().find(|(known, _)| *known == word).map(|(_, place)| place.as_str())
    }
}

impl FromJson for Places {
    fn from_json(_: &Node<'_>) -> Result<Self, ReadError> {
        Err(ReadError::new("places are not part of the document"))
    }

    fn absent() -> Option<Self> {
        Some(Self::default())
    }
}

impl Request {
    /// The request for as many GPUs of another kind.
    #[must_use]
    pub fn of_kind(&self, kind: &str) -> Self {
        Self { ids: Vec::new(), kind: Some(kind.to_owned()), ..self.clone() }
    }
}

record!(Request { source, count, ids, kind, profile, capabilities, terms, places });
word!(Source {
    Annotation = "annotation",
    Environment = "environment",
    Json = "json",
    CommandLine = "command-line",
    Cdi = "cdi",
    VisibleDevices = "visible-devices",
});

/// What a spec or document said about GPUs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Asked {
    /// Nothing, or plainly none.
    Nothing,
    /// GPUs, to be allocated now.
    Gpus(Request),
    /// The GPUs of a reservation, by its token.
    Reserved {
        /// The token as it was given.
        token: String,
        /// Where it was read.
        source: Source,
        /// What the container itself asks for, which the reservation has to be.
        request: Option<Request>,
    },
}

/// The words of a request before they are checked: all keys of one source.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Words {
    /// Each known key that was given: (name without prefix, place, value).
    given: Vec<(&'static str, String, String)>,
}

/// The keys that a request may have, without `quilt.gpu/` or `QUILT_GPU_`.
pub const KEYS: &[&str] =
    &["count", "ids", "profile", "kind", "capabilities", "sharing", "wait", "fallback", "strict", "contract"];

/// Most ids that one request may name.
pub const MAX_IDS: u32 = 256;
/// The name of every GPU, for sources that have such names.
pub const ALL: &str = "all";

impl Words {
    /// Adds a key; a later value of the same key replaces the earlier, as the container's own environment would.
    pub fn set(&mut self, key: &'static str, place: String, value: String) {
        self.given.retain(|(k, _, _)| *k != key);
        self.given.push((key, place, value));
    }

    /// Whether they say which GPUs, or how many.
    #[must_use]
    pub fn say_which(&self) -> bool {
        ["count", "ids", "contract"].iter().any(|key| self.get(key).is_some())
    }

    /// These words, and of the others what is not said here.
    #[must_use]
    pub fn filled_with(mut self, other: Self) -> Self {
        for (key, place, value) in other.given {
            if self.get(key).is_none() {
                self.given.push((key, place, value));
            }
        }
        self
    }

    /// What a key says.
    #[must_use]
    pub fn value(&self, key: &str) -> Option<&str> {
        self.get(key).map(|(_, value)| value)
    }

    /// Whether they are about GPUs: `strict` alone asks for none.
    #[must_use]
    pub fn ask_for_gpus(&self) -> bool {
        self.given.iter().any(|(key, _, _)| *key != "strict")
    }

    /// These words, and the other source's `strict` unless it only repeats what is said here.
    #[must_use]
    pub fn with_strict_of(mut self, other: &Self) -> Self {
        if let Some((place, value)) = other.get("strict")
            && (self.get("strict").is_none() || value.trim() != "false")
        {
            self.set("strict", place.to_owned(), value.to_owned());
        }
        self
    }

    /// Takes a key out, as words of their own.
    #[must_use]
    pub fn take(&mut self, key: &str) -> Option<Self> {
        let at = self.given.iter().position(|(known, _, _)| *known == key)?;
        Some(Self { given: vec![self.given.remove(at)] })
    }

    fn get(&self, key: &str) -> Option<(&str, &str)> {
        self.given.iter().find(|(k, _, _)| *k == key).map(|(_, place, value)| (place.as_str(), value.as_str()))
    }

    /// The request that these words are.
    ///
    /// # Errors
    /// `INVALID_GPU_REQUEST`, `STRICT_GPU_CONFLICT` or `POLICY`, naming the key and its value.
    pub fn ask(&self, source: Source) -> Result<Asked, Refusal> {
        let count = self.get("count").map(|(place, value)| count(place, value)).transpose()?;
        let ids = self.get("ids").map(|(place, value)| ids(place, value.split(','))).transpose()?;
        let token = self.get("contract");
        let strict = self.get("strict").map(|(place, value)| flag(place, value)).transpose()?.unwrap_or(false);
        for key in ["profile", "kind", "capabilities", "sharing", "wait", "fallback"] {
            if let Some((place, value)) = self.get(key)
                && count.is_none()
                && ids.is_none()
                && token.is_none()
            {
                return Err(invalid(
                    "request-shape",
                    "a GPU request has a count or ids",
                    place,
                    value,
                    "add a count, for example count = 1",
                ));
            }
        }
        if count.is_none() && ids.is_none() && token.is_none() {
            return Ok(Asked::Nothing);
        }
        if strict {
            return Err(strict_conflict(self.get("strict").map_or("", |(place, _)| place)));
        }
        let terms = self.terms()?;
        if let Some((place, value)) = token {
            if count.is_some() || ids.is_some() || !terms.are_default() {
                return Err(invalid(
                    "request-shape",
                    "a reservation already says which GPUs",
                    place,
                    // A token is a secret, whatever is wrong beside it.
                    "",
                    "give the token alone",
                ));
            }
            return Ok(Asked::Reserved { token: checked_token(place, value)?, source, request: None });
        }
        let place = self.get("ids").or_else(|| self.get("count")).map_or("", |(place, _)| place);
        let (count, ids) = agree(count, ids.unwrap_or_default(), place)?;
        Ok(Asked::Gpus(Request {
            source,
            count,
            ids,
            kind: self.get("kind").map(|(place, value)| word(place, value)).transpose()?,
            profile: self.get("profile").map(|(place, value)| word(place, value)).transpose()?,
            capabilities: match self.get("capabilities") {
                Some((place, value)) => Capabilities::parse(value).map_err(|refusal| refusal.at(place, value))?,
                None => Capabilities::default(),
            },
            terms,
            places: Places(self.given.iter().map(|(key, place, _)| (*key, place.clone())).collect()),
        }))
    }

    /// The words about sharing, waiting and what then.
    fn terms(&self) -> Result<Terms, Refusal> {
        let read = |key: &str, form: &str, fits: &mut dyn FnMut(&str) -> bool| match self.get(key) {
            Some((place, value)) if !fits(value.trim()) => {
                let help = format!("write {form}, or leave {key} out");
                Err(invalid("request-shape", &format!("{key} is {form}"), place, value, &help))
            }
            _ => Ok(()),
        };
        let mut terms = Terms::default();
        read("sharing", "exclusive or owner", &mut |text| {
            terms.sharing = if text == "owner" { Sharing::Owner } else { Sharing::Exclusive };
            matches!(text, "exclusive" | "owner")
        })?;
        read("wait", "a number with s, m or h, as in 30s", &mut |text| {
            let seconds = seconds(text);
            terms.wait = seconds.unwrap_or_default();
            seconds.is_some()
        })?;
        read("fallback", "fail, cpu or a kind of GPU", &mut |text| {
            terms.fallback = Fallback::of(&text.to_ascii_lowercase());
            is_word(text)
        })?;
        Ok(terms)
    }
}

fn invalid(rule: &'static str, message: &str, place: &str, value: &str, help: &str) -> Refusal {
    Refusal::new(Code::InvalidGpuRequest, rule, message, help).at(place, value)
}

fn strict_conflict(place: &str) -> Refusal {
    Refusal::new(
        Code::StrictGpuConflict,
        "strict-gpu",
        "strict and a GPU were both asked for, and a strict container has no devices of the host",
        "drop strict, or drop the GPU request",
    )
    .at(place, "true")
}

fn count(place: &str, value: &str) -> Result<u32, Refusal> {
    let text = value.trim();
    // u32's own parser takes "+1"; a request is digits only.
    let digits = !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    match text.parse() {
        Ok(n) if digits && n > 0 => Ok(n),
        _ => Err(invalid(
            "request-count",
            "a count is a whole number, 1 or more",
            place,
            value,
            "give 1 or more, or leave the request out for no GPU",
        )),
    }
}

fn flag(place: &str, value: &str) -> Result<bool, Refusal> {
    match value.trim() {
        "true" => Ok(true),
        "false" | "" => Ok(false),
        _ => Err(invalid("request-shape", "strict is true or false", place, value, "write true or false")),
    }
}

fn word(place: &str, value: &str) -> Result<String, Refusal> {
    let text = value.trim().to_ascii_lowercase();
    if !is_word(&text) {
        return Err(invalid(
            "request-shape",
            "a word of letters, digits, '.', '-', '_' or '+'",
            place,
            value,
            "for example a100",
        ));
    }
    Ok(text)
}

fn is_word(text: &str) -> bool {
    let fine = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'-' | b'_' | b'+' | b' ');
    !text.is_empty() && text.len() <= 64 && text.bytes().all(fine)
}

fn ids<'a>(place: &str, list: impl Iterator<Item = &'a str>) -> Result<Vec<String>, Refusal> {
    let mut out: Vec<String> = Vec::new();
    for id in list {
        let id = id.trim();
        let fine = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b':' | b'.' | b'/' | b'_');
        if id.is_empty() || id.len() > 128 || !id.bytes().all(fine) {
            return Err(invalid(
                "request-ids",
                "an id is empty or malformed",
                place,
                id,
                "name GPUs as nvidia0, GPU-<uuid> or a PCI address",
            ));
        }
        if out.iter().any(|seen| seen.eq_ignore_ascii_case(id)) {
            return Err(invalid("request-ids", "an id is given twice", place, id, "name each GPU once"));
        }
        out.push(id.to_owned());
        if out.len() > MAX_IDS as usize {
            return Err(invalid("request-ids", &format!("more than {MAX_IDS} ids"), place, "", "ask for fewer"));
        }
    }
    Ok(out)
}

fn agree(count: Option<u32>, ids: Vec<String>, place: &str) -> Result<(u32, Vec<String>), Refusal> {
    let named = u32::try_from(ids.len()).unwrap_or(u32::MAX);
    match count {
        Some(count) if !ids.is_empty() && count != named => Err(invalid(
            "request-count-ids",
            &format!("the count is {count}, and the ids name {named}"),
            place,
            &ids.join(","),
            "make both equal, or give one of them",
        )),
        Some(count) => Ok((count, ids)),
        None => Ok((named, ids)),
    }
}

fn checked_token(place: &str, value: &str) -> Result<String, Refusal> {
    let token = value.trim();
    if token.len() == 32 && token.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b)) {
        Ok(token.to_owned())
    } else {
        Err(invalid(
            "request-token",
            "a reservation token is 32 lower-case hexadecimal digits",
            place,
            "",
            "use the token that `quilt-gpu contract prepare` printed",
        ))
    }
}

#[cfg(test)]
mod tests;
