//! Who has what open, on this machine and on made-up nodes.

use std::process::{Command, Stdio};

use contract::config::Host;
use nix::sys::stat::{Mode, SFlag, makedev, mknod};

use super::*;
use crate::demo::fixture;

/// A node of the driver's name that can be opened without the driver: /dev/null's number.
#[test]
fn who_has_a_node_open_is_found_and_named() {
    if !nix::unistd::geteuid().is_root() {
        println!("skipped: making device nodes needs root");
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let node = folder.path().join("nvidia0");
    mknod(&node, SFlag::S_IFCHR, Mode::S_IRUSR, makedev(1, 3)).unwrap();
    let input = || Stdio::from(fs::File::open(&node).unwrap());
    let mut child = Command::new("sleep").arg("60").stdin(input()).spawn().unwrap();
    let found: Vec<Opener> = openers(Path::new("/proc")).into_iter().filter(|it| it.pid == child.id()).collect();
    child.kill().unwrap();
    child.wait().unwrap();
    assert_eq!(found, [Opener { pid: child.id(), name: "sleep".into(), number: (1, 3) }]);
    assert!(openers(Path::new("/proc")).iter().all(|it| it.pid != child.id()), "ended processes have nothing open");
}

/// The demonstration's node with a process table of its own: `fd` leads to real nodes.
#[test]
fn only_what_nobody_leased_is_judged_and_policy_says_how() {
    if !nix::unistd::geteuid().is_root() {
        println!("skipped: making device nodes needs root");
        return;
    }
    let root = tempfile::tempdir().unwrap();
    fixture::lay_out(root.path()).unwrap();
    let process = |pid: u32, name: &str, node: &str| {
        let at = root.path().join(format!("proc/{pid}"));
        fs::create_dir_all(at.join("fd")).unwrap();
        fs::write(at.join("comm"), format!("{name}\n")).unwrap();
        std::os::unix::fs::symlink(root.path().join("dev").join(node), at.join("fd/3")).unwrap();
    };
    process(7, "python3", "nvidia0");
    process(8, "nvidia-persiste", "nvidia1");
    process(9, "python3", "nvidiactl");
    process(10, "python3", "nvidia2");
    let host = Host { root: root.path().to_str().unwrap().into(), ..Host::default() };
    let state = root.path().join("state");
    let setup = |busy| {
        let mut setup = Setup::read(&root.path().join("none.toml"));
        setup.config.host = host.clone();
        setup.config.paths.state_dir = state.to_str().unwrap().into();
        setup.config.policy.busy = busy;
        setup
    };
    let judged = |busy| {
        let mut inventory = crate::inventory::discover(&host).unwrap();
        judge(&setup(busy), &mut inventory);
        inventory
    };
    let states = |inventory: &Inventory| -> Vec<(u32, Option<State>)> {
        let mut states: Vec<_> = inventory
            .gpus
            .iter()
            .map(|gpu| (gpu.minor.unwrap(), gpu.unavailable.as_ref().map(|it| it.state)))
            .collect();
        states.sort_by_key(|(minor, _)| *minor);
        states
    };
    let skipped = judged(Busy::Skip);
    assert_eq!(states(&skipped), [(0, Some(State::Busy)), (1, None), (2, Some(State::Busy)), (3, None)]);
    let why = skipped.gpus.iter().find(|gpu| gpu.minor == Some(0)).unwrap().unavailable.clone().unwrap().why;
    assert_eq!(why, "held open outside any lease by python3 (process 7)");
    assert!(skipped.gpus.iter().all(|gpu| gpu.index.is_some()), "the driver still counts them");

    let warned = judged(Busy::Warn);
    assert!(states(&warned).iter().all(|(_, state)| state.is_none()));
    assert_eq!(warned.findings.iter().filter(|it| it.code == "gpu-busy" && !it.stops).count(), 2);

    let ledger = Ledger::open(&state).unwrap();
    let request = contract::request::Request {
        source: contract::request::Source::CommandLine,
        count: 1,
        ids: vec!["nvidia0".into()],
        kind: None,
        profile: None,
        capabilities: Default::default(),
        terms: Default::default(),
        places: Default::default(),
    };
    ledger.acquire_named(&crate::inventory::discover(&host).unwrap(), &request, "vm:a").unwrap();
    assert_eq!(states(&judged(Busy::Skip)), [(0, None), (1, None), (2, Some(State::Busy)), (3, None)]);
}

/// A GPU that is cut is judged part by part: its own node is open wherever one of them is in use.
#[test]
fn parts_are_judged_by_the_nodes_that_are_theirs_alone() {
    if !nix::unistd::geteuid().is_root() {
        println!("skipped: making device nodes needs root");
        return;
    }
    let root = tempfile::tempdir().unwrap();
    fixture::lay_out(root.path()).unwrap();
    // Two compute instances in GPU instance 1, one each in 2 and 3.
    let parts = [(1, 0, [11, 12]), (1, 1, [11, 13]), (2, 0, [21, 22]), (3, 0, [31, 32])];
    let folder = root.path().join("dev/nvidia-caps");
    fs::create_dir(&folder).unwrap();
    for minor in parts.iter().flat_map(|(_, _, minors)| minors) {
        let path = folder.join(format!("nvidia-cap{minor}"));
        let _ = mknod(&path, SFlag::S_IFCHR, Mode::S_IRUSR, makedev(240, *minor));
    }
    let host = Host { root: root.path().to_str().unwrap().into(), ..Host::default() };
    let mut setup = Setup::read(&root.path().join("none.toml"));
    setup.config.host = host.clone();
    setup.config.paths.state_dir = root.path().join("state").to_str().unwrap().into();
    let cut = || {
        let mut inventory = crate::inventory::discover(&host).unwrap();
        let gpu = inventory.gpus.iter_mut().find(|gpu| gpu.minor == Some(0)).unwrap();
        let node = |minor: &u64| DeviceNode {
            major: 240,
            minor: *minor as u32,
            role: Role::Caps,
            ..gpu.nodes.first().unwrap().clone()
        };
        let part = |(index, (gi, ci, minors)): (u32, &(u32, u32, [u64; 2]))| Partition {
            kind: "mig".into(),
            index,
            gi: *gi,
            ci: *ci,
            profile: "1g.10gb".into(),
            uuid: None,
            memory_mb: None,
            nodes: minors.iter().map(node).collect::<Vec<_>>().into(),
            unavailable: None,
        };
        gpu.partitions = (0..).zip(&parts).map(part).collect();
        inventory
    };
    let process = |pid: u32, nodes: &[&str]| {
        let at = root.path().join(format!("proc/{pid}"));
        let _ = fs::remove_dir_all(&at);
        fs::create_dir_all(at.join("fd")).unwrap();
        fs::write(at.join("comm"), "python3\n").unwrap();
        for (fd, node) in (3..).zip(nodes) {
            std::os::unix::fs::symlink(root.path().join("dev").join(node), at.join(format!("fd/{fd}"))).unwrap();
        }
    };
    let busy = |setup: &Setup| -> (Vec<u32>, Inventory) {
        let mut inventory = cut();
        judge(setup, &mut inventory);
        let gpu = inventory.gpus.iter().find(|gpu| gpu.minor == Some(0)).unwrap();
        assert_eq!(gpu.unavailable, None);
        let state = |part: &Partition| part.unavailable.as_ref().map(|it| it.state) == Some(State::Busy);
        (gpu.partitions.iter().filter(|part| state(part)).map(|part| part.index).collect(), inventory)
    };
    for (nodes, expected) in [
        (&["nvidia0", "nvidiactl"][..], &[][..]),
        (&["nvidia0", "nvidia-caps/nvidia-cap11", "nvidia-caps/nvidia-cap12"], &[0]),
        (&["nvidia0", "nvidia-caps/nvidia-cap11", "nvidia-caps/nvidia-cap13"], &[1]),
        (&["nvidia0", "nvidia-caps/nvidia-cap21", "nvidia-caps/nvidia-cap22"], &[2]),
        (&["nvidia-caps/nvidia-cap31"], &[3]),
    ] {
        process(7, nodes);
        assert_eq!(busy(&setup).0, expected, "{nodes:?}");
    }
    process(7, &["nvidia-caps/nvidia-cap21", "nvidia-caps/nvidia-cap22"]);
    setup.config.policy.busy = Busy::Warn;
    let (marked, inventory) = busy(&setup);
    let told: Vec<&Finding> = inventory.findings.iter().filter(|it| it.code == "gpu-busy").collect();
    let words = ":2 (1g.10gb of 0000:31:00.0) is held open outside any lease by python3 (process 7); it is granted";
    assert!(marked.is_empty() && told.len() == 1 && told[0].message.contains(words), "{told:?}");

    // One part is leased: whoever has it open is its holder, and the others are judged as before.
    setup.config.policy.busy = Busy::Skip;
    let lease = |id: &str| contract::request::Request {
        source: contract::request::Source::CommandLine,
        count: 1,
        ids: vec![id.to_owned()],
        kind: None,
        profile: None,
        capabilities: Default::default(),
        terms: Default::default(),
        places: Default::default(),
    };
    let ledger = Ledger::open(setup.state_dir()).unwrap();
    ledger.acquire_named(&cut(), &lease("nvidia0:2"), "vm:a").unwrap();
    process(8, &["nvidia0", "nvidia-caps/nvidia-cap31", "nvidia-caps/nvidia-cap32"]);
    assert_eq!(busy(&setup).0, [3]);
}
