//! What a CDI file leaves open about device nodes, filled in from the host. Looks at nothing itself: the caller does, and
//! must not follow a link at the end of the path.

use super::types::{ContainerEdits, DeviceNode, NodeKind};

/// What a path of the host is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Seen {
    /// What kind of node; nothing when it is no node, as a link.
    pub kind: Option<NodeKind>,
    /// Device major.
    pub major: u32,
    /// Device minor.
    pub minor: u32,
    /// Permission bits.
    pub mode: u32,
}

/// Fills in type, numbers and mode of device nodes where the file does not say them.
///
/// # Errors
/// A node that the file does not say enough about is not there, or is something else.
pub fn complete(edits: &mut ContainerEdits, look: impl Fn(&str) -> Result<Seen, String>) -> Result<(), String> {
    edits.device_nodes.iter_mut().try_for_each(|node| one(node, &look))
}

fn one(node: &mut DeviceNode, look: &impl Fn(&str) -> Result<Seen, String>) -> Result<(), String> {
    let major = node.major.filter(|major| *major != 0);
    let enough = node.kind.is_some_and(|kind| major.is_some() || kind == NodeKind::Fifo);
    let failed = |why: String| format!("cannot tell what the device node {} is: {why}", node.host());
    let (seen, kind) = match look(node.host()).map(|seen| (seen, seen.kind)) {
        Ok((seen, Some(kind))) => (seen, kind),
        // A vendor may say all about a node that is not there yet.
        _ if enough => return Ok(()),
        Ok((_, None)) => return Err(failed("it is not a device node".to_owned())),
        Err(why) => return Err(failed(why)),
    };
    let wanted = node.kind.unwrap_or(kind);
    if !enough && wanted.of_rule() != kind.of_rule() {
        let (wanted, found) = (wanted.letter(), kind.letter());
        return Err(failed(format!("the file says type {wanted}, and it is of type {found}")));
    }
    node.file_mode = node.file_mode.or(Some(seen.mode));
    if enough {
        return Ok(());
    }
    node.kind = Some(wanted);
    if kind != NodeKind::Fifo && major.is_none() {
        (node.major, node.minor) = (Some(seen.major), Some(seen.minor));
    }
    Ok(())
}

impl NodeKind {
    /// The letter that rules know it by.
    pub(crate) fn of_rule(self) -> &'static str {
        if self == Self::Unbuffered { "c" } else { self.letter() }
    }
}
