//! Hooks of a CDI file, for images whose layout no bind serves: what they are given is what the file binds. Touches nothing.

use std::num::NonZeroU32;
use std::path::Path;

use cdi::Stage;
use cdi::spec::{ContainerEdits, Hook, lowest};
use linker::view::plain_name;
use shim::layout::{CREATE_LINKS, LIBRARY, LIBRARY32, UPDATE_CACHE};

use super::devices::{FOLDERS, Made};

/// Seconds; it takes milliseconds.
const TIMEOUT: Option<NonZeroU32> = NonZeroU32::new(10);

/// Puts hooks into a file that `program` carries out.
pub(super) fn add(made: &mut Made, program: &Path) {
    let edits = &mut made.spec.container_edits;
    let libraries = libraries(edits);
    let hook = |word: &str| Hook {
        hook_name: Stage::CreateContainer,
        path: program.display().to_string(),
        args: ["quilt-gpu-hook", word].map(str::to_owned).into_iter().chain(libraries.clone()).collect(),
        // Without a variable of its own a hook gets the container's, from some runtimes.
        env: vec!["QUILT_GPU_HOOK=1".to_owned()],
        timeout: TIMEOUT,
    };
    edits.hooks = [CREATE_LINKS, UPDATE_CACHE].map(hook).into();
    lowest(&made.spec).clone_into(&mut made.spec.cdi_version);
}

/// Where each library lies, once: in the folder of those who are not Debian's. Plain names follow from the others.
fn libraries(edits: &ContainerEdits) -> Vec<String> {
    let [_, (wide, narrow)] = FOLDERS;
    let named: Vec<(&str, &str)> =
        edits.mounts.iter().filter_map(|mount| mount.container_path.rsplit_once('/')).collect();
    let is_plain = |name: &str| named.iter().any(|(_, other)| plain_name(other) == Some(name));
    let option = |folder: &str| match folder {
        folder if folder == wide => Some(LIBRARY),
        folder if folder == narrow => Some(LIBRARY32),
        _ => None,
    };
    let of = |(folder, name): &(&str, &str)| {
        Some([option(folder)?.to_owned(), format!("{folder}/{name}")]).filter(|_| !is_plain(name))
    };
    named.iter().filter_map(of).flatten().collect()
}
