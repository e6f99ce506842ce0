//! The nodes that manage and watch MIG instances of every GPU: policy gives them to owners, and the driver serves nobody through
//! them without CAP_SYS_ADMIN. A container without it is not given what it could only hold open, or hand on.

use contract::json::Node;
use contract::{Contract, Note};

const NEEDED: &str = "SYS_ADMIN";

/// Takes them out of the contract of a container that cannot use them; the note says so.
pub(crate) fn withhold(spec: &Node<'_>, contract: &mut Contract) -> Option<Note> {
    let given = contract.nodes.len();
    if !guard::has_capability(spec, NEEDED) {
        contract.nodes.retain(|node| !node.role.manages());
    }
    let message =
        "the nodes that manage or watch MIG instances are this owner's, but for containers with CAP_SYS_ADMIN only";
    (contract.nodes.len() < given).then(|| Note::new("mig-node", "/process/capabilities", message))
}
