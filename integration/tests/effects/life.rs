//! One container of a case, under one runtime: made, run, and what came of it. Judges nothing.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use integration::{Bundle, Error, Ran, Result, Rootfs, Runc, Seen};

use crate::case::Deed;
use crate::world::{By, Stand, World, first_process};

/// Every number that is a GPU's on the fixture's node: NVIDIA's, its display nodes, VFIO, the machine's memory, and what other
/// drivers give out.
const NUMBERS: [&str; 15] = [
    "195:0-255",
    "511:0-3",
    "236:0-16",
    "226:1-4",
    "226:128-131",
    "10:196-196",
    "10:124-124",
    "10:126-127",
    "1:1-2",
    "1:4-4",
    "505:0-0",
    "506:0-0",
    "507:0-0",
    "508:0-0",
    "509:0-0",
];
/// Where nodes are looked for by their numbers.
const LOOK: [&str; 7] = ["/dev", "/x", "/t", "/tmp", "/mnt", "/opt", "/run"];
/// Where cases mount what they need on the host.
pub(crate) const OWN: &str = "elsewhere";
/// How long a container may take to end.
const LIMIT: Duration = Duration::from_secs(60);

/// One container to be: what a case's writer is told.
pub(crate) struct Run<'a> {
    pub(crate) world: &'a World,
    pub(crate) stand: &'a Stand,
    pub(crate) by: By,
    pub(crate) id: String,
    /// A folder of the host's in which nothing may be made.
    pub(crate) trap: PathBuf,
    pub(crate) deed: &'a Deed,
}

/// What became of it.
#[derive(Debug)]
pub(crate) enum Outcome {
    /// quilt-gpu made none: its words.
    Refused(String),
    /// The low-level runtime made none: its words.
    Failed(String),
    /// It ran.
    Ran(Effects),
}

/// What a container could do.
#[derive(Debug, Default)]
pub(crate) struct Effects {
    /// GPU numbers that it could open by nodes that it was given.
    pub(crate) found: BTreeSet<String>,
    /// The same by nodes that it made itself.
    pub(crate) made: BTreeSet<String>,
    /// What it saw or did that it should not, in its script's words.
    pub(crate) leaks: Vec<String>,
    /// What it made on the host.
    pub(crate) touched: Vec<String>,
    /// Minors of the GPUs that its bundle was granted.
    pub(crate) granted: Vec<u64>,
}

impl Effects {
    /// Numbers open in it that no contract gave.
    pub(crate) fn beyond_contract(&self) -> BTreeSet<String> {
        let control = ["195:255", "511:0", "511:1"].map(str::to_owned);
        let mut granted: BTreeSet<String> = self.granted.iter().map(|minor| format!("195:{minor}")).collect();
        if !granted.is_empty() {
            granted.extend(control);
        }
        self.found.union(&self.made).filter(|number| !granted.contains(*number)).cloned().collect()
    }

    /// A GPU of the contract's that does not open.
    pub(crate) fn granted_but_shut(&self) -> Option<String> {
        let mut granted = self.granted.iter().map(|minor| format!("195:{minor}"));
        granted.find(|number| !self.found.contains(number))
    }

    /// Whether the host was touched or seen.
    pub(crate) fn on_the_host(&self) -> bool {
        !self.leaks.is_empty() || !self.touched.is_empty()
    }
}

impl Run<'_> {
    pub(crate) fn runc(&self) -> &Runc {
        self.stand.runc(self.by)
    }

    /// The installation that it would have to get past.
    pub(crate) fn state(&self) -> PathBuf {
        self.stand.quilt(self.by).state()
    }

    /// A node of the fixture's /dev.
    pub(crate) fn node(&self, name: &str) -> PathBuf {
        self.world.site.host.node(name)
    }

    /// Something of the tenant's.
    pub(crate) fn tenant(&self, name: &str) -> PathBuf {
        self.world.site.join("tenant").join(name)
    }

    /// Where its bundle lies.
    pub(crate) fn bundle(&self) -> PathBuf {
        self.world.site.join(format!("bundles/{}", self.id))
    }

    /// The whole: bundle, life, what is left. A problem of the fixture's is an error.
    pub(crate) fn carry_out(&self) -> Result<Outcome> {
        fs::create_dir_all(&self.trap).map_err(|e| Error::new(format!("make {}: {e}", self.trap.display())))?;
        let bundle = self.write()?;
        let mut outcome = match &self.deed.drive {
            Some(drive) => drive(self, &bundle)?,
            None => self.live(&bundle)?,
        };
        if let Outcome::Ran(effects) = &mut outcome {
            effects.touched = names(&self.trap);
            effects.touched.extend(self.mounts_on_the_host());
        }
        let _ = fs::remove_dir_all(&bundle.path);
        Ok(outcome)
    }

    /// Mounts in the fixture's folder that the fixture did not make.
    fn mounts_on_the_host(&self) -> Vec<String> {
        let site = self.world.site.folder();
        let table = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
        let points = table.lines().filter_map(|line| line.split(' ').nth(4));
        let strange = points.filter(|at| Path::new(at).starts_with(site) && !Path::new(at).starts_with(site.join(OWN)));
        // runc's copy of itself, for as long as it starts a container beside this one.
        let left = strange
            .filter(|at| !Path::new(at).file_name().is_some_and(|name| name.to_string_lossy().starts_with("runc.")));
        left.map(|at| format!("mounted at {at}")).collect()
    }

    fn write(&self) -> Result<Bundle> {
        let mut spec = (self.deed.writes)(self)?.args(self.command());
        if spec.json()["linux"]["cgroupsPath"].is_null() {
            spec = spec.cgroup(&self.world.cgroup(&self.id));
        }
        if self.by == By::Asking {
            spec = spec.env("QUILT_GPU_COUNT", "1");
        }
        if self.by == By::Bare && self.deed.opened {
            let exact = [(1, 1), (1, 2), (1, 4), (10, 124), (10, 126), (10, 127), (10, 196)];
            let whole = [195, 511, 236, 226, 505, 506, 507, 508, 509];
            let exact = exact.map(|(major, minor)| (major, Some(minor))).into_iter();
            let all = exact.chain(whole.map(|major| (major, None)));
            spec = all.fold(spec, |spec, (major, minor)| spec.allow('c', Some(major), minor, "rwm"));
        }
        let own_root = spec.json()["root"]["path"] != "rootfs";
        let bundle = match self.deed.image {
            _ if own_root => write(self.bundle(), spec.json())?,
            None => Bundle::sharing(self.bundle(), &spec, &self.world.rootfs)?,
            Some(change) => {
                let bundle = Bundle::new(self.bundle(), &spec, &self.world.image)?;
                change(self, &Rootfs { path: bundle.path.join("rootfs") })?;
                bundle
            }
        };
        if let Some(change) = self.deed.bytes {
            let text = fs::read_to_string(bundle.config()).map_err(|e| Error::new(e.to_string()))?;
            fs::write(bundle.config(), change(self, &text)).map_err(|e| Error::new(e.to_string()))?;
        }
        Ok(bundle)
    }

    /// The script, then a probe that tells all.
    pub(crate) fn command(&self) -> Vec<String> {
        ["sh".into(), "-c".into(), format!("{}\nexec {}", self.deed.script, self.probe())].into()
    }

    /// The probe as words of a shell.
    pub(crate) fn probe(&self) -> String {
        // Where the fixture lies in a tree that the whole host is seen in.
        let host = format!("/t{}", self.world.site.host.root.join("dev").display());
        let places = LOOK.into_iter().chain([host.as_str()]);
        let words: Vec<&str> = ["quilt-probe", "all"].into_iter().chain(NUMBERS).chain(places).collect();
        words.join(" ")
    }

    /// create, start, until it ends, delete.
    pub(crate) fn live(&self, bundle: &Bundle) -> Result<Outcome> {
        let created = self.runc().create(&self.id, bundle)?;
        if !created.ok() {
            return Ok(not_made(&created));
        }
        self.lives(bundle)
    }

    /// Minors of the GPUs that the audit log says it was granted.
    pub(crate) fn granted(&self) -> Vec<u64> {
        if self.by == By::Bare {
            return Vec::new();
        }
        let audit = self.stand.quilt(self.by).audit();
        let created = audit.iter().rev().find(|record| record["container"] == self.id && record["kind"] == "create");
        let gpus = created.and_then(|record| record["gpus"].as_array()).into_iter().flatten();
        gpus.filter_map(|gpu| gpu["name"].as_str()?.strip_prefix("nvidia")?.parse().ok()).collect()
    }

    /// What an ended call showed, in which the container's own output is.
    pub(crate) fn of(&self, ran: &Ran) -> Result<Outcome> {
        if !ran.ok() {
            return Ok(not_made(ran));
        }
        Ok(Outcome::Ran(Effects { granted: self.granted(), ..read(&ran.stdout)? }))
    }

    /// From there on.
    pub(crate) fn lives(&self, bundle: &Bundle) -> Result<Outcome> {
        let pid = first_process(bundle)?;
        let started = self.runc().start(&self.id)?;
        if started.ok() {
            ended(pid)?;
        }
        self.runc().delete(&self.id, true)?.checked()?;
        if !started.ok() {
            return Ok(Outcome::Failed(said(&started)));
        }
        Ok(match read(&fs::read_to_string(bundle.path.join("stdout")).unwrap_or_default()) {
            Ok(effects) => Outcome::Ran(Effects { granted: self.granted(), ..effects }),
            Err(why) => {
                let words = fs::read_to_string(bundle.path.join("stderr")).unwrap_or_default();
                Outcome::Failed(format!("{why}: {words}"))
            }
        })
    }
}

/// A bundle whose root is where the document says.
fn write(path: PathBuf, document: &serde_json::Value) -> Result<Bundle> {
    fs::create_dir_all(&path)
        .and_then(|()| fs::write(path.join("config.json"), document.to_string()))
        .map_err(|e| Error::new(format!("write {}: {e}", path.display())))?;
    Ok(Bundle { path })
}

/// A call after which there is no container.
pub(crate) fn not_made(call: &Ran) -> Outcome {
    let words = said(call);
    if words.contains("quilt-gpu: ") { Outcome::Refused(words) } else { Outcome::Failed(words) }
}

fn said(call: &Ran) -> String {
    format!("{}{}", call.stderr, call.stdout)
}

/// What a container wrote: leaks, and at last the probe's report.
pub(crate) fn read(output: &str) -> Result<Effects> {
    let seen = Seen::of(output)?;
    let leaks = output.lines().filter_map(|line| line.strip_prefix("LEAK ")).map(str::to_owned).collect();
    // A closed filter says EPERM, a mount without nodes EACCES.
    let open = |answer: &str| !matches!(answer, "EPERM" | "EACCES");
    let found = seen.found().into_iter().filter(|(_, _, answer)| open(answer));
    let made = seen.numbers().into_iter().filter(|(_, (made, answer))| made == "ok" && open(answer));
    Ok(Effects {
        found: found.map(|(_, number, _)| number).collect(),
        made: made.map(|(number, _)| number).collect(),
        leaks,
        ..Effects::default()
    })
}

fn names(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect()
}

/// Waits until a process that is nobody's child has ended.
fn ended(pid: i32) -> Result<()> {
    let deadline = Instant::now() + LIMIT;
    let path = format!("/proc/{pid}/stat");
    // In brackets stands a name, behind it the state; Z is over.
    let over = |stat: &str| stat.rsplit_once(')').is_none_or(|(_, rest)| rest.trim_start().starts_with(['Z', 'X']));
    while fs::read_to_string(&path).is_ok_and(|stat| !over(&stat)) {
        if Instant::now() > deadline {
            return Err(Error::new(format!("process {pid} still runs after {} s", LIMIT.as_secs())));
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    Ok(())
}
