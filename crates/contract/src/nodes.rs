//! Device nodes that are read when somebody wants them: a node may have hundreds of parts of GPUs with two each, and a container
//! gets those of one. In the stored inventory they are one text, which is kept as it is until then.

use std::borrow::Cow;

use serde::{Serialize, Serializer};

use crate::inventory::{DeviceNode, Role};
use crate::json::Node;
use crate::read::{FromJson, ReadError};

/// The device nodes of a part of a GPU, read or not.
#[derive(Debug, Clone)]
pub struct Nodes(Kept);

#[derive(Debug, Clone)]
enum Kept {
    Read(Vec<DeviceNode>),
    /// For each node seven words: major, minor, mode, owner, group, where a container sees it, and what stands before that where
    /// it lies on the host. They are of capabilities.
    Unread(Box<str>),
}

impl Nodes {
    /// The nodes.
    ///
    /// # Errors
    /// What stands there cannot be read: nobody knows which nodes it has.
    pub fn read(&self) -> Result<Cow<'_, [DeviceNode]>, ReadError> {
        match &self.0 {
            Kept::Read(nodes) => Ok(Cow::Borrowed(nodes)),
            Kept::Unread(text) => {
                unfolded(text).map(Cow::Owned).ok_or_else(|| ReadError::new("it is no list of nodes"))
            }
        }
    }

    /// Whether they are a text.
    pub(crate) fn are_folded(&self) -> bool {
        matches!(self.0, Kept::Unread(_))
    }

    /// The same as a text, when that says it all.
    #[must_use]
    pub fn folded(&self) -> Self {
        let Ok(nodes) = self.read() else { return self.clone() };
        let words = |DeviceNode { path, host_path, major, minor, mode, uid, gid, .. }: &DeviceNode| {
            let root = host_path.strip_suffix(path.as_str()).unwrap_or_default();
            format!("{major} {minor} {mode} {uid} {gid} {path} {root}")
        };
        let text = nodes.iter().map(words).collect::<Vec<_>>().join(" ");
        let says_it_all = unfolded(&text).is_some_and(|read| read == *nodes);
        if says_it_all { Self(Kept::Unread(text.into())) } else { self.clone() }
    }
}

fn unfolded(text: &str) -> Option<Vec<DeviceNode>> {
    let words: Vec<&str> = text.split(' ').collect();
    let node = |words: &[&str]| {
        let [major, minor, mode, uid, gid, path, root] = words else { return None };
        let number = |word: &str| word.parse().ok();
        let [major, minor, mode, uid, gid] =
            [number(major)?, number(minor)?, number(mode)?, number(uid)?, number(gid)?];
        let (path, host_path) = ((*path).to_owned(), format!("{root}{path}"));
        Some(DeviceNode { path, host_path, major, minor, mode, uid, gid, role: Role::Caps })
    };
    words.chunks(7).map(node).collect()
}

impl From<Vec<DeviceNode>> for Nodes {
    fn from(nodes: Vec<DeviceNode>) -> Self {
        Self(Kept::Read(nodes))
    }
}

impl FromJson for Nodes {
    fn from_json(node: &Node<'_>) -> Result<Self, ReadError> {
        match node.as_str() {
            Some(text) => Ok(Self(Kept::Unread(text.into()))),
            None => Vec::from_json(node).map(|nodes| Self(Kept::Read(nodes))),
        }
    }
}

impl PartialEq for Nodes {
    fn eq(&self, other: &Self) -> bool {
        self.read() == other.read()
    }
}

impl Eq for Nodes {}

impl Serialize for Nodes {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match &self.0 {
            Kept::Read(nodes) => nodes.serialize(serializer),
            Kept::Unread(text) => text.serialize(serializer),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cap(host_path: &str) -> DeviceNode {
        let path = "/dev/nvidia-caps/nvidia-cap7".to_owned();
        let host_path = host_path.to_owned();
        DeviceNode { path, host_path, major: 236, minor: 7, mode: 0o444, uid: 0, gid: 44, role: Role::Caps }
    }

    #[test]
    fn a_text_says_all_or_is_none() {
        let usual = [cap("/dev/nvidia-caps/nvidia-cap7"), cap("/run/nvidia/driver/dev/nvidia-caps/nvidia-cap7")];
        for (nodes, folds) in [
            (usual.to_vec(), true),
            (usual[1..].to_vec(), true),
            (vec![], false),
            (vec![cap("/a b/dev/nvidia-caps/nvidia-cap7")], false),
            (vec![cap("/a 2 3 4 5 6 7 8/dev/nvidia-caps/nvidia-cap7")], false),
            (vec![cap("/dev/nvidia-caps/nvidia-cap8")], false),
            (vec![DeviceNode { role: Role::Compute, ..cap("/dev/a") }], false),
        ] {
            let whole = Nodes::from(nodes.clone());
            let folded = whole.folded();
            assert_eq!((folded.are_folded(), &folded, &folded.folded()), (folds, &whole, &whole), "{nodes:?}");
            assert_eq!(*folded.read().unwrap(), nodes);
            let bytes = serde_json::to_vec(&folded).unwrap();
            let read: Nodes = crate::read::document(&bytes).unwrap();
            assert_eq!((read.are_folded(), &read), (folds, &whole));
        }
    }

    #[test]
    fn what_is_no_text_of_nodes_names_none() {
        for text in
            ["", "1 2 3 4 5 /a", "1 2 3 4 x /a /b", "1 2 3 4 5 /a /b ", "1 2 3 4 -5 /a /b", "1 2 3 4 5 /a /b /c"]
        {
            let nodes: Nodes = crate::read::document(format!("{text:?}").as_bytes()).unwrap();
            assert!(nodes.read().is_err(), "{text}");
            assert_ne!(nodes, Nodes::from(vec![]), "{text}");
            assert_eq!(nodes.folded(), nodes);
        }
    }
}
