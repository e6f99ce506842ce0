//! MIG instances and the minors of their capability nodes (`nv-caps.c` of open-gpu-kernel-modules): the folders tell which
//! instances there are, their `access` files and the table `mig-minors` which minors. Nothing here judges.

use std::fs::{self, File};
use std::os::unix::fs::MetadataExt;

use contract::config::Host;
use contract::inventory::{Instances, Marks};

use crate::error::{NodeError, found};
use crate::file;

/// Where the driver shows capabilities, below the root.
const CAPABILITIES: &str = "proc/driver/nvidia/capabilities";
/// Its table of all capabilities that there could be: 4322 lines in the drivers that were read.
const MINORS: &str = "proc/driver/nvidia-caps/mig-minors";
/// Most bytes of either file that are read.
const MOST: usize = 1 << 20;
/// Most instances of a node: 32 GPUs with 15 GPU instances of 8 compute instances each.
const MOST_INSTANCES: usize = 32 * 15 * 8;

/// The instances that there are, and their marks: of the GPUs with these device minors, or of all. One look at a folder where
/// the driver shows no GPU's capabilities.
///
/// # Errors
/// Something is there and cannot be read, or is more than any node has.
pub fn instances(host: &Host, of: Option<&[u32]>) -> Result<(Instances, Marks), NodeError> {
    let mut found = Vec::new();
    let folder = host.path(CAPABILITIES);
    match of {
        None => look(&folder, "", &["gpu", "gi", "ci"], &mut found)?,
        Some(minors) => {
            let first = |(at, minor): &(usize, &u32)| !minors.iter().take(*at).any(|before| before == *minor);
            for (_, minor) in minors.iter().enumerate().filter(first) {
                look(&format!("{folder}/gpu{minor}/mig"), &format!("gpu{minor}"), &["gi", "ci"], &mut found)?;
            }
        }
    }
    contract::order::sort(&mut found);
    let (names, marks) = found.into_iter().unzip();
    Ok((Instances(names), Marks(marks)))
}

/// Looks into a folder for entries that are the first of these words and a number, and into these for the next. What has
/// none below it is named, but a GPU.
fn look(folder: &str, name: &str, words: &[&str], names: &mut Vec<(String, String)>) -> Result<(), NodeError> {
    let Some((word, below)) = words.split_first() else {
        names.extend(mark(folder)?.map(|mark| (name.to_owned(), mark)));
        return Ok(());
    };
    if *word == "ci" && only_the_first(folder, name, names)? {
        return Ok(());
    }
    let before = names.len();
    let failed = |e| NodeError::new("list", folder, e);
    if let Some(entries) = found(fs::read_dir(folder).map_err(failed))? {
        for entry in entries {
            let entry = entry.map_err(failed)?.file_name();
            let entry = entry.to_str().unwrap_or_default();
            if entry.strip_prefix(word).and_then(number).is_none() {
                continue;
            }
            let (gap, mig) = if name.is_empty() { ("", "/mig") } else { ("/", "") };
            look(&format!("{folder}/{entry}{mig}"), &format!("{name}{gap}{entry}"), below, names)?;
        }
    }
    if names.len() > MOST_INSTANCES {
        return Err(NodeError::odd("list", folder, "more MIG instances than any node has"));
    }
    // A GPU instance without compute instances.
    if *word == "ci" && names.len() == before {
        names.extend(mark(folder)?.map(|mark| (name.to_owned(), mark)));
    }
    Ok(())
}

/// Names the first compute instance of a GPU instance that has no other, as most have: a folder has one link for each folder
/// in it, and two of its own. Where a file system does not count so, there is something to list.
fn only_the_first(folder: &str, name: &str, names: &mut Vec<(String, String)>) -> Result<bool, NodeError> {
    let of = |path: &str| found(fs::symlink_metadata(path).map_err(|e| NodeError::new("look at", path, e)));
    if of(folder)?.is_none_or(|it| !it.is_dir() || it.nlink() != 3) {
        return Ok(false);
    }
    let first = format!("{folder}/ci0");
    let there = of(&first)?.filter(fs::Metadata::is_dir);
    names.extend(there.iter().map(|it| (format!("{name}/ci0"), marked(it))));
    Ok(there.is_some())
}

/// What another instance of this name would not have.
fn mark(folder: &str) -> Result<Option<String>, NodeError> {
    let there = found(fs::metadata(folder).map_err(|e| NodeError::new("look at", folder, e)))?;
    Ok(there.as_ref().map(marked))
}

fn marked(it: &fs::Metadata) -> String {
    format!("{}.{}.{}", it.ino(), it.ctime(), it.ctime_nsec())
}

/// A number as the driver writes it.
fn number(text: &str) -> Option<u32> {
    let plain = text == "0" || !text.starts_with('0') && text.bytes().all(|b| b.is_ascii_digit());
    text.parse().ok().filter(|_| plain)
}

/// Minor of the capability node of an instance (`gpu0/gi1`, `gpu0/gi1/ci0`), as its own file and as the table tell it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Capability {
    /// The instance.
    pub name: String,
    /// By its `access` file.
    pub by_file: Option<u32>,
    /// By `mig-minors`.
    pub by_table: Option<u32>,
}

/// The capabilities of instances, and of the GPU instances that they lie in.
///
/// # Errors
/// Something is there and cannot be read.
pub fn capabilities(host: &Host, instances: &Instances) -> Result<Vec<Capability>, NodeError> {
    if instances.0.is_empty() {
        return Ok(Vec::new());
    }
    let table = bounded(&host.path(MINORS))?.unwrap_or_default();
    let table = minors(&table);
    let mut names: Vec<&str> = instances.0.iter().map(String::as_str).collect();
    names.extend(instances.0.iter().filter_map(|name| Some(name.rsplit_once("/ci")?.0)));
    names.sort_unstable();
    names.dedup();
    let mut capabilities = Vec::with_capacity(names.len());
    for name in names {
        let (gpu, rest) = name.split_once('/').unwrap_or((name, ""));
        let access = bounded(&host.path(&format!("{CAPABILITIES}/{gpu}/mig/{rest}/access")))?;
        capabilities.push(Capability {
            name: name.to_owned(),
            by_file: access.and_then(|bytes| file_minor(&bytes)),
            by_table: table.iter().find(|(known, _)| known == name).map(|(_, minor)| *minor),
        });
    }
    Ok(capabilities)
}

/// The capabilities that concern all instances, `config` and `monitor`, as far as the driver shows them.
///
/// # Errors
/// Something is there and cannot be read.
pub fn management(host: &Host) -> Result<Vec<Capability>, NodeError> {
    let mut capabilities = Vec::new();
    for name in ["config", "monitor"] {
        let Some(access) = bounded(&host.path(&format!("{CAPABILITIES}/mig/{name}")))? else { continue };
        let table = bounded(&host.path(MINORS))?.unwrap_or_default();
        let line = |line: &str| line.strip_prefix(name)?.strip_prefix(' ').and_then(number);
        let by_table = String::from_utf8_lossy(&table).lines().find_map(line);
        capabilities.push(Capability { name: name.to_owned(), by_file: file_minor(&access), by_table });
    }
    Ok(capabilities)
}

fn bounded(path: &str) -> Result<Option<Vec<u8>>, NodeError> {
    let failed = |e| NodeError::new("read", path, e);
    let Some(file) = found(File::open(path).map_err(failed))? else { return Ok(None) };
    match file::read_bounded(&file, 0, MOST).map_err(failed)? {
        Some(bytes) => Ok(Some(bytes)),
        None => Err(NodeError::odd("read", path, format!("it is larger than {MOST} bytes"))),
    }
}

/// The lines `gpu0/gi1/ci0/access 13` of the table; `config`, `monitor` and whatever else are left out.
fn minors(bytes: &[u8]) -> Vec<(String, u32)> {
    let line = |line: &str| {
        let (name, minor) = line.split_once("/access ")?;
        Some((name.to_owned(), number(minor)?))
    };
    String::from_utf8_lossy(bytes).lines().filter_map(line).collect()
}

/// The minor in an `access` file.
fn file_minor(bytes: &[u8]) -> Option<u32> {
    let text = String::from_utf8_lossy(bytes);
    let mut told = text.lines().filter_map(|line| line.strip_prefix("DeviceFileMinor:"));
    number(told.next()?.trim()).filter(|_| told.next().is_none())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn host(files: &[(&str, &str)]) -> (tempfile::TempDir, Host) {
        let root = tempfile::tempdir().unwrap();
        for (name, content) in files {
            let path = root.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, content).unwrap();
        }
        let host = Host { root: root.path().to_str().unwrap().into(), ..Host::default() };
        (root, host)
    }

    #[test]
    fn what_is_there_and_which_minors_it_has() {
        let caps = "proc/driver/nvidia/capabilities";
        let file = |name: &str| format!("{caps}/{name}/access");
        let names = ["gpu0/mig/gi11", "gpu0/mig/gi11/ci0", "gpu0/mig/gi11/ci1", "gpu10/mig/gi2"].map(file);
        let access = |minor: u32| format!("DeviceFileMinor: {minor}\nDeviceFileMode: 292\nDeviceFileModify: 1\n");
        let texts = [102, 103, 7, 21].map(access);
        let mut files: Vec<(&str, &str)> =
            names.iter().map(String::as_str).zip(texts.iter().map(String::as_str)).collect();
        // No instances: a GPU that is whole, other capabilities, and names that the driver does not write.
        let others = [
            "mig/config",
            "gpu1/mig/x",
            "fabric-mgmt",
            "gpu01/mig/gi1/access",
            "gpu2/mig/gi-1/access",
            "gpu3/mig/gi1x/access",
        ]
        .map(|name| format!("{caps}/{name}"));
        files.extend(others.iter().map(|name| (name.as_str(), "")));
        files.push((
            MINORS,
            "config 1\nmonitor 2\ngpu0/gi11/access 102\ngpu0/gi11/ci0/access 103\ngpu0/gi11/ci1/access 104\n",
        ));
        let (_root, host) = host(&files);
        let (there, _) = instances(&host, None).unwrap();
        assert_eq!(there.0, ["gpu0/gi11/ci0", "gpu0/gi11/ci1", "gpu10/gi2"]);
        let told: Vec<(String, Option<u32>, Option<u32>)> =
            capabilities(&host, &there).unwrap().into_iter().map(|c| (c.name, c.by_file, c.by_table)).collect();
        let expected = [
            ("gpu0/gi11", Some(102), Some(102)),
            ("gpu0/gi11/ci0", Some(103), Some(103)),
            ("gpu0/gi11/ci1", Some(7), Some(104)),
            ("gpu10/gi2", Some(21), None),
        ];
        assert_eq!(told, expected.map(|(name, file, table)| (name.to_owned(), file, table)));
    }

    #[test]
    fn a_node_without_the_driver_or_without_mig_has_none() {
        for files in [&[][..], &[("proc/driver/nvidia/capabilities/mig/config", "")][..]] {
            let (_root, host) = host(files);
            let (there, _) = instances(&host, None).unwrap();
            assert_eq!((there.0.len(), capabilities(&host, &there).unwrap().len()), (0, 0));
        }
        let (_root, host) = host(&[("proc/driver/nvidia/capabilities", "no folder")]);
        assert!(instances(&host, None).unwrap_err().to_string().starts_with("cannot list "));
    }

    /// D21: one that was destroyed and made again under its number is another.
    #[test]
    fn an_instance_made_anew_has_another_mark() {
        let at = "proc/driver/nvidia/capabilities/gpu0/mig";
        let file = |gi: u32| format!("{at}/gi{gi}/ci0/access");
        let files = [file(1), file(2)];
        let (root, host) = host(&[(&files[0], "DeviceFileMinor: 3"), (&files[1], "DeviceFileMinor: 21")]);
        let before = instances(&host, None).unwrap();
        assert_eq!(instances(&host, None).unwrap(), before, "what stays keeps its mark");
        let gone = root.path().join(at).join("gi2");
        // Made beside it first, as a file system may use an inode again at once; a driver's clock goes on.
        fs::create_dir_all(gone.with_file_name("new/ci0")).unwrap();
        fs::write(gone.with_file_name("new/ci0/access"), "DeviceFileMinor: 21").unwrap();
        fs::remove_dir_all(&gone).unwrap();
        fs::rename(gone.with_file_name("new"), &gone).unwrap();
        let after = instances(&host, None).unwrap();
        assert_eq!((&after.0, &after.1.0[0]), (&before.0, &before.1.0[0]));
        assert_ne!(after.1.0[1], before.1.0[1]);
    }

    #[test]
    fn what_is_too_large_is_not_read() {
        let (_root, host) = host(&[(MINORS, &"config 1\n".repeat(MOST / 9 + 1))]);
        let error = capabilities(&host, &Instances(vec!["gpu0/gi1".into()])).unwrap_err().to_string();
        assert!(error.ends_with("mig-minors: it is larger than 1048576 bytes"), "{error}");
    }

    #[test]
    fn lines_that_the_driver_does_not_write_tell_nothing() {
        for text in [
            "DeviceFileMinor:",
            "DeviceFileMinor: 07",
            "DeviceFileMinor: -1",
            "Minor: 7",
            "",
            "DeviceFileMinor: 7\nDeviceFileMinor: 8",
        ] {
            assert_eq!(file_minor(text.as_bytes()), None, "{text}");
        }
        for text in ["gpu0/gi1/access", "gpu0/gi1/access x", "gpu0/gi1/access  3", "gpu0/gi1 3", "gpu0/gi1/access +3"] {
            assert!(minors(text.as_bytes()).is_empty(), "{text}");
        }
    }

    proptest! {
        #[test]
        fn anything_is_read(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = (file_minor(&bytes), minors(&bytes));
        }

        #[test]
        fn what_the_driver_writes(minor in any::<u32>(), gi in 0_u32..15, ci in 0_u32..8) {
            prop_assert_eq!(file_minor(format!("DeviceFileMinor: {minor}\nDeviceFileMode: 292\n").as_bytes()), Some(minor));
            let table = format!("config 1\ngpu3/gi{gi}/ci{ci}/access {minor}\n");
            prop_assert_eq!(minors(table.as_bytes()), vec![(format!("gpu3/gi{gi}/ci{ci}"), minor)]);
        }
    }
}
