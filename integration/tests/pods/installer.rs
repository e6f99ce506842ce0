//! The installer on a node: a pod with the rights of `configs/kubernetes/installer.yaml` sees the node below a folder,
//! and containerd does what it was told; an upgrade below a running pod; then everything as it was.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use integration::engine::{Ask, Engine, PodAsk, Through};
use integration::{Binaries, Ran, Result, Rootfs};
use k8s_cri::v1::Capability;

use crate::{IMAGE, PROBE, Yard, on_each, sleeper};

/// The image of the installer.
const INSTALLER: &str = "installer:1";

/// The node as the installer sees it: made-up folders, and containerd's own folder at its own path.
struct Node {
    root: PathBuf,
    /// Where containerd and the programs are, on the machine and below `root`.
    folder: PathBuf,
    runs: std::cell::Cell<u32>,
}

impl Node {
    fn new(yard: &Yard) -> Result<Self> {
        let rootfs = Rootfs::debian_like(yard.site.join("installer"), Path::new(PROBE))?;
        fs::copy(Binaries::locate()?.helper, rootfs.path.join("usr/bin/quilt-gpu")).unwrap();
        yard.cri.import(INSTALLER, &rootfs, &[], &[])?;
        let (root, folder) = (yard.site.join("node"), yard.cri.folder().to_owned());
        fs::create_dir_all(root.join(folder.strip_prefix("/").unwrap())).unwrap();
        for place in ["var/lib", "usr/sbin"] {
            fs::create_dir_all(root.join(place)).unwrap();
        }
        fs::write(root.join("usr/sbin/runc"), "").unwrap();
        Ok(Self { root, folder, runs: 0.into() })
    }

    fn prefix(&self) -> PathBuf {
        self.folder.join("quilt")
    }

    fn told(&self) -> String {
        fs::read_to_string(self.folder.join("config.toml")).unwrap()
    }

    /// Programs as an image brings them. The runtime is led to the test's configuration.
    fn build(&self, yard: &Yard, word: &str) -> PathBuf {
        let from = yard.site.join(format!("from-{word}"));
        fs::create_dir(&from).unwrap();
        let runtime = fs::read_to_string(yard.site.quilt.runtime()).unwrap();
        for (name, text) in [("runtime", runtime), ("hook", String::new())] {
            let path = from.join(format!("quilt-gpu-{name}"));
            fs::write(&path, format!("{text}# {word}\n")).unwrap();
            fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
        }
        fs::copy(Binaries::locate().unwrap().helper, from.join("quilt-gpu")).unwrap();
        from
    }

    /// A pod of the installer's, to its end.
    fn installer(&self, yard: &Yard, from: &Path, words: &[&str]) -> Result<Ran> {
        let name = format!("installer-{}", self.runs.replace(self.runs.get() + 1));
        let pod = yard.cri.pod(&PodAsk { through: Through::Plain, ..PodAsk::new(&name) })?;
        let (file, prefix) = (self.folder.join("config.toml"), self.prefix());
        let args = ["/usr/bin/quilt-gpu", "install-node", "--host-root", "/host", "--from", "/from"];
        let named =
            ["--engine", "containerd", "--engine-config", file.to_str().unwrap(), "--prefix", prefix.to_str().unwrap()];
        let args = [&args[..], &named, words].concat();
        let mut ask = Ask::new(&name, INSTALLER, args);
        let below = |path: &Path| format!("/host{}", path.display());
        ask.binds = vec![
            (self.root.clone(), "/host".into()),
            (self.folder.clone(), below(&self.folder)),
            (from.to_owned(), "/from".into()),
        ];
        let container = yard.cri.create(&pod, &ask, |config| {
            let rights = config.linux.as_mut().unwrap().security_context.as_mut().unwrap();
            let (add, drop) = (vec!["SYS_CHROOT".to_owned()], vec!["ALL".to_owned()]);
            rights.capabilities =
                Some(Capability { add_capabilities: add, drop_capabilities: drop, ..Capability::default() });
            (rights.readonly_rootfs, rights.no_new_privs) = (true, true);
        })?;
        yard.cri.launch(&container)?.checked()?;
        let ran = yard.cri.finish(&container)?;
        yard.cri.drop_pod(&pod)?;
        Ok(ran)
    }

    /// Everything on the node but what is containerd's.
    fn tree(&self) -> BTreeMap<PathBuf, Vec<u8>> {
        let (mut tree, mut open) = (BTreeMap::new(), vec![self.root.clone()]);
        while let Some(folder) = open.pop() {
            for entry in fs::read_dir(&folder).unwrap() {
                let path = entry.unwrap().path();
                if path.is_dir() {
                    open.push(path.clone());
                }
                tree.insert(path.clone(), fs::read(&path).unwrap_or_default());
            }
        }
        tree
    }
}

/// A pod that names no class still runs.
fn without_class(yard: &Yard, name: &str) -> Result<()> {
    let pod = yard.cri.pod(&PodAsk { unnamed: true, ..PodAsk::new(name) })?;
    let container = yard.cri.create(&pod, &Ask::new(name, IMAGE, ["true"]), |_| ())?;
    yard.cri.launch(&container)?.checked()?;
    yard.cri.finish(&container)?.checked()?;
    yard.cri.drop_pod(&pod)
}

#[test]
fn the_installer_comes_upgrades_and_goes() -> Result<()> {
    on_each("the_installer_comes_upgrades_and_goes", 1, |yard| {
        let node = Node::new(yard)?;
        // The fixture's file knows the handler already.
        let file = node.folder.join("config.toml");
        let mut ours = false;
        let kept = |line: &&str| {
            ours = if line.starts_with('[') { line.contains("runtimes.quilt-gpu") } else { ours };
            !ours
        };
        let before: String = node.told().split_inclusive('\n').filter(kept).collect();
        fs::write(&file, &before).unwrap();
        yard.cri.crash().unwrap()?;
        assert!(yard.cri.pod(&PodAsk::new("early")).is_err(), "the handler is known already");
        let tree = node.tree();

        let first = node.build(yard, "one");
        let ran = node.installer(yard, &first, &[])?.checked()?;
        assert!(ran.stdout.contains("takes effect with: systemctl restart containerd"), "{ran:?}");
        let told = node.told();
        assert!(told.contains("quilt/current/quilt-gpu-runtime"), "{told}");
        yard.cri.crash().unwrap()?;
        let pod = yard.pod("tenant", &[("quilt.gpu/count.main", "1")])?;
        let main = yard.started(&pod, &sleeper("main"))?;
        assert_eq!(yard.look(&main)?.gpus()?.len(), 1);

        // An upgrade below it: the engine is told nothing new, the pod goes on and ends as any other.
        let (one, second) = (fs::read_link(node.prefix().join("current")).unwrap(), node.build(yard, "two"));
        node.installer(yard, &second, &[])?.checked()?;
        let two = fs::read_link(node.prefix().join("current")).unwrap();
        assert_ne!(one, two);
        assert!(node.prefix().join(&one).join("quilt-gpu-runtime").exists(), "the version before stays");
        assert_eq!(node.told(), told);
        assert!(node.installer(yard, &second, &[])?.checked()?.stdout.starts_with("everything is installed already"));
        assert_eq!(yard.look(&main)?.gpus()?.len(), 1);
        yard.cri.drop_pod(&pod)?;
        yard.site.wait_no_leases()?;

        // Nothing is taken back below a pod; then everything is.
        let pod = yard.pod("late", &[("quilt.gpu/count.main", "1")])?;
        let main = yard.started(&pod, &sleeper("main"))?;
        let ran = node.installer(yard, &second, &["--remove"])?;
        assert_eq!((ran.status.code(), node.told() == told), (Some(3), true), "{ran:?}");
        assert!(ran.stdout.contains("options.json"), "{ran:?}");
        assert_eq!(yard.look(&main)?.gpus()?.len(), 1);
        yard.cri.drop_pod(&pod)?;
        yard.site.wait_no_leases()?;
        node.installer(yard, &second, &["--remove"])?.checked()?;
        yard.cri.crash().unwrap()?;
        assert!(yard.cri.pod(&PodAsk::new("too-late")).is_err(), "the handler is known still");
        assert_eq!((node.told(), node.tree()), (before, tree));
        assert!(!node.prefix().exists());
        without_class(yard, "plain")
    })
}
