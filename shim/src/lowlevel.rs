//! Which low-level runtime: what one link names, and a list in the configuration that must agree with it.
//!
//! The link is what verbs that are not ours follow: reading it costs one system call and parses nothing.

use std::ffi::{CStr, CString};
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use contract::config::{DEFAULT_PATH, LOW_LEVEL_LINK, PATH_VARIABLE, Verify};
use contract::inventory::{Filter, LowLevel};
use contract::json::{self, MAX_BYTES, Node};
use contract::{Code, Refusal};

use crate::setup::Setup;

/// Where a runtime's bare name is looked for. Never `PATH`: the engine's may hold folders of users.
const FOLDERS: &[&str] =
    &["/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin", "/usr/libexec/crio"];

/// What the runtime is installed as.
const OWN_NAME: &[u8] = b"quilt-gpu-runtime";

/// The names that are tried when neither link nor configuration says anything.
const NAMES: &[&str] = &["runc", "crun", "quilt-gpu-engine"];

/// Files of a container's state, of runc and youki, and of crun; and what its first process is called in them.
const STATES: [(&str, &str); 3] = [("state.json", "init_process_pid"), ("state.json", "pid"), ("status", "pid")];

/// The first process of a container, by what the low-level runtime keeps in its state folder.
pub(crate) fn first_process(folder: &Path) -> Option<u32> {
    STATES.iter().find_map(|(file, key)| {
        let pid = json::parse_data(&bytes_of(&folder.join(file))?).ok()?.get(key)?.as_i64()?;
        u32::try_from(pid).ok().filter(|pid| *pid > 0)
    })
}

/// Whether a container was made in a user namespace of its own or another's, by what its low-level runtime goes by when it adds a
/// process: runc's own copy of the namespaces, the bundle of the others.
pub(crate) fn made_with_users(folder: &Path) -> bool {
    let named = |spec: &Node<'_>, path: &[&str], user: &str| {
        let all = spec.path(path).map(Node::items).unwrap_or_default();
        all.iter().any(|one| one.get("type").and_then(Node::as_str) == Some(user))
    };
    let told = ["state.json", "status"].iter().find_map(|file| {
        let bytes = bytes_of(&folder.join(file))?;
        let state = json::parse_data(&bytes).ok()?;
        if state.get("config").is_some() {
            return Some(named(&state, &["config", "namespaces"], "NEWUSER"));
        }
        let spec = bytes_of(&Path::new(state.get("bundle")?.as_str()?).join("config.json"))?;
        Some(named(&json::parse_oci(&spec).ok()?, &["linux", "namespaces"], "user"))
    });
    told.unwrap_or(false)
}

fn bytes_of(file: &Path) -> Option<Vec<u8>> {
    let mut bytes = Vec::new();
    std::fs::File::open(file).ok()?.take(MAX_BYTES as u64).read_to_end(&mut bytes).ok()?;
    Some(bytes)
}

/// The program that makes containers. It must be the one that every other verb goes to, or containers would be created
/// by one runtime and started by another, which does not know them.
///
/// # Errors
/// `INTERNAL`, naming every place that was tried and why it did not serve, or the two programs that differ.
pub(crate) fn find(candidates: &[String], folder: &Path) -> Result<PathBuf, Refusal> {
    let install =
        "install runc or crun, or name one in [runtime] low_level of the configuration and by the link beside it";
    let failed = |why, help: &str| Refusal::new(Code::Internal, "low-level-runtime", why, help);
    let own = identity(Path::new("/proc/self/exe"));
    let passed = by_link(folder, own);
    if candidates.is_empty() {
        return passed.map(|(path, _)| path).map_err(|why| failed(why, install));
    }
    let listed = first_usable(candidates.iter().map(String::as_str), own);
    let (listed, id) = listed.map_err(|why| failed(why, install))?;
    match passed {
        Ok((_, passed)) if passed == id => Ok(listed),
        other => {
            let link = folder.join(LOW_LEVEL_LINK);
            let other = other.map_or_else(|why| why, |(path, _)| path.display().to_string());
            let (listed, link) = (listed.display(), link.display());
            let why = format!("containers would be created by {listed} and started by another runtime: {other}");
            Err(failed(why, &format!("make both one: ln -sfn {listed} {link}, or leave [runtime] low_level out")))
        }
    }
}

/// Device and inode of a program.
type Id = (u64, u64);

fn first_usable<'a>(candidates: impl Iterator<Item = &'a str>, own: Option<Id>) -> Result<(PathBuf, Id), String> {
    let mut tried = Vec::new();
    for path in candidates.flat_map(places) {
        match usable(&path, own) {
            Ok(id) => return Ok((path, id)),
            Err(why) => tried.push(format!("{} ({why})", path.display())),
        }
    }
    Err(format!("no low-level runtime was found; tried {}", tried.join(", ")))
}

/// What the link beside the configuration names; without a link the first of [`NAMES`].
fn by_link(folder: &Path, own: Option<Id>) -> Result<(PathBuf, Id), String> {
    let link = folder.join(LOW_LEVEL_LINK);
    let Ok(target) = std::fs::read_link(&link) else { return first_usable(NAMES.iter().copied(), own) };
    let target = folder.join(target);
    match usable(&target, own) {
        Ok(id) => Ok((target, id)),
        Err(why) => Err(format!("the link {} names {}: {why}", link.display(), target.display())),
    }
}

/// The program for verbs that are not ours.
///
/// # Errors
/// A message for stderr when there is none.
pub(crate) fn for_pass_through() -> Result<CString, String> {
    let file = std::env::var_os(PATH_VARIABLE).filter(|p| !p.is_empty()).unwrap_or_else(|| DEFAULT_PATH.into());
    let folder = Path::new(&file).parent().unwrap_or(Path::new("/"));
    let (path, _) = by_link(folder, identity(Path::new("/proc/self/exe")))?;
    Ok(c_string(path.as_os_str().as_bytes()))
}

fn places(candidate: &str) -> Vec<PathBuf> {
    if candidate.contains('/') {
        vec![candidate.into()]
    } else {
        FOLDERS.iter().map(|folder| Path::new(folder).join(candidate)).collect()
    }
}

fn usable(path: &Path, own: Option<Id>) -> Result<Id, &'static str> {
    let meta = std::fs::metadata(path).map_err(|_| "not there")?;
    if !meta.is_file() || meta.permissions().mode() & 0o111 == 0 {
        return Err("not an executable file");
    }
    if !path.is_absolute() {
        return Err("not an absolute path");
    }
    // By name too: the helper looks for the same program, and is another file.
    let named = path.file_name().is_some_and(|name| name.as_bytes() == OWN_NAME);
    let id = (meta.dev(), meta.ino());
    if named || own == Some(id) { Err("this is quilt-gpu-runtime itself") } else { Ok(id) }
}

fn identity(path: &Path) -> Option<Id> {
    std::fs::metadata(path).ok().map(|m| (m.dev(), m.ino()))
}

/// Name of the record in the state folder of what the low-level runtime was seen to do: a part of the inventory that is
/// small enough to be read for every container.
pub const LOW_LEVEL: &str = "low-level.json";

/// Most bytes of it that are read.
const MAX_LOW_LEVEL: u64 = 64 << 10;

/// What the helper found out about this low-level runtime; nothing when the record is of another one. Only root can write
/// it, and what stands in it opens nothing: a wrong word makes a container fail that would have been verified anyway.
fn known(setup: &Setup, low_level: &Path) -> Option<LowLevel> {
    // Whatever else lies there is not waited for.
    let bytes = ledger::read_plain(&setup.state_dir().join(LOW_LEVEL), MAX_LOW_LEVEL).ok()?;
    let known: LowLevel = contract::read::document(&bytes).ok()?;
    (known.path.as_bytes() == low_level.as_os_str().as_bytes()).then_some(known)
}

/// The same, when it is of this very file and of the control groups that filters are in here: the path alone tells neither
/// whether the program was upgraded nor who looked from where.
#[must_use]
pub fn current(setup: &Setup, low_level: &Path) -> Option<LowLevel> {
    known(setup, low_level).filter(is_current)
}

fn is_current(known: &LowLevel) -> bool {
    node::file_id(Path::new(&known.path)).is_ok_and(|id| id == known.id)
        && node::cgroup::version_of_filters().is_ok_and(|version| version == known.cgroup)
}

/// What is known of a low-level runtime without asking it.
pub(crate) struct Seen {
    /// By whose ways a spec is judged.
    pub(crate) ways: guard::LowLevel,
    /// The program, where one is known.
    pub(crate) program: Option<PathBuf>,
    known: Option<LowLevel>,
}

impl Seen {
    /// Of this program; of none, when there is none or nobody knows which.
    pub(crate) fn of(setup: &Setup, low_level: Option<&Path>) -> Self {
        let known = low_level.and_then(|path| known(setup, path));
        let ways = low_level.map_or(guard::LowLevel::Other, |path| ways(path, known.as_ref()));
        Self { ways, program: low_level.map(Path::to_owned), known }
    }

    /// Why no device filter holds, where that is known; and whether it even fails where it is told to make one.
    pub(crate) fn no_filter(&self) -> Option<(String, bool)> {
        let known = self.known.as_ref()?;
        let message = no_filter(known)?;
        is_current(known).then_some((message, known.fails_with_list))
    }

    /// Refuses a GPU where it is known that no device filter holds.
    ///
    /// # Errors
    /// `POLICY`.
    pub(crate) fn enforces(&self) -> Result<(), Refusal> {
        self.known.as_ref().filter(|known| is_current(known)).map_or(Ok(()), known_to_enforce)
    }
}

/// Those of the program's name, unless it is known to be another in disguise.
fn ways(low_level: &Path, known: Option<&LowLevel>) -> guard::LowLevel {
    let named = guard::LowLevel::of(&low_level.to_string_lossy());
    match known.filter(|known| !known.name.is_empty()).map(|known| guard::LowLevel::of(&known.name)) {
        // The file may have been replaced since: no word makes it one that is trusted with more.
        Some(guard::LowLevel::Runc) if named != guard::LowLevel::Runc => guard::LowLevel::Other,
        Some(other) => other,
        None => named,
    }
}

/// Refuses a GPU where no device filter holds.
///
/// # Errors
/// `POLICY`; `CONTRACT_STALE` when it is not known of this program and these control groups.
pub(crate) fn enforces(setup: &Setup, low_level: &Path) -> Result<(), Refusal> {
    if setup.config.policy.verify == Verify::Off {
        return Ok(());
    }
    match current(setup, low_level) {
        Some(known) => known_to_enforce(&known),
        None => Err(Refusal::new(
            Code::ContractStale,
            "low-level-runtime",
            format!("it is not known whether {} can enforce a device filter here", low_level.display()),
            "run `quilt-gpu inventory refresh` on the node and read what it says",
        )),
    }
}

fn known_to_enforce(known: &LowLevel) -> Result<(), Refusal> {
    match no_filter(known) {
        Some(message) => Err(Refusal::new(
            Code::Policy,
            "cgroup-no-filter",
            message,
            "take another low-level runtime: name it by the link low-level-runtime beside the configuration, and run \
             `quilt-gpu inventory refresh`; refresh too when what the reason names was mended",
        )),
        None => Ok(()),
    }
}

fn no_filter(known: &LowLevel) -> Option<String> {
    let reason = known.reason.as_deref().unwrap_or_default();
    (known.filter == Filter::NotEnforced)
        .then(|| format!("{} enforces no device filter here (cgroup v{}): {reason}", known.path, known.cgroup))
}

/// A path as the C string that `execve` wants.
pub(crate) fn c_string(text: &[u8]) -> CString {
    // Words came from C strings or from JSON that holds no NUL; a NUL would end the word early, never lengthen it.
    let end = text.iter().position(|b| *b == 0).unwrap_or(text.len());
    CString::new(text.get(..end).unwrap_or_default()).unwrap_or_else(|_| CStr::to_owned(c""))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// D36 of the field: a list whose first entry is this program, and names that are nowhere.
    #[test]
    fn every_place_tried_is_named_and_we_never_count() {
        let folder = tempfile::tempdir().unwrap();
        let own = std::env::current_exe().unwrap().display().to_string();
        let refusal =
            find(&["/nowhere/runc".into(), own.clone(), "no-such-runtime".into()], folder.path()).unwrap_err();
        for part in [
            "/nowhere/runc (not there)",
            &format!("{own} (this is quilt-gpu-runtime itself)"),
            "/usr/bin/no-such-runtime (not there)",
        ] {
            assert!(refusal.message.contains(part), "{}", refusal.message);
        }
    }

    #[test]
    fn a_record_counts_for_one_file_and_one_version_of_control_groups() {
        let folder = tempfile::tempdir().unwrap();
        let program = folder.path().join("crun");
        std::fs::write(&program, "").unwrap();
        let mut setup = Setup::read(&folder.path().join("config.toml"));
        setup.config.paths.state_dir = folder.path().display().to_string();
        let right = LowLevel {
            path: program.display().to_string(),
            id: node::file_id(&program).unwrap(),
            name: "crun".into(),
            version: "1".into(),
            cgroup: node::cgroup::version_of_filters().unwrap(),
            filter: Filter::NotEnforced,
            fails_with_list: true,
            reason: None,
        };
        let seen = |known: &LowLevel| {
            std::fs::write(folder.path().join(LOW_LEVEL), serde_json::to_vec(known).unwrap()).unwrap();
            let seen = Seen::of(&setup, Some(&program));
            assert_eq!(seen.no_filter().is_some(), seen.enforces().is_err());
            seen.no_filter().map(|(_, fails)| fails)
        };
        assert_eq!(seen(&right), Some(true));
        assert_eq!(seen(&LowLevel { fails_with_list: false, ..right.clone() }), Some(false));
        let mut other = right.clone();
        other.id.ino += 1;
        for wrong in [
            other,
            LowLevel { cgroup: 3 - right.cgroup, ..right.clone() },
            LowLevel { path: "/usr/bin/crun".into(), ..right.clone() },
            LowLevel { filter: Filter::Enforced, ..right.clone() },
            LowLevel { filter: Filter::NotTried, ..right.clone() },
        ] {
            assert_eq!(seen(&wrong), None, "{wrong:?}");
        }
    }

    #[test]
    fn link_and_list_must_name_one_program() {
        let folder = tempfile::tempdir().unwrap();
        let link = folder.path().join(LOW_LEVEL_LINK);
        std::os::unix::fs::symlink("/bin/sh", &link).unwrap();
        assert_eq!(find(&[], folder.path()).unwrap(), Path::new("/bin/sh"));
        assert_eq!(find(&["/etc/passwd".into(), "/bin/sh".into()], folder.path()).unwrap(), Path::new("/bin/sh"));
        let refusal = find(&["/bin/cat".into()], folder.path()).unwrap_err();
        assert!(refusal.message.contains("created by /bin/cat and started by another runtime: /bin/sh"), "{refusal}");
        std::fs::remove_file(&link).unwrap();
        let up = "../".repeat(folder.path().components().count() - 1);
        std::os::unix::fs::symlink(format!("{up}bin/sh"), &link).unwrap();
        assert!(find(&["/bin/sh".into()], folder.path()).is_ok(), "a link may be relative");
        std::fs::remove_file(&link).unwrap();
        std::os::unix::fs::symlink("/nowhere/runc", &link).unwrap();
        let refusal = find(&[], folder.path()).unwrap_err();
        assert!(refusal.message.contains("names /nowhere/runc: not there"), "{refusal}");
    }
}
