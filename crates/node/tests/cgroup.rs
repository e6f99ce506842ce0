//! Device filters and emptiness of real control groups. Needs root, and takes what hierarchies this machine has.
#![allow(clippy::unwrap_used, clippy::print_stdout)]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};

use node::cgroup::{DeviceFilter, Groups, filters_nobody, is_empty, version_of_filters};
use node::{NodeError, mountinfo};

fn filter(pid: u32) -> Result<DeviceFilter, NodeError> {
    Groups::of(pid, &mountinfo::own()?)?.filter()
}

/// A folder of the same name in each hierarchy, with a process in it; all gone afterwards.
struct Group {
    name: String,
    folders: Vec<PathBuf>,
    child: Child,
}

impl Group {
    fn new(name: &str) -> Option<Self> {
        let name = format!("/quilt-gpu-test-{}-{name}", std::process::id());
        let table = mountinfo::own().unwrap();
        let hierarchies = table.mounts();
        let hierarchies = hierarchies
            .iter()
            .filter(|m| m.fs == "cgroup2" || m.super_options.split(',').any(|o| matches!(o, "devices" | "freezer")));
        let folders: Vec<PathBuf> = hierarchies
            .map(|m| PathBuf::from(format!("{}{name}", m.point)))
            .filter(|folder| fs::create_dir(folder).is_ok())
            .collect();
        if folders.is_empty() {
            println!("skipped: no control groups can be made here");
            return None;
        }
        let child = Command::new("sleep").arg("60").spawn().unwrap();
        Some(Self { name, folders, child })
    }

    fn enter(&self, folder: &Path) {
        fs::write(folder.join("cgroup.procs"), self.child.id().to_string()).unwrap();
    }

    fn end(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        self.end();
        for folder in &self.folders {
            let _ = fs::remove_dir(folder.join("below"));
            let _ = fs::remove_dir(folder);
        }
    }
}

#[test]
fn a_group_is_empty_when_nothing_is_in_it_or_below() {
    let Some(mut group) = Group::new("empty") else { return };
    assert_eq!(is_empty(&group.name), Ok(true), "made, nothing in it");
    for folder in &group.folders.clone() {
        group.enter(folder);
        assert_eq!(is_empty(&group.name), Ok(false), "{}", folder.display());
        let unified = version_of_filters().unwrap() == 2;
        let holds = folder.join("devices.list").exists() || unified && folder.join("cgroup.events").exists();
        assert_eq!(filters_nobody(&group.name, &mountinfo::own().unwrap()), Ok(!holds), "{}", folder.display());
        fs::create_dir(folder.join("below")).unwrap();
        group.enter(&folder.join("below"));
        assert_eq!(is_empty(&group.name), Ok(false), "below {}", folder.display());
        assert_eq!(is_empty(&group.name[1..]), Ok(false), "without the slash");
        let top = folder.parent().unwrap().to_owned();
        group.enter(&top);
        assert_eq!(is_empty(&group.name), Ok(true), "left {}", folder.display());
    }
    group.enter(&group.folders[0]);
    group.end();
    assert_eq!(is_empty(&group.name), Ok(true), "its process is gone");
    assert_eq!(is_empty("/quilt-gpu-test-never-made/x"), Ok(true));
    assert_eq!(is_empty("system.slice:quilt-gpu-test:never-made"), Ok(true));
    for path in ["", "/", "/a/../b"] {
        assert!(is_empty(path).unwrap_err().contains("cannot tell"), "{path}");
    }
}

#[test]
fn the_filter_of_a_process_is_read_from_the_kernel() {
    let Some(group) = Group::new("filter") else { return };
    let Some(folder) = group.folders.iter().find(|folder| folder.join("devices.list").exists()) else {
        println!("skipped: no version 1 devices hierarchy");
        return;
    };
    group.enter(folder);
    assert_eq!(filter(group.child.id()).unwrap(), DeviceFilter::List(vec!["a *:* rwm".to_owned()]));
    fs::write(folder.join("devices.deny"), "a").unwrap();
    assert_eq!(filter(group.child.id()).unwrap(), DeviceFilter::List(vec![]));
    for rule in ["c 195:7 rw", "c 1:3 rwm"] {
        fs::write(folder.join("devices.allow"), rule).unwrap();
    }
    let lines = ["c 195:7 rw", "c 1:3 rwm"].map(str::to_owned).to_vec();
    assert_eq!(filter(group.child.id()).unwrap(), DeviceFilter::List(lines));
}

#[test]
fn a_process_that_is_gone_has_no_filter_to_read() {
    assert!(filter(0).unwrap_err().to_string().contains("/proc/0/cgroup"));
}
