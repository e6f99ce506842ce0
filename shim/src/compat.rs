//! Which driver CUDA programs load where the image brings compatibility libraries (`cuda-compat`): the node's, unless NVIDIA's
//! own rules make the image's the better one. Chosen by the variable that loaders ask first, so that no program gets half of
//! each and no file of the image is anything's source.

use std::path::Path;

use contract::json::Node;
use contract::{Contract, Note, cuda};
use node::InRoot;

/// Where images from NVIDIA have them, whatever their version.
const FOLDER: &str = "/usr/local/cuda/compat";
const VARIABLE: &str = "LD_LIBRARY_PATH";

/// Puts the image's libraries first in the contract's environment where they are to be used. The note says what was chosen;
/// there is none where there is nothing to choose.
pub(crate) fn choose(spec: &Node<'_>, root: Option<&InRoot>, contract: &mut Contract) -> Option<Note> {
    let link = root?.link(&Path::new(FOLDER).join("libcuda.so.1"))?;
    let brought = link.to_str()?.strip_prefix("libcuda.so.")?;
    let driver = contract.facts.driver_version.as_deref()?;
    let note = |what: &str| {
        let message = format!("{FOLDER} brings {brought:?}, the node's driver is {driver}: {what}");
        Some(Note { rule: "cuda-compat", at: "/root/path".to_owned(), message })
    };
    if !cuda::takes(brought, driver, &contract.products)? {
        return note("the node's is used, GPUs of this kind do not take the image's");
    }
    let told = note("the image's is used");
    let environment = spec.path(&["process", "env"]).map(Node::items).unwrap_or_default();
    let mut own =
        environment.iter().filter_map(Node::as_str).filter_map(|entry| entry.strip_prefix(VARIABLE)?.strip_prefix('='));
    let own = own.next_back().unwrap_or_default();
    if !own.split(':').any(|one| one == FOLDER) {
        let value = if own.is_empty() { FOLDER.to_owned() } else { format!("{FOLDER}:{own}") };
        contract.env.push((VARIABLE.to_owned(), value));
    }
    told
}
