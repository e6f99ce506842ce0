//! Files and specs that several tests begin with.

use cdi::spec::{Cache, Encoding, Found, Spec, read};
use serde_json::{Value, json};

/// A file as generators for NVIDIA's GPUs write them: every edit that version 0.5.0 has.
pub(crate) fn gpus() -> Value {
    let node = |path: &str, minor: u32| json!({"path": path, "hostPath": path, "type": "c", "major": 195, "minor": minor, "fileMode": 438, "permissions": "rw", "uid": 0, "gid": 44});
    json!({
        "cdiVersion": "0.5.0",
        "kind": "nvidia.com/gpu",
        "devices": [
            {"name": "0", "containerEdits": {"deviceNodes": [node("/dev/nvidia0", 0)]}},
            {"name": "GPU-1c0a", "containerEdits": {"deviceNodes": [node("/dev/nvidia1", 1)], "env": ["ONE=1"]}},
            {"name": "all", "containerEdits": {"deviceNodes": [node("/dev/nvidia0", 0), node("/dev/nvidia1", 1)]}},
        ],
        "containerEdits": {
            "env": ["NVIDIA_VISIBLE_DEVICES=void"],
            "deviceNodes": [node("/dev/nvidiactl", 255)],
            "mounts": [{"hostPath": "/usr/lib/libcuda.so.535", "containerPath": "/usr/lib/libcuda.so.1", "options": ["ro", "nosuid", "nodev", "bind"]}],
            "hooks": [{"hookName": "createContainer", "path": "/usr/bin/nvidia-cdi-hook", "args": ["nvidia-cdi-hook", "update-ldcache"], "env": ["A=b"], "timeout": 5}],
        },
    })
}

/// A file of version 1.1.0 with every field there is.
pub(crate) fn everything() -> Value {
    let mut spec = gpus();
    spec["cdiVersion"] = json!("1.1.0");
    spec["annotations"] = json!({"example.com/made-by": "hand", "on": "yes"});
    spec["devices"][0]["annotations"] = json!({"numa": "0"});
    spec["devices"][0]["containerEdits"]["netDevices"] = json!([{"hostInterfaceName": "ib0", "name": "eth1"}]);
    spec["devices"][0]["containerEdits"]["additionalGids"] = json!([0, 44, 44, 107]);
    spec["containerEdits"]["mounts"][0]["type"] = json!("none");
    spec["containerEdits"]["intelRdt"] = json!({"closID": "gpu", "l3CacheSchema": "L3:0=f", "memBwSchema": "MB:0=50", "schemata": ["L3:0=f"], "enableMonitoring": true});
    spec
}

/// A file with one device.
pub(crate) fn one(kind: &str, name: &str, edits: &Value) -> Value {
    json!({"cdiVersion": "1.1.0", "kind": kind, "devices": [{"name": name, "containerEdits": edits}]})
}

/// What a document says.
pub(crate) fn spec(document: &Value) -> Spec {
    read(document.to_string().as_bytes(), Encoding::Json).unwrap_or_else(|problems| panic!("{problems:?}: {document}"))
}

/// What is wrong with a document, a line for each.
pub(crate) fn wrong(bytes: &[u8], encoding: Encoding) -> Vec<String> {
    read(bytes, encoding).err().unwrap_or_default().iter().map(ToString::to_string).collect()
}

/// Files of two folders, by name: in the first folder unless the name begins with `later/`.
pub(crate) fn cache(files: &[(&str, &Value)]) -> Cache {
    Cache::of(files.iter().map(|(path, document)| Found {
        path: (*path).to_owned(),
        priority: usize::from(path.starts_with("later/")),
        bytes: Ok(document.to_string().into_bytes()),
    }))
}

/// A container's spec, mounts sorted as engines sort them.
pub(crate) fn container() -> Value {
    let mount =
        |destination: &str| json!({"destination": destination, "type": "bind", "source": "/x", "options": ["rbind"]});
    json!({
        "ociVersion": "1.2.0",
        "process": {"user": {"uid": 0, "gid": 0}, "args": ["sh"], "env": ["PATH=/bin", "NVIDIA_VISIBLE_DEVICES=all"]},
        "mounts": [mount("/proc"), mount("/dev"), mount("/dev/pts"), mount("/usr/lib/deep/er")],
        "linux": {"namespaces": [{"type": "mount"}], "resources": {"devices": [{"allow": false, "access": "rwm"}]}},
    })
}
