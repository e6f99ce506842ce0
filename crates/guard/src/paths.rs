//! Paths as text only: nothing here looks at the system.

use std::borrow::Cow;

/// A tenant's path as the low-level runtimes take it: relative to the bundle unless absolute.
pub(crate) fn from_bundle<'p>(bundle: &str, path: &'p str) -> Cow<'p, str> {
    if path.starts_with('/') { Cow::Borrowed(path) } else { Cow::Owned(format!("{bundle}/{path}")) }
}

/// Whether an absolute path is written in the one plain way: no empty, `.` or `..` part.
fn is_plain(path: &str) -> bool {
    path.starts_with('/') && path.split('/').skip(1).all(|part| !matches!(part, "" | "." | ".."))
}

/// An absolute path without empty, `.` and `..` parts, by its text alone, as Go's `filepath.Clean` does it.
pub fn clean(path: &str) -> Cow<'_, str> {
    if path == "/" || is_plain(path) {
        return Cow::Borrowed(path);
    }
    let mut parts: Vec<&str> = Vec::new();
    for part in path.split('/') {
        match part {
            "" | "." => {}
            ".." => drop(parts.pop()),
            part => parts.push(part),
        }
    }
    Cow::Owned(format!("/{}", parts.join("/")))
}

/// Whether two ways to resolve the path may differ: a `..` after a link leads elsewhere than its text says.
pub(crate) fn climbs(path: &str) -> bool {
    path.split('/').any(|part| part == "..")
}

/// What follows `folder` in a path that lies in it; empty for the folder itself. Both plain.
pub(crate) fn below<'p>(path: &'p str, folder: &str) -> Option<&'p str> {
    let rest = path.strip_prefix(folder.trim_end_matches('/'))?;
    if rest.is_empty() { Some(rest) } else { rest.strip_prefix('/') }
}

/// The last part of a path.
pub(crate) fn name(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cleaning() {
        for (path, cleaned) in [
            ("/", "/"),
            ("//", "/"),
            ("/a/b", "/a/b"),
            ("/a//b/./c/", "/a/b/c"),
            ("/a/../b", "/b"),
            ("/../../a", "/a"),
            ("/a/..", "/"),
            ("/a..b/...", "/a..b/..."),
        ] {
            assert_eq!(clean(path), cleaned, "{path}");
        }
    }

    #[test]
    fn plainness() {
        for (path, plain) in [
            ("/dev/fuse", true),
            ("/dev/nvidia-caps/nvidia-cap1", true),
            ("/dev/a..b", true),
            ("dev/fuse", false),
            ("", false),
            ("/", false),
            ("/dev/", false),
            ("/dev//x", false),
            ("/dev/./x", false),
            ("/dev/../tmp/x", false),
        ] {
            assert_eq!(is_plain(path), plain, "{path}");
        }
    }

    #[test]
    fn inside() {
        for (path, folder, rest) in [
            ("/dev", "/dev", Some("")),
            ("/dev/nvidia0", "/dev", Some("nvidia0")),
            ("/dev/dri/card0", "/dev/", Some("dri/card0")),
            ("/devices", "/dev", None),
            ("/d", "/dev", None),
        ] {
            assert_eq!(below(path, folder), rest, "{path} in {folder}");
        }
    }
}
