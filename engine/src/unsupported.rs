//! What a spec asks for and libcontainer cannot do, or would leave out without a word. Pure: a document in, places and
//! reasons out.
//!
//! Whatever stands here is an error of `create`, `run` and `exec`. A limit or a lock that is not there is worse than a
//! container that is not there. When libcontainer's version changes, this file is read again.

use libcontainer::oci_spec::runtime as oci;
use serde::de::DeserializeOwned;
use serde_json::Value;

/// One thing that cannot be done.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Gap {
    /// JSON pointer to it.
    pub(crate) at: String,
    /// Why not, and for some what would do.
    pub(crate) why: String,
}

impl std::fmt::Display for Gap {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}: {}", self.at, self.why)
    }
}

/// All of a document's gaps. `v2`: with control groups of version 2.
pub(crate) fn unsupported(spec: &Value, v2: bool) -> Vec<Gap> {
    let mut found = Found { spec, gaps: Vec::new() };
    found.process();
    found.namespaces();
    found.seccomp();
    found.mounts();
    found.resources(v2);
    found.rest();
    found.gaps
}

/// Keys that are something only where they say something.
fn says(value: &Value) -> bool {
    match value {
        Value::Null | Value::Bool(false) => false,
        Value::String(text) => !text.is_empty(),
        Value::Array(list) => !list.is_empty(),
        Value::Object(map) => !map.is_empty(),
        _ => true,
    }
}

struct Found<'a> {
    spec: &'a Value,
    gaps: Vec<Gap>,
}

impl<'a> Found<'a> {
    fn add(&mut self, at: impl Into<String>, why: impl Into<String>) {
        self.gaps.push(Gap { at: at.into(), why: why.into() });
    }

    fn at(&self, pointer: &str) -> Option<&'a Value> {
        self.spec.pointer(pointer).filter(|value| says(value))
    }

    fn list(&self, pointer: &str) -> impl Iterator<Item = (String, &'a Value)> + use<'a> {
        let pointer = pointer.to_owned();
        let list = self.spec.pointer(&pointer).and_then(Value::as_array);
        list.into_iter().flatten().enumerate().map(move |(index, value)| (format!("{pointer}/{index}"), value))
    }

    /// Adds a gap where something is there.
    fn never(&mut self, pointer: &str, why: &str) {
        if self.at(pointer).is_some() {
            self.add(pointer, why);
        }
    }

    /// Adds a gap where a value is there and libcontainer has no word for it.
    fn known<T: DeserializeOwned>(&mut self, at: &str, value: Option<&Value>) {
        let Some(value) = value.filter(|value| !value.is_null()) else { return };
        if let Err(cause) = serde_json::from_value::<T>(value.clone()) {
            self.add(at, format!("libcontainer cannot read this: {cause}"));
        }
    }

    fn process(&mut self) {
        let absent = |key: &str| self.spec.pointer(key).is_none_or(Value::is_null);
        if !absent("/process") && absent("/process/capabilities") {
            self.add(
                "/process",
                "libcontainer gives all capabilities where it finds no list; write \"capabilities\":{} for none",
            );
        }
        for set in ["bounding", "effective", "inheritable", "permitted", "ambient"] {
            for (at, name) in self.list(&format!("/process/capabilities/{set}")) {
                if serde_json::from_value::<oci::Capability>(name.clone()).is_err() {
                    self.add(at, format!("libcontainer knows no capability {name}"));
                }
            }
        }
        for (at, limit) in self.list("/process/rlimits") {
            self.known::<oci::PosixRlimit>(&at, Some(limit));
        }
        self.known::<oci::Scheduler>("/process/scheduler", self.at("/process/scheduler"));
        self.known::<oci::LinuxIOPriority>("/process/ioPriority", self.at("/process/ioPriority"));
        self.known::<oci::ExecCPUAffinity>("/process/execCPUAffinity", self.at("/process/execCPUAffinity"));
        self.never("/process/selinuxLabel", "libcontainer sets no SELinux labels; run the engine with SELinux off");
        if self.spec.get("process").is_some() && self.spec.pointer("/process/user").is_none() {
            self.add("/process", "libcontainer wants a user here, at least {\"uid\":0,\"gid\":0}");
        }
    }

    fn namespaces(&mut self) {
        for (at, namespace) in self.list("/linux/namespaces") {
            self.known::<oci::LinuxNamespace>(&at, Some(namespace));
        }
        let own_mounts = self.list("/linux/namespaces").any(|(_, namespace)| namespace["type"] == "mount");
        if self.spec.get("root").is_some() && !own_mounts {
            self.add("/linux/namespaces", "libcontainer would mount on the host; add {\"type\":\"mount\"}");
        }
    }

    fn seccomp(&mut self) {
        const NOTIFY: &str = "SCMP_ACT_NOTIFY";
        let root = "/linux/seccomp";
        self.known::<oci::LinuxSeccompAction>("/linux/seccomp/defaultAction", self.at("/linux/seccomp/defaultAction"));
        for (at, word) in self.list(&format!("{root}/architectures")) {
            self.known::<oci::Arch>(&at, Some(word));
        }
        for (at, word) in self.list(&format!("{root}/flags")) {
            self.known::<oci::LinuxSeccompFilterFlag>(&at, Some(word));
        }
        let agent = "the engine serves no seccomp agent: what exec starts would be without its filter";
        self.never("/linux/seccomp/listenerPath", agent);
        for (at, call) in self.list(&format!("{root}/syscalls")) {
            let action = call.get("action");
            self.known::<oci::LinuxSeccompAction>(&format!("{at}/action"), action);
            if action.and_then(Value::as_str) == Some(NOTIFY) {
                self.add(format!("{at}/action"), agent);
            }
            for (index, arg) in call.get("args").and_then(Value::as_array).into_iter().flatten().enumerate() {
                self.known::<oci::LinuxSeccompArg>(&format!("{at}/args/{index}"), Some(arg));
            }
        }
        // Said outright, it is taken for a set one: the filter would come after the capability that may load it is gone.
        let not_set = self.spec.pointer("/process/noNewPrivileges") == Some(&Value::Bool(false));
        if not_set && self.at(root).is_some() {
            self.add(
                "/process/noNewPrivileges",
                "false here makes libcontainer load the filter too late; leave it out",
            );
        }
    }

    fn mounts(&mut self) {
        for (at, mount) in self.list("/mounts") {
            for key in ["uidMappings", "gidMappings"] {
                if mount.get(key).is_some_and(says) {
                    self.add(format!("{at}/{key}"), "libcontainer maps no ids in mounts");
                }
            }
            for (index, option) in mount.get("options").and_then(Value::as_array).into_iter().flatten().enumerate() {
                let why = match option.as_str() {
                    Some("idmap" | "ridmap") => "libcontainer maps no ids in mounts",
                    Some("tmpcopyup") => "libcontainer fills no tmpfs from the image",
                    _ => continue,
                };
                self.add(format!("{at}/options/{index}"), why);
            }
        }
    }

    fn resources(&mut self, v2: bool) {
        for (at, limit) in self.list("/linux/resources/hugepageLimits") {
            if limit.get("limit").and_then(Value::as_u64).is_some_and(|limit| i64::try_from(limit).is_err()) {
                self.add(format!("{at}/limit"), "libcontainer knows no limit above 9223372036854775807; leave it out");
            }
        }
        self.never("/linux/resources/rdma", "libcontainer sets no RDMA limits");
        self.never("/linux/resources/memory/disableOOMKiller", "libcontainer leaves the OOM killer on");
        self.never("/linux/resources/memory/checkBeforeUpdate", "libcontainer checks nothing before it lowers a limit");
        if v2 {
            for key in
                ["network/classID", "network/priorities", "memory/kernel", "memory/kernelTCP", "memory/swappiness"]
            {
                self.never(&format!("/linux/resources/{key}"), "control groups of version 2 have no such limit");
            }
        } else {
            self.never(
                "/linux/resources/unified",
                "these are names of control groups of version 2, and this machine has 1",
            );
            for key in ["leafWeight", "leafWeightDevice"] {
                self.never(&format!("/linux/resources/blockIO/{key}"), "libcontainer sets no leaf weights");
            }
        }
        for (at, rule) in self.list("/linux/resources/devices") {
            self.known::<oci::LinuxDeviceCgroup>(&at, Some(rule));
        }
    }

    fn rest(&mut self) {
        let path = self.spec.pointer("/linux/cgroupsPath").and_then(Value::as_str);
        let path = path.map(|path| path.split(['/', ':']).collect::<Vec<_>>()).unwrap_or_else(|| vec!["of its own"]);
        if path.iter().all(|part| ["", "."].contains(part)) {
            self.add(
                "/linux/cgroupsPath",
                "libcontainer would take the caller's control groups, or the top; name one, or leave the key out",
            );
        }
        if path.contains(&"..") {
            self.add(
                "/linux/cgroupsPath",
                "libcontainer would follow .. out of the control groups; write the path without",
            );
        }
        for (at, device) in self.list("/linux/devices") {
            self.known::<oci::LinuxDevice>(&at, Some(device));
        }
        self.known::<oci::LinuxPersonality>("/linux/personality", self.at("/linux/personality"));
        self.never("/linux/personality/flags", "libcontainer sets no flags of a personality");
        for key in ["enableCMT", "enableMBM"] {
            self.never(&format!("/linux/intelRdt/{key}"), "libcontainer makes no such monitoring group");
        }
        self.known::<oci::LinuxMemoryPolicy>("/linux/memoryPolicy", self.at("/linux/memoryPolicy"));
        for name in self.spec.pointer("/linux/netDevices").and_then(Value::as_object).into_iter().flatten() {
            let at = format!("/linux/netDevices/{}", name.0.replace('~', "~0").replace('/', "~1"));
            self.known::<oci::LinuxNetDevice>(&at, Some(name.1));
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// A document that has everything libcontainer does, and nothing else.
    fn plain() -> Value {
        json!({
            "ociVersion": "1.2.0", "root": {"path": "rootfs"},
            "process": {
                "user": {"uid": 0, "gid": 0}, "args": ["sh"], "cwd": "/", "noNewPrivileges": true, "selinuxLabel": "",
                "capabilities": {"bounding": ["CAP_KILL", "CAP_CHECKPOINT_RESTORE"]},
                "rlimits": [{"type": "RLIMIT_NOFILE", "soft": 1, "hard": 18_446_744_073_709_551_615_u64}],
                "scheduler": {"policy": "SCHED_FIFO", "priority": 1},
                "ioPriority": {"class": "IOPRIO_CLASS_BE", "priority": 1},
                "execCPUAffinity": {"initial": "0-1"}
            },
            "mounts": [{"destination": "/proc", "type": "proc", "source": "proc", "options": ["nosuid"], "uidMappings": null}],
            "linux": {
                "namespaces": [{"type": "mount"}, {"type": "time"}, {"type": "user"}],
                "timeOffsets": {"monotonic": {"secs": 1}},
                "devices": [{"path": "/dev/x", "type": "p"}],
                "resources": {
                    "hugepageLimits": [{"pageSize": "2MB", "limit": 9_223_372_036_854_775_807_i64}], "rdma": {},
                    "memory": {"disableOOMKiller": false}, "devices": [{"allow": false, "access": "rwm"}]
                },
                "seccomp": {"defaultAction": "SCMP_ACT_ERRNO", "architectures": ["SCMP_ARCH_X86_64"],
                    "flags": ["SECCOMP_FILTER_FLAG_LOG"],
                    "syscalls": [{"names": ["x"], "action": "SCMP_ACT_ALLOW", "args": [{"index": 0, "value": 1, "op": "SCMP_CMP_EQ"}]}]},
                "personality": {"domain": "LINUX32"}, "netDevices": {"eth1": {}},
                "memoryPolicy": {"mode": "MPOL_BIND", "nodes": "0"}
            }
        })
    }

    #[test]
    fn what_libcontainer_does_is_no_gap() {
        for v2 in [false, true] {
            assert_eq!(unsupported(&plain(), v2), []);
        }
        assert_eq!(unsupported(&json!({}), true), []);
    }

    #[test]
    fn every_gap_is_told_with_its_place() {
        // Where the value is put, the value, and where the gap is.
        let table = [
            ("/process/capabilities", Value::Null, "/process"),
            ("/process/capabilities/bounding/1", json!("CAP_NEWER"), "/process/capabilities/bounding/1"),
            ("/process/rlimits/0/type", json!("RLIMIT_NEWER"), "/process/rlimits/0"),
            ("/process/scheduler/policy", json!("SCHED_EXT"), "/process/scheduler"),
            ("/process/scheduler/flags", json!(["SCHED_FLAG_RESET_ON_FORK"]), "/process/scheduler"),
            ("/process/ioPriority/class", json!("IOPRIO_CLASS_NEWER"), "/process/ioPriority"),
            ("/process/selinuxLabel", json!("system_u:system_r:container_t:s0"), "/process/selinuxLabel"),
            ("/process/noNewPrivileges", json!(false), "/process/noNewPrivileges"),
            ("/linux/namespaces/1/type", json!("newer"), "/linux/namespaces/1"),
            ("/linux/namespaces/0", json!({"type": "pid"}), "/linux/namespaces"),
            ("/linux/namespaces", Value::Null, "/linux/namespaces"),
            ("/linux/seccomp/defaultAction", json!("SCMP_ACT_NEWER"), "/linux/seccomp/defaultAction"),
            ("/linux/seccomp/architectures/0", json!("SCMP_ARCH_NEWER"), "/linux/seccomp/architectures/0"),
            ("/linux/seccomp/flags/0", json!("SECCOMP_FILTER_FLAG_NEWER"), "/linux/seccomp/flags/0"),
            ("/linux/seccomp/listenerPath", json!("/run/agent"), "/linux/seccomp/listenerPath"),
            ("/linux/seccomp/syscalls/0/action", json!("SCMP_ACT_NOTIFY"), "/linux/seccomp/syscalls/0/action"),
            ("/linux/seccomp/syscalls/0/args/0/op", json!("SCMP_CMP_NEWER"), "/linux/seccomp/syscalls/0/args/0"),
            ("/mounts/0/uidMappings", json!([{"containerID": 0, "hostID": 1, "size": 1}]), "/mounts/0/uidMappings"),
            ("/mounts/0/options/0", json!("ridmap"), "/mounts/0/options/0"),
            ("/mounts/0/options/0", json!("tmpcopyup"), "/mounts/0/options/0"),
            ("/linux/resources/hugepageLimits/0/limit", json!(u64::MAX), "/linux/resources/hugepageLimits/0/limit"),
            ("/linux/resources/rdma/mlx5", json!({"hcaHandles": 1}), "/linux/resources/rdma"),
            ("/linux/resources/memory/disableOOMKiller", json!(true), "/linux/resources/memory/disableOOMKiller"),
            ("/linux/resources/unified", json!({"memory.high": "1"}), "/linux/resources/unified"),
            ("/linux/resources/blockIO", json!({"leafWeight": 10}), "/linux/resources/blockIO/leafWeight"),
            ("/linux/resources/devices/0/type", json!("x"), "/linux/resources/devices/0"),
            ("/linux/cgroupsPath", json!("/../../tmp/x"), "/linux/cgroupsPath"),
            ("/linux/cgroupsPath", json!("a:..:b"), "/linux/cgroupsPath"),
            ("/linux/cgroupsPath", json!(""), "/linux/cgroupsPath"),
            ("/linux/cgroupsPath", json!("/"), "/linux/cgroupsPath"),
            ("/linux/cgroupsPath", json!("./"), "/linux/cgroupsPath"),
            ("/linux/cgroupsPath", json!("::"), "/linux/cgroupsPath"),
            ("/linux/devices/0/type", json!("x"), "/linux/devices/0"),
            ("/linux/personality/domain", json!("LINUX64"), "/linux/personality"),
            ("/linux/personality/flags", json!(["ADDR_NO_RANDOMIZE"]), "/linux/personality/flags"),
            ("/linux/intelRdt", json!({"enableCMT": true}), "/linux/intelRdt/enableCMT"),
            ("/linux/memoryPolicy/mode", json!("MPOL_NEWER"), "/linux/memoryPolicy"),
            ("/linux/netDevices/eth1", json!({"name": 1}), "/linux/netDevices/eth1"),
        ];
        for (pointer, value, at) in table {
            let mut spec = plain();
            let (parent, key) = pointer.rsplit_once('/').unwrap();
            match spec.pointer_mut(parent).unwrap() {
                Value::Array(list) => {
                    let index: usize = key.parse().unwrap();
                    list.truncate(index);
                    list.push(value.clone());
                }
                map => map[key] = value.clone(),
            }
            let gaps = unsupported(&spec, false);
            assert_eq!(gaps.iter().map(|gap| &*gap.at).collect::<Vec<_>>(), [at], "{pointer} {value}");
        }
        let mut spec = plain();
        spec["process"].as_object_mut().unwrap().remove("user");
        assert_eq!(unsupported(&spec, true)[0].at, "/process");
        spec["linux"]["resources"]["network"] = json!({"classID": 1});
        assert_eq!(unsupported(&spec, true)[1].at, "/linux/resources/network/classID");
    }
}
