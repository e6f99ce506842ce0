//! Our own documents, whole, and each with one thing wrong.

use contract::capability::{Capabilities, Capability};
use contract::gpu::{Gpu, Link, LinkKind, MigMode, Partition, State, Unavailable};
use contract::inventory::{
    DeviceNode, DriverFile, DriverGpu, Facts, FileId, FileKind, Filter, Finding, Instances, Inventory, Library,
    LowLevel, Marks, Role,
};
use contract::request::{Places, Request, Sharing, Source};
use contract::{Contract, Granted};
use ledger::{HeldBy, Lease, Made, PodContainer};
use serde::Serialize;

use crate::Seed;

fn node() -> DeviceNode {
    DeviceNode {
        path: "/dev/nvidia0".into(),
        host_path: "/dev/nvidia0".into(),
        major: 195,
        minor: 0,
        mode: 0o666,
        uid: 0,
        gid: 27,
        role: Role::Compute,
    }
}

fn inventory() -> Inventory {
    let id = FileId { dev: u64::MAX, ino: 1, size: 2, ctime: -1, ctime_nsec: 3 };
    let driver = DriverGpu { pci: "0000:01:00.0".into(), uuid: None, minor: Some(0) };
    let facts = Facts {
        boot_id: "b".into(),
        driver_version: Some("535.1".into()),
        majors: vec![("nvidia".into(), 195)],
        driver_gpus: vec![driver],
        instances: Instances(vec!["gpu0/gi1/ci0".into()]),
        marks: Marks(vec!["1.2.3".into()]),
    };
    let gpu = Gpu {
        vendor: "nvidia".into(),
        pci: "0000:01:00.0".into(),
        index: Some(0),
        uuid: Some("GPU-1".into()),
        minor: Some(0),
        model: Some("\"\\\u{7f}".into()),
        device_id: "0x20b0".into(),
        driver: None,
        numa: Some(-1),
        nodes: vec![node()],
        unavailable: Some(Unavailable::new(State::MigEmpty, "m")),
        memory_mb: Some(40960),
        compute_capability: Some("8.0".into()),
        virtualization: Some("none".into()),
        iommu_group: Some(7),
        mig: Some(MigMode { enabled: true, pending: false }),
        partitions: vec![Partition {
            kind: "mig".into(),
            index: 0,
            gi: 7,
            ci: 0,
            profile: "1g.5gb".into(),
            uuid: Some("MIG-1".into()),
            memory_mb: None,
            nodes: vec![node()].into(),
            unavailable: None,
        }],
        sources: vec![("model".into(), "nvml".into())],
    };
    let capabilities = vec![Capability::Compute];
    let library = Library {
        host_path: "/x".into(),
        soname: "libcuda.so.1".into(),
        bits: 64,
        capabilities: capabilities.clone(),
        id,
        found_by: "folder".into(),
    };
    Inventory {
        schema: contract::inventory::SCHEMA,
        facts,
        gpus: vec![gpu],
        control: vec![node()],
        libraries: vec![library],
        files: vec![DriverFile {
            host_path: "/y".into(),
            path: "/usr/bin/nvidia-smi".into(),
            kind: FileKind::Program,
            capabilities,
            id,
            found_by: "/usr/bin".into(),
        }],
        findings: vec![Finding { code: "c".into(), stops: true, message: "m".into() }],
        cuda_version: Some("12.4".into()),
        links: vec![Link { a: "a".into(), b: "b".into(), kind: LinkKind::Nvlink, lanes: 12 }],
        former: Some(vec![("GPU-0".into(), "0000:01:00.0".into())]),
        low_level: Some(LowLevel {
            path: "/usr/bin/crun".into(),
            id,
            name: "crun".into(),
            version: "1.8.1".into(),
            cgroup: 2,
            filter: Filter::NotEnforced,
            fails_with_list: true,
            reason: Some("no".into()),
        }),
    }
}

fn granted() -> Contract {
    let inventory = inventory();
    Contract {
        schema: contract::SCHEMA,
        id: "0123456789abcdef0123456789abcdef".into(),
        key: None,
        request: Request {
            source: Source::Annotation,
            count: 1,
            ids: vec!["nvidia0".into()],
            kind: Some("a100".into()),
            profile: None,
            capabilities: Capabilities::default(),
            terms: contract::request::Terms::default(),
            places: Places::default(),
        },
        products: contract::Products(vec![("NVIDIA L4".into(), "8.9".into())]),
        gpus: inventory.gpus.iter().map(Granted::of).collect(),
        nodes: inventory.control,
        libraries: inventory.libraries,
        files: inventory.files,
        env: vec![("A".into(), "b".into())],
        facts: inventory.facts,
        created: 5,
    }
}

fn leases() -> Vec<Lease> {
    let pod = PodContainer::new("uid", "app");
    let made = Made { pid_namespace: 1, cgroup_namespace: 2, init: Some((3, 4)), mounts: Some(5), until: Some(6) };
    let holders = [
        HeldBy::Container {
            container: "c".into(),
            state_root: "/run/runc".into(),
            low_level: "/usr/bin/runc".into(),
            cgroup: Some("/a".into()),
            pid: 1,
            start: 2,
            made: Some(made.clone()),
            pod: Some(pod.clone()),
            owner: Some("namespace:a".into()),
            sharing: Some(Sharing::Owner),
        },
        HeldBy::Draining {
            container: "c".into(),
            cgroup: "/a".into(),
            made: Some(made),
            pod: None,
            owner: Some("o".into()),
        },
        HeldBy::Name { name: "vm:x".into() },
        HeldBy::Reservation { until: 7, pod: Some(pod), seconds: Some(600), owner: None },
    ];
    let lease = |holder| Lease {
        version: 1,
        pci: "0000:01:00.0".into(),
        uuid: None,
        minor: Some(0),
        partition: None,
        holder,
        boot_id: "b".into(),
        since: 1,
    };
    holders.into_iter().map(lease).collect()
}

fn text(document: &impl Serialize) -> String {
    serde_json::to_string(document).unwrap_or_default()
}

pub(crate) fn contract() -> Vec<Seed> {
    let (contract, inventory) = (text(&granted()), text(&inventory()));
    let mut texts = vec![
        contract.replacen("\"created\":5", "\"created\":5,\"more\":1", 1),
        contract.replacen("\"key\":null", "\"key\":\"k\"", 1),
        contract.replacen("\"schema\":1", "\"schema\":-1", 1),
        contract.replacen("\"schema\":1", "\"schema\":1,\"schema\":1", 1),
        contract.replacen("\"minor\":0", "\"minor\":4294967296", 1),
        inventory.replacen("\"bits\":64", "\"bits\":64,\"extra\":1", 1),
        contract,
        inventory,
    ];
    texts.extend(self::inventory().low_level.as_ref().map(text));
    texts.extend(leases().iter().map(text));
    texts.push(text(&leases().first()).replacen("\"since\":1", "\"since\":1,\"newer\":{}", 1));
    let seed = |(n, text): (usize, String)| (format!("{n:02}"), text.into_bytes());
    texts.into_iter().enumerate().map(seed).collect()
}
