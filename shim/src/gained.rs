//! What a process that is added to a container would have beyond the container itself: taken out of what the low-level
//! runtime is told, so that nobody undoes by `exec` what keeps the container from GPUs. Stops no process.

use std::ops::Range;
use std::path::Path;

use contract::json::Node;
use guard::Has;

use crate::container::Container;
use crate::lowlevel::{Seen, first_process, made_with_users};

/// What the container has; `None` where its capabilities reach no further than a user namespace that it was made in. Its first
/// process may have gone into one by itself, with all capabilities there: what is added does not follow it.
fn has(container: &Container<'_>) -> Option<Has> {
    let state = container.root.join(container.call.id);
    match first_process(&state).and_then(node::process::bounds) {
        Some(bounds) if bounds.same_user => {
            Some(Has { capabilities: bounds.capabilities, sees_others: bounds.same_pids })
        }
        Some(_) if made_with_users(&state) => None,
        _ => Some(Has::NOTHING),
    }
}

/// A call's own words for more: what they are, and where (counted without the program's name).
pub(crate) fn by_flags(container: &Container<'_>) -> Vec<(String, usize)> {
    let mut asked = container.call.values_of("cap", "c").peekable();
    if asked.peek().is_none() {
        return Vec::new();
    }
    let profile = container.setup.config.policy.profile;
    let Some(has) = has(container) else { return Vec::new() };
    asked.filter(|(name, _)| has.gains_by(name, profile)).map(|(name, word)| (name.to_owned(), word)).collect()
}

/// Whether a document that is silent on capabilities would give the process all of them.
pub(crate) fn gives_all(container: &Container<'_>, bytes: &[u8]) -> bool {
    let gives = |program: &Path| Seen::of(container.setup, Some(program)).ways.gives_all();
    guard::may_be_silent(bytes) && (gives(&container.low_level) || gives(&container.made_by()))
}

/// A silent document that names what the container has.
fn said_of(has: Has, bytes: &[u8], process: &Node<'_>) -> Option<(Vec<u8>, Vec<String>)> {
    let list = has.listed();
    let null = process.members().iter().find(|member| member.key == "capabilities");
    let (place, text) = match null {
        Some(null) => (null.value.span.clone(), list),
        None => {
            let start = process.span.start + 1;
            let comma = if process.members().is_empty() { "" } else { "," };
            (start..start, format!("\"capabilities\":{list}{comma}"))
        }
    };
    let copy = [bytes.get(..place.start)?, text.as_bytes(), bytes.get(place.end..)?].concat();
    Some((copy, Vec::new()))
}

/// A process document without what it would gain, and what that was; nothing when it gains nothing.
pub(crate) fn by_process(
    container: &Container<'_>,
    bytes: &[u8],
    process: &Node<'_>,
) -> Option<(Vec<u8>, Vec<String>)> {
    let Some(said) = process.get("capabilities") else {
        return has(container).filter(|_| gives_all(container, bytes)).and_then(|has| said_of(has, bytes, process));
    };
    let sets = said.members();
    if sets.iter().all(|set| set.value.items().is_empty()) {
        return None;
    }
    let (has, profile) = (has(container)?, container.setup.config.policy.profile);
    let gains = |item: &Node<'_>| item.as_str().is_some_and(|name| has.gains_by(name, profile));
    let mut taken: Vec<String> = Vec::new();
    let mut places: Vec<(Range<usize>, String)> = Vec::new();
    for set in sets.iter().filter(|set| set.value.items().iter().any(gains)) {
        let (out, kept): (Vec<&Node<'_>>, Vec<_>) = set.value.items().iter().partition(|item| gains(item));
        let kept = kept.iter().filter_map(|item| std::str::from_utf8(bytes.get(item.span.clone())?).ok());
        places.push((set.value.span.clone(), format!("[{}]", kept.collect::<Vec<_>>().join(","))));
        for name in out.iter().filter_map(|item| item.as_str()) {
            if !taken.iter().any(|known| known == name) {
                taken.push(name.to_owned());
            }
        }
    }
    let (mut copy, mut done) = (Vec::with_capacity(bytes.len()), 0);
    for (place, list) in places {
        copy.extend_from_slice(bytes.get(done..place.start)?);
        copy.extend_from_slice(list.as_bytes());
        done = place.end;
    }
    copy.extend_from_slice(bytes.get(done..)?);
    (!taken.is_empty()).then_some((copy, taken))
}
