//! A row of the table brought up: the node fixture, quilt-gpu on it, and the engine with its images.

use std::collections::BTreeSet;
use std::path::Path;

use integration::engine::{Ask, Cri, Ctr, Docker, Engine, Ground, Kit, Podman, Source};
use integration::{Error, PROBE_ALL, QuiltOptions, Result, Rootfs, Scratch, Seen, Site, must, runc_that_gets_along};

use crate::matrix::Row;

pub(crate) const PROBE: &str = env!("CARGO_BIN_EXE_quilt-probe");

/// GPUs of the node.
pub(crate) const GPUS: usize = 4;

/// A node of four GPUs with quilt-gpu, and one engine. Every behaviour begins with no container and no lease.
pub(crate) struct Yard {
    // First: its containers use the node.
    pub(crate) engine: Box<dyn Engine>,
    pub(crate) site: Site,
    /// Whether its containers have user namespaces unless they say otherwise.
    pub(crate) remapped: bool,
    /// Names of containers that a behaviour started and did not remove.
    started: BTreeSet<String>,
    /// Programs that stand before the low-level runtime.
    _tools: Scratch,
}

/// Why an engine is not here.
type Absent = String;

impl Yard {
    /// Brings a row up, with the images `deb` and `baked` (which says that it sees all GPUs).
    ///
    /// # Errors
    /// The engine is here and does not come up.
    pub(crate) fn new(row: &Row) -> Result<std::result::Result<Self, Absent>> {
        let kit = Kit::default();
        let low_level = match kit.low_level(&row.low_level) {
            Ok(path) => path,
            Err(absent) => return Ok(Err(absent)),
        };
        let tools = Scratch::new()?;
        // Where the machine lacks a capability or a controller that engines take for granted.
        let gets_along = row.low_level.starts_with("runc") || row.low_level == "engine";
        let plain = if gets_along { runc_that_gets_along(tools.path(), &low_level)? } else { low_level };
        let options = QuiltOptions { low_level: vec![plain.clone()], ..QuiltOptions::default() };
        let site = Site::with(|host| host.gpus(GPUS as u64), &options)?;
        let ground = Ground {
            quilt: site.quilt.runtime(),
            plain,
            groups: row.groups,
            shown: [site.quilt.programs(), vec![site.folder().to_owned(), tools.path().to_owned()]].concat(),
            remapped: row.remapped,
            hooks: if row.hooked { Some(site.quilt.hooks()?) } else { None },
        };
        let engine = match up(row, &kit, &ground)? {
            Ok(engine) => engine,
            Err(absent) => return Ok(Err(absent)),
        };
        let rootfs = Rootfs::debian_like(site.join("debian"), Path::new(PROBE))?;
        engine.import("deb:1", &rootfs, &[("FROM_IMAGE", "yes")], &[("quilt.gpu/count", "1")])?;
        engine.import("baked:1", &rootfs, &[("NVIDIA_VISIBLE_DEVICES", "all"), ("CUDA_VERSION", "12.2.0")], &[])?;
        Ok(Ok(Self { engine, site, remapped: row.remapped, started: BTreeSet::new(), _tools: tools }))
    }

    /// What the engine says of itself.
    pub(crate) fn versions(&self) -> String {
        self.engine.versions().unwrap_or_else(|why| why.to_string())
    }

    /// A container of the image `deb` that reports what it can open.
    pub(crate) fn probing(&self, name: &str) -> Ask {
        Ask::new(name, "deb:1", PROBE_ALL)
    }

    /// The same that stays.
    pub(crate) fn staying(&self, name: &str) -> Ask {
        Ask::new(name, "deb:1", ["quilt-probe", "sleep"])
    }

    /// Runs a container to its end: what it saw.
    pub(crate) fn see(&self, ask: &Ask) -> Result<Seen> {
        Seen::of(&self.engine.run(ask)?.checked()?.stdout)
    }

    /// Starts a container that stays: what is seen in it.
    pub(crate) fn held(&mut self, ask: &Ask) -> Result<Seen> {
        self.started.insert(ask.name.clone());
        self.engine.start(ask)?.checked()?;
        self.look(&ask.name)
    }

    /// A container that somebody else started stays.
    pub(crate) fn keep(&mut self, name: &str) {
        self.started.insert(name.to_owned());
    }

    /// What is seen in a running container.
    pub(crate) fn look(&self, name: &str) -> Result<Seen> {
        Seen::of(&self.engine.exec(name, &PROBE_ALL)?.checked()?.stdout)
    }

    /// Removes a container that stays.
    pub(crate) fn remove(&mut self, name: &str) -> Result<()> {
        self.engine.remove(name)?.checked()?;
        self.started.remove(name);
        Ok(())
    }

    /// This container must not come into being, and its user be told this code and these words.
    pub(crate) fn refused(&mut self, ask: &Ask, words: &[&str]) -> Result<()> {
        let ran = self.engine.run(ask)?;
        must(!ran.ok(), format_args!("it ran: {ran:?}"))?;
        for word in words {
            must(ran.stderr.contains(word), format_args!("no {word:?} in: {}", ran.stderr))?;
        }
        let leases = self.site.leases_on_disk()?;
        must(leases.is_empty(), format_args!("leases are left: {leases:?}"))
    }

    /// Whether containers are in pods here.
    pub(crate) fn has_pods(&self) -> bool {
        self.engine.sources().contains(&Source::PodAnnotation)
    }

    /// The way in which most users of this engine ask.
    pub(crate) fn usual(&self) -> Result<Source> {
        self.engine.sources().first().copied().ok_or_else(|| Error::new("an engine without a way to ask"))
    }

    /// A container asking in the usual way.
    pub(crate) fn asking(&self, ask: Ask, word: &str, value: &str) -> Result<Ask> {
        Ok(ask.asking(self.usual()?, word, value))
    }

    /// After a behaviour that was so: nothing of it is left.
    pub(crate) fn clean(&mut self) -> Result<()> {
        for name in std::mem::take(&mut self.started) {
            self.engine.remove(&name)?.checked()?;
        }
        self.site.wait_no_leases()
    }

    /// After one that was not: removes what is left, for the sake of the next.
    pub(crate) fn sweep(&mut self) {
        for name in std::mem::take(&mut self.started) {
            let _ = self.engine.remove(&name);
        }
        let _ = self.site.wait_no_leases();
    }
}

/// GPUs of a container, whether or not it may make nodes of its own.
pub(crate) fn gpus(seen: &Seen) -> Result<BTreeSet<u64>> {
    let made = seen.numbers().values().filter(|(made, _)| made == "ok").count();
    if made == 0 { seen.gpus_by_node() } else { seen.gpus() }
}

/// The same, which must be so many.
pub(crate) fn exactly(seen: &Seen, count: usize) -> Result<BTreeSet<u64>> {
    let gpus = gpus(seen)?;
    must(gpus.len() == count, format_args!("{count} GPUs expected, it has {gpus:?}"))?;
    Ok(gpus)
}

fn up(row: &Row, kit: &Kit, ground: &Ground) -> Result<std::result::Result<Box<dyn Engine>, Absent>> {
    let release = row.release.as_str();
    let programs = match row.engine.as_str() {
        "docker" => kit.docker(release).map(drop),
        "podman" => kit.podman(release).map(drop),
        _ => kit.containerd(release).map(drop),
    };
    if let Err(absent) = programs {
        return Ok(Err(absent));
    }
    Ok(Ok(match row.engine.as_str() {
        "docker" => Box::new(Docker::on(release, ground)?),
        "podman" => Box::new(Podman::on(release, ground)?),
        "ctr" => Box::new(Ctr::on(release, ground)?),
        "cri" => Box::new(Cri::on(release, ground)?),
        other => return Err(Error::new(format!("no engine {other}"))),
    }))
}
