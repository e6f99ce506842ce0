//! `/dev/char/MAJOR:MINOR`: the names by which systemd finds a device. It drops a unit's rule for a number without one, so
//! a container in a systemd cgroup loses its GPU with the next `daemon-reload`. udev makes them, but not for NVIDIA's
//! nodes, which the kernel does not announce. Looking changes nothing; making them is asked for.

use std::fs;
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt, symlink};
use std::path::Path;

use contract::config::Host;
use contract::inventory::{DeviceNode, Finding, Inventory};
use nix::sys::stat::{major, minor};

const FOLDER: &str = "dev/char";
/// There while systemd runs the machine (sd_booted(3)).
const SYSTEMD: &str = "run/systemd/system";

/// The finding that names what systemd could not resolve; none where systemd does not run.
pub(crate) fn missing(host: &Host, inventory: &Inventory) -> Option<Finding> {
    if !Path::new(&host.path(SYSTEMD)).is_dir() {
        return None;
    }
    let names: Vec<String> = without(host, inventory).map(|node| format!("{}:{}", node.major, node.minor)).collect();
    let message = format!(
        "/{FOLDER} lacks {}: systemd drops device rules for these numbers, and a daemon-reload takes the GPU from containers in its cgroups; run `quilt-gpu inventory refresh --char-links` after every boot",
        names.join(", ")
    );
    (!names.is_empty()).then(|| Finding { code: "char-link-missing".into(), stops: false, message })
}

/// Makes the links that are missing; says which.
///
/// # Errors
/// The first that cannot be made, and why: another file in its place is somebody else's.
pub(crate) fn make(host: &Host, inventory: &Inventory) -> Result<Vec<String>, String> {
    let folder = host.path(FOLDER);
    let failed = |path: &str, cause: &std::io::Error| format!("cannot make the link {path}: {cause}");
    let mut made = Vec::new();
    for node in without(host, inventory) {
        fs::DirBuilder::new().recursive(true).mode(0o755).create(&folder).map_err(|cause| failed(&folder, &cause))?;
        let path = link(host, &node);
        // Relative as udev's are, so that it holds under another root too.
        let below = node.host_path.strip_prefix(&host.path("dev/")).map(|name| format!("../{name}"));
        symlink(below.as_ref().unwrap_or(&node.host_path), &path).map_err(|cause| failed(&path, &cause))?;
        made.push(path);
    }
    Ok(made)
}

/// The nodes that their numbers do not lead to.
fn without(host: &Host, inventory: &Inventory) -> impl Iterator<Item = DeviceNode> {
    inventory.nodes().filter(|node| {
        let leads = fs::metadata(link(host, node)).is_ok_and(|there| {
            let number = (major(there.rdev()), minor(there.rdev()));
            there.file_type().is_char_device() && number == (u64::from(node.major), u64::from(node.minor))
        });
        !leads
    })
}

fn link(host: &Host, node: &DeviceNode) -> String {
    host.path(&format!("{FOLDER}/{}:{}", node.major, node.minor))
}

#[cfg(test)]
mod tests {
    use contract::inventory::{Role, SCHEMA};

    use super::*;

    fn node(dev: &str, name: &str, major: u32, minor: u32) -> DeviceNode {
        let host_path = format!("{dev}/{name}");
        DeviceNode {
            path: format!("/dev/{name}"),
            host_path,
            major,
            minor,
            mode: 0o666,
            uid: 0,
            gid: 0,
            role: Role::Control,
        }
    }

    /// Numbers that every machine has: null and zero stand for GPUs.
    fn inventory(dev: &str) -> Inventory {
        Inventory {
            schema: SCHEMA,
            control: vec![node(dev, "nvidia0", 1, 3), node(dev, "nvidiactl", 1, 5)],
            ..Inventory::default()
        }
    }

    #[test]
    fn missing_links_are_told_and_made_when_asked() {
        let root = tempfile::tempdir().unwrap();
        let dev = root.path().join("dev");
        fs::create_dir(&dev).unwrap();
        for (name, real) in [("nvidia0", "/dev/null"), ("nvidiactl", "/dev/zero")] {
            symlink(real, dev.join(name)).unwrap();
        }
        let host = Host { root: root.path().to_str().unwrap().into(), ..Host::default() };
        let inventory = inventory(dev.to_str().unwrap());
        assert_eq!(missing(&host, &inventory), None, "without systemd nobody needs them");
        fs::create_dir_all(root.path().join(SYSTEMD)).unwrap();
        let finding = missing(&host, &inventory).unwrap();
        assert!(!finding.stops && finding.message.contains("lacks 1:3, 1:5"), "{finding:?}");

        // One is there and leads elsewhere: it is somebody's, and says so.
        fs::create_dir(dev.join("char")).unwrap();
        symlink("../nvidiactl", dev.join("char/1:3")).unwrap();
        assert!(make(&host, &inventory).unwrap_err().contains("/dev/char/1:3"));
        fs::remove_file(dev.join("char/1:3")).unwrap();
        assert_eq!(make(&host, &inventory).unwrap().len(), 2);
        assert_eq!(fs::read_link(dev.join("char/1:5")).unwrap(), Path::new("../nvidiactl"));
        assert_eq!(missing(&host, &inventory), None);
        assert_eq!(make(&host, &inventory).unwrap(), Vec::<String>::new());
    }

    #[test]
    fn nodes_of_a_driver_container_are_linked_where_they_are() {
        let root = tempfile::tempdir().unwrap();
        let host = Host { root: root.path().to_str().unwrap().into(), ..Host::default() };
        make(&host, &inventory("/run/nvidia/driver/dev")).unwrap();
        let link = root.path().join("dev/char/1:3");
        assert_eq!(fs::read_link(link).unwrap(), Path::new("/run/nvidia/driver/dev/nvidia0"));
    }
}
