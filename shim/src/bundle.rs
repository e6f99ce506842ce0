//! The bundle: its folder and the bytes of its `config.json`, read once.

use std::cell::Cell;
use std::fs::{File, Metadata};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use contract::json::{MAX_BYTES, Node as Json};
use contract::{Code, Refusal};
use guard::System;
use nix::unistd::geteuid;
use node::{InRoot, Mode, Node};

/// Follows no link, and waits for nobody: neither for a pipe's other end nor for the holder of a lease on the file.
const ONLY_A_FILE: i32 = libc::O_NOFOLLOW | libc::O_NONBLOCK | libc::O_NOCTTY;

/// A bundle as it was when it was read.
#[derive(Debug)]
pub(crate) struct Bundle {
    /// Absolute path of the folder.
    pub(crate) path: PathBuf,
    /// The bytes of `config.json`.
    pub(crate) bytes: Vec<u8>,
    /// Owner and mode of the file, kept when it is written anew.
    pub(crate) mode: Mode,
    /// Who else than root could have put something else there since, when we are root.
    pub(crate) loose: Option<Loose>,
}

/// A bundle, or a folder above it, that others than root can change.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Loose {
    /// What they can change, and who.
    pub(crate) why: String,
    /// Who alone, when it is the owner.
    pub(crate) owner: Option<u32>,
}

impl Loose {
    /// What that means.
    pub(crate) fn told(&self) -> String {
        format!("another spec could take the place of this one: {}", self.why)
    }
}

impl Bundle {
    /// Reads the bundle at `named`, relative to the current folder.
    ///
    /// `None` only when there is no `config.json`: then there is nothing to judge, and the low-level runtime says so.
    /// Whatever else keeps us from reading it may not keep the low-level runtime from it.
    ///
    /// # Errors
    /// `UNSAFE_SPEC` when `config.json` is a link or no regular file, is too large, or cannot be read.
    pub(crate) fn read(named: &str) -> Result<Option<Self>, Refusal> {
        let help = "put one regular file named config.json, readable at once, into the bundle";
        let unsafe_file = |rule, why: &str| {
            Refusal::new(Code::UnsafeSpec, rule, format!("config.json {why}"), help).at("", named.to_owned())
        };
        let unreadable =
            |error: std::io::Error| unsafe_file("bundle-unreadable", &format!("of the bundle cannot be read: {error}"));
        let path = std::path::absolute(named).map_err(unreadable)?;
        let file = match File::options().read(true).custom_flags(ONLY_A_FILE).open(path.join("config.json")) {
            Ok(file) => file,
            Err(error) => {
                return match error.raw_os_error() {
                    Some(libc::ENOENT | libc::ENOTDIR) => Ok(None),
                    Some(libc::ELOOP) => {
                        Err(unsafe_file("bundle-link", "is a symbolic link, or its path leads in a circle"))
                    }
                    _ => Err(unreadable(error)),
                };
            }
        };
        let meta = file.metadata().map_err(unreadable)?;
        if !meta.is_file() {
            return Err(unsafe_file("bundle-type", "is not a regular file"));
        }
        let bytes = node::read_bounded(&file, meta.size(), MAX_BYTES).map_err(unreadable)?;
        let bytes = bytes.ok_or_else(|| unsafe_file("json-size", &format!("is larger than {MAX_BYTES} bytes")))?;
        let mode = Mode { mode: meta.mode() & 0o7777, uid: meta.uid(), gid: meta.gid() };
        let loose = if geteuid().is_root() { loose(&path, &meta) } else { None };
        Ok(Some(Self { path, bytes, mode, loose }))
    }

    /// Who else could change it. Podman gives its folder to the root that a user namespace makes of another user: that is the
    /// container itself, which does not run yet.
    pub(crate) fn loose_to(&self, spec: &Json<'_>, system: &Node) -> Option<&Loose> {
        let maps = spec.path(&["linux", "uidMappings"]).map(Json::items).unwrap_or_default();
        let roots: Vec<i64> = maps.iter().filter_map(|map| map.get("hostID")?.as_i64()).collect();
        let its_own = |loose: &&Loose| loose.owner.is_some_and(|owner| roots.contains(&owner.into()));
        self.loose.as_ref().filter(|loose| !its_own(loose) && system.initial_user_namespace())
    }

    /// Why nothing is granted to it, if others could change it.
    pub(crate) fn holds_no_gpu(&self, spec: &Json<'_>, system: &Node) -> Option<Refusal> {
        let help = "let the bundle, and every folder above it, belong to root and be writable by root alone";
        let message = self.loose_to(spec, system)?.told();
        Some(Refusal::new(Code::UnsafeSpec, "bundle", message, help).at("", self.path.display().to_string()))
    }

    /// The file's path.
    #[must_use]
    pub(crate) fn config(&self) -> PathBuf {
        self.path.join("config.json")
    }
}

/// What of a bundle others than root can change: its file, its folder, or a folder above by which another one takes its place.
fn loose(folder: &Path, config: &Metadata) -> Option<Loose> {
    let judged = |path: &Path, meta: &Metadata| {
        // In a folder where everybody may write but only owners rename, what is root's stays.
        let sticky = meta.mode() & 0o1000 != 0 && path != folder;
        let open = meta.mode() & 0o022 != 0 && !sticky && !meta.is_symlink();
        let owner = Some(meta.uid()).filter(|uid| *uid != 0);
        let why = match owner {
            Some(uid) => format!("{} belongs to user {uid}", path.display()),
            None => format!("{} may be written by others than root", path.display()),
        };
        (owner.is_some() || open).then_some(Loose { why, owner: owner.filter(|_| !open) })
    };
    let links = Cell::new(false);
    let chain = |start: &Path| {
        start.ancestors().find_map(|path| {
            let meta = path.symlink_metadata().ok()?;
            links.set(links.get() || meta.is_symlink());
            judged(path, &meta)
        })
    };
    let found = judged(&folder.join("config.json"), config).or_else(|| chain(folder));
    let through_links = || folder.canonicalize().ok().and_then(|real| chain(&real));
    found.or_else(|| if links.get() { through_links() } else { None })
}

/// The container's root file system, from `root.path`; relative to the bundle, as OCI wants.
pub(crate) fn rootfs(spec: &contract::json::Node<'_>, bundle: &Path) -> Option<PathBuf> {
    spec.path(&["root", "path"]).and_then(|n| n.as_str()).map(|path| bundle.join(path))
}

/// A handle on it; nothing where there is none.
pub(crate) fn image(spec: &contract::json::Node<'_>, bundle: &Path) -> Option<InRoot> {
    rootfs(spec, bundle).and_then(|path| InRoot::open(&path).ok())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn only_a_bundle_without_config_is_nothing_to_judge() {
        let folder = tempfile::tempdir().unwrap();
        let named = folder.path().to_str().unwrap();
        assert!(Bundle::read(named).unwrap().is_none());
        assert!(Bundle::read(&format!("{named}/absent")).unwrap().is_none());
        let config = folder.path().join("config.json");
        for (rule, make) in [
            (
                "bundle-link",
                Box::new(|| std::os::unix::fs::symlink("/etc/hostname", &config))
                    as Box<dyn Fn() -> std::io::Result<()>>,
            ),
            ("bundle-type", Box::new(|| std::fs::create_dir(&config))),
        ] {
            make().unwrap();
            assert_eq!(Bundle::read(named).unwrap_err().rule, rule);
            let _ = std::fs::remove_file(&config).or_else(|_| std::fs::remove_dir(&config));
        }
        // runc changes into the folder and still finds the file at such a depth.
        let long = format!("{named}/{}", "x/".repeat(2100));
        assert_eq!(Bundle::read(&long).unwrap_err().rule, "bundle-unreadable");
        assert_eq!(Bundle::read("").unwrap_err().rule, "bundle-unreadable");
        std::fs::write(&config, "{}").unwrap();
        let mode = |path: &Path, mode| std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
        let loose = || Bundle::read(named).unwrap().unwrap().loose.map(|loose| (loose.why, loose.owner));
        assert_eq!(loose(), None);
        for path in [config.as_path(), folder.path()] {
            mode(path, 0o775);
            let is_root = geteuid().is_root();
            assert_eq!(loose().is_some(), is_root);
            if is_root {
                mode(path, 0o755);
                std::os::unix::fs::chown(path, Some(1000), None).unwrap();
                assert_eq!(loose().unwrap().1, Some(1000));
                std::os::unix::fs::chown(path, Some(0), None).unwrap();
            }
            mode(path, 0o755);
        }
        assert_eq!(loose(), None, "though everybody may write in the folder above");
        assert_eq!(Bundle::read(named).unwrap().unwrap().bytes, b"{}");
    }
}
