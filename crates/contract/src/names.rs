//! The field names of the OCI runtime spec, so that a key that only looks like one is recognised.
//!
//! Go's decoder matches keys without regard to case, by Unicode simple folding; C and Rust readers do not. A document
//! with `MOUNTS` or `mountſ` would be read in two ways. Source: runtime-spec 1.2, `specs-go/config.go`.

/// Every field name of the spec (Linux, process and common parts), sorted for binary search by its lower-case form.
const FIELDS: &[&str] = &[
    "access",
    "additionalGids",
    "allow",
    "ambient",
    "annotations",
    "apparmorProfile",
    "architectures",
    "args",
    "blkioWeight",
    "blkioWeightDevice",
    "blockIO",
    "bounding",
    "burst",
    "capabilities",
    "cgroupsPath",
    "checkBeforeUpdate",
    "class",
    "clearChildTid",
    "closID",
    "commandLine",
    "consoleSize",
    "containerID",
    "cpus",
    "createContainer",
    "createRuntime",
    "cwd",
    "deadline",
    "default",
    "defaultAction",
    "defaultErrnoRet",
    "destination",
    "devices",
    "disableOOMKiller",
    "domainname",
    "effective",
    "enableCMT",
    "enableMBM",
    "enableMonitoring",
    "env",
    "errnoRet",
    "execCPUAffinity",
    "fileMode",
    "final",
    "flags",
    "freebsd",
    "gid",
    "gidMappings",
    "hard",
    "height",
    "hooks",
    "hostID",
    "hostname",
    "hugepageLimits",
    "hypervisor",
    "id",
    "idle",
    "image",
    "inheritable",
    "initial",
    "intelRdt",
    "ioPriority",
    "ioWeight",
    "ipc",
    "kernel",
    "kernelTCP",
    "l3CacheSchema",
    "leafWeight",
    "limit",
    "linux",
    "listenerMetadata",
    "listenerPath",
    "major",
    "maskedPaths",
    "memBwSchema",
    "memory",
    "memoryPolicy",
    "mems",
    "minor",
    "mode",
    "mountLabel",
    "mounts",
    "name",
    "names",
    "namespaces",
    "netDevices",
    "network",
    "newIOWeight",
    "nice",
    "nodes",
    "noNewPrivileges",
    "ociVersion",
    "offset",
    "oomScoreAdj",
    "op",
    "options",
    "os",
    "pageSize",
    "path",
    "period",
    "permitted",
    "personality",
    "pids",
    "policy",
    "poststart",
    "poststop",
    "prestart",
    "priorities",
    "priority",
    "process",
    "quota",
    "rate",
    "rdma",
    "readonly",
    "readonlyPaths",
    "realtimePeriod",
    "realtimeRuntime",
    "reservation",
    "resources",
    "rlimits",
    "root",
    "rootfsPropagation",
    "runtime",
    "schedular",
    "scheduler",
    "schemata",
    "seccomp",
    "selinuxLabel",
    "shares",
    "size",
    "soft",
    "solaris",
    "source",
    "startContainer",
    "swap",
    "swappiness",
    "syscalls",
    "sysctl",
    "terminal",
    "throttleReadBpsDevice",
    "throttleReadIOPSDevice",
    "throttleWriteBpsDevice",
    "throttleWriteIOPSDevice",
    "timeOffsets",
    "timeout",
    "type",
    "uid",
    "uidMappings",
    "umask",
    "unified",
    "useHierarchy",
    "user",
    "username",
    "value",
    "valueTwo",
    "vm",
    "weight",
    "weightDevice",
    "width",
    "windows",
    "zos",
];

/// Maps of the spec whose keys are data, not field names. And limits of processor and huge pages, which runc's own tests
/// spell in their own way (`CPU`, `pagesize`): however they are read, no device hangs on them.
const DATA_MAPS: &[&str] =
    &["annotations", "sysctl", "unified", "rdma", "netDevices", "timeOffsets", "cpu", "CPU", "hugepageLimits"];

/// Whether the value of this field is a map with free keys.
pub(crate) fn is_data_map(key: &str) -> bool {
    DATA_MAPS.contains(&key)
}

/// The field name that `key` would be taken for by a reader that folds case, when it is not that name itself.
pub(crate) fn look_alike(key: &str) -> Option<&'static str> {
    let folded = fold(key);
    let found =
        FIELDS.binary_search_by(|field| field.chars().map(|c| c.to_ascii_lowercase()).cmp(folded.clone())).ok()?;
    FIELDS.get(found).copied().filter(|field| *field != key)
}

/// Simple case folding as far as it can reach ASCII letters: besides A–Z only U+017F and U+212A do.
fn fold(key: &str) -> impl Iterator<Item = char> + Clone + '_ {
    key.chars().map(|c| match c {
        '\u{17f}' => 's',
        '\u{212a}' => 'k',
        c => c.to_ascii_lowercase(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_sorted_by_their_folded_form() {
        for pair in FIELDS.windows(2) {
            assert!(pair[0].to_ascii_lowercase() < pair[1].to_ascii_lowercase(), "{pair:?}");
        }
    }

    #[test]
    fn look_alikes() {
        for (key, expected) in [
            ("mounts", None),
            ("Mounts", Some("mounts")),
            ("MOUNTS", Some("mounts")),
            ("mount\u{17f}", Some("mounts")),
            ("\u{212a}ernel", Some("kernel")),
            ("hostid", Some("hostID")),
            ("disableOOMKiller", None),
            ("someVendorField", None),
            ("", None),
        ] {
            assert_eq!(look_alike(key), expected, "{key}");
        }
    }
}
