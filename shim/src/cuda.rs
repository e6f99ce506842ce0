//! Whether the image's CUDA runs on what it is granted: a note, or a refusal where the operator wants one. It looks at the
//! container's environment and the contract only.

use contract::capability::Capability;
use contract::config::Policy;
use contract::cuda::{self, Driver, Image};
use contract::json::Node;
use contract::{Code, Contract, Note, Refusal};

const RULE: &str = "cuda-requirement";
const HELP: &str = "use an image that runs on this node, as `quilt-gpu cuda check` on it tells, or set \
    NVIDIA_DISABLE_REQUIRE=1 to start this one all the same";

/// What is worth knowing about the image's CUDA.
///
/// # Errors
/// `POLICY` with the condition that failed, where `[policy] cuda` is `refuse`.
#[inline(never)]
pub(crate) fn judge(spec: &Node<'_>, contract: Option<&Contract>, policy: &Policy) -> Result<Vec<Note>, Refusal> {
    let Some(contract) = contract.filter(|_| policy.cuda != cuda::Policy::Off) else { return Ok(Vec::new()) };
    let capabilities = &contract.request.capabilities;
    if !capabilities.has(Capability::Compute) {
        let message =
            "compute is not asked for: nvidia-smi will show N/A as the CUDA version, and no CUDA program runs";
        let at = contract.request.place("capabilities").to_owned();
        let note = Note { rule: "cuda-without-compute", at, message: message.to_owned() };
        return Ok(if capabilities.has(Capability::Utility) { vec![note] } else { Vec::new() });
    }
    let mut image = Image::default();
    let environment = spec.path(&["process", "env"]).map(Node::items).unwrap_or_default();
    for (index, entry) in environment.iter().enumerate() {
        image.read(index, entry.as_str().unwrap_or_default());
    }
    let driver = Driver::of(contract.facts.driver_version.as_deref(), None);
    let findings = cuda::judge(&image, &driver, &contract.products);
    let mut notes = Vec::new();
    for finding in &findings {
        // Condition and verdict; the helper has the sentences.
        let message = format!("{}, {}: {}", finding.variable, finding.condition(), finding.brief());
        if policy.cuda == cuda::Policy::Refuse && image.is_blocked_by(finding) {
            // Not the entry itself: NVIDIA's images fill pages with it.
            return Err(Refusal::new(Code::Policy, RULE, message, HELP).at("/process/env", finding.variable));
        }
        notes.push(Note { rule: RULE, at: format!("/process/env/{}", finding.index), message });
    }
    Ok(notes)
}

#[cfg(test)]
mod tests;
