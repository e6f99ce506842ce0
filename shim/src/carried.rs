//! Driver libraries that an image brings itself, for the record: an image made by committing a container has empty ones, one with
//! a driver's packages whole ones. Nothing rests on it, since the node's are bound over them.

use std::path::Path;

use contract::Note;
use linker::cache::Entry;
use node::InRoot;

/// What every driver has, and so what tells one where no cache does.
const ALWAYS: [&str; 2] = ["libcuda.so.1", "libnvidia-ml.so.1"];
/// More files in a folder than any image's are not looked through.
const MOST_FILES: usize = 16_384;
const MOST_FOLDERS: usize = 8;
const MOST_VERSION_BYTES: usize = 20;
/// All versions that are told, and what is between them.
const MOST_TOLD: usize = 80;

/// The image's own driver libraries, by version and folder; nothing in an image without any, which is nearly every one.
pub(crate) fn told(root: &InRoot, target: &str, entries: &[Entry<'_>], ours: &[Entry<'_>]) -> Option<Note> {
    let is_ours = |name: &str| ours.iter().any(|our| our.name == name);
    let mut folders: Vec<&str> = Vec::new();
    for entry in entries.iter().filter(|entry| is_ours(entry.name)) {
        match entry.path.rsplit_once('/') {
            Some((folder, _)) if folders.len() < MOST_FOLDERS && !folders.contains(&folder) => folders.push(folder),
            _ => {}
        }
    }
    if !folders.contains(&target) && ALWAYS.iter().any(|name| root.exists(&Path::new(target).join(name))) {
        folders.push(target);
    }
    let (mut place, mut versions) = (None, String::new());
    for folder in folders {
        root.names(Path::new(folder), MOST_FILES, &mut |name| {
            let version = ours.iter().find_map(|our| version(name, our.name));
            if version.is_none() && !is_ours(name) {
                return;
            }
            place.get_or_insert(folder);
            let new = |version: &&str| versions.len() < MOST_TOLD && !versions.split(", ").any(|told| told == *version);
            if let Some(version) = version.filter(new) {
                let between = if versions.is_empty() { "" } else { ", " };
                versions = [&versions, between, version].concat();
            }
        });
    }
    let versions = if versions.is_empty() { "of no version" } else { &versions };
    let message = format!("the image carries driver libraries {versions}, in {}: the node's are used", place?);
    Some(Note::new("image-driver", "/root/path", message))
}

/// The driver version in a file's name: numbers with dots between, behind the name that has a number alone.
fn version<'n>(name: &'n str, soname: &str) -> Option<&'n str> {
    let stem = soname.split_inclusive(".so").next()?;
    let version = name.strip_prefix(stem)?.strip_prefix('.')?;
    let is_number = |part: &str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
    let sound = version.len() <= MOST_VERSION_BYTES && version.contains('.') && version.split('.').all(is_number);
    sound.then_some(version)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// D09: whatever the image's names are, and wherever its folders lead.
    #[test]
    fn d09_an_image_that_brings_a_driver_is_told() {
        let own = |path| Entry { name: "libnvidia-ml.so.1", path, flags: 0x0303, hwcap: 0 };
        let ours = [own("/usr/lib/libnvidia-ml.so.1"), Entry { name: "libcuda.so.1", ..own("/usr/lib/libcuda.so.1") }];
        let other = [own("/opt/driver/libnvidia-ml.so.1")];
        let outside = [own("/out/libnvidia-ml.so.1")];
        for (files, entries, expected) in [
            (&["usr/lib/libc.so.6"][..], &[][..], None),
            // A cache that lists what is not there.
            (&["opt/driver/libother.so.450.80"], &other, None),
            (&["opt/driver/libnvidia-ml.so.450.80.02"], &[], None),
            (&["opt/driver/libnvidia-ml.so.450.80.02"], &other, Some("450.80.02, in /opt/driver:")),
            (&["usr/lib/libcuda.so.1", "usr/lib/libcuda.so.450.80.02"], &[], Some("450.80.02, in /usr/lib:")),
            (&["usr/lib/libcuda.so.1"], &ours, Some("of no version, in /usr/lib:")),
            (
                &["usr/lib/libcuda.so.1", "usr/lib/libcuda.so.9.1", "opt/driver/libnvidia-ml.so.8.2.1"],
                &other,
                Some("8.2.1, 9.1, in /opt/driver:"),
            ),
            // Nothing that an image could write into a record.
            (&["usr/lib/libcuda.so.1", "usr/lib/libcuda.so.4\n.5"], &[], Some("of no version, in /usr/lib:")),
            (&["usr/lib/libcuda.so.1", "usr/lib/libcuda.so.4..5"], &[], Some("of no version, in /usr/lib:")),
            (&["usr/lib/libc.so.6"], &outside, None),
        ] {
            let image = tempfile::tempdir().unwrap();
            let outside = tempfile::tempdir().unwrap();
            std::fs::write(outside.path().join("libnvidia-ml.so.1.2.3"), "").unwrap();
            std::os::unix::fs::symlink(outside.path(), image.path().join("out")).unwrap();
            for file in files {
                let path = image.path().join(file);
                std::fs::create_dir_all(path.parent().unwrap()).unwrap();
                std::fs::write(path, "").unwrap();
            }
            let found = told(&InRoot::open(image.path()).unwrap(), "/usr/lib", entries, &ours);
            let message = found.map(|note| note.message);
            match expected {
                None => assert_eq!(message, None, "{files:?}"),
                Some(words) => assert!(message.as_ref().is_some_and(|m| m.contains(words)), "{files:?}: {message:?}"),
            }
        }
    }
}
