//! Section F: documents that two parsers read differently, or none should.

use integration::Spec;
use serde_json::json;

use crate::case::{Bare, Case, Verdict, case, without};
use crate::life::Run;
use crate::world::{Place, shown};

const UNSAFE: &str = "UNSAFE_SPEC";

/// What differs between readers shows under each in its own way.
fn hostile(ids: &'static str, what: &'static str, rule: &'static str, bytes: fn(&Run<'_>, &str) -> Vec<u8>) -> Case {
    case(ids, what, |_| Spec::new()).bytes(bytes).refused(UNSAFE, rule)
}

/// A list of mounts in which a GPU's node is bound, under this key, before or behind the honest one.
fn doubled(run: &Run<'_>, text: &str, key: &str, first: bool) -> Vec<u8> {
    let mut document: serde_json::Value = serde_json::from_str(text).unwrap_or_default();
    let honest = document["mounts"].take();
    let mut evil = honest.clone();
    if let Some(list) = evil.as_array_mut() {
        let source = shown(&run.node("nvidia0"));
        list.push(json!({"destination": "/x", "type": "bind", "source": source, "options": ["bind"]}));
    }
    let (one, two) = if first { (("mounts", honest), (key, evil)) } else { ((key, evil), ("mounts", honest)) };
    // The second key stands in front of everything.
    if let Some(members) = document.as_object_mut() {
        members.remove("mounts");
    }
    let rest = document.to_string();
    let rest = rest.strip_prefix('{').unwrap_or_default();
    format!("{{\"{}\":{},\"{}\":{},{rest}", two.0, two.1, one.0, one.1).into_bytes()
}

const DIFFERS: Bare = Bare::Unasked("readers differ");

pub(crate) fn cases() -> Vec<Case> {
    [readers(), sizes()].into_iter().flatten().collect()
}

/// What one reader takes and another does not.
fn readers() -> Vec<Case> {
    let twice = |what, rule, bytes| {
        let case = hostile("F1 Q50", what, rule, bytes).brings_a_node();
        case.only_on(&[(Place::Runc, DIFFERS), (Place::Crun, DIFFERS), (Place::Crun128, DIFFERS)])
    };
    vec![
        // Go and json-c take the last of two, crun's older reader the first.
        twice("mounts twice, the evil ones first", "json-duplicate-key", |run, text| {
            doubled(run, text, "mounts", true)
        })
        .on(Place::Crun, Bare::Exposes),
        twice("mounts twice, the evil ones last", "json-duplicate-key", |run, text| {
            doubled(run, text, "mounts", false)
        })
        .on(Place::Runc, Bare::Exposes),
        twice("mounts twice, the evil ones last and spelt with an escape", "json-duplicate-key", |run, text| {
            doubled(run, text, "mo\\u0075nts", false)
        })
        .on(Place::Runc, Bare::Exposes),
        twice("mounts twice, the evil ones last and with a capital", "json-look-alike-key", |run, text| {
            doubled(run, text, "Mounts", false)
        })
        .on(Place::Runc, Bare::Exposes),
        hostile("F6 Q52", "a second document behind the first", "json-trailing", |_, text| {
            format!("{text} {{\"mounts\":[]}}").into_bytes()
        }),
        hostile("F7 Q52", "a comment", "json-syntax", |_, text| {
            text.replacen('{', "{/* \"mounts\":[], */", 1).into_bytes()
        })
        .bare(Bare::Fails)
        .on(Place::Crun, Bare::Closed)
        .on(Place::Crun128, DIFFERS),
        hostile("F8 Q52", "half of a pair", "json-surrogate", |_, text| {
            text.replacen("\"PATH=", "\"A=\\ud800\",\"PATH=", 1).into_bytes()
        })
        .bare(DIFFERS)
        .on(Place::Crun, DIFFERS),
        hostile("F8", "bytes that are no text", "json-utf8", |_, text| {
            let (before, behind) = text.split_once("\"PATH=").unwrap_or_default();
            [before.as_bytes(), b"\"A=\xff\xfe\",\"PATH=", behind.as_bytes()].concat()
        })
        .bare(DIFFERS),
        hostile("F9 Q52", "a byte order mark", "json-syntax", |_, text| format!("\u{feff}{text}").into_bytes())
            .bare(Bare::Fails),
        hostile("F11 Q52", "a fraction for a number", "cgroup-rule-shape", |_, text| {
            text.replacen("\"major\":1,", "\"major\":195.0,", 1).into_bytes()
        })
        .bare(DIFFERS),
        hostile("F11", "an exponent for a number", "cgroup-rule-shape", |_, text| {
            text.replacen("\"major\":1,", "\"major\":1.95e2,", 1).into_bytes()
        })
        .bare(DIFFERS),
        hostile("F11", "a number beyond all numbers", "cgroup-rule-shape", |_, text| {
            text.replacen("\"major\":1,", "\"major\":18446744073709551811,", 1).into_bytes()
        })
        .bare(DIFFERS),
    ]
}

/// What is too much, and what nobody knows.
fn sizes() -> Vec<Case> {
    vec![
        hostile("F12 Q52", "200 levels", "json-depth", |_, text| {
            text.replacen('{', &format!("{{\"x\":{}{},", "[".repeat(200), "]".repeat(200)), 1).into_bytes()
        }),
        hostile("F13 Q52", "nine megabytes", "json-size", |_, text| {
            format!("{text}{}", " ".repeat(9 << 20)).into_bytes()
        }),
        hostile("F13", "five thousand mounts", "spec-size", |_, text| {
            let one = r#"{"destination":"/t","type":"tmpfs","source":"tmpfs"},"#;
            text.replacen("\"mounts\":[", &format!("\"mounts\":[{}", one.repeat(5000)), 1).into_bytes()
        })
        .bare(Bare::Unasked("it takes its time")),
        case("F14 Q53 L", "a field at the top that nobody knows", |_| Spec::new())
            .bytes(|_, text| text.replacen('{', "{\"x-unknown\":{\"a\":[1,2,{\"b\":null}]},", 1).into_bytes()),
        case("F14 Q53", "a field in a device that nobody knows", |_| Spec::new().device("/dev/f", 'c', 10, 229))
            .bytes(|_, text| {
                text.replacen("\"path\":\"/dev/f\"", "\"path\":\"/dev/f\",\"x-major\":195", 1).into_bytes()
            })
            .bare(DIFFERS)
            .refused(UNSAFE, "json-unknown"),
        case("F14", "a rule without letters", |_| {
            Spec::new().rule(json!({"allow": true, "type": "c", "major": 10, "minor": 229}))
        })
        .bare(Bare::Fails)
        .always(Verdict::Fails)
        // The list of a container with a GPU is written anew.
        .asking(Verdict::Runs),
        without("F14", "unknown fields are kept byte for byte", "specs_without_gpus_are_left_alone_on_every_node"),
    ]
}
