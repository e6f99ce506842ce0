//! `install-node` killed at each of its calls that change something: the node has what was there or what was to be, an
//! engine is told of nothing that is not whole, and the next call gets to where an undisturbed one does.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use integration::{Binaries, Ran, Result, Scratch, root_for, run, say};

const PROGRAMS: [&str; 3] = ["quilt-gpu-runtime", "quilt-gpu-hook", "quilt-gpu"];
const ENGINE: &str = "etc/containerd/config.toml";
const TEXT: &str = "version = 2\n# ours\n";
/// What changes names and modes; what is written under a name that nobody reads yet is of no matter.
const CALLS: &str = "mkdir,rename,renameat,renameat2,symlink,symlinkat,unlink,unlinkat,rmdir,fchmod,chmod,fchmodat";
const LIMIT: Duration = Duration::from_secs(30);

type Tree = BTreeMap<PathBuf, String>;

struct Node {
    scratch: Scratch,
}

impl Node {
    fn new() -> Result<Self> {
        let node = Self { scratch: Scratch::new()? };
        for word in ["one", "two"] {
            fs::create_dir_all(node.scratch.join(word)).unwrap();
            PROGRAMS.iter().for_each(|name| fs::write(node.scratch.join(word).join(name), word).unwrap());
        }
        Ok(node)
    }

    fn root(&self) -> PathBuf {
        self.scratch.join("node")
    }

    /// A node that nobody installed anything on.
    fn fresh(&self) {
        let _ = fs::remove_dir_all(self.root());
        for (path, text) in [(ENGINE, TEXT), ("usr/sbin/runc", ""), ("var/lib/x", "")] {
            fs::create_dir_all(self.root().join(path).parent().unwrap()).unwrap();
            fs::write(self.root().join(path), text).unwrap();
        }
    }

    fn call(&self, words: &[&str], strace: &[&str]) -> Result<Ran> {
        let mut command = match strace {
            [] => Command::new(Binaries::locate()?.helper),
            options => {
                let mut command = Command::new("strace");
                command.args(["-qq", "-o"]).arg(self.scratch.join("trace")).args(options);
                command.arg("--").arg(Binaries::locate()?.helper);
                command
            }
        };
        command.args(["install-node", "--host-root"]).arg(self.root()).args(words);
        run(command.current_dir(self.scratch.path()), None, LIMIT)
    }

    fn fine(&self, words: &[&str]) -> Result<Tree> {
        self.call(words, &[])?.checked()?;
        Ok(self.tree())
    }

    fn tree(&self) -> Tree {
        let (mut tree, mut open) = (BTreeMap::new(), vec![self.root()]);
        while let Some(folder) = open.pop() {
            for entry in fs::read_dir(&folder).unwrap() {
                let path = entry.unwrap().path();
                let about = fs::symlink_metadata(&path).unwrap();
                let what = match fs::read_link(&path) {
                    Ok(target) => target.display().to_string(),
                    Err(_) if about.is_dir() => String::new(),
                    Err(_) => fs::read_to_string(&path).unwrap(),
                };
                tree.insert(path.clone(), format!("{:o} {what}", about.permissions().mode()));
                if about.is_dir() {
                    open.push(path);
                }
            }
        }
        tree
    }

    /// What holds at every instant.
    fn whole(&self, texts: [&str; 2], what: &str) {
        let told = fs::read_to_string(self.root().join(ENGINE)).unwrap();
        assert!(texts.contains(&told.as_str()), "{what}: {told}");
        let current = self.root().join("opt/quilt-gpu/current");
        let is_there = fs::symlink_metadata(&current).is_ok();
        assert!(is_there || !told.contains("quilt-gpu"), "{what}: the engine was told of nothing");
        for path in PROGRAMS.map(|name| current.join(name)).iter().filter(|_| is_there) {
            let text = fs::read_to_string(path).unwrap_or_default();
            assert!(["one", "two"].contains(&text.as_str()), "{what}: {}: {text:?}", path.display());
            assert_eq!(fs::metadata(path).unwrap().permissions().mode() & 0o777, 0o755, "{what}");
        }
        let own = fs::read(self.root().join("etc/quilt-gpu/config.toml")).unwrap_or_default();
        let shipped = Path::new(env!("CARGO_MANIFEST_DIR")).join("../configs/config.toml");
        assert!(own.is_empty() || own == fs::read(shipped).unwrap(), "{what}");
    }
}

/// Kills a call, made after `before`, at each of its changes; gives how many there were.
fn at_every_change(node: &Node, before: &[&[&str]], words: &[&str]) -> Result<usize> {
    let begin = || -> Result<()> {
        node.fresh();
        before.iter().try_for_each(|words| node.fine(words).map(drop))
    };
    let told = || fs::read_to_string(node.root().join(ENGINE)).unwrap();
    begin()?;
    let first = told();
    node.call(words, &["-e", &format!("trace={CALLS}")])?.checked()?;
    let (end, last) = (node.tree(), told());
    let trace = fs::read_to_string(node.scratch.join("trace")).unwrap();
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    for (name, _) in trace.lines().filter_map(|line| line.split_once('(')) {
        *counts.entry(name).or_default() += 1;
    }
    for (name, count) in &counts {
        for n in 1..=*count {
            begin()?;
            let inject = format!("inject={name}:signal=SIGKILL:when={n}");
            let what = format!("{words:?} killed at {name} {n}");
            let ran = node.call(words, &["-e", &format!("trace={CALLS}"), "-e", &inject])?;
            assert_eq!(ran.status.signal(), Some(9), "{what}: {ran:?}");
            node.whole([&first, &last], &what);
            let after = node.fine(words)?;
            // The version before the last is known only to who saw it.
            let plain = |tree: &Tree| -> Tree {
                let record = Path::new("var/lib/quilt-gpu/installed.json");
                tree.iter().filter(|(path, _)| !path.ends_with(record)).map(|(p, t)| (p.clone(), t.clone())).collect()
            };
            assert_eq!(plain(&after), plain(&end), "{what}");
        }
    }
    Ok(counts.values().sum())
}

#[test]
fn the_next_call_completes_what_was_killed() -> Result<()> {
    let test = "the_next_call_completes_what_was_killed";
    if !root_for(test) {
        return Ok(());
    }
    let node = Node::new()?;
    let (one, two) = (["--from", "one"], ["--from", "two"]);
    let mut points = 0;
    for (before, words) in [(&[][..], &one[..]), (&[&one[..]], &two[..]), (&[&one[..], &two], &["--remove"])] {
        let kills = at_every_change(&node, before, words)?;
        assert!(kills > 5, "{words:?}: {kills}");
        points += kills;
    }
    say(format_args!("{test}: {points} kills"));
    Ok(())
}
