//! The JSON document of a control plane: `{"name","image","gpu_count","gpu_ids","command","strict", …}`. Keys that are not
//! about GPUs are its own.

use super::{Asked, KEYS, Places, Request, Source, Terms, ids, invalid, strict_conflict, word};
use crate::capability::Capabilities;
use crate::json::{self, Node, Value};
use crate::refusal::{Code, Refusal};

const GPU_KEYS: [&str; 5] = ["gpu_count", "gpu_ids", "gpu_kind", "gpu_profile", "gpu_capabilities"];

/// The request that a control plane's document is.
///
/// # Errors
/// `INVALID_GPU_REQUEST` with status 400 for any shape that is not exactly right, `STRICT_GPU_CONFLICT` for `strict`.
pub fn from_json(bytes: &[u8]) -> Result<Asked, Refusal> {
    let document = json::parse_data(bytes).map_err(|error| {
        let message = format!("the request is not one JSON document: {error}");
        Refusal::new(Code::InvalidGpuRequest, error.rule, message, "send one JSON object")
    })?;
    if !matches!(document.value, Value::Object(_)) {
        let help = "send {\"gpu_count\":1,\"gpu_ids\":[\"nvidia0\"]}";
        return Err(invalid("request-shape", "a request is a JSON object", "", "", help));
    }
    refuse_unknown_keys(&document)?;
    let strict = document.get("strict").map(strict).transpose()?.unwrap_or(false);
    let count = document.get("gpu_count").map(count).transpose()?.unwrap_or(0);
    let listed = document.get("gpu_ids").map(listed).transpose()?;
    let [kind, profile, capabilities] = ["gpu_kind", "gpu_profile", "gpu_capabilities"]
        .map(|key| document.get(key).map(|node| text(key, node)).transpose());
    let (kind, profile, capabilities) = (kind?, profile?, capabilities?);
    if count == 0 && listed.as_ref().is_none_or(Vec::is_empty) {
        return Ok(Asked::Nothing);
    }
    if let Some(named) = &listed
        && named.len() != count as usize
    {
        let (message, help) = match document.get("gpu_count") {
            None => (
                format!("gpu_count is missing, and gpu_ids has {}", named.len()),
                "give gpu_count too, equal to the number of gpu_ids",
            ),
            Some(_) => (
                format!("gpu_count is {count} and gpu_ids has {}", named.len()),
                "make gpu_count equal to the number of gpu_ids, or leave gpu_ids out",
            ),
        };
        return Err(invalid("request-count-ids", &message, "/gpu_ids", &named.join(","), help));
    }
    if strict {
        return Err(strict_conflict("/strict"));
    }
    Ok(Asked::Gpus(Request {
        source: Source::Json,
        count,
        ids: listed.unwrap_or_default(),
        kind: kind.map(|value| word("/gpu_kind", value)).transpose()?,
        profile: profile.map(|value| word("/gpu_profile", value)).transpose()?,
        capabilities: match capabilities {
            Some(value) => Capabilities::parse(value).map_err(|refusal| refusal.at("/gpu_capabilities", value))?,
            None => Capabilities::default(),
        },
        terms: Terms::default(),
        places: places(&document),
    }))
}

/// A key that begins like ours and is none is a slip of the pen, and nobody would learn of it.
fn refuse_unknown_keys(document: &Node<'_>) -> Result<(), Refusal> {
    let unknown =
        |key: &str| key.get(..3).is_some_and(|start| start.eq_ignore_ascii_case("gpu")) && !GPU_KEYS.contains(&key);
    match document.members().iter().find(|member| unknown(&member.key)) {
        None => Ok(()),
        Some(member) => Err(invalid(
            "request-unknown-key",
            &format!("unknown key {:?}", member.key),
            &format!("/{}", json::pointer_token(&member.key)),
            "",
            &format!("known keys are {}", GPU_KEYS.join(", ")),
        )),
    }
}

fn strict(node: &Node<'_>) -> Result<bool, Refusal> {
    let help = "send true, false or leave it out";
    node.as_bool().ok_or_else(|| invalid("request-shape", "strict is true or false", "/strict", "", help))
}

fn count(node: &Node<'_>) -> Result<u32, Refusal> {
    let wrong = || invalid("request-count", "gpu_count is a whole number, 0 or more", "/gpu_count", "", "send 1");
    node.as_i64().and_then(|n| u32::try_from(n).ok()).ok_or_else(wrong)
}

fn listed(node: &Node<'_>) -> Result<Vec<String>, Refusal> {
    let texts: Option<Vec<&str>> = match &node.value {
        Value::Array(items) => items.iter().map(Node::as_str).collect(),
        _ => None,
    };
    let wrong = || invalid("request-ids", "gpu_ids is a list of strings", "/gpu_ids", "", "send [\"nvidia0\"]");
    ids("/gpu_ids", texts.ok_or_else(wrong)?.into_iter())
}

fn text<'n>(key: &str, node: &'n Node<'_>) -> Result<&'n str, Refusal> {
    let wrong = || {
        let message = format!("{key} is a string");
        invalid("request-shape", &message, &format!("/{key}"), "", "send a string or leave it out")
    };
    node.as_str().ok_or_else(wrong)
}

fn places(document: &Node<'_>) -> Places {
    let given = |key: &&'static str| {
        let name = format!("gpu_{key}");
        document.get(&name).map(|_| (*key, format!("/{name}")))
    };
    Places(KEYS.iter().filter_map(given).collect())
}
