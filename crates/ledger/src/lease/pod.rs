//! A container's place in a pod. No I/O.

use contract::record;
use serde::Serialize;

/// A container's place in a pod: what stays the same when it is started anew. UID and container say which it is; the pod's
/// name is for people.
#[derive(Debug, Clone, Eq, Serialize)]
pub struct PodContainer {
    /// The pod's UID.
    pub uid: String,
    /// The container's name in the pod.
    pub container: String,
    /// The pod's name, where it is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// The pod's namespace, where it is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
}

impl PartialEq for PodContainer {
    fn eq(&self, other: &Self) -> bool {
        (&self.uid, &self.container) == (&other.uid, &other.container)
    }
}

impl PodContainer {
    /// The place of a container in a pod of which only the UID is known.
    #[must_use]
    pub fn new(uid: impl Into<String>, container: impl Into<String>) -> Self {
        Self { uid: uid.into(), container: container.into(), name: None, namespace: None }
    }
}

record!(open PodContainer { uid, container, name, namespace });

impl std::fmt::Display for PodContainer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "for {} in pod {}", self.container, self.uid)
    }
}
