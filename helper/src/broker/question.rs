//! What a peer asks, read strictly: none of it is trusted, and all of it is bounded. Touches nothing.

use contract::json::{self, Node};
use contract::key::{Key, id_is_plain};
use contract::read::{ReadError, field, only};
use contract::request::{Asked, MAX_IDS, Request, Words};
use contract::{Code, Refusal};

/// Longest container id, and longest folder of states.
const MAX_ID: usize = 256;
const MAX_ROOT: usize = 1024;

/// One question.
#[derive(Debug, PartialEq)]
pub(crate) enum Question {
    /// GPUs for a container that is being created.
    Grant {
        /// The user's own name for the container.
        key: Key,
        container: String,
        state_root: String,
        request: Box<Request>,
    },
    /// The container began with this process.
    Started { key: Key, pid: u32, start: u64 },
    /// The container has ended.
    Release { key: Key },
}

/// Reads a question.
///
/// # Errors
/// `INVALID_GPU_REQUEST`: what is wrong with it, and where.
pub(crate) fn read(bytes: &[u8]) -> Result<Question, Refusal> {
    let wrong = |why: String, at: String| {
        let help = "the broker speaks with quilt-gpu-runtime of its own version";
        Refusal::new(Code::InvalidGpuRequest, "broker-question", format!("the question cannot be read: {why}"), help)
            .at(at, "")
    };
    let node = json::parse_data(bytes).map_err(|e| wrong(e.to_string(), String::new()))?;
    let question = of(&node).map_err(|e| wrong(e.message().to_owned(), e.at().to_owned()))?;
    match question {
        Question::Grant { key, container, state_root, request } => {
            let request = Box::new(shaped(*request)?);
            Ok(Question::Grant { key, container, state_root, request })
        }
        other => Ok(other),
    }
}

fn of(node: &Node<'_>) -> Result<Question, ReadError> {
    let ask: String = field(node, "ask")?;
    let key = || {
        let key: String = field(node, "key")?;
        Key::parse(&key).ok_or_else(|| ReadError::new("it must be 32 lower-case hexadecimal digits").inside("key"))
    };
    match ask.as_str() {
        "grant" => {
            only(node, &["ask", "key", "container", "state_root", "request"])?;
            let (container, state_root): (String, String) = (field(node, "container")?, field(node, "state_root")?);
            if !id_is_plain(&container) || container.len() > MAX_ID {
                return Err(ReadError::new("it must be letters, digits and _ + - .").inside("container"));
            }
            let is_path = state_root.starts_with('/') && !state_root.contains(char::is_control);
            if !is_path || state_root.len() > MAX_ROOT {
                return Err(ReadError::new("it must be an absolute path").inside("state_root"));
            }
            Ok(Question::Grant { key: key()?, container, state_root, request: Box::new(field(node, "request")?) })
        }
        "started" => {
            only(node, &["ask", "key", "pid", "start"])?;
            Ok(Question::Started { key: key()?, pid: field(node, "pid")?, start: field(node, "start")? })
        }
        "release" => {
            only(node, &["ask", "key"])?;
            Ok(Question::Release { key: key()? })
        }
        _ => Err(ReadError::new("it must be one of grant started release").inside("ask")),
    }
}

/// The request once more from its words: its shape is what words can say, whoever wrote the document.
fn shaped(request: Request) -> Result<Request, Refusal> {
    let wrong = |message: &str| {
        Refusal::new(Code::InvalidGpuRequest, "request-shape", message, "ask with the words of quilt-gpu")
            .at("/request", "")
    };
    if request.count == 0 || request.count > MAX_IDS {
        return Err(wrong("a count is 1 or more, and no more than a node can have"));
    }
    if request.wants_all() {
        return Ok(request);
    }
    let mut words = Words::default();
    let mut set = |key, value: Option<String>| {
        if let Some(value) = value {
            words.set(key, format!("/request/{key}"), value);
        }
    };
    set("count", Some(request.count.to_string()));
    set("ids", Some(request.ids.join(",")).filter(|_| !request.ids.is_empty()));
    set("kind", request.kind.clone());
    set("profile", request.profile.clone());
    set("capabilities", Some(request.capabilities.list()).filter(|list| !list.is_empty()));
    match words.ask(request.source)? {
        // Sharing, waiting and falling back are words of fixed sets already.
        Asked::Gpus(again) => {
            let again = Request { terms: request.terms.clone(), ..again };
            if again.is_same(&request) { Ok(again) } else { Err(wrong("this is no request that words could make")) }
        }
        _ => Err(wrong("no GPU is asked for")),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    const KEY: &str = "0123456789abcdef0123456789abcdef";

    fn request() -> Value {
        let mut words = Words::default();
        for (key, value) in [("count", "2"), ("ids", "nvidia0,nvidia1"), ("kind", "h100"), ("wait", "5s")] {
            words.set(key, key.into(), value.into());
        }
        let Ok(Asked::Gpus(request)) = words.ask(contract::request::Source::Annotation) else { panic!() };
        serde_json::to_value(request).unwrap()
    }

    fn grant() -> Value {
        json!({"ask": "grant", "key": KEY, "container": "c", "state_root": "/run/user/1000/crun", "request": request()})
    }

    #[test]
    fn what_the_runtime_asks_is_read_back() {
        let Question::Grant { request: found, .. } = read(grant().to_string().as_bytes()).unwrap() else { panic!() };
        assert_eq!(serde_json::to_value(&*found).unwrap(), request());
        let key = Key::parse(KEY).unwrap();
        let started = format!(r#"{{"ask":"started","key":"{KEY}","pid":7,"start":9}}"#);
        assert_eq!(read(started.as_bytes()).unwrap(), Question::Started { key: key.clone(), pid: 7, start: 9 });
        let release = format!(r#"{{"ask":"release","key":"{KEY}"}}"#);
        assert_eq!(read(release.as_bytes()).unwrap(), Question::Release { key });
    }

    #[test]
    fn what_no_runtime_asks_is_refused_where_it_is_wrong() {
        let long = "x".repeat(MAX_ID + 1);
        for (at, value) in [
            ("/ask", json!("give")),
            ("/key", json!("../../etc/passwd")),
            ("/key", json!("0123456789ABCDEF0123456789ABCDEF")),
            ("/container", json!("../c")),
            ("/container", json!(long)),
            ("/state_root", json!("run/user")),
            ("/state_root", json!("/run/\u{1b}[31m")),
            ("/uid", json!(0)),
            ("/owner", json!("root")),
            ("/request/count", json!(0)),
            ("/request/count", json!(4_000_000_000_u32)),
            ("/request/count", json!(1)),
            ("/request/ids", json!(["nvidia0", "nvidia0"])),
            ("/request/ids", json!(["nvidia0", "a\nb"])),
            ("/request/ids", json!(["nvidia0,nvidia1", "nvidia2"])),
            ("/request/kind", json!("H100\n")),
            ("/request/places", json!([])),
        ] {
            let mut document = grant();
            match at.rsplit_once('/') {
                Some(("", key)) => document[key] = value.clone(),
                Some((parent, key)) => document.pointer_mut(parent).unwrap()[key] = value.clone(),
                None => panic!(),
            }
            let refusal = read(document.to_string().as_bytes()).expect_err(&format!("{at} {value}"));
            assert_eq!(refusal.code, Code::InvalidGpuRequest, "{refusal}");
        }
        for text in ["", "[]", "{}", "nothing", r#"{"ask":"release"}"#, r#"{"ask":"release","ask":"release"}"#] {
            assert!(read(text.as_bytes()).is_err(), "{text}");
        }
    }
}
