//! Device nodes that a loaded driver has and the dev root lacks: made when the operator says so, with the numbers that the
//! kernel lists and the owner and mode that the module's parameters say. What lies at a name already is never touched.

use std::fs;
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::Path;

use contract::config::Host;
use nix::sys::stat::{Mode, SFlag, makedev, mknod};

use super::nodes::{self, AtName};
use super::read::at_name;

/// Owner, group and mode of the driver's nodes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Parameters {
    uid: u32,
    gid: u32,
    mode: u32,
}

/// Makes the missing nodes; says which.
///
/// # Errors
/// What could not be read, or the first node that cannot be made, and why.
pub(crate) fn make(host: &Host) -> Result<Vec<String>, String> {
    let facts = node::facts(host).map_err(|cause| cause.to_string())?;
    let path = host.path("proc/driver/nvidia/params");
    let parameters = parameters(&fs::read_to_string(&path).unwrap_or_default());
    let dev_root = host.dev_root();
    let mut made = Vec::new();
    for (name, (major, minor)) in nodes::of_driver(&facts) {
        if at_name(&dev_root, &name) != AtName::Missing {
            continue;
        }
        let path = format!("{}/{name}", dev_root.trim_end_matches('/'));
        let failed = |cause: std::io::Error| format!("cannot make the device node {path}: {cause}");
        // Nobody can open it before it is what it shall be.
        let number = makedev(major.into(), minor.into());
        mknod(Path::new(&path), SFlag::S_IFCHR, Mode::empty(), number).map_err(|errno| failed(errno.into()))?;
        chown(&path, Some(parameters.uid), Some(parameters.gid)).map_err(failed)?;
        fs::set_permissions(&path, fs::Permissions::from_mode(parameters.mode)).map_err(failed)?;
        made.push(path);
    }
    Ok(made)
}

/// From the text of `params`: decimal numbers. What it does not say is as the module has it without options.
fn parameters(text: &str) -> Parameters {
    let number = |key: &str| {
        let value = text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(':'))?;
        value.trim().parse::<u32>().ok()
    };
    Parameters {
        uid: number("DeviceFileUID").unwrap_or(0),
        gid: number("DeviceFileGID").unwrap_or(0),
        mode: number("DeviceFileMode").unwrap_or(0o666) & 0o777,
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt;

    use super::*;
    use crate::demo::fixture;

    #[test]
    fn parameters_are_decimal() {
        let table = [
            ("", (0, 0, 0o666)),
            ("ModifyDeviceFiles: 1\nDeviceFileUID: 0\nDeviceFileGID: 27\nDeviceFileMode: 432\n", (0, 27, 0o660)),
            ("DeviceFileMode: 4294967295\nDeviceFileGID: -1\n", (0, 0, 0o777)),
            ("DeviceFileModeX: 1\n DeviceFileMode: 1\n", (0, 0, 0o666)),
        ];
        for (text, (uid, gid, mode)) in table {
            assert_eq!(parameters(text), Parameters { uid, gid, mode }, "{text:?}");
        }
    }

    /// D14: exactly what is missing, with the kernel's numbers; nothing that lies there is touched.
    #[test]
    fn missing_nodes_are_made_and_nothing_else() {
        if !nix::unistd::geteuid().is_root() {
            println!("skipped: making device nodes needs root");
            return;
        }
        let root = tempfile::tempdir().unwrap();
        let at = |name: &str| root.path().join(name);
        fixture::lay_out(root.path()).unwrap();
        fs::write(at("proc/driver/nvidia/params"), "DeviceFileGID: 44\nDeviceFileMode: 432\n").unwrap();
        for name in ["nvidia0", "nvidia-uvm", "nvidia-uvm-tools", "nvidiactl"] {
            fs::remove_file(at("dev").join(name)).unwrap();
        }
        fs::write(at("dev/nvidiactl"), "somebody's").unwrap();
        let host = Host { root: root.path().to_str().unwrap().into(), ..Host::default() };
        let made = make(&host).unwrap();
        let expected = ["nvidia-uvm", "nvidia-uvm-tools", "nvidia0"].map(|name| at("dev").join(name));
        assert_eq!(made, expected.clone().map(|path| path.to_str().unwrap().to_owned()));
        let facts = |path: &Path| {
            let there = fs::metadata(path).unwrap();
            (there.rdev(), there.uid(), there.gid(), there.mode() & 0o7777)
        };
        assert_eq!(facts(&expected[0]), (makedev(511, 0), 0, 44, 0o660));
        assert_eq!(facts(&expected[1]), (makedev(511, 1), 0, 44, 0o660));
        assert_eq!(facts(&expected[2]), (makedev(195, 0), 0, 44, 0o660));
        assert_eq!(fs::read(at("dev/nvidiactl")).unwrap(), b"somebody's");
        assert_eq!(make(&host).unwrap(), Vec::<String>::new(), "once is enough");

        // Without the modules' lines there is nothing to make nodes for.
        for name in ["nvidia-uvm", "nvidia-modeset"] {
            fs::remove_file(at("dev").join(name)).unwrap();
        }
        fs::write(at("proc/devices"), "Character devices:\n195 nvidia\n").unwrap();
        assert_eq!(make(&host).unwrap(), Vec::<String>::new());
    }
}
