//! A room that an engine lives in: a mount and a network namespace of its own, with control groups as a machine of one
//! kind or the other has them, and with another root file system where a newer engine needs one.
//!
//! Only namespaces are made; whoever starts something in a room stops it. The room goes when its value is dropped or the
//! test's process ends: its keeper waits for the end of its standard input.

use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};

use crate::error::{Context, Error, Result};

/// What programs in a room find on `PATH` behind what they are given.
const PATH: &str = "/usr/sbin:/usr/bin:/sbin:/bin";

/// Which versions of control groups a machine has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Groups {
    /// As this machine has them: version 1, and version 2 beside it.
    Hybrid,
    /// Version 1 alone.
    V1,
    /// Version 2 alone.
    V2,
}

impl Groups {
    /// The word in tables: `v1`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Hybrid => "hybrid",
            Self::V1 => "v1",
            Self::V2 => "v2",
        }
    }
}

/// Another root file system for a room.
#[derive(Clone, Debug)]
pub struct Root {
    /// Becomes `/`; what is written there goes with the room.
    pub path: PathBuf,
    /// Folders and files of the machine that are seen there at the same path, beside `/proc`, `/sys` and `/dev`.
    pub shown: Vec<PathBuf>,
}

/// A room; see above.
#[derive(Debug)]
pub struct Room {
    keeper: Child,
    lifeline: Option<ChildStdin>,
}

/// The keeper: `$1` the control groups, `$2` another root or nothing, what follows is shown there.
const KEEPER: &str = r#"
set -e
groups=$1 root=$2
shift 2
ip link set lo up
if [ "$groups" = v2 ]; then
  umount -l /sys/fs/cgroup
  mount -t cgroup2 none /sys/fs/cgroup
elif [ "$(stat -f -c %T /sys/fs/cgroup)" = tmpfs ]; then
  # The folder around the hierarchies is the room's own: Podman makes folders there for controllers that are none.
  mount -t tmpfs -o mode=755 tmpfs /mnt
  for path in /sys/fs/cgroup/*; do
    if [ -L "$path" ]; then
      cp -P "$path" /mnt
    elif mountpoint -q "$path" && [ "$groups${path##*/}" != v1unified ]; then
      mkdir "/mnt/${path##*/}"
      mount --move "$path" "/mnt/${path##*/}"
    fi
  done
  umount -l /sys/fs/cgroup
  mount --move /mnt /sys/fs/cgroup
fi
if [ -n "$root" ]; then
  # Written to in memory: the next room begins as this one did.
  mount -t tmpfs -o mode=755 tmpfs "$root/mnt"
  mkdir "$root/mnt/upper" "$root/mnt/work"
  mount -t overlay -o "lowerdir=$root,upperdir=$root/mnt/upper,workdir=$root/mnt/work" overlay "$root"
  mount -t tmpfs -o mode=755 tmpfs "$root/run"
  mkdir -p "$root/.old" "$root/run/lock" "$root/run/netns"
  for path in /proc /sys /dev "$@"; do
    if [ -d "$path" ]; then
      mkdir -p "$root$path"
    else
      mkdir -p "$root${path%/*}"
      touch "$root$path"
    fi
    mount --rbind "$path" "$root$path"
  done
  cd "$root"
  pivot_root . .old
  umount -l /.old
  cd /
fi
echo ready
read _ || :
"#;

impl Room {
    /// Makes a room.
    ///
    /// # Errors
    /// The keeper's last words.
    pub fn new(groups: Groups, root: Option<&Root>) -> Result<Self> {
        let mut command = Command::new("unshare");
        command.args(["--mount", "--net", "--propagation", "private", "sh", "-c", KEEPER, "room", groups.name()]);
        command.arg(root.map_or(Path::new(""), |root| &root.path));
        command.args(root.map(|root| root.shown.as_slice()).unwrap_or_default());
        command.env("PATH", PATH).current_dir("/").process_group(0);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut keeper = command.spawn().cannot(|| "start unshare".into())?;
        let lifeline = keeper.stdin.take();
        let mut said = String::new();
        if let Some(out) = keeper.stdout.take() {
            let _ = BufReader::new(out).read_line(&mut said);
        }
        if said.trim() == "ready" {
            return Ok(Self { keeper, lifeline });
        }
        drop(lifeline);
        let end = keeper.wait_with_output().cannot(|| "wait for unshare".into())?;
        Err(Error::new(format!("cannot make a room with {groups:?}: {}", String::from_utf8_lossy(&end.stderr))))
    }

    /// A program in the room, in `/`, with an environment of its own: `PATH` begins with `first`.
    pub fn command(&self, program: impl AsRef<Path>, first: Option<&Path>) -> Command {
        let mut command = Command::new("nsenter");
        command.arg("--target").arg(self.keeper.id().to_string());
        command.args(["--mount", "--net", "env", "-i", "HOME=/root", "LC_ALL=C.UTF-8"]);
        let first = first.map(|folder| format!("{}:", folder.display())).unwrap_or_default();
        command.arg(format!("PATH={first}{PATH}")).arg(program.as_ref());
        command.current_dir("/");
        command
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        self.lifeline.take();
        let _ = self.keeper.wait();
    }
}
