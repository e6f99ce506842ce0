//! What holds for every document and every edit.

use cdi::{Edits, apply, patch};
use contract::json::{self, Node};
use proptest::prelude::*;
use serde_json::Value;

use crate::documents::{devices, edits, spec, spelled};
use crate::model;
use crate::rfc6902::applied;

fn meeting() -> impl Strategy<Value = (Value, Vec<u8>, Edits)> {
    let choices = prop::collection::vec(any::<u8>(), 1..40);
    (spec(), choices).prop_flat_map(|(spec, choices)| {
        let edits = edits(devices(&spec));
        (Just(spec), Just(choices), edits)
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1_000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn bytes_operations_and_model_agree((spec, choices, edits) in meeting()) {
        let text = spelled(&spec, &choices);
        let node = json::parse_oci(text.as_bytes()).unwrap();
        let bytes = apply(text.as_bytes(), &node, &edits).unwrap();
        let ops = patch(&node, &edits).unwrap();
        let result: Value = serde_json::from_slice(&bytes).unwrap();
        prop_assert_eq!(&result, &applied(spec.clone(), &ops), "operations of {}", &text);
        prop_assert_eq!(&result, &model::edited(spec, &edits), "model of {}", &text);
        prop_assert_eq!(ops.is_empty(), bytes == text.as_bytes());
    }

    #[test]
    fn twice_is_once((spec, choices, edits) in meeting()) {
        let text = spelled(&spec, &choices);
        let once = apply(text.as_bytes(), &json::parse_oci(text.as_bytes()).unwrap(), &edits).unwrap();
        let node = json::parse_oci(&once).unwrap();
        // Positions are those of the unedited spec: they name other devices and mounts now.
        let again = Edits { drop_devices: Vec::new(), inserted: Vec::new(), ..edits };
        prop_assert_eq!(patch(&node, &again).unwrap(), []);
        prop_assert_eq!(&apply(&once, &node, &again).unwrap(), &once);
    }

    #[test]
    fn nothing_wanted_nothing_changed((spec, choices, _) in meeting()) {
        let text = spelled(&spec, &choices);
        let node = json::parse_oci(text.as_bytes()).unwrap();
        prop_assert_eq!(apply(text.as_bytes(), &node, &Edits::default()).unwrap(), text.as_bytes());
    }

    #[test]
    fn what_is_not_edited_stays_as_it_was_written((spec, choices, edits) in meeting()) {
        let text = spelled(&spec, &choices);
        let node = json::parse_oci(text.as_bytes()).unwrap();
        let bytes = apply(text.as_bytes(), &node, &edits).unwrap();
        let result = json::parse_oci(&bytes).unwrap();
        stays(&Side { text: &text, node: &node }, &Side { text: std::str::from_utf8(&bytes).unwrap(), node: &result }, "", &edits);
    }
}

/// A value and the document that it stands in.
struct Side<'s> {
    text: &'s str,
    node: &'s Node<'s>,
}

impl<'s> Side<'s> {
    fn raw(&self) -> &'s str {
        &self.text[self.node.span.clone()]
    }

    /// What stands between the start of this object's text and its first value, each two values, and at its end.
    fn gaps(&self) -> Vec<&'s str> {
        let mut from = self.node.span.start;
        let mut gaps = Vec::new();
        for member in self.node.members() {
            gaps.push(&self.text[from..member.value.span.start]);
            from = member.value.span.end;
        }
        gaps.push(&self.text[from.max(self.node.span.start + 1)..self.node.span.end]);
        gaps
    }
}

const LISTS: [&str; 5] =
    ["/process/env", "/process/user/additionalGids", "/mounts", "/linux/devices", "/linux/resources/devices"];

fn stays(before: &Side<'_>, after: &Side<'_>, at: &str, edits: &Edits) {
    let is_list = LISTS.contains(&at) || (at.starts_with("/hooks/") && at != "/hooks/unknownField");
    let leads_to_a_list = at == "/hooks" || LISTS.iter().any(|list| list.starts_with(&format!("{at}/")));
    if before.node.is_null() || at == "/linux/resources/devices" {
        return;
    }
    if !is_list && !leads_to_a_list {
        assert_eq!(before.raw(), after.raw(), "{at}");
        return;
    }
    if is_list {
        let wanted = |item: &Node<'_>| match at {
            "/process/env" => {
                edits.env.iter().any(|(name, _)| item.as_str().unwrap().split('=').next() == Some(name.as_str()))
            }
            "/linux/devices" => {
                edits.nodes.iter().any(|node| item.get("path").and_then(Node::as_str) == Some(node.path.as_str()))
            }
            _ => false,
        };
        let dropped = |index| at == "/linux/devices" && edits.drop_devices.contains(&index);
        let mut written = after.node.items().iter().map(|item| &after.text[item.span.clone()]);
        for (_, item) in
            before.node.items().iter().enumerate().filter(|(index, item)| !dropped(*index) && !wanted(item))
        {
            let raw = &before.text[item.span.clone()];
            assert!(written.any(|other| other == raw), "{at} lost {raw} or its order");
        }
        return;
    }
    let (old, new) = (before.gaps(), after.gaps());
    let common = before.node.members().len();
    assert_eq!(old[..common], new[..common], "keys and spaces of {at}");
    assert_eq!(old.last(), new.last(), "end of {at}");
    for (a, b) in before.node.members().iter().zip(after.node.members()) {
        assert_eq!(a.key, b.key);
        stays(
            &Side { node: &a.value, ..*before },
            &Side { node: &b.value, ..*after },
            &format!("{at}/{}", a.key),
            edits,
        );
    }
}
