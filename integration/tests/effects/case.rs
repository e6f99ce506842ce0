//! A case as data: what a tenant writes, what the bare low-level runtime makes of it, and what each profile decides.
//!
//! How it is run stands in `life`, whether it went as it should in `verdict`.

use std::path::Path;

use integration::{Bundle, Result, Rootfs, Spec};
use serde_json::{Value, json};

use crate::life::{Outcome, Run};
use crate::world::Place;

/// What must become of a case under quilt-gpu.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// It runs, and nothing that the bare runtime shows is there.
    Runs,
    /// The same, with a note of this rule in the audit log.
    Noted(&'static str),
    /// It runs as under the bare runtime, but for GPUs: by itself no road to one. With a note of this rule, if any.
    Passes(&'static str),
    /// There is no container: code and rule.
    Refused(&'static str, &'static str),
    /// There is no container: the low-level runtime itself wants none.
    Fails,
    /// It runs and could undo what keeps it from GPUs, which the note of this rule says: not a boundary.
    Unbounded(&'static str),
    /// Whatever: if it runs, nothing is there.
    Either,
}

/// What the bare low-level runtime must make of it, or the case shows nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Bare {
    /// A GPU opens, the host is touched, or something of its is read.
    Exposes,
    /// Nothing of that.
    Closed,
    /// No container.
    Fails,
    /// It is not asked; why.
    Unasked(&'static str),
}

/// Writes what a tenant writes.
type Writes = Box<dyn Fn(&Run<'_>) -> Result<Spec> + Send + Sync>;
/// Leads a bundle through a container's life.
type Drive = Box<dyn Fn(&Run<'_>, &Bundle) -> Result<Outcome> + Send + Sync>;

/// One way in which a tenant tries to reach a GPU, or what only looks like one.
pub(crate) struct Case {
    /// The ids of security.md that it shows.
    pub(crate) ids: Vec<&'static str>,
    /// In words.
    pub(crate) what: &'static str,
    pub(crate) act: Act,
}

/// What is done.
pub(crate) enum Act {
    /// Containers.
    Deed(Box<Deed>),
    /// None, as the words say; the test function that shows it in another way, if there is one.
    NoEffect(Option<&'static str>),
}

/// What is done in containers.
pub(crate) struct Deed {
    pub(crate) writes: Writes,
    /// The other half of the road, which this case is not about: the bare runtime's device filter is open.
    pub(crate) opened: bool,
    /// Run in the container before the probe; a line that begins with LEAK says what should not be there.
    pub(crate) script: &'static str,
    /// What is done to an image of the case's own.
    pub(crate) image: Option<fn(&Run<'_>, &Rootfs) -> Result<()>>,
    /// What is done to the document's bytes.
    pub(crate) bytes: Option<fn(&Run<'_>, &str) -> Vec<u8>>,
    /// Another life than create, start, delete.
    pub(crate) drive: Option<Drive>,
    pub(crate) places: Vec<(Place, Bare)>,
    pub(crate) standard: Verdict,
    pub(crate) asking: Option<Verdict>,
    pub(crate) hardened: Verdict,
}

/// A case of these ids; by itself it runs everywhere, on runc alone.
pub(crate) fn case(
    ids: &'static str,
    what: &'static str,
    writes: impl Fn(&Run<'_>) -> Spec + Send + Sync + 'static,
) -> Case {
    fallible(ids, what, move |run| Ok(writes(run)))
}

/// The same where writing needs something that may not be there.
pub(crate) fn fallible(
    ids: &'static str,
    what: &'static str,
    writes: impl Fn(&Run<'_>) -> Result<Spec> + Send + Sync + 'static,
) -> Case {
    let deed = Deed {
        writes: Box::new(writes),
        opened: false,
        script: "",
        image: None,
        bytes: None,
        drive: None,
        places: vec![(Place::Runc, Bare::Closed)],
        standard: Verdict::Runs,
        asking: None,
        hardened: Verdict::Runs,
    };
    Case { ids: ids.split(' ').collect(), what, act: Act::Deed(Box::new(deed)) }
}

/// A row without an effect in a container.
pub(crate) fn without(ids: &'static str, why: &'static str, test: impl Into<Option<&'static str>>) -> Case {
    Case { ids: ids.split(' ').collect(), what: why, act: Act::NoEffect(test.into()) }
}

impl Case {
    fn change(mut self, change: impl FnOnce(&mut Deed)) -> Self {
        if let Act::Deed(deed) = &mut self.act {
            change(deed);
        }
        self
    }

    /// What runc alone makes of it.
    pub(crate) fn bare(self, bare: Bare) -> Self {
        self.change(|deed| deed.places = vec![(Place::Runc, bare)])
    }

    /// Under runc alone a GPU opens, or the host is touched or read.
    pub(crate) fn exposes(self) -> Self {
        self.bare(Bare::Exposes)
    }

    /// The same once the device filter is open: for what brings a node, not the right to open it.
    pub(crate) fn brings_a_node(self) -> Self {
        self.exposes().change(|deed| deed.opened = true)
    }

    /// Another low-level runtime as well.
    pub(crate) fn on(self, place: Place, bare: Bare) -> Self {
        self.change(|deed| {
            deed.places.retain(|(at, _)| *at != place);
            deed.places.push((place, bare));
        })
    }

    /// These low-level runtimes and no other.
    pub(crate) fn only_on(self, places: &[(Place, Bare)]) -> Self {
        self.change(|deed| deed.places = places.to_vec())
    }

    pub(crate) fn script(self, script: &'static str) -> Self {
        self.change(|deed| deed.script = script)
    }

    pub(crate) fn image(self, change: fn(&Run<'_>, &Rootfs) -> Result<()>) -> Self {
        self.change(|deed| deed.image = Some(change))
    }

    pub(crate) fn bytes(self, change: fn(&Run<'_>, &str) -> Vec<u8>) -> Self {
        self.change(|deed| deed.bytes = Some(change))
    }

    pub(crate) fn drive(self, drive: impl Fn(&Run<'_>, &Bundle) -> Result<Outcome> + Send + Sync + 'static) -> Self {
        self.change(|deed| deed.drive = Some(Box::new(drive)))
    }

    /// In both profiles, whether it asks for a GPU or not.
    pub(crate) fn always(self, verdict: Verdict) -> Self {
        self.change(|deed| {
            deed.standard = verdict;
            deed.asking = None;
            deed.hardened = verdict;
        })
    }

    pub(crate) fn refused(self, code: &'static str, rule: &'static str) -> Self {
        self.always(Verdict::Refused(code, rule))
    }

    pub(crate) fn standard(self, verdict: Verdict) -> Self {
        self.change(|deed| deed.standard = verdict)
    }

    pub(crate) fn hardened(self, verdict: Verdict) -> Self {
        self.change(|deed| deed.hardened = verdict)
    }

    /// Where asking for a GPU makes a difference.
    pub(crate) fn asking(self, verdict: Verdict) -> Self {
        self.change(|deed| deed.asking = Some(verdict))
    }
}

/// A recursive bind of a file.
pub(crate) fn bind(source: impl AsRef<Path>) -> Spec {
    Spec::new().bind(source.as_ref(), "/x", &[])
}

/// A recursive bind of a folder.
pub(crate) fn tree(source: impl AsRef<Path>, options: &[&str]) -> Spec {
    Spec::new().bind(source.as_ref(), "/t", options)
}

/// A mount entry on a folder.
pub(crate) fn mount(kind: &str, source: &str, options: &[&str]) -> Spec {
    Spec::new().mount(json!({"destination": "/t", "type": kind, "source": source, "options": options}))
}

/// A change somewhere in the document.
pub(crate) fn at(pointer: &'static str, value: Value) -> Spec {
    put(Spec::new(), pointer, value)
}

/// The same in a document.
pub(crate) fn put(spec: Spec, pointer: &'static str, value: Value) -> Spec {
    spec.edit(|document| {
        if let Some((parent, key)) = pointer.rsplit_once('/')
            && let Some(parent) = document.pointer_mut(parent)
        {
            match (parent, key.parse::<usize>()) {
                (Value::Array(list), Ok(index)) if index < list.len() => list[index] = value,
                (Value::Array(list), _) => list.push(value),
                (parent, _) => parent[key] = value,
            }
        }
    })
}
