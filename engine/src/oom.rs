//! Whether a container's processes are killed for want of memory: the kernel counts that in the container's group.

use std::fs;
use std::path::{Path, PathBuf};

use libcgroups::common::DEFAULT_CGROUP_ROOT;
use libcgroups::v1::ControllerType;
use libcgroups::v1::util::get_subsystem_mount_point;

/// A group's count, and how far it was told.
pub(crate) struct Killed {
    file: PathBuf,
    told: u64,
}

impl Killed {
    /// Of the group that a process is in; nothing where nobody counts.
    pub(crate) fn in_group_of(pid: i32) -> Option<Self> {
        let groups = fs::read_to_string(format!("/proc/{pid}/cgroup")).ok()?;
        let version_1 =
            || Some(get_subsystem_mount_point(&ControllerType::Memory).ok()?.join(path(&groups, "memory")?));
        let version_2 = || Some(Path::new(DEFAULT_CGROUP_ROOT).join(path(&groups, "")?));
        let file = version_1()
            .map(|folder| folder.join("memory.oom_control"))
            .or_else(|| Some(version_2()?.join("memory.events")))?;
        let told = count(&fs::read_to_string(&file).ok()?)?;
        Some(Self { file, told })
    }

    /// Whether there were more since the last time.
    pub(crate) fn more(&mut self) -> bool {
        let now = fs::read_to_string(&self.file).ok().and_then(|text| count(&text)).unwrap_or(self.told);
        std::mem::replace(&mut self.told, now) < now
    }
}

/// Where in a hierarchy a process is, by its `cgroup` file, without the first slash.
fn path<'t>(groups: &'t str, controller: &str) -> Option<&'t str> {
    groups.lines().find_map(|line| {
        let mut fields = line.splitn(3, ':').skip(1);
        let known = fields.next()?.split(',').any(|name| name == controller);
        fields.next().filter(|_| known)?.strip_prefix('/')
    })
}

fn count(text: &str) -> Option<u64> {
    text.lines().find_map(|line| line.strip_prefix("oom_kill "))?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_and_counts_are_found() {
        let groups = "9:cpu,memory:/a:b/c\n4:name=systemd:/x\n0::/u\n";
        assert_eq!((path(groups, "memory"), path(groups, ""), path(groups, "pids")), (Some("a:b/c"), Some("u"), None));
        assert_eq!(count("oom_kill_disable 0\nunder_oom 0\noom_kill 3\n"), Some(3));
        assert_eq!(count("low 0\noom 2\noom_kill 1\noom_group_kill 0\n"), Some(1));
    }

    #[test]
    fn more_is_told_once() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let mut killed = Killed { file: file.path().to_owned(), told: 0 };
        for (count, more) in [(0, false), (2, true), (2, false), (3, true)] {
            fs::write(file.path(), format!("oom_kill {count}\n")).unwrap();
            assert_eq!(killed.more(), more, "{count}");
        }
        fs::remove_file(file.path()).unwrap();
        assert!(!killed.more());
    }
}
