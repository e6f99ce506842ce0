//! Who uses the GPUs: from the library's processes through control groups to containers, names, owners and leases.

use std::fs;

use fake_nvml::{Live, Process};
use serde_json::{Value, json};

use crate::node::{Node, topology};

/// A lease as it lies on disk.
fn lease(node: &Node, pci: &str, id: &str, cgroup: &str) {
    let lease = json!({"version": 1, "pci": pci, "uuid": null, "minor": 0, "boot_id": "b", "since": 1,
        "holder": {"container": {"container": id, "state_root": "/s", "low_level": "/usr/sbin/runc", "cgroup": cgroup,
            "pid": 1, "start": 1, "made": null, "pod": null, "owner": "team-a"}}});
    let folder = node.config().with_file_name("state").join("leases");
    fs::create_dir_all(&folder).unwrap();
    fs::write(folder.join(format!("{pci}@{}", "1".repeat(32))), lease.to_string()).unwrap();
}

#[test]
fn processes_are_told_by_container_name_owner_and_lease() {
    let mut four = topology("rtx4090");
    let process = |pid, memory_mb, graphics| Process { pid, memory_mb, graphics };
    four.gpus[0].live = Some(Live { utilization: 73, memory_used_mb: 1281, temperature: 50, power: 1 });
    // One computes and draws: once. One is gone already.
    four.gpus[0].processes =
        vec![process(11, 512, false), process(11, 512, true), process(12, 256, false), process(13, 1, true)];
    four.gpus[1].processes = vec![process(14, 64, false)];
    let Some(node) = Node::of(&four) else { return };
    let id = "5ea1".repeat(16);
    let (pci, other) = (four.gpus[0].pci.clone(), four.gpus[1].pci.clone());
    for (pid, comm, group) in [
        (11, "train\n", format!("0::/docker/{id}\n")),
        (12, "bash\n", "0::/user.slice\n".to_owned()),
        (14, "ctr-job\n", "0::/default/job/inner\n".to_owned()),
    ] {
        node.put(&format!("proc/{pid}/comm"), comm.as_bytes());
        node.put(&format!("proc/{pid}/cgroup"), group.as_bytes());
    }
    node.put(&format!("var/lib/docker/containers/{id}/config.v2.json"), br#"{"Name": "/web"}"#);
    lease(&node, &pci, &id, "/docker/elsewhere");
    lease(&node, &other, "job", "/default/job");

    let (status, text) = node.quilt_gpu(&["stats", "--format", "json"]);
    assert_eq!(status, 0, "{text}");
    let told: Value = serde_json::from_str(&text).unwrap_or_else(|cause| panic!("{cause}: {text}"));
    let gpu = told.as_array().unwrap().iter().find(|gpu| gpu["pci"] == pci.as_str()).unwrap();
    let memory = (&gpu["busy_percent"], &gpu["memory_used_mb"], &gpu["holders"]);
    assert_eq!(memory, (&json!(73), &json!(1281), &json!([id])));
    let users = |gpu: &Value| -> Vec<Value> {
        let users = gpu["processes"].as_array().unwrap().iter();
        users
            .map(|user| {
                json!([user["pid"], user["command"], user["memory_mb"], user["name"], user["owner"], user["leased"]])
            })
            .collect()
    };
    assert_eq!(
        users(gpu),
        [
            json!([11, "train", 512, "web", "team-a", true]),
            json!([12, "bash", 256, null, null, false]),
            json!([13, null, 1, null, null, false]),
        ]
    );
    let second = told.as_array().unwrap().iter().find(|gpu| gpu["pci"] == other.as_str()).unwrap();
    assert_eq!(users(second), [json!([14, "ctr-job", 64, "job", "team-a", true])]);
    assert_eq!(second["busy_percent"], Value::Null);

    let (_, table) = node.quilt_gpu(&["stats"]);
    assert!(table.contains("  12   bash     (in no container), without a lease"), "{table}");
    let (_, metrics) = node.quilt_gpu(&["stats", "--format", "prometheus"]);
    let line = metrics.lines().find(|line| line.contains("pid=\"11\"")).unwrap_or_default();
    assert!(
        line.starts_with("quilt_gpu_process_memory_bytes{pci=") && line.ends_with("leased=\"true\"} 536870912"),
        "{metrics}"
    );
    assert!(line.contains("name=\"web\",owner=\"team-a\""), "{metrics}");

    // A library that does not answer is an error in its words, and no empty list.
    four.fail.insert("nvmlInit_v2".into(), 999);
    node.tell(&four);
    let (status, text) = node.quilt_gpu(&["stats"]);
    assert!(status == 3 && text.contains("DRIVER_NOT_READY") && text.contains("cannot start "), "{status} {text}");
}
