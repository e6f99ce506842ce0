//! What the guard must know about the machine, as one trait, so that tests run the real decision on made-up nodes.

/// Character majors of this node by name, as `/proc/devices` lists them (a name may hold several).
pub type Majors = Vec<(String, u32)>;

/// What lies behind a mount source, after following links as the low-level runtime would.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Object {
    /// A character device.
    Char {
        /// Device major (`st_rdev`).
        major: u32,
        /// Device minor.
        minor: u32,
    },
    /// A block device: its numbers are another space, no GPU is among them.
    Block {
        /// Device major (`st_rdev`).
        major: u32,
        /// Device minor.
        minor: u32,
    },
    /// A folder.
    Dir(Dir),
    /// A regular file, socket, pipe.
    Other {
        /// Path with all links resolved.
        real: String,
        /// It may be a file of the kernel's: a regular file without content, on a file system without a device.
        kernels: bool,
        /// What it lies on.
        fs: FileSystem,
    },
    /// Nothing is there.
    Missing,
    /// It cannot be told what is there (loop, no permission, a magic link of procfs, no answer in time), and why.
    Unjudgeable(String),
}

/// A folder that is a mount source.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Dir {
    /// Path with all links resolved.
    pub real: String,
    /// It is `/` of the machine.
    pub is_root: bool,
    /// It lies on the file system that `/dev` is (devtmpfs has one instance, wherever it is mounted).
    pub on_dev: bool,
    /// It is the top of that file system.
    pub is_dev: bool,
    /// It is the node's dev root or driver root (configured), or lies inside the dev root.
    pub in_driver_root: bool,
    /// What it lies on.
    pub fs: FileSystem,
}

/// The file system that an object lies on, as far as that matters: a path does not tell it, and engines mount any file system as
/// a volume for whoever asks.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum FileSystem {
    /// One that is judged by its path, or not at all.
    #[default]
    Plain,
    /// Devices.
    Sysfs,
    /// Processes, and the kernel's settings.
    Proc,
    /// Programs that the kernel runs for others.
    BinfmtMisc,
    /// debugfs, tracefs, securityfs, bpf: files of the kernel that usually lie in sysfs.
    KernelFiles,
    /// Layers of other file systems.
    Overlay {
        /// Where it is mounted; several when it is bound elsewhere too.
        points: Vec<String>,
        /// Options it was mounted with.
        options: Vec<String>,
    },
}

/// Another name of a part of a mount source: several mounts may show one folder.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Name {
    /// Where the part is in the source; empty for the source itself.
    pub rest: String,
    /// What it is called elsewhere: an absolute path of the host, without links. What is mounted below that path is no part of it.
    pub real: String,
}

/// The system as the guard sees it. Implemented by `crates/node`; every method is called only when it can change the verdict.
pub trait System {
    /// What lies behind an absolute path.
    fn look(&self, path: &str) -> Object;
    /// Character majors of the node.
    ///
    /// # Errors
    /// What was attempted, and the cause.
    fn majors(&self) -> Result<Majors, String>;
    /// Minors of the major 10 (misc) that drivers were given at load time, by name, as `/proc/misc` lists them; empty where there
    /// is no such list.
    ///
    /// # Errors
    /// What was attempted, and the cause.
    fn misc(&self) -> Result<Majors, String>;
    /// Block devices that mounted file systems lie on, and those below these: a partition's disk, a mapping's disks.
    ///
    /// # Errors
    /// What was attempted, and the cause.
    fn disks(&self) -> Result<Vec<(u32, u32)>, String>;
    /// Whether two absolute paths lead to one file, links followed, those of procfs too. What is not there is no file.
    fn same_file(&self, a: &str, b: &str) -> bool;
    /// PCI vendor id behind a DRM node (character major 226), when it can be told.
    fn drm_vendor(&self, minor: u32) -> Option<u32>;
    /// DRM minors that exist; all below `usual`, where they cannot be listed.
    fn drm_minors(&self, usual: u32) -> Vec<u32>;
    /// Character device nodes (major, minor) anywhere inside a folder of the host's own `/dev` or of the dev root; bounded.
    ///
    /// # Errors
    /// What was attempted, and the cause.
    fn nodes_inside(&self, real: &str) -> Result<Vec<(u32, u32)>, String>;
    /// Whether a file system that is the host's `/dev`, or holds the dev root, is mounted at or below this folder.
    ///
    /// # Errors
    /// What was attempted, and the cause.
    fn tree_has_dev(&self, real: &str) -> Result<bool, String>;
    /// Where a folder, or a file that may be the kernel's, shows control groups that hold device filters: paths relative to
    /// it, rising; empty for what lies in such a hierarchy itself. Who can write there leaves its filter.
    ///
    /// # Errors
    /// What was attempted, and the cause.
    fn filters_shown(&self, real: &str) -> Result<Vec<String>, String>;
    /// What else the parts of a mount source are called, those of the mounts inside it as well where they show. Of these only the
    /// names that are `near` have to be told.
    ///
    /// # Errors
    /// What was attempted, and the cause.
    fn other_names(&self, real: &str, recursive: bool, near: &dyn Fn(&str) -> bool) -> Result<Vec<Name>, String>;
    /// Where procfs, sysfs and binfmt_misc are mounted inside a folder: paths relative to it, rising.
    ///
    /// # Errors
    /// What was attempted, and the cause.
    fn kernels_inside(&self, real: &str) -> Result<Vec<String>, String>;
    /// Whether a mount lies below `folder` on the way to `inside`, or at its end: a bind of `folder` that is not recursive does
    /// not show it then. The answer of a machine that cannot tell is no.
    ///
    /// # Errors
    /// What was attempted, and the cause.
    fn mounted_between(&self, folder: &str, inside: &str) -> Result<bool, String>;
    /// Whether something other than a folder lies at this path, a link to one included.
    fn no_folder(&self, path: &str) -> bool;
    /// Whether this process is in the machine's first user namespace: elsewhere no device filter can be attached.
    fn initial_user_namespace(&self) -> bool;
}
