//! The CDI files of a host taken together: which device each name means. As in the Go library: a file in a later folder wins
//! over one in an earlier, two files of one folder with the same device lose it both, and one bad file takes nothing else
//! down.
//!
//! Files come as bytes; who read them, and whether anybody else than root could have written them, was judged before.

use std::collections::{BTreeMap, BTreeSet};

use super::name::qualified;
use super::problem::Problem;
use super::read::{Encoding, read};
use super::types::{Device, Spec};

/// The most bytes of one file.
pub const MAX_BYTES: usize = 1 << 20;
/// The most files of one folder.
pub const MAX_FILES: usize = 1024;

/// A file of a folder, or a folder that could not be read.
#[derive(Debug, Clone)]
pub struct Found {
    /// Its path.
    pub path: String,
    /// Its folder's place in the list of folders: the higher one wins.
    pub priority: usize,
    /// Its bytes, or why there are none.
    pub bytes: Result<Vec<u8>, String>,
}

/// A file that may be used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Loaded {
    /// Its path.
    pub path: String,
    /// Its folder's place.
    pub priority: usize,
    /// What it says.
    pub spec: Spec,
}

/// A device that two files of one folder have, so that nobody gets it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Conflict {
    /// Its qualified name.
    pub device: String,
    /// The files.
    pub paths: BTreeSet<String>,
}

/// A device that a later folder's file has, too.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Shadow {
    /// Its qualified name.
    pub device: String,
    /// The file that does not count.
    pub path: String,
    /// The file that counts.
    pub by: String,
}

/// All files of all folders.
#[derive(Debug, Clone, Default)]
pub struct Cache {
    /// The files that may be used.
    pub files: Vec<Loaded>,
    /// By path: what is wrong with the others.
    pub problems: BTreeMap<String, Vec<Problem>>,
    /// Devices that nobody gets.
    pub conflicts: Vec<Conflict>,
    /// Devices that stand behind others of the same name.
    pub shadows: Vec<Shadow>,
    /// By qualified name: the places of file and device.
    devices: BTreeMap<String, (usize, usize)>,
}

impl Cache {
    /// Takes files together. They stand by rising priority, and in each folder by name.
    #[must_use]
    pub fn of(found: impl IntoIterator<Item = Found>) -> Self {
        let mut cache = Self::default();
        for file in found {
            match loaded(&file) {
                Ok(spec) => cache.add(Loaded { path: file.path, priority: file.priority, spec }),
                Err(problems) => drop(cache.problems.insert(file.path, problems)),
            }
        }
        // Also where a later folder has the device: this is what engines do.
        for conflict in &cache.conflicts {
            cache.devices.remove(&conflict.device);
        }
        cache
    }

    fn add(&mut self, file: Loaded) {
        let place = self.files.len();
        for (index, device) in file.spec.devices.iter().enumerate() {
            let name = qualified(&file.spec.kind, &device.name);
            let known = self.devices.get(&name).and_then(|(other, _)| self.files.get(*other));
            match known {
                Some(other) if other.priority >= file.priority => {
                    let paths = [other.path.clone(), file.path.clone()];
                    match self.conflicts.iter_mut().find(|conflict| conflict.device == name) {
                        Some(conflict) => conflict.paths.extend(paths),
                        None => self.conflicts.push(Conflict { device: name, paths: paths.into() }),
                    }
                    continue;
                }
                Some(other) => {
                    let (path, by) = (other.path.clone(), file.path.clone());
                    self.shadows.push(Shadow { device: name.clone(), path, by });
                }
                None => {}
            }
            self.devices.insert(name, (place, index));
        }
        self.files.push(file);
    }

    /// The device that a qualified name means, and its file.
    #[must_use]
    pub fn device(&self, name: &str) -> Option<(&Loaded, &Device)> {
        let (file, device) = self.devices.get(name)?;
        let file = self.files.get(*file)?;
        Some((file, file.spec.devices.get(*device)?))
    }

    /// All devices that can be had, by name.
    pub fn devices(&self) -> impl Iterator<Item = (&str, &Loaded, &Device)> {
        self.devices.keys().filter_map(|name| self.device(name).map(|(file, device)| (name.as_str(), file, device)))
    }
}

fn loaded(file: &Found) -> Result<Spec, Vec<Problem>> {
    let bytes = file.bytes.as_ref().map_err(|why| vec![Problem::whole(why.as_str())])?;
    if bytes.len() > MAX_BYTES {
        return Err(vec![Problem::whole(format!("the file is larger than {MAX_BYTES} bytes"))]);
    }
    let named = || vec![Problem::whole("the file's name must end with .json or .yaml")];
    read(bytes, Encoding::of(&file.path).ok_or_else(named)?)
}
