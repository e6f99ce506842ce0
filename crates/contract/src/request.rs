//! What one container asks for, and where it said so.
//!
//! The values are strings from annotations or environment; the JSON of a control plane has types. Both become one
//! [`Request`], checked for shape here and against the node by the ledger.

use serde::Serialize;

use crate::capability::Capabilities;
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
}

record!(Request { source, count, ids, kind, profile, capabilities });
word!(Source { Annotation = "annotation", Environment = "environment", Json = "json", CommandLine = "command-line" });

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
const MAX_IDS: usize = 256;

impl Words {
    /// Adds a key; a later value of the same key replaces the earlier, as the container's own environment would.
    pub fn set(&mut self, key: &'static str, place: String, value: String) {
        self.given.retain(|(k, _, _)| *k != key);
        self.given.push((key, place, value));
    }

    /// Whether nothing was given.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.given.is_empty()
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
        if let Some((place, value)) = token {
            if count.is_some() || ids.is_some() {
                return Err(invalid(
                    "request-shape",
                    "a reservation already says which GPUs",
                    place,
                    value,
                    "give the token alone",
                ));
            }
            return Ok(Asked::Reserved { token: checked_token(place, value)?, source });
        }
        let place = self.get("ids").or_else(|| self.get("count")).map_or("", |(place, _)| place);
        let (count, ids) = agree(count, ids.unwrap_or_default(), place)?;
        self.refuse_later_words()?;
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
        }))
    }

    /// Words whose meaning this version does not carry out are refused: granting something else would be a lie.
    fn refuse_later_words(&self) -> Result<(), Refusal> {
        for (key, only) in [("sharing", "exclusive"), ("fallback", "fail"), ("wait", "0s")] {
            if let Some((place, value)) = self.get(key)
                && value.trim() != only
            {
                return Err(Refusal::new(
                    Code::Policy,
                    "request-not-offered",
                    format!("{key} = {value:?} is not offered on this node"),
                    format!("leave {key} out, or set it to {only:?}"),
                )
                .at(place, value));
            }
        }
        Ok(())
    }
}

/// The JSON document of a control plane: `{"name","image","gpu_count","gpu_ids","command","strict", …}`.
///
/// # Errors
/// `INVALID_GPU_REQUEST` with status 400 for any shape that is not exactly right, `STRICT_GPU_CONFLICT` for `strict`.
pub fn from_json(bytes: &[u8]) -> Result<Asked, Refusal> {
    let document = crate::json::parse_data(bytes).map_err(|error| {
        Refusal::new(
            Code::InvalidGpuRequest,
            error.rule,
            format!("the request is not one JSON document: {error}"),
            "send one JSON object",
        )
    })?;
    if !matches!(document.value, crate::json::Value::Object(_)) {
        return Err(invalid(
            "request-shape",
            "a request is a JSON object",
            "",
            "",
            "send {\"gpu_count\":1,\"gpu_ids\":[\"nvidia0\"]}",
        ));
    }
    let known = ["gpu_count", "gpu_ids", "gpu_kind", "gpu_profile", "gpu_capabilities"];
    for member in document.members() {
        if member.key.to_ascii_lowercase().starts_with("gpu") && !known.contains(&member.key.as_ref()) {
            return Err(invalid(
                "request-unknown-key",
                &format!("unknown key {:?}", member.key),
                &format!("/{}", crate::json::pointer_token(&member.key)),
                "",
                &format!("known keys are {}", known.join(", ")),
            ));
        }
    }
    let strict = match document.get("strict") {
        None => false,
        Some(node) => node.as_bool().ok_or_else(|| {
            invalid("request-shape", "strict is true or false", "/strict", "", "send true, false or leave it out")
        })?,
    };
    let text = |key: &'static str| -> Result<Option<String>, Refusal> {
        match document.get(key) {
            None => Ok(None),
            Some(node) => match node.as_str() {
                Some(value) => Ok(Some(value.to_owned())),
                None => Err(invalid(
                    "request-shape",
                    &format!("{key} is a string"),
                    &format!("/{key}"),
                    "",
                    "send a string or leave it out",
                )),
            },
        }
    };
    let count = match document.get("gpu_count") {
        None => None,
        Some(node) => Some(node.as_i64().and_then(|n| u32::try_from(n).ok()).ok_or_else(|| {
            invalid("request-count", "gpu_count is a whole number, 0 or more", "/gpu_count", "", "send 1")
        })?),
    };
    let named = match document.get("gpu_ids") {
        None => Vec::new(),
        Some(node) => {
            let crate::json::Value::Array(items) = &node.value else {
                return Err(invalid(
                    "request-ids",
                    "gpu_ids is a list of strings",
                    "/gpu_ids",
                    "",
                    "send [\"nvidia0\"]",
                ));
            };
            let texts: Option<Vec<&str>> = items.iter().map(|n| n.as_str()).collect();
            let texts = texts.ok_or_else(|| {
                invalid("request-ids", "gpu_ids is a list of strings", "/gpu_ids", "", "send [\"nvidia0\"]")
            })?;
            if texts.is_empty() { Vec::new() } else { ids("/gpu_ids", texts.into_iter())? }
        }
    };
    let (kind, profile, capabilities) = (text("gpu_kind")?, text("gpu_profile")?, text("gpu_capabilities")?);
    let count = count.unwrap_or(0);
    if count == 0 && named.is_empty() {
        return Ok(Asked::Nothing);
    }
    if !named.is_empty() && count as usize != named.len() {
        return Err(invalid(
            "request-count-ids",
            &format!("gpu_count is {count} and gpu_ids has {}", named.len()),
            "/gpu_ids",
            &named.join(","),
            "make gpu_count equal to the number of gpu_ids",
        ));
    }
    if strict {
        return Err(strict_conflict("/strict"));
    }
    Ok(Asked::Gpus(Request {
        source: Source::Json,
        count,
        ids: named,
        kind: kind.map(|value| word("/gpu_kind", &value)).transpose()?,
        profile: profile.map(|value| word("/gpu_profile", &value)).transpose()?,
        capabilities: match capabilities {
            Some(value) => {
                Capabilities::parse(&value).map_err(|refusal| refusal.at("/gpu_capabilities", value.clone()))?
            }
            None => Capabilities::default(),
        },
    }))
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
        "true" | "1" => Ok(true),
        "false" | "0" | "" => Ok(false),
        _ => Err(invalid("request-shape", "strict is true or false", place, value, "write true or false")),
    }
}

fn word(place: &str, value: &str) -> Result<String, Refusal> {
    let text = value.trim().to_ascii_lowercase();
    let fine = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'-' | b'_' | b'+' | b' ');
    if text.is_empty() || text.len() > 64 || !text.bytes().all(fine) {
        return Err(invalid(
            "request-shape",
            "a word of letters, digits, '.', '-', '_' or '+'",
            place,
            value,
            "for example a100 or 1g.10gb",
        ));
    }
    Ok(text)
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
                "name GPUs as nvidia0, GPU-<uuid>, MIG-<uuid> or a PCI address",
            ));
        }
        if out.iter().any(|seen| seen.eq_ignore_ascii_case(id)) {
            return Err(invalid("request-ids", "an id is given twice", place, id, "name each GPU once"));
        }
        out.push(id.to_owned());
        if out.len() > MAX_IDS {
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
            &format!("the count is {count} and {named} ids are named"),
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
