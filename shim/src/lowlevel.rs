//! Which low-level runtime: from the configured list for containers that we make, from one link for everything else.

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

/// The first usable program of the list. We ourselves never count, by whatever name.
///
/// # Errors
/// `INTERNAL`, naming every place that was tried and why it did not serve.
pub(crate) fn find(candidates: &[String]) -> Result<PathBuf, Refusal> {
    let own = own_identity();
    let mut tried = Vec::new();
    for candidate in candidates {
        for path in places(candidate) {
            match usable(&path, own) {
                Ok(()) => return Ok(path),
                Err(why) => tried.push(format!("{} ({why})", path.display())),
            }
        }
    }
    Err(Refusal::new(
        Code::Internal,
        "low-level-runtime",
        format!("no low-level runtime was found; tried {}", tried.join(", ")),
        "install runc or crun, or name one in [runtime] low_level of the configuration",
    ))
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

fn own_identity() -> Option<(u64, u64)> {
    std::fs::metadata("/proc/self/exe").ok().map(|m| (m.dev(), m.ino()))
}

/// The program for verbs that are not ours: what the link beside the configuration names, else the first that exists.
///
/// # Errors
/// A message for stderr when there is none.
pub(crate) fn for_pass_through() -> Result<CString, String> {
    let file = std::env::var_os(PATH_VARIABLE).filter(|p| !p.is_empty()).unwrap_or_else(|| DEFAULT_PATH.into());
    let link = Path::new(&file).with_file_name(LOW_LEVEL_LINK);
    let own = own_identity();
    let c_path = |path: &Path| {
        CString::new(path.as_os_str().as_bytes()).map_err(|_| "the low-level runtime's path holds a NUL".to_owned())
    };
    if let Ok(target) = std::fs::read_link(&link) {
        return match usable(&target, own) {
            Ok(()) => c_path(&target),
            Err(why) => Err(format!("{} names {}: {why}", link.display(), target.display())),
        };
    }
    for name in NAMES {
        if let Some(path) = places(name).into_iter().find(|path| usable(path, own).is_ok()) {
            return c_path(&path);
        }
    }
    Err(format!(
        "no low-level runtime: {} is missing, and neither runc nor crun is in {}",
        link.display(),
        FOLDERS.join(", ")
    ))
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
        let own = std::env::current_exe().unwrap().display().to_string();
        let refusal = find(&["/nowhere/runc".into(), own.clone(), "no-such-runtime".into()]).unwrap_err();
        for part in [
            "/nowhere/runc (not there)",
            &format!("{own} (this is quilt-gpu-runtime itself)"),
            "/usr/bin/no-such-runtime (not there)",
        ] {
            assert!(refusal.message.contains(part), "{}", refusal.message);
        }
        assert_eq!(find(&["/etc/passwd".into(), "/bin/sh".into()]).unwrap(), Path::new("/bin/sh"));
    }
}
