//! Which low-level runtime: what one link names, and a list in the configuration that must agree with it.
//!
//! The link is what verbs that are not ours follow: reading it costs one system call and parses nothing.

use std::ffi::{CStr, CString};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use contract::config::{DEFAULT_PATH, LOW_LEVEL_LINK, PATH_VARIABLE};
use contract::{Code, Refusal};

/// Where a runtime's bare name is looked for. Never `PATH`: the engine's may hold folders of users.
const FOLDERS: &[&str] =
    &["/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin", "/usr/libexec/crio"];

/// The names that are tried when neither link nor configuration says anything.
const NAMES: &[&str] = &["runc", "crun"];

/// The program that makes containers. It must be the one that every other verb goes to, or containers would be created
/// by one runtime and started by another, which does not know them.
///
/// # Errors
/// `INTERNAL`, naming every place that was tried and why it did not serve, or the two programs that differ.
pub(crate) fn find(candidates: &[String], folder: &Path) -> Result<PathBuf, Refusal> {
    let install =
        "install runc or crun, or name one in [runtime] low_level of the configuration and by the link beside it";
    let failed = |why, help: &str| Refusal::new(Code::Internal, "low-level-runtime", why, help);
    let passed = by_link(folder);
    if candidates.is_empty() {
        return passed.map_err(|why| failed(why, install));
    }
    let listed = first_usable(candidates.iter().map(String::as_str)).map_err(|why| failed(why, install))?;
    match passed {
        Ok(passed) if identity(&passed) == identity(&listed) => Ok(listed),
        other => {
            let link = folder.join(LOW_LEVEL_LINK);
            let other = other.map_or_else(|why| why, |path| path.display().to_string());
            let (listed, link) = (listed.display(), link.display());
            let why = format!("containers would be created by {listed} and started by another runtime: {other}");
            Err(failed(why, &format!("make both one: ln -sfn {listed} {link}, or leave [runtime] low_level out")))
        }
    }
}

fn first_usable<'a>(candidates: impl Iterator<Item = &'a str>) -> Result<PathBuf, String> {
    let own = identity(Path::new("/proc/self/exe"));
    let mut tried = Vec::new();
    for path in candidates.flat_map(places) {
        match usable(&path, own) {
            Ok(()) => return Ok(path),
            Err(why) => tried.push(format!("{} ({why})", path.display())),
        }
    }
    Err(format!("no low-level runtime was found; tried {}", tried.join(", ")))
}

/// What the link beside the configuration names; without a link the first of [`NAMES`].
fn by_link(folder: &Path) -> Result<PathBuf, String> {
    let link = folder.join(LOW_LEVEL_LINK);
    let Ok(target) = std::fs::read_link(&link) else { return first_usable(NAMES.iter().copied()) };
    let target = folder.join(target);
    match usable(&target, identity(Path::new("/proc/self/exe"))) {
        Ok(()) => Ok(target),
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
    Ok(c_string(by_link(folder)?.as_os_str().as_bytes()))
}

fn places(candidate: &str) -> Vec<PathBuf> {
    if candidate.contains('/') {
        vec![candidate.into()]
    } else {
        FOLDERS.iter().map(|folder| Path::new(folder).join(candidate)).collect()
    }
}

fn usable(path: &Path, own: Option<(u64, u64)>) -> Result<(), &'static str> {
    let meta = std::fs::metadata(path).map_err(|_| "not there")?;
    if !meta.is_file() || meta.permissions().mode() & 0o111 == 0 {
        return Err("not an executable file");
    }
    if !path.is_absolute() {
        return Err("not an absolute path");
    }
    if own == Some((meta.dev(), meta.ino())) { Err("this is quilt-gpu-runtime itself") } else { Ok(()) }
}

fn identity(path: &Path) -> Option<(u64, u64)> {
    std::fs::metadata(path).ok().map(|m| (m.dev(), m.ino()))
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
