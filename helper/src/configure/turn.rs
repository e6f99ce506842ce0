//! Who changes a node, one at a time: what is planned from files and records is carried out on the same ones.

use std::fs::{self, File};
use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt;

use super::on_node::OnNode;
use crate::exit::Failure;

/// The folder of all records, whose lock it is.
const FOLDER: &str = "/var/lib/quilt-gpu";

/// This process's turn, until it is dropped. Then folders of records go where nothing is left in them.
pub(crate) struct Turn<'a> {
    node: &'a OnNode,
    _lock: File,
}

impl<'a> Turn<'a> {
    /// Waits for it.
    ///
    /// # Errors
    /// The folder cannot be made or locked, or others than root could write it.
    pub(crate) fn wait(node: &'a OnNode) -> Result<Self, Failure> {
        loop {
            let folder = node.make_folder(FOLDER)?;
            let cannot = |cause| Failure::Internal(format!("cannot lock {}: {cause}", folder.display()));
            let lock = match File::open(&folder) {
                Err(error) if error.kind() == ErrorKind::NotFound => continue,
                opened => opened.map_err(cannot)?,
            };
            lock.lock().map_err(cannot)?;
            let about = lock.metadata().map_err(cannot)?;
            // Who had the turn may have removed the folder at its end: the lock of that one keeps nobody out any more.
            if fs::metadata(&folder).is_ok_and(|now| (now.dev(), now.ino()) == (about.dev(), about.ino())) {
                return Ok(Self { node, _lock: lock });
            }
        }
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.node.remove_empty(&[FOLDER.to_owned(), format!("{FOLDER}/configured")]);
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use std::path::Path;
    use std::thread;

    use super::*;

    /// What a call comes to that has to wait for its turn, if something changes meanwhile.
    pub(crate) fn while_it_waits<T: Send>(root: &Path, call: impl FnOnce() -> T + Send, change: impl FnOnce()) -> T {
        let lock = File::open(root.join(&FOLDER[1..])).unwrap();
        lock.lock().unwrap();
        let file = format!(":{} ", lock.metadata().unwrap().ino());
        let waits = || {
            let locks = fs::read_to_string("/proc/locks").unwrap();
            locks.lines().any(|line| line.contains("-> FLOCK") && line.contains(&file))
        };
        thread::scope(|scope| {
            let called = scope.spawn(call);
            while !waits() {
                assert!(!called.is_finished(), "it did not wait");
                thread::yield_now();
            }
            change();
            drop(lock);
            called.join().unwrap()
        })
    }

    #[test]
    fn a_folder_that_goes_takes_its_lock_with_it() {
        let root = tempfile::tempdir().unwrap();
        let node = OnNode::below(root.path().to_str().unwrap());
        let folder = node.make_folder(FOLDER).unwrap();
        let turn = while_it_waits(
            root.path(),
            || Turn::wait(&node).unwrap(),
            || {
                fs::remove_dir(&folder).unwrap();
                node.make_folder(FOLDER).unwrap();
            },
        );
        assert!(File::open(&folder).unwrap().try_lock().is_err(), "it is locked as it is now");
        drop(turn);
        assert!(!folder.exists(), "nothing is left of a turn in which nothing was kept");
    }
}
