//! The model of the kernel's device list, and the decision procedure, against the kernel that the tests run on.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

mod common;

use common::models::{Kernel, list, universe};
use contract::rule::{Kind, Rule};
use guard::openable;
use proptest::strategy::{Strategy, ValueTree};

/// A devices cgroup (v1) for one thread of this test; gone when dropped.
struct Cgroup(std::path::PathBuf);

impl Cgroup {
    fn new() -> Result<Self, String> {
        let mounts = std::fs::read_to_string("/proc/self/mounts").map_err(|e| e.to_string())?;
        let is_devices = |line: &&str| {
            let words: Vec<&str> = line.split(' ').collect();
            words.get(2) == Some(&"cgroup")
                && words.get(3).is_some_and(|options| options.split(',').any(|o| o == "devices"))
        };
        let top = mounts.lines().find(is_devices).and_then(|line| line.split(' ').nth(1));
        let folder = std::path::Path::new(top.ok_or("no devices cgroup (v1) is mounted")?)
            .join(format!("guard-test-{}", std::process::id()));
        std::fs::create_dir(&folder).map_err(|e| format!("cannot make {}: {e}", folder.display()))?;
        Ok(Self(folder))
    }

    fn write(&self, file: &str, text: &str) {
        let path = self.0.join(file);
        std::fs::write(&path, text).unwrap_or_else(|e| panic!("{}: {text}: {e}", path.display()));
    }

    fn join(&self) {
        let thread = std::fs::read_link("/proc/thread-self").unwrap();
        self.write("tasks", thread.file_name().unwrap().to_str().unwrap());
    }

    fn set(&self, rules: &[Rule]) {
        self.write("devices.deny", "a");
        for rule in rules {
            let text = if rule.kind == Kind::All { "a".to_owned() } else { rule.to_string() };
            self.write(if rule.allow { "devices.allow" } else { "devices.deny" }, &text);
        }
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        for _ in 0..200 {
            if std::fs::remove_dir(&self.0).is_ok() {
                return;
            }
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
    }
}

/// Without a driver behind the number, the kernel says ENXIO where a device may be opened and EPERM where it may not.
fn really_opens(node: &std::path::Path) -> bool {
    [(true, false), (false, true), (true, true)].into_iter().any(|(read, write)| {
        let error = std::fs::OpenOptions::new().read(read).write(write).open(node).unwrap_err();
        match error.raw_os_error() {
            Some(6) => true,
            Some(1) => false,
            _ => panic!("{}: {error}", node.display()),
        }
    })
}

type Node = ((u32, u32), std::path::PathBuf);

/// Nodes of numbers that no driver of this machine has.
fn nodes(folder: &std::path::Path) -> Result<Vec<Node>, String> {
    let devices = std::fs::read_to_string("/proc/devices").map_err(|e| e.to_string())?;
    let taken = |major: &u32| devices.lines().any(|line| line.trim_start().starts_with(&format!("{major} ")));
    let free: Vec<(u32, u32)> = universe().filter(|device| device.0 > 140 && !taken(&device.0)).collect();
    let make = |(major, minor): (u32, u32)| {
        let path = folder.join(format!("c{major}.{minor}"));
        let made = std::process::Command::new("mknod")
            .arg(&path)
            .arg("c")
            .args([major.to_string(), minor.to_string()])
            .output();
        match made {
            Ok(output) if output.status.success() => Ok(((major, minor), path)),
            Ok(output) => Err(String::from_utf8_lossy(&output.stderr).trim().to_owned()),
            Err(e) => Err(format!("cannot run mknod: {e}")),
        }
    };
    free.into_iter().map(make).collect()
}

#[test]
fn the_models_kernel_is_this_kernel() {
    let folder = tempfile::tempdir().unwrap();
    let (nodes, cgroup) = match nodes(folder.path()).and_then(|nodes| Ok((nodes, Cgroup::new()?))) {
        Ok(both) => both,
        Err(why) => return eprintln!("skipped, the device list was not tried on this kernel: {why}"),
    };
    assert!(!nodes.is_empty(), "every major of the test's has a driver here");
    let work = || {
        cgroup.join();
        let mut runner = proptest::test_runner::TestRunner::deterministic();
        for _ in 0..300 {
            let rules = list().new_tree(&mut runner).unwrap().current();
            cgroup.set(&rules);
            for (device, node) in &nodes {
                let open = really_opens(node);
                let kernel = Kernel::of(&rules, false);
                assert_eq!(
                    [1, 2, 3].iter().any(|wanted| kernel.permits(*device, *wanted)),
                    open,
                    "{device:?} {rules:?}"
                );
                assert!(openable(&rules, device.0, device.1) || !open, "{device:?} {rules:?}");
            }
        }
    };
    std::thread::scope(|scope| scope.spawn(work).join().unwrap());
}
