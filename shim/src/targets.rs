//! Whether a volume of the tenant lies over a place where something granted must go.
//!
//! A mount point made inside a volume stays in the tenant's folder, and a mount inside it may propagate to the host.
//! Places are compared as folders of the image, not as text: `/lib` and `/usr/lib` are one folder in many images.

use std::cell::RefCell;
use std::path::Path;

use contract::json::Node;
use contract::{Code, Refusal};
use node::InRoot;

/// More links in a row lead nowhere.
const MAX_LINKS: usize = 40;

/// The deepest part of a path that is there in the image, and what is left of the path.
#[derive(Debug, PartialEq, Eq)]
struct Place {
    there: Option<(u64, u64)>,
    rest: Vec<String>,
}

/// Refuses a volume that covers one of `targets`, and one that stands exactly where a node of `nodes` must be.
///
/// # Errors
/// `UNSAFE_SPEC`, naming the volume.
pub(crate) fn refuse_covered(
    spec: &Node<'_>,
    root: Option<&InRoot>,
    targets: &[&str],
    nodes: &[&str],
) -> Result<(), Refusal> {
    let volumes: Vec<(usize, &str)> = volumes(spec).collect();
    if volumes.is_empty() {
        return Ok(());
    }
    let image = Image { root, seen: RefCell::default() };
    // A file, as engines bind into /etc, holds nothing.
    let is_file = |path: &str| root.is_some_and(|root| root.is_file(Path::new(path)));
    let behind: Vec<String> = match volumes.iter().any(|(_, destination)| !is_file(destination)) {
        true => targets.iter().flat_map(|target| followed(root, target)).collect(),
        false => Vec::new(),
    };
    let all = targets.iter().chain(nodes).copied().chain(behind.iter().map(String::as_str));
    let mut folders: Vec<&str> = all.flat_map(folders_above).collect();
    contract::order::sort(&mut folders);
    folders.dedup();
    let folders: Vec<(&str, Place)> = folders.into_iter().map(|folder| (folder, image.place(folder))).collect();
    let nodes: Vec<(&str, Place)> = nodes.iter().map(|node| (*node, image.place(node))).collect();
    for (index, destination) in volumes {
        let here = image.place(destination);
        let refusal = |message: String, help| {
            Refusal::new(Code::UnsafeSpec, "target-in-volume", message, help)
                .at(format!("/mounts/{index}/destination"), destination)
        };
        if let Some((folder, _)) = folders.iter().find(|(_, place)| *place == here) {
            let message = format!("this volume covers {folder}, where a part of the GPU's driver must go");
            return Err(refusal(message, "mount the volume somewhere else"));
        }
        if let Some((node, _)) = nodes.iter().find(|(_, place)| *place == here) {
            let message = format!("something is mounted at {node}, where a granted device must be");
            return Err(refusal(message, "leave the mount out: a granted GPU brings its device nodes along"));
        }
    }
    Ok(())
}

/// The destinations of all mounts that keep what is made in them, with their index.
fn volumes<'a>(spec: &'a Node<'_>) -> impl Iterator<Item = (usize, &'a str)> {
    let mounts = spec.get("mounts").map(Node::items).unwrap_or_default();
    mounts.iter().enumerate().filter_map(|(index, mount)| {
        let options = mount.get("options").map(Node::items).unwrap_or_default();
        let bind = options.iter().filter_map(Node::as_str).any(|option| option == "bind" || option == "rbind");
        // An overlay's upper folder is the tenant's too.
        let keeps = bind || mount.get("type").and_then(Node::as_str) == Some("overlay");
        mount.get("destination").and_then(Node::as_str).filter(|_| keeps).map(|destination| (index, destination))
    })
}

/// `/usr/lib` and `/usr` for `/usr/lib/libcuda.so.1`. Not `/`: nothing can be mounted over the root of a container.
fn folders_above(target: &str) -> impl Iterator<Item = &str> {
    target.char_indices().filter(|(at, c)| *c == '/' && *at > 0).filter_map(|(at, _)| target.get(..at))
}

/// Where the image's links lead from a target: that is where the runtime mounts.
fn followed(root: Option<&InRoot>, target: &str) -> Vec<String> {
    let mut all = Vec::new();
    let mut path = target.to_owned();
    while let Some(next) = root.and_then(|root| root.link(Path::new(&path))).filter(|_| all.len() < MAX_LINKS) {
        let folder = path.rsplit_once('/').map_or("", |(folder, _)| folder);
        path = if next.is_absolute() { String::new() } else { format!("{folder}/") } + &next.to_string_lossy();
        all.push(path.clone());
    }
    all
}

/// Most folders of an image that are remembered.
const MOST_SEEN: usize = 64;

/// Device and inode of a file; nothing where nothing is.
type There = Option<(u64, u64)>;

/// The root of the container, each folder looked at once: volumes lie beside each other.
struct Image<'r> {
    root: Option<&'r InRoot>,
    seen: RefCell<Vec<(String, There)>>,
}

impl Image<'_> {
    fn there(&self, path: &str) -> There {
        self.root.and_then(|root| root.file_id(Path::new(path)).ok()).map(|id| (id.dev, id.ino))
    }

    fn folder(&self, path: String) -> There {
        if let Some((_, known)) = self.seen.borrow().iter().find(|(seen, _)| *seen == path) {
            return *known;
        }
        let there = self.there(&path);
        let mut seen = self.seen.borrow_mut();
        if seen.len() < MOST_SEEN {
            seen.push((path, there));
        }
        there
    }

    fn place(&self, path: &str) -> Place {
        // As it is written first: only the image tells where `..` leads behind a link.
        if let Some(id) = self.there(path) {
            return Place { there: Some(id), rest: Vec::new() };
        }
        let clean = guard::clean(path);
        let parts: Vec<&str> = clean.split('/').filter(|part| !part.is_empty()).collect();
        for depth in (0..=parts.len()).rev() {
            let (front, rest) = parts.split_at(depth);
            let folder = format!("/{}", front.join("/"));
            if folder == path {
                continue;
            }
            if let Some(id) = self.folder(folder) {
                return Place { there: Some(id), rest: rest.iter().map(|part| (*part).to_owned()).collect() };
            }
        }
        Place { there: None, rest: parts.into_iter().map(str::to_owned).collect() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outcome(root: &Path, destination: &str) -> String {
        let spec = format!(
            "{{\"mounts\":[{{\"destination\":\"/x\",\"type\":\"tmpfs\"}},{{\"destination\":\"{destination}\",\"options\":[\"rbind\"]}}]}}"
        );
        let spec = contract::json::parse_oci(spec.as_bytes()).unwrap();
        let root = InRoot::open(root).unwrap();
        let targets =
            ["/usr/lib/x86_64-linux-gnu/libcuda.so.1", "/usr/lib/x86_64-linux-gnu/libcuda.so", "/usr/bin/nvidia-smi"];
        match refuse_covered(&spec, Some(&root), &targets, &["/dev/nvidia0"]) {
            Ok(()) => "fine".to_owned(),
            Err(refusal) => format!("{}: {}", refusal.at, refusal.message.split(',').next().unwrap()),
        }
    }

    #[test]
    fn a_link_of_the_images_leads_into_no_volume() {
        let image = tempfile::tempdir().unwrap();
        let folder = image.path().join("usr/lib/x86_64-linux-gnu");
        std::fs::create_dir_all(&folder).unwrap();
        std::os::unix::fs::symlink("libcuda.so.9", folder.join("libcuda.so.1")).unwrap();
        std::os::unix::fs::symlink("../../../data/deep/libcuda.so.9", folder.join("libcuda.so.9")).unwrap();
        std::os::unix::fs::symlink("/usr/lib/x86_64-linux-gnu/libcuda.so", folder.join("libcuda.so")).unwrap();
        for (destination, is_fine) in [("/data", false), ("/data/deep", false), ("/other", true), ("/data/x", true)] {
            assert_eq!(outcome(image.path(), destination) == "fine", is_fine, "{destination}");
        }
        // A file there holds nothing.
        std::fs::write(image.path().join("data"), "").unwrap();
        assert_eq!(outcome(image.path(), "/data"), "fine");
    }

    #[test]
    fn folders_of_the_image_are_compared_not_text() {
        let image = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(image.path().join("usr/lib/x86_64-linux-gnu")).unwrap();
        std::fs::create_dir_all(image.path().join("usr/bin")).unwrap();
        std::os::unix::fs::symlink("usr/lib", image.path().join("lib")).unwrap();
        std::os::unix::fs::symlink("/usr/lib", image.path().join("odd")).unwrap();
        let covers = |folder: &str| format!("/mounts/1/destination: this volume covers {folder}");
        for (destination, expected) in [
            ("/data", "fine".to_owned()),
            ("/usr/lib/x86_64-linux-gnu/libcuda.so.1", "fine".to_owned()),
            ("/usr/lib/python3", "fine".to_owned()),
            ("/usr/local", "fine".to_owned()),
            ("/usr/lib/x86_64-linux-gnu", covers("/usr/lib/x86_64-linux-gnu")),
            ("/lib/x86_64-linux-gnu", covers("/usr/lib/x86_64-linux-gnu")),
            ("/odd/x86_64-linux-gnu/", covers("/usr/lib/x86_64-linux-gnu")),
            ("/usr//lib/./x86_64-linux-gnu", covers("/usr/lib/x86_64-linux-gnu")),
            ("/lib/../lib", covers("/usr/lib")),
            ("usr", covers("/usr")),
            ("/nowhere/../usr/bin", covers("/usr/bin")),
            ("/dev", covers("/dev")),
            ("/dev/nvidia0", "/mounts/1/destination: something is mounted at /dev/nvidia0".to_owned()),
            ("//dev/../dev/nvidia0", "/mounts/1/destination: something is mounted at /dev/nvidia0".to_owned()),
            ("/dev/nvidia1", "fine".to_owned()),
        ] {
            assert_eq!(outcome(image.path(), destination), expected, "{destination}");
        }
    }
}
