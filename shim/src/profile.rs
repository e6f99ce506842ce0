//! What keeps EGL and Vulkan to the granted GPUs: an application profile, which the driver's own libraries read, bound from the
//! bundle. No boundary, since the device filter is that: programs are not offered GPUs that they could not open.

use std::path::{Path, PathBuf};

use contract::config::Config;
use contract::json::Node;
use contract::{Contract, Refusal};
use node::InRoot;

use crate::targets::refuse_covered;
use crate::view;

/// Where the driver's libraries look, under the name that other runtimes give it.
pub(crate) const PLACE: &str = "/etc/nvidia/nvidia-application-profiles-rc.d/10-container.conf";
/// Its name in the bundle.
pub(crate) const IN_BUNDLE: &str = "quilt-gpu.application-profile.json";
/// Who reads it.
const READERS: [&str; 2] = ["libEGL_nvidia.", "libGLX_nvidia."];

/// The profile of one container.
pub(crate) struct Profile {
    /// One bit for each device minor.
    visible: u32,
    /// The file in the bundle.
    pub(crate) file: PathBuf,
}

/// The profile for a container that draws; none where it has no place, or where the setting's 32 bits do not reach.
pub(crate) fn of(
    root: Option<&InRoot>,
    spec: &Node<'_>,
    bundle: &Path,
    contract: &Contract,
    config: &Config,
) -> Option<Profile> {
    let reads = |soname: &str| READERS.iter().any(|reader| soname.starts_with(reader));
    if config.policy.show_other_gpus || !contract.libraries.iter().any(|library| reads(&library.soname)) {
        return None;
    }
    let visible = contract.gpus.iter().try_fold(0, |all, gpu| Some(all | 1_u32.checked_shl(gpu.minor?)?))?;
    // A volume there has profiles of its own, and a mount point cannot be made on a read-only file system.
    let has_place = !root.is_some_and(InRoot::is_frozen) && refuse_covered(spec, root, &[PLACE], &[]).is_ok();
    has_place.then(|| Profile { visible, file: bundle.join(IN_BUNDLE) })
}

impl Profile {
    /// Writes the file, labelled as the spec wants.
    ///
    /// # Errors
    /// It cannot be written.
    pub(crate) fn write(&self, spec: &Node<'_>) -> Result<(), Refusal> {
        view::beside(&self.file, self.text().as_bytes(), spec).map_err(|e| Refusal::internal("profile-write", &e))
    }

    /// For every program.
    fn text(&self) -> String {
        format!("{{\"rules\":[{{\"pattern\":[],\"profile\":[\"EGLVisibleDGPUDevices\",{}]}}]}}\n", self.visible)
    }
}
