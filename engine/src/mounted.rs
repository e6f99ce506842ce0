//! What lies over the container's procfs once its mounts are made: nothing but procfs, what masks it, and the few files that
//! LXCFS stands in for. Pure: mount tables in, what is wrong out.
//!
//! The created container is looked at and not its document: a link in the image leads a mount to another place than its
//! destination says, and libcontainer follows.

use serde_json::Value;

/// What may be covered by something else, as runc has it.
const STOOD_IN: [&str; 11] = [
    "/proc/cpuinfo",
    "/proc/diskstats",
    "/proc/meminfo",
    "/proc/stat",
    "/proc/swaps",
    "/proc/uptime",
    "/proc/loadavg",
    "/proc/slabinfo",
    "/proc/net/dev",
    "/proc/sys/kernel/ns_last_pid",
    "/proc/sys/crypto/fips_enabled",
];

/// One line of `mountinfo`.
#[derive(PartialEq, Eq)]
struct Mount<'t> {
    device: &'t str,
    root: &'t str,
    point: &'t str,
    kind: &'t str,
}

fn read(table: &str) -> impl Iterator<Item = Mount<'_>> {
    table.lines().filter_map(|line| {
        let (ours, theirs) = line.split_once(" - ")?;
        let mut fields = ours.split(' ').skip(2);
        let [device, root, point] = [fields.next()?, fields.next()?, fields.next()?];
        Some(Mount { device, root, point, kind: theirs.split(' ').next()? })
    })
}

/// Judges the mounts of a created container. `ours` is the table of who made it: whatever lies in the host's procfs comes
/// along with it where a container gets that.
///
/// # Errors
/// The first that is not where it may be.
pub(crate) fn judge(spec: &Value, theirs: &str, ours: &str) -> Result<(), String> {
    let list = |key: &str| spec.pointer(key).and_then(Value::as_array).into_iter().flatten();
    let mut namespaces = list("/linux/namespaces");
    if !namespaces.any(|namespace| namespace["type"] == "mount" && namespace["path"].as_str().is_none_or(str::is_empty))
    {
        // Somebody else's mounts, which are not judged by this document.
        return Ok(());
    }
    let masked =
        |point: &str| list("/linux/maskedPaths").any(|path| path.as_str().is_some_and(|path| clean(path) == point));
    for mount in read(theirs).filter(|mount| mount.kind != "proc") {
        let point = mount.point;
        let inside = point == "/proc" || point.starts_with("/proc/");
        if inside && !STOOD_IN.contains(&point) && !masked(point) && !read(ours).any(|own| own == mount) {
            let why = "lies over procfs, where only another procfs and files that LXCFS stands in for may be";
            return Err(format!("cannot mount on {point:?}: {} {why}", mount.kind));
        }
    }
    for mount in list("/mounts") {
        let (Some(kind @ ("proc" | "sysfs")), Some(at)) = (mount["type"].as_str(), mount["destination"].as_str())
        else {
            continue;
        };
        if !read(theirs).any(|made| made.point == clean(at)) {
            return Err(format!("{kind} must be mounted on ordinary directory: {at:?} leads elsewhere in the image"));
        }
    }
    Ok(())
}

/// An absolute path without what says nothing.
pub(crate) fn clean(path: &str) -> String {
    let parts = path.split('/').filter(|part| !matches!(*part, "" | "."));
    parts.fold(String::new(), |path, part| path + "/" + part)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn over_procfs_lies_what_may() {
        let spec = json!({
            "mounts": [{"destination": "/proc/", "type": "proc"}, {"destination": "/sys", "type": "sysfs"}],
            "linux": {"namespaces": [{"type": "mount"}], "maskedPaths": ["/proc/kcore", "/proc/acpi/"]}
        });
        let ours =
            "9 1 0:9 / /proc/sys/fs/binfmt_misc rw - binfmt_misc none rw\n9 1 8:1 / /data rw - ext4 /dev/sda1 rw";
        let with = |line: &str| {
            format!(
                "1 0 0:40 / / rw - overlay overlay rw\n2 1 0:41 / /proc rw shared:3 - proc proc rw\n\
                 3 1 0:42 / /sys ro - sysfs sysfs rw\n4 2 0:43 /null /proc/kcore rw - tmpfs tmpfs rw\n\
                 5 2 0:44 / /proc/acpi ro - tmpfs tmpfs rw\n6 2 0:41 /sys /proc/sys ro - proc proc rw\n{line}\n"
            )
        };
        for fine in [
            "",
            "7 2 0:50 /proc/cpuinfo /proc/cpuinfo rw - fuse.lxcfs lxcfs rw",
            "7 2 0:9 / /proc/sys/fs/binfmt_misc rw - binfmt_misc none rw",
            "7 1 8:1 / /process rw - ext4 /dev/sda1 rw",
            "7 2 0:60 / /proc rw - proc proc rw",
        ] {
            assert_eq!(judge(&spec, &with(fine), ours), Ok(()), "{fine}");
        }
        for (line, at) in [
            ("7 2 8:1 /x /proc rw - ext4 /dev/sda1 rw", "\"/proc\""),
            ("7 2 8:1 /x /proc/self/attr rw master:1 - ext4 /dev/sda1 rw", "\"/proc/self/attr\""),
            ("7 2 0:61 / /proc/sys/fs/binfmt_misc rw - tmpfs tmpfs rw", "\"/proc/sys/fs/binfmt_misc\""),
            ("7 2 0:61 / /proc/cpuinfo/x rw - tmpfs tmpfs rw", "\"/proc/cpuinfo/x\""),
        ] {
            assert!(judge(&spec, &with(line), ours).is_err_and(|why| why.contains(at)), "{line}");
        }
        let elsewhere = with("").replace(" /sys ro", " /evil ro");
        assert!(judge(&spec, &elsewhere, ours).is_err_and(|why| why.contains("ordinary directory: \"/sys\"")));
        let host = json!({"linux": {"namespaces": [{"type": "mount", "path": "/proc/1/ns/mnt"}]}});
        assert_eq!(judge(&host, &with("7 2 8:1 /x /proc rw - ext4 /dev/sda1 rw"), ours), Ok(()));
    }
}
