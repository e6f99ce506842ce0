//! A made-up machine, and specs around one fragment, so that the real decision runs on tables.

#![allow(dead_code, reason = "each test file uses its part")]
#![allow(unreachable_pub, reason = "a module of tests")]

pub mod models;

use std::cell::RefCell;
use std::collections::{HashMap, HashSet};

use contract::config::{Policy, Profile};
use contract::exception::Exception;
use contract::json;
use guard::{Case, Dir, FileSystem, Judgement, LowLevel, Majors, Name, Object, System};

pub const NVIDIA: u32 = 0x10de;
pub const BUNDLE: &str = "/run/engine/bundle";

/// A machine with two NVIDIA GPUs, an AMD GPU, and the usual other devices.
pub struct Fake {
    pub objects: HashMap<String, Object>,
    pub majors: Result<Majors, String>,
    /// Minors of major 10.
    pub misc: Majors,
    /// Links to programs.
    pub links: HashMap<String, String>,
    pub vendors: HashMap<u32, u32>,
    /// DRM minors that are there, of which nothing tells the vendor.
    pub untold: Vec<u32>,
    pub inside: HashMap<String, Vec<(u32, u32)>>,
    pub trees_with_dev: HashSet<String>,
    /// Where the control groups with device filters are mounted.
    pub groups: Vec<String>,
    /// Other names of what lies at a path.
    pub names: HashMap<String, Vec<Name>>,
    /// Mount points of procfs, sysfs and binfmt_misc.
    pub kernels: Vec<String>,
    /// Disks with the machine's own files.
    pub disks: Vec<(u32, u32)>,
    /// Where other file systems are mounted; only binds that are not recursive are told.
    pub mounted: Vec<String>,
    pub first_namespace: bool,
    pub asked: RefCell<Vec<String>>,
}

impl Default for Fake {
    fn default() -> Self {
        let mut fake = Self {
            objects: HashMap::new(),
            majors: Ok(majors(&[
                ("mem", 1),
                ("tty", 4),
                ("misc", 10),
                ("alsa", 116),
                ("pts", 136),
                ("nvidia", 195),
                ("nvidiactl", 195),
                ("drm", 226),
                ("infiniband_verbs", 231),
                ("nvidia-uvm", 511),
                ("nvidia-caps", 510),
                ("nvidia-caps-imex-channels", 509),
                ("nvidia-nvswitch", 508),
                ("gdrdrv", 507),
                ("vfio", 506),
                ("hidraw", 505),
            ])),
            misc: majors(&[("fuse", 229), ("tun", 200), ("kvm", 232), ("vfio", 196), ("iommu", 259), ("other", 124)]),
            links: HashMap::new(),
            vendors: HashMap::from([(0, NVIDIA), (128, NVIDIA), (1, 0x1002), (129, 0x1002), (2, 0x8086)]),
            untold: vec![9],
            inside: HashMap::new(),
            trees_with_dev: HashSet::from(["/mnt/root".to_owned(), "/run".to_owned()]),
            groups: Vec::new(),
            names: HashMap::new(),
            kernels: Vec::new(),
            disks: Vec::new(),
            mounted: vec!["/run".into()],
            first_namespace: true,
            asked: RefCell::default(),
        };
        for (path, major, minor) in NODES {
            let (major, minor) = (*major, *minor);
            fake.objects.insert((*path).to_owned(), Object::Char { major, minor });
        }
        fake.objects.insert("/dev/sda".to_owned(), Object::Block { major: 8, minor: 0 });
        fake.dir("/", |dir| dir.is_root = true);
        fake.dir("/dev", |dir| (dir.is_dev, dir.on_dev) = (true, true));
        for link in ["to:dev", "to,dev", "todev"] {
            let dir = Dir { real: "/dev".to_owned(), is_dev: true, on_dev: true, ..Dir::default() };
            fake.objects.insert(format!("/home/user/{link}"), Object::Dir(dir));
        }
        for folder in ["dri", "snd", "infiniband", "bus/usb", "vfio", "nvidia-caps", "char"] {
            let path = format!("/dev/{folder}");
            fake.dir(&path, |dir| dir.on_dev = true);
            let below = NODES.iter().filter(|node| node.0.starts_with(&format!("{path}/")));
            let below = below.map(|node| (node.1, node.2)).collect();
            fake.inside.insert(path, below);
        }
        for path in ["/home/user", "/run", "/mnt/root", "/sys", "/sys/bus/pci", "/proc", BUNDLE] {
            fake.dir(path, |_| {});
        }
        // Mounts of their own below /dev.
        for path in ["/dev/shm", "/dev/pts", "/dev/mqueue", "/dev/hugepages"] {
            fake.dir(path, |dir| dir.in_driver_root = true);
        }
        fake.dir("/run/nvidia/driver", |dir| dir.in_driver_root = true);
        for path in ["/etc/hosts", "/var/lib/engine/resolv.conf", "/run/docker.sock"] {
            fake.file(path, path);
        }
        fake
    }
}

const NODES: &[(&str, u32, u32)] = &[
    ("/dev/nvidia0", 195, 0),
    ("/dev/nvidia1", 195, 1),
    ("/dev/nvidiactl", 195, 255),
    ("/dev/nvidia-modeset", 195, 254),
    ("/dev/nvidia-uvm", 511, 0),
    ("/dev/nvidia-uvm-tools", 511, 1),
    ("/dev/nvidia-caps/nvidia-cap1", 510, 1),
    ("/dev/nvidia-caps-imex-channels/channel0", 509, 0),
    ("/dev/nvidia-nvswitchctl", 508, 255),
    ("/dev/gdrdrv", 507, 0),
    ("/dev/vfio/12", 506, 0),
    ("/dev/vfio/vfio", 10, 196),
    ("/dev/dri/card0", 226, 0),
    ("/dev/dri/renderD128", 226, 128),
    ("/dev/dri/card1", 226, 1),
    ("/dev/dri/renderD129", 226, 129),
    ("/dev/dri/card9", 226, 9),
    ("/dev/char/195:0", 195, 0),
    ("/dev/mem", 1, 1),
    ("/dev/kmem", 1, 2),
    ("/dev/port", 1, 4),
    ("/dev/null", 1, 3),
    ("/dev/kmsg", 1, 11),
    ("/dev/fuse", 10, 229),
    ("/dev/kvm", 10, 232),
    ("/dev/net/tun", 10, 200),
    ("/dev/snd/controlC0", 116, 0),
    ("/dev/infiniband/uverbs0", 231, 192),
    ("/dev/bus/usb/001", 189, 0),
    ("/dev/hidraw0", 505, 0),
    ("/run/nvidia/driver/dev/nvidia0", 195, 0),
    ("/tmp/innocent", 195, 0),
    ("/home/user/link", 195, 1),
];

pub fn majors(list: &[(&str, u32)]) -> Majors {
    list.iter().map(|(name, major)| ((*name).to_owned(), *major)).collect()
}

impl Fake {
    pub fn dir(&mut self, path: &str, set: impl FnOnce(&mut Dir)) {
        let mut dir = Dir { real: path.to_owned(), ..Dir::default() };
        set(&mut dir);
        self.objects.insert(path.to_owned(), Object::Dir(dir));
    }

    pub fn file(&mut self, path: &str, real: &str) {
        self.objects
            .insert(path.to_owned(), Object::Other { real: real.to_owned(), kernels: false, fs: FileSystem::Plain });
    }

    pub fn unjudgeable(&mut self, path: &str) {
        self.objects.insert(path.to_owned(), Object::Unjudgeable("a magic link".to_owned()));
    }

    /// How often something was asked.
    pub fn count(&self, what: &str) -> usize {
        self.asked.borrow().iter().filter(|asked| *asked == what).count()
    }

    fn ask(&self, what: &str) {
        self.asked.borrow_mut().push(what.to_owned());
    }
}

impl System for Fake {
    fn look(&self, path: &str) -> Object {
        self.ask("look");
        let mut parts: Vec<&str> = Vec::new();
        for part in path.split('/') {
            match part {
                "" | "." => {}
                ".." => drop(parts.pop()),
                part => parts.push(part),
            }
        }
        let plain = format!("/{}", parts.join("/"));
        let found = self.objects.get(path).or_else(|| self.objects.get(&plain));
        found.cloned().unwrap_or(Object::Missing)
    }

    fn majors(&self) -> Result<Majors, String> {
        self.ask("majors");
        self.majors.clone()
    }

    fn misc(&self) -> Result<Majors, String> {
        self.ask("misc");
        Ok(self.misc.clone())
    }

    fn disks(&self) -> Result<Vec<(u32, u32)>, String> {
        self.ask("disks");
        Ok(self.disks.clone())
    }

    fn same_file(&self, a: &str, b: &str) -> bool {
        a == b || self.links.get(b).is_some_and(|target| target == a)
    }

    fn drm_vendor(&self, minor: u32) -> Option<u32> {
        self.ask("vendor");
        self.vendors.get(&minor).copied()
    }

    fn drm_minors(&self, _: u32) -> Vec<u32> {
        let mut minors: Vec<u32> = self.vendors.keys().copied().chain(self.untold.iter().copied()).collect();
        minors.sort_unstable();
        minors
    }

    fn nodes_inside(&self, real: &str) -> Result<Vec<(u32, u32)>, String> {
        self.ask("inside");
        Ok(self.inside.get(real).cloned().unwrap_or_default())
    }

    fn tree_has_dev(&self, real: &str) -> Result<bool, String> {
        self.ask("tree");
        Ok(self.trees_with_dev.contains(real))
    }

    fn filters_shown(&self, real: &str) -> Result<Vec<String>, String> {
        self.ask("groups");
        let inside = |point: &String| real == point || real.starts_with(&format!("{point}/"));
        let rest = |point: &String| if inside(point) { Some(String::new()) } else { below(point, real) };
        Ok(self.groups.iter().filter_map(rest).collect())
    }

    /// No more than has to be told.
    fn other_names(&self, real: &str, _: bool, near: &dyn Fn(&str) -> bool) -> Result<Vec<Name>, String> {
        self.ask("names");
        Ok(self.names.get(real).into_iter().flatten().filter(|name| near(&name.real)).cloned().collect())
    }

    fn kernels_inside(&self, real: &str) -> Result<Vec<String>, String> {
        self.ask("kernels");
        Ok(self.kernels.iter().filter_map(|point| below(point, real)).collect())
    }

    fn mounted_between(&self, folder: &str, inside: &str) -> Result<bool, String> {
        self.ask("between");
        let within = |path: &str, top: &str| format!("{path}/").starts_with(&format!("{}/", top.trim_end_matches('/')));
        let between = |point: &String| within(inside, point) && within(point, folder) && point != folder;
        Ok(self.mounted.iter().any(between))
    }

    fn no_folder(&self, path: &str) -> bool {
        matches!(self.objects.get(path), Some(Object::Other { .. }))
    }

    fn initial_user_namespace(&self) -> bool {
        self.ask("namespace");
        self.first_namespace
    }
}

fn below(point: &str, folder: &str) -> Option<String> {
    Some(point.strip_prefix(folder.trim_end_matches('/'))?.strip_prefix('/')?.to_owned())
}

/// A spec as an engine writes it, in parts.
#[derive(Clone)]
pub struct Spec {
    pub mounts: String,
    pub devices: String,
    pub rules: String,
    pub env: String,
    pub caps: String,
    pub hooks: String,
    pub annotations: String,
    pub namespaces: String,
    pub more_linux: String,
    pub root: String,
    pub cwd: String,
}

pub const DENY_ALL: &str = r#"{"allow":false,"access":"rwm"}"#;

impl Default for Spec {
    fn default() -> Self {
        Self {
            mounts: r#"[{"destination":"/proc","type":"proc","source":"proc","options":["nosuid","ro"]}]"#.into(),
            devices: "[]".into(),
            rules: format!(
                r#"[{DENY_ALL},{{"allow":true,"type":"c","major":1,"minor":3,"access":"rwm"}},{{"allow":true,"type":"c","major":136,"access":"rwm"}}]"#
            ),
            env: r#"["PATH=/bin"]"#.into(),
            caps: r#""CAP_CHOWN","CAP_MKNOD""#.into(),
            hooks: "{}".into(),
            annotations: "{}".into(),
            namespaces: r#"[{"type":"pid"},{"type":"mount"},{"type":"network"}]"#.into(),
            more_linux: String::new(),
            root: "rootfs".into(),
            cwd: "/".into(),
        }
    }
}

impl Spec {
    pub fn mount(fragment: &str) -> Self {
        Self { mounts: format!("[{fragment}]"), ..Self::default() }
    }

    pub fn bind(source: &str) -> Self {
        Self::mount(&format!(
            r#"{{"destination":"/x","type":"bind","source":"{source}","options":["rbind","rprivate"]}}"#
        ))
    }

    pub fn device(fragment: &str) -> Self {
        Self { devices: format!("[{fragment}]"), ..Self::default() }
    }

    /// Behind the deny of everything that engines begin with.
    pub fn rules(fragment: &str) -> Self {
        Self { rules: format!("[{DENY_ALL},{fragment}]"), ..Self::default() }
    }

    pub fn whole_list(list: &str) -> Self {
        Self { rules: list.into(), ..Self::default() }
    }

    pub fn privileged() -> Self {
        Self { rules: r#"[{"allow":true,"access":"rwm"}]"#.into(), ..Self::admin() }
    }

    pub fn admin() -> Self {
        Self { caps: r#""CAP_CHOWN","CAP_SYS_ADMIN""#.into(), ..Self::default() }
    }

    pub fn text(&self) -> String {
        let Self { mounts, devices, rules, env, caps, hooks, annotations, namespaces, more_linux, root, cwd } = self;
        format!(
            r#"{{"ociVersion":"1.0.2","process":{{"args":["sh"],"cwd":"{cwd}","env":{env},"capabilities":{{"bounding":[{caps}],"effective":[{caps}],"permitted":[{caps}]}}}},"root":{{"path":"{root}"}},"mounts":{mounts},"hooks":{hooks},"annotations":{annotations},"linux":{{"devices":{devices},"resources":{{"devices":{rules}}},"namespaces":{namespaces}{more_linux}}}}}"#
        )
    }
}

/// By whose rules a spec is judged.
#[derive(Clone)]
pub struct By {
    pub gpu: bool,
    pub low_level: LowLevel,
    pub policy: Policy,
    pub dev_root: String,
    pub programs: Vec<String>,
    pub replaced: &'static [usize],
    pub exceptions: Vec<Exception>,
    pub workload: Option<(&'static str, &'static str)>,
    pub call: Option<guard::Call<'static>>,
}

impl Default for By {
    fn default() -> Self {
        Self {
            gpu: false,
            low_level: LowLevel::Runc,
            policy: Policy::default(),
            dev_root: "/dev".into(),
            programs: Vec::new(),
            replaced: &[],
            exceptions: Vec::new(),
            workload: None,
            call: None,
        }
    }
}

pub fn gpu() -> By {
    By { gpu: true, ..By::default() }
}

pub fn crun() -> By {
    By { low_level: LowLevel::Crun, ..By::default() }
}

pub fn hardened() -> By {
    let policy = Policy { profile: Profile::Hardened, ..Policy::default() };
    By { policy, ..By::default() }
}

pub fn judge_text(text: &str, by: &By, fake: &Fake) -> Judgement {
    judge_owning(text, by, fake, &["/run/quilt-gpu", "/var/log/quilt-gpu", "/etc/quilt-gpu"])
}

pub fn judge_owning(text: &str, by: &By, fake: &Fake, own: &[&str]) -> Judgement {
    let spec = json::parse_oci(text.as_bytes()).unwrap_or_else(|e| panic!("{e}: {text}"));
    let own_paths: Vec<String> = own.iter().map(|path| (*path).to_owned()).collect();
    guard::judge(
        &Case {
            spec: &spec,
            bundle: BUNDLE,
            gpu_asked: by.gpu,
            asking: "QUILT_GPU_COUNT=1 or the annotation quilt.gpu/count",
            low_level: by.low_level,
            policy: &by.policy,
            own_paths: &own_paths,
            log_path: "/var/log/quilt-gpu",
            dev_root: &by.dev_root,
            programs: &by.programs,
            hooks: &by.policy.allow_hooks,
            replaced: by.replaced,
            exceptions: &by.exceptions,
            workload: by.workload.map(|(namespace, container)| guard::Workload {
                namespace,
                container,
                sandbox: container.is_empty(),
            }),
            call: by.call,
        },
        fake,
    )
}

pub fn judge(spec: &Spec, by: &By) -> Judgement {
    judge_text(&spec.text(), by, &Fake::default())
}

/// `ok`, or code and rule of each refusal in order.
pub fn verdict(judgement: &Judgement) -> String {
    if judgement.refusals.is_empty() {
        return "ok".to_owned();
    }
    for refusal in &judgement.refusals {
        assert!(!refusal.help.is_empty() && !refusal.message.is_empty(), "{refusal}");
        assert!(
            refusal.at.starts_with('/') || refusal.at.starts_with("argv/") || refusal.rule == "numbers-unreadable",
            "{refusal}"
        );
    }
    let all = judgement.refusals.iter().map(|r| format!("{} {}", r.code.name(), r.rule));
    all.collect::<Vec<_>>().join(", ")
}

/// Both columns of the table: without and with a GPU asked for.
pub fn both(spec: &Spec) -> (String, String) {
    (verdict(&judge(spec, &By::default())), verdict(&judge(spec, &gpu())))
}
